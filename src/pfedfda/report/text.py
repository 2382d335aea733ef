"""Numbers and names as the report writes them."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Unit:
    """A unit that fits the size of some numbers.

    Parameters
    ----------
    name
        How it is written.
    size
        How many of the smallest unit it holds.
    """

    name: str
    size: float


def time_unit(largest: float) -> Unit:
    """Return seconds, minutes or hours."""
    if largest <= 600:
        return Unit("s", 1)
    return Unit("min", 60) if largest <= 4 * 3600 else Unit("h", 3600)


def bytes_unit(largest: float) -> Unit:
    """Return kB, MB or GB."""
    if largest < 1e6:
        return Unit("kB", 1e3)
    return Unit("MB", 1e6) if largest < 1e10 else Unit("GB", 1e9)


def number(value: float | None, digits: int = 3) -> str:
    """Return a number with a true minus sign, but no minus zero; a dash for none."""
    if value is None:
        return "–"
    return f"{round(value, digits) + 0.0:,.{digits}f}".replace("-", "\u2212")


def signed(value: float | None, digits: int = 3) -> str:
    """Return a number with its sign, which zero has not."""
    positive = value is not None and round(value, digits) > 0
    return "+" * positive + number(value, digits)


def counted(count: float, thing: str) -> str:
    """Return ``1 client``, ``2 clients``."""
    return f"{count:.0f} {thing}{'' if count == 1 else 's'}"


def shorten(text: str, most: int = 20) -> str:
    """Return text of a limited length."""
    return text if len(text) <= most else text[: most - 1] + "…"


def spaced(count: int, most: int) -> list[int]:
    """Return at most `most` evenly spaced numbers below `count`, with the first and the last."""
    if count <= most:
        return list(range(count))
    return sorted({round(number * (count - 1) / (most - 1)) for number in range(most)})
