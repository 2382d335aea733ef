"""Accuracy over clients, always reported in the same four ways."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields

import numpy as np


@dataclass(frozen=True)
class Accuracy:
    """Test accuracy of a federation.

    Parameters
    ----------
    mean_accuracy
        Mean over clients, each counting the same.
    std_accuracy
        Standard deviation over clients.
    weighted_accuracy
        Mean weighted by the clients' numbers of test samples: the share of all test samples that
        are classified correctly.
    worst_tenth_accuracy
        Mean over the tenth of the clients (rounded up) with the lowest accuracy.
    """

    mean_accuracy: float
    std_accuracy: float
    weighted_accuracy: float
    worst_tenth_accuracy: float

    @classmethod
    def of(cls, correct: Sequence[int], tested: Sequence[int]) -> "Accuracy":
        """Compute the four numbers from each client's counts."""
        counts = np.array(correct, dtype=np.float64)
        sizes = np.array(tested, dtype=np.float64)
        accuracies = counts / sizes
        worst = np.sort(accuracies)[: math.ceil(len(accuracies) / 10)]
        return cls(
            mean_accuracy=float(accuracies.mean()),
            std_accuracy=float(accuracies.std()),
            weighted_accuracy=float(counts.sum() / sizes.sum()),
            worst_tenth_accuracy=float(worst.mean()),
        )

    def as_dict(self) -> dict[str, float]:
        """Return the four numbers by name."""
        return asdict(self)


ACCURACIES = tuple(field.name for field in fields(Accuracy))
"""The names of the four numbers, in every file that has them."""
