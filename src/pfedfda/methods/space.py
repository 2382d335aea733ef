"""Which values a search tries for a hyper-parameter: declared beside the field.

A field that is worth tuning says so in its annotation::

    mu: Annotated[float, Search(0.01, 10.0, log=True)] = 1.0
    shared: Annotated[Literal["head", "dense"], Choices("head", "dense")] = "head"

Fields without are left at their defaults.
"""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from pfedfda.errors import InputError, quote


@dataclass(frozen=True)
class Search:
    """A range of numbers.

    Parameters
    ----------
    low, high
        The lowest and the highest value; whole numbers for a field that holds one.
    log
        Whether to search on a logarithmic scale.
    """

    low: float
    high: float
    log: bool = False

    def __post_init__(self) -> None:
        if not (math.isfinite(self.low) and math.isfinite(self.high)):
            raise InputError(f"The bounds are {self.low} and {self.high}; they must be finite.")
        if not self.low < self.high:
            raise InputError(
                f"The bounds are {self.low} and {self.high}; the first must be the lower one."
            )
        if self.log and not self.low > 0:
            raise InputError(f"The lower bound is {self.low}; on a log scale it must be above 0.")

    @property
    def ends(self) -> tuple[Any, ...]:
        """The extreme values."""
        return (self.low, self.high)

    def __contains__(self, value: Any) -> bool:
        return isinstance(value, int | float) and self.low <= value <= self.high

    def __str__(self) -> str:
        return f"{self.low}:{self.high}" + (":log" if self.log else "")


@dataclass(frozen=True, init=False)
class Choices:
    """A few values to choose from."""

    values: tuple[Any, ...]

    def __init__(self, *values: Any) -> None:
        if not values:
            raise InputError("There is no value to choose from.")
        object.__setattr__(self, "values", values)

    @property
    def ends(self) -> tuple[Any, ...]:
        """All values."""
        return self.values

    def __contains__(self, value: Any) -> bool:
        return value in self.values

    def __str__(self) -> str:
        return ",".join(str(v).lower() if isinstance(v, bool) else str(v) for v in self.values)


Space = Mapping[str, Search | Choices]


def declared_space(kind: type[Any]) -> dict[str, Search | Choices]:
    """Return what a dataclass says about searching its fields.

    Parameters
    ----------
    kind
        The dataclass, such as a method.
    """
    hints = get_type_hints(kind, include_extras=True)
    found: dict[str, Search | Choices] = {}
    for field in dataclasses.fields(kind):
        if get_origin(hints[field.name]) is Annotated:
            for extra in get_args(hints[field.name])[1:]:
                if isinstance(extra, Search | Choices):
                    found[field.name] = extra
    return found


def parse_space(text: str) -> Search | Choices:
    """Read ``LOW:HIGH``, ``LOW:HIGH:log``, or values with commas between them."""
    bounds = text.split(":")
    if len(bounds) == 1:
        return Choices(*map(_value, text.split(",")))
    low, high = map(_value, bounds[:2])
    if not all(type(end) in (int, float) for end in (low, high)) or bounds[2:] not in ([], ["log"]):
        raise InputError(
            f"The space is {quote(text)}; it must be LOW:HIGH, LOW:HIGH:log, or values with commas "
            f"between them."
        )
    return Search(low, high, log=len(bounds) == 3)


def _value(text: str) -> Any:
    if text in ("true", "false"):
        return text == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
