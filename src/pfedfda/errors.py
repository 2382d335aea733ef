"""What can go wrong in a way that the user should read about."""

import difflib
import unicodedata
from collections.abc import Iterable

LONGEST_SHOWN = 200


class PfedfdaError(Exception):
    """The base of every error that this package raises on purpose; its text is one sentence."""


class InputError(PfedfdaError, ValueError):
    """A value that the user gave cannot be used; the text names it and says what is allowed."""


class RunStoppedError(PfedfdaError):
    """A run ended before its last round; what it had is on disk."""


class InterruptedRunError(RunStoppedError):
    """The user stopped the run."""


class DivergedRunError(RunStoppedError):
    """Training diverged; resuming the run would only repeat it."""


def quote(value: object) -> str:
    """Return a value for an error message, shortened if it is long."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # Python does not print numbers of thousands of digits
        return "something too long to print"
    return text if len(text) <= LONGEST_SHOWN else f"{text[: LONGEST_SHOWN - 3]}..."


def printable(text: object) -> str:
    """Return text for a terminal: control characters, which could steer it, become U+FFFD.

    File names, titles and messages may come from anybody, so whatever is printed goes through here.
    """
    return "".join(
        letter if letter.isprintable() or unicodedata.category(letter) == "Zs" else "\ufffd"
        for letter in str(text)
    )


def nearest(value: str, known: Iterable[str]) -> str:
    """Return the known name that is most like a value, as a question to end a message with.

    A name that differs in upper and lower case only comes first. Without any name that is like it,
    the text is empty.
    """
    names = {name.lower(): name for name in known}
    near = difflib.get_close_matches(value[:LONGEST_SHOWN].lower(), names, n=1)
    return f" Did you mean {names[near[0]]!r}?" if near else ""


def unknown(kind: str, value: str, known: Iterable[str]) -> InputError:
    """Return the error for a name that is not among the known ones, with the nearest as a hint.

    Parameters
    ----------
    kind
        What the name is for, e.g. ``"method"``.
    value
        The name as the user wrote it.
    known
        The names that would have been accepted.
    """
    names = list(known)
    hint = nearest(value, names)
    return InputError(f"Unknown {kind} {quote(value)}: choose from {', '.join(names)}.{hint}")
