"""The settings of how updates are combined."""

from dataclasses import dataclass
from typing import Literal

from pfedfda.errors import InputError


@dataclass(frozen=True)
class AggregationConfig:
    """How the server combines what clients send.

    Parameters
    ----------
    aggregation
        sum adds up what clients send, weighted as the method has it; one client that lies can make
        of it what it likes. The others are for sites that may lie, and cost accuracy where none
        does: median and trimmed-mean (of each number over the clients), multi-krum (the sum over
        those that agree with most others) and clipped (the sum, in which nobody moves the model
        much further than others do).
    assumed_liars
        The share of a round's clients that may lie, for trimmed-mean and multi-krum, which leave
        out as many: trimmed-mean at either end.
    clip_norm
        How far a client may move a part of the model with clipped, in multiples of the median over
        the clients.
    """

    aggregation: Literal["sum", "median", "trimmed-mean", "multi-krum", "clipped"] = "sum"
    assumed_liars: float = 0.2
    clip_norm: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.assumed_liars < 0.5:
            raise InputError(
                f"assumed-liars is {self.assumed_liars}; it must lie in [0, 0.5): no rule helps "
                f"against a majority."
            )
        if not self.clip_norm > 0:
            raise InputError(f"clip-norm is {self.clip_norm}; it must be above 0.")
