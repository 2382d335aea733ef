"""How good predictions are beyond accuracy: recall by class, balanced accuracy, calibration.

Everything comes from sums over test samples (`PredictionCounts`), so that those of several clients
add up to those of all their samples. A client's own numbers are in ``clients.csv``, those of a
federation (`Quality`) in ``summary.json`` and in every line of ``metrics.jsonl``.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pfedfda.runs.layout import QUALITY_COLUMNS

BINS = 15  # of the confidence, of equal width
MOST_CLASSES_CROSSED = (
    200  # up to which the classes are crossed in a matrix, which has their square
)
Bin = tuple[int, int, float]


@dataclass(frozen=True)
class PredictionCounts:
    """What a client's predictions add up to.

    Parameters
    ----------
    cells
        The number of test samples by true and predicted class, where there are any: at most as many
        entries as samples, however many classes there are.
    bins
        For each of `BINS` ranges of the confidence, (0, 1/15], (1/15, 2/15] and so on: samples,
        correct ones, and the sum of the confidences. The confidence is the probability of the
        predicted class.
    squared_error
        The sum over samples and classes of (probability - truth)², where truth is 1 or 0.
    """

    cells: Mapping[tuple[int, int], int]
    bins: Sequence[Bin]
    squared_error: float

    @classmethod
    def of(
        cls,
        labels: NDArray[np.int64],
        predicted: NDArray[np.int64],
        confidences: NDArray[np.float64],
        squared_error: float,
    ) -> "PredictionCounts":
        """Count predictions.

        Parameters
        ----------
        labels, predicted, confidences
            True class, predicted class and its probability, of every sample.
        squared_error
            As above.
        """
        pairs = Counter(zip(labels.tolist(), predicted.tolist(), strict=True))
        confidences = np.nan_to_num(confidences)  # of a model that diverged, as its loss will tell
        places = np.clip(np.ceil(confidences * BINS).astype(np.int64) - 1, 0, BINS - 1)
        samples = np.bincount(places, minlength=BINS)
        correct = np.bincount(places[labels == predicted], minlength=BINS)
        sums = np.bincount(places, weights=confidences, minlength=BINS)
        return cls(
            dict(sorted(pairs.items())),
            tuple(zip(samples.tolist(), correct.tolist(), sums.tolist(), strict=True)),
            float(squared_error),
        )

    @property
    def tested(self) -> int:
        """The number of test samples."""
        return sum(self.cells.values())

    @property
    def correct(self) -> int:
        """The number of correctly classified ones."""
        return sum(times for (true, predicted), times in self.cells.items() if true == predicted)

    @property
    def balanced_accuracy(self) -> float:
        """The mean recall over the classes that the test samples hold."""
        tested: dict[int, int] = {}
        hits: dict[int, int] = {}
        for (true, predicted), times in self.cells.items():
            tested[true] = tested.get(true, 0) + times
            hits[true] = hits.get(true, 0) + times * (true == predicted)
        return float(np.mean([hits[label] / tested[label] for label in sorted(tested)]))

    def measures(self, loss: float) -> dict[str, float]:
        """Return the client's own numbers, by the names of the columns of ``clients.csv``.

        Parameters
        ----------
        loss
            The sum of the cross-entropy over the test samples.
        """
        tested = self.tested
        numbers = (
            self.balanced_accuracy,
            loss / tested,
            self.squared_error / tested,
            calibration_error(self.bins),
        )
        return dict(zip(QUALITY_COLUMNS, numbers, strict=True))

    def fault(self, tested: int, correct: int, num_classes: int) -> str | None:
        """Return what is wrong with counts that somebody else made, None if nothing is.

        Parameters
        ----------
        tested, correct
            What they must add up to.
        num_classes
            The number of classes.
        """
        classes = [label for cell in self.cells for label in cell]
        if any(times < 1 for times in self.cells.values()) or any(
            not 0 <= label < num_classes for label in classes
        ):
            return f"its counts of predictions do not belong to {num_classes} classes"
        binned = (sum(b[0] for b in self.bins), sum(b[1] for b in self.bins))
        if not (self.tested, self.correct) == binned == (tested, correct):
            return f"its counts of predictions are not those of {correct} of {tested} correct ones"
        # Confidences are computed in single precision.
        if len(self.bins) != BINS or any(
            not (0 <= hits <= samples and -1e-3 <= total <= samples * 1.001)
            for samples, hits, total in self.bins
        ):
            return "its confidences are not those of its predictions"
        if not -1e-3 <= self.squared_error <= 2.001 * tested:
            return f"its squared error is {self.squared_error:.3g}"
        return None


def calibration_error(bins: Sequence[Sequence[float]]) -> float:
    """Return the expected calibration error.

    It is the mean over samples of |accuracy - mean confidence| of the bin that a sample is in.
    """
    samples = sum(b[0] for b in bins)
    return float(sum(abs(correct - total) for _, correct, total in bins) / samples)


@dataclass(frozen=True)
class Quality:
    """The quality of the predictions in a federation, beyond accuracy.

    Parameters
    ----------
    mean_balanced_accuracy
        The mean over clients of their balanced accuracies; that of a client is its mean recall over
        the classes that its test set holds.
    pooled_balanced_accuracy
        The mean over classes of the recall on the test samples of all clients.
    pooled_ece
        The expected calibration error with 15 bins of equal width, over the test samples of all
        clients. (Of a few samples it comes out too large, so there is no mean over clients.)
    pooled_brier
        The mean Brier score over these samples, from 0 (best) to 2.
    """

    mean_balanced_accuracy: float
    pooled_balanced_accuracy: float
    pooled_ece: float
    pooled_brier: float

    def as_dict(self) -> dict[str, float]:
        """Return the numbers by name."""
        return asdict(self)


PREDICTIONS = "predictions"  # the name of the tables in ``summary.json``
QUALITIES = tuple(field.name for field in fields(Quality))
"""The names of the numbers, in every file that has them."""


class PooledCounts:
    """Sums the counts of clients one after the other, and keeps none of them.

    Parameters
    ----------
    num_classes
        The number of classes; of more than `MOST_CLASSES_CROSSED` only recall is known.
    """

    def __init__(self, num_classes: int) -> None:
        self.clients = 0
        self.balanced = 0.0
        self.squared_error = 0.0
        self.tested = np.zeros(num_classes, dtype=np.int64)
        self.hits = np.zeros(num_classes, dtype=np.int64)
        self.bins = np.zeros((BINS, 3))
        self.confusion: NDArray[np.int64] | None = None
        if num_classes <= MOST_CLASSES_CROSSED:
            self.confusion = np.zeros((num_classes, num_classes), dtype=np.int64)

    def add(self, counts: PredictionCounts) -> None:
        """Add a client's counts."""
        self.clients += 1
        self.balanced += counts.balanced_accuracy
        self.squared_error += counts.squared_error
        self.bins += np.array(counts.bins, dtype=np.float64)
        for (true, predicted), times in counts.cells.items():
            self.tested[true] += times
            self.hits[true] += times * (true == predicted)
            if self.confusion is not None:
                self.confusion[true, predicted] += times

    def quality(self) -> Quality:
        """Return the numbers."""
        known = self.tested > 0
        return Quality(
            mean_balanced_accuracy=self.balanced / self.clients,
            pooled_balanced_accuracy=float((self.hits[known] / self.tested[known]).mean()),
            pooled_ece=calibration_error(self.bins.tolist()),
            pooled_brier=self.squared_error / int(self.tested.sum()),
        )

    def tables(self, class_names: Sequence[str]) -> dict[str, Any]:
        """Return what ``summary.json`` holds under ``predictions``."""
        recall = [
            hits / tested if tested else None
            for hits, tested in zip(self.hits.tolist(), self.tested.tolist(), strict=True)
        ]
        samples, correct, confidence = self.bins.T.tolist()
        tables: dict[str, Any] = {
            "class_names": list(class_names),
            "tested": self.tested.tolist(),
            "recall": recall,
            "bins": {
                "samples": [int(count) for count in samples],
                "correct": [int(count) for count in correct],
                "confidence": confidence,
            },
        }
        if self.confusion is not None:
            tables["confusion"] = self.confusion.tolist()
        return tables


