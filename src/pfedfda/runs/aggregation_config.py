"""The settings of how updates are combined."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class AggregationConfig:
    """How the server combines what clients send.

    Parameters
    ----------
    aggregation
        sum adds up what clients send, weighted as the method has it.
    """

    aggregation: Literal["sum"] = "sum"
