"""The settings of what is combined, and how."""

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
    min_class_count
        Clients send no statistics (counts, means, covariance) of classes of which they have fewer
        training samples than this, and keep them for their own models; 1 sends all. The mean of a
        class with one sample is that sample's features: 5 is advised wherever the server is not
        trusted with samples (docs/privacy.md).
    secure_aggregation
        Show the server nothing but the sum of what clients send: on Flower with masks that cancel
        in the sum, on one machine as a simulation with the same rounding, to see what it does to
        accuracy. For methods that need only the sum, with at least three clients.
    secure_threshold
        The share of a round's clients whose contributions must arrive, above a half; with fewer the
        round is abandoned and named.
    """

    aggregation: Literal["sum", "median", "trimmed-mean", "multi-krum", "clipped"] = "sum"
    assumed_liars: float = 0.2
    clip_norm: float = 1.0
    min_class_count: int = 1
    secure_aggregation: bool = False
    secure_threshold: float = 2 / 3

    def __post_init__(self) -> None:
        if not 0 <= self.assumed_liars < 0.5:
            raise InputError(
                f"assumed-liars is {self.assumed_liars}; it must lie in [0, 0.5): no rule helps "
                f"against a majority."
            )
        if not self.clip_norm > 0:
            raise InputError(f"clip-norm is {self.clip_norm}; it must be above 0.")
        if self.min_class_count < 1:
            raise InputError(f"min-class-count is {self.min_class_count}; it must be at least 1.")
        if not 0.5 < self.secure_threshold <= 1:
            raise InputError(
                f"secure-threshold is {self.secure_threshold}; it must be above 0.5 and at most 1."
            )
        if self.secure_aggregation and self.aggregation != "sum":
            raise InputError(
                f"The aggregation is {self.aggregation}, which looks at single updates; "
                f"secure-aggregation shows only their sum."
            )
