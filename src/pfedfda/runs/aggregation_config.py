"""The settings of what is combined, and how."""

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
    dp_epsilon
        Differential privacy for each client: what the server's results of all rounds may tell of
        one client, at most this ε. Smaller is more private and less accurate; 1 to 10 is usual. By
        default there is no such promise. With secure aggregation the clients add the noise in
        shares, and the server never sees the exact sum. Needs the extra privacy (opacus).
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
        as on Flower, where seed is for trials of secure aggregation alone).
    """

    aggregation: Literal["sum", "median", "trimmed-mean", "multi-krum", "clipped"] = "sum"
    assumed_liars: float = 0.2
    clip_norm: float = 1.0
    min_class_count: int = 1
    secure_aggregation: bool = False
    secure_threshold: float = 2 / 3
    dp_epsilon: float | None = None
    dp_delta: float | None = None
    dp_clip: float | None = None
    dp_randomness: Literal["seed", "system"] = "seed"

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
        self._check_secure_aggregation()
        self._check_privacy()

    def _check_secure_aggregation(self) -> None:
        if not 0.5 < self.secure_threshold <= 1:
            raise InputError(
                f"secure-threshold is {self.secure_threshold}; it must be above 0.5 and at most 1."
            )
        if self.secure_aggregation and self.aggregation != "sum":
            raise InputError(
                f"The aggregation is {self.aggregation}, which looks at single updates; "
                f"secure-aggregation shows only their sum."
            )

    def _check_privacy(self) -> None:
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
        if self.dp_epsilon is None:
            return
        if self.aggregation != "sum":
            raise InputError(
                f"The aggregation is {self.aggregation}, which looks at single updates; dp-epsilon "
                f"adds noise to their sum."
            )