@dataclass(frozen=True)
class Predictions:
    """What ``summary.json`` says of all predictions of a run.

    Parameters
    ----------
    class_names
        The names of the classes.
    tested
        The test samples of each class.
    hits
        The correctly classified ones among them.
    bins
        As in `PredictionCounts`.
    confusion
        The test samples by true (rows) and predicted class; None for too many classes.
    """

    class_names: Sequence[str]
    tested: Sequence[float]
    hits: Sequence[float]
    bins: Sequence[Sequence[float]]
    confusion: Sequence[Sequence[float]] | None = None


def read_predictions(tables: Mapping[str, Any]) -> Predictions:
    """Read what `PooledCounts.tables` has written; raise ValueError if it cannot be that."""
    names = tables.get("class_names")
    if not isinstance(names, list) or not names:
        raise ValueError("it names no classes")
    tested = _counts(tables.get("tested"), len(names), "tested")
    recall = tables.get("recall")
    if not isinstance(recall, list) or len(recall) != len(names):
        raise ValueError(f"recall is not a list of {len(names)} numbers")
    for value in recall:
        if value is not None and not (type(value) in (int, float) and 0 <= value <= 1):
            raise ValueError("a recall does not lie in [0, 1]")
    bins = tables.get("bins")
    if not isinstance(bins, dict):
        raise ValueError("bins is not an object")
    columns = [_counts(bins.get(n), BINS, n) for n in ("samples", "correct", "confidence")]
    rows = [list(row) for row in zip(*columns, strict=True)]
    if any(max(correct, total / 1.001) > samples for samples, correct, total in rows):
        raise ValueError("a bin has more correct samples or confidence than samples")
    confusion = tables.get("confusion")
    if confusion is not None:
        if not isinstance(confusion, list) or len(confusion) != len(names):
            raise ValueError(f"confusion does not have {len(names)} rows")
        if len(names) > MOST_CLASSES_CROSSED:
            raise ValueError(f"confusion has more than {MOST_CLASSES_CROSSED} rows")
        confusion = [_counts(row, len(names), "a row of confusion") for row in confusion]
    return Predictions(
        [str(name) for name in names],
        tested,
        [(share or 0.0) * count for share, count in zip(recall, tested, strict=True)],
        rows,
        confusion,
    )


def add_predictions(several: Sequence[Predictions]) -> Predictions | None:
    """Return the sum of the predictions of several runs, None if they are not of one kind."""
    first = several[0]
    if any(other.class_names != first.class_names for other in several):
        return None
    crossed = [np.array(p.confusion) for p in several if p.confusion is not None]
    return Predictions(
        first.class_names,
        np.sum([p.tested for p in several], axis=0).tolist(),
        np.sum([p.hits for p in several], axis=0).tolist(),
        np.sum([p.bins for p in several], axis=0).tolist(),
        np.sum(crossed, axis=0).tolist() if len(crossed) == len(several) else None,
    )


def _counts(values: Any, length: int, name: str) -> list[float]:
    if not isinstance(values, list) or len(values) != length:
        raise ValueError(f"{name} is not a list of {length} numbers")
    if any(type(value) not in (int, float) or not 0 <= value < 2**53 for value in values):
        raise ValueError(f"{name} has a value that is not a count")
    return values
