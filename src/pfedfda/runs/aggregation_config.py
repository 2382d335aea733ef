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
        sum adds up what clients send, weighted as the method has it.
    min_class_count
        Clients send no statistics (counts, means, covariance) of classes of which they have fewer
        training samples than this, and keep them for their own models; 1 sends all. The mean of a
        class with one sample is that sample's features: 5 is advised wherever the server is not
        trusted with samples (docs/privacy.md).
    """

    aggregation: Literal["sum"] = "sum"
    min_class_count: int = 1

    def __post_init__(self) -> None:
        if self.min_class_count < 1:
            raise InputError(f"min-class-count is {self.min_class_count}; it must be at least 1.")
