"""The settings of how updates are combined."""

from dataclasses import dataclass
from typing import Literal

from pfedfda.errors import InputError, unknown

MOST_EPSILON = 100.0
RANDOMNESS = ("seed", "system")


@dataclass(frozen=True)
class AggregationConfig:
    """How the server combines what clients send.

    Parameters
    ----------
    aggregation
        sum adds up what clients send, weighted as the method has it.
    dp_epsilon
        Differential privacy for each client: what the server's results of all rounds may tell of
        one client, at most this ε. Smaller is more private and less accurate; 1 to 10 is usual. By
        default there is no such promise. Needs the extra privacy (opacus).
    dp_delta
        The δ that goes with it, the chance that the promise fails; by default 1 / n^1.1 for n
        clients. A promise to thousands of clients should have a smaller one than to ten.
    dp_clip
        The length to which a client's contribution to a round is shortened, 1 by default: the norm
        of its change of the model together with its statistics, these per sample and in units of
        the usual length of features. Noise grows with it.
    dp_randomness
        Where the noise comes from: seed (the run's seed, so that a run can be repeated and resumed;
        whoever knows the seed can subtract it) or system (the operating system's secure generator,
        as on Flower always).
    """

    aggregation: Literal["sum"] = "sum"
    dp_epsilon: float | None = None
    dp_delta: float | None = None
    dp_clip: float | None = None
    dp_randomness: Literal["seed", "system"] = "seed"

    def __post_init__(self) -> None:
        if self.dp_epsilon is None:
            for name in ("dp_delta", "dp_clip"):
                if getattr(self, name) is not None:
                    option = name.replace("_", "-")
                    raise InputError(f"{option} is {getattr(self, name)}; it needs dp-epsilon.")
        elif not 0 < self.dp_epsilon <= MOST_EPSILON:
            raise InputError(
                f"dp-epsilon is {self.dp_epsilon}; it must be above 0 and at most "
                f"{MOST_EPSILON:g}, beyond which it promises nothing."
            )
        if self.dp_delta is not None and not 0 < self.dp_delta < 1:
            raise InputError(f"dp-delta is {self.dp_delta}; it must lie between 0 and 1.")
        if self.dp_clip is not None and not 0 < self.dp_clip < float("inf"):
            raise InputError(f"dp-clip is {self.dp_clip}; it must be finite and above 0.")
        if self.dp_randomness not in RANDOMNESS:
            raise unknown("dp-randomness", self.dp_randomness, RANDOMNESS)
