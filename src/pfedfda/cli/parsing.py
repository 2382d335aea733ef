"""From words on the command line to a call of a command, with complaints in one sentence."""

import dataclasses
import importlib
import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Protocol, TypeVar, get_type_hints

import tyro
from tyro import _errors as tyro_errors
from tyro.extras import SubcommandApp

from pfedfda.cli import COMMANDS
from pfedfda.errors import InputError, nearest, quote, unknown

Flag = Annotated[bool, tyro.conf.FlagCreatePairsOff]


class Command(Protocol):
    """A command: a dataclass whose fields are the options and whose docstring is the help."""

    def execute(self) -> int:
        """Do it, and return the exit code."""


Commands = type[Command] | Mapping[str, type[Command]]
K = TypeVar("K")
COMPLETION = {"--tyro-print-completion": "SHELL", "--tyro-write-completion": "SHELL FILE"}
SHELLS = ("bash", "zsh", "fish")
NUMBERS = {"INT": "a whole number", "FLOAT": "a number"}  # by tyro's names for types


def call(words: Sequence[str]) -> int:
    """Run the command that the words name, and return its exit code."""
    if words[0] in COMPLETION:
        expected = COMPLETION[words[0]]
        if len(words) != 1 + len(expected.split()):
            raise InputError(f"Expected 'pfedfda {words[0]} {expected}'.")
        if words[1] not in SHELLS:
            raise unknown("shell", words[1], SHELLS)
        commands = {name: _load(name, None) for name in COMMANDS}
    elif words[0] in COMMANDS:
        commands = {words[0]: _load(words[0], words[1:])}
    else:
        raise unknown("command", words[0], COMMANDS)
    name, command = words[0], commands.get(words[0])
    if isinstance(command, Mapping):
        words = words if len(words) > 1 else [name, "--help"]
        if words[1] not in (*command, "-h", "--help"):
            known = [f"{name} {part}" for part in command]
            raise unknown("command", f"{name} {words[1]}", known)
        name, command = f"{name} {words[1]}", command.get(words[1])
    try:
        with tyro_errors.on_parse_error(_Complaint(name, command)):
            chosen: Command = _app(commands).cli(prog="pfedfda", args=words)
    except SystemExit as stop:  # tyro has printed what was asked for
        return int(stop.code or 0)
    return chosen.execute()


def _app(commands: Mapping[str, Commands]) -> SubcommandApp:
    app = SubcommandApp()
    for name, command in commands.items():
        if isinstance(command, Mapping):
            app.command(_app(command), name=name, help=COMMANDS[name])
        else:
            app.command(name=name)(command)
    return app


def read_known(kind: type[K], words: Sequence[str]) -> K:
    """Read the options that a dataclass has, and pass over all others."""
    with tyro_errors.on_parse_error(_Complaint("", kind)):
        return tyro.cli(kind, args=words, return_unknown_args=True, add_help=False)[0]


def _load(name: str, words: Sequence[str] | None) -> Commands:
    """Import a command; without words, with every option that it can have."""
    module = importlib.import_module(f"pfedfda.cli.{name.replace('-', '_')}")
    make = getattr(module, "command_for", None)
    command: Commands = make(words) if make else module.command
    return command


@dataclasses.dataclass(frozen=True)
class _Complaint:
    """Raises what tyro would print in a frame as an error of one sentence.

    tyro calls it just before it would print and exit, and prints after all where it returns, as it
    does for kinds of events that are not known here.
    """

    name: str
    command: type[Any] | None

    def __call__(self, event: tyro_errors.ParseErrorEvent, /) -> None:
        if isinstance(event, tyro_errors.UnrecognizedArgs):
            raise self._unrecognized(event.tokens[0])
        if isinstance(event, tyro_errors.MissingArgs):
            names = [_name(missing.arg) for missing in event.missing_arguments]
            verb = "is" if len(names) == 1 else "are"
            raise InputError(f"{' and '.join(names)} {verb} missing; {self._help()}")
        if isinstance(event, tyro_errors.BadValue):
            raise InputError(f"{_name(event.argument)} needs a value.")
        if isinstance(event, tyro_errors.InvalidChoice):
            raise InputError(
                f"{_name(event.argument)}: {quote(event.value)} is not among "
                f"{', '.join(event.choices)}.{nearest(event.value, event.choices)}"
            )
        if isinstance(event, tyro_errors.InstantiationFailure):
            raise InputError(_wrong_value(event))

    def _unrecognized(self, token: str) -> InputError:
        option = token.partition("=")[0]
        if not option.startswith("-"):
            return InputError(f"Unexpected argument {quote(token)}; {self._help()}")
        needed = {"run": "--method {}", "compare": "{} in --methods", "tune": "the method {}"}
        if self.name in needed and (method := _method_of(option)):
            return InputError(f"{option} needs {needed[self.name].format(method)}.")
        hint = nearest(option, _options(self.command) if self.command else ())
        return InputError(f"Unknown option {quote(option)}; {self._help()}{hint}")

    def _help(self) -> str:
        return f"'pfedfda {self.name} --help' lists what there is."


def _name(argument: Any) -> str:
    """Return how an argument is called on the command line."""
    if argument.is_positional():
        return str(argument.lowered.metavar)
    return str(argument.lowered.name_or_flags[0])


def _wrong_value(event: tyro_errors.InstantiationFailure) -> str:
    """Return what is wrong with a value, with the number that was expected in plain words."""
    if event.argument is None:
        return event.message
    metavar = str(event.argument.lowered.metavar)
    kind = next((text for name, text in NUMBERS.items() if name in metavar), None)
    value = re.search(r"'.*?'", event.message)
    reason = f"{value[0]} is not {kind}." if value and kind else event.message
    return f"{_name(event.argument)}: {reason}"


def _method_of(option: str) -> str | None:
    """Return the method whose hyper-parameter an option is, if it is one."""
    name, _, field = option.removeprefix("--").partition(".")
    if not field:
        return None
    from pfedfda.methods import all_methods

    method = all_methods().get(name)
    fields = {f.name for f in dataclasses.fields(method)} if method else set()
    return name if field.replace("-", "_") in fields else None


def _options(target: Any, prefix: str = "--") -> Iterator[str]:
    """Yield the options of a command, or of a dataclass in it."""
    hints = get_type_hints(target)
    for name in inspect.signature(target).parameters:
        kind = hints[name]
        if not dataclasses.is_dataclass(kind):
            yield prefix + name.replace("_", "-")
        elif isinstance(method := getattr(kind, "name", None), str):
            yield from _options(kind, f"{prefix}{method}.")
        else:  # a group of settings, which has no prefix
            yield from _options(kind, prefix)
