"""What a site's predictions add up to, as numbers in a message and back."""

from collections.abc import Mapping

from pfedfda.flower.wire import MalformedError, NumberList
from pfedfda.runs import PredictionCounts
from pfedfda.runs.quality import BINS

CELLS = "predictions.cells"  # true class, predicted class and samples, one cell after the other
BIN_SAMPLES, BIN_CORRECT = "predictions.samples", "predictions.correct"
BIN_CONFIDENCE = "predictions.confidence"
SQUARED_ERROR = "squared_error"


def prediction_lists(counts: PredictionCounts) -> dict[str, NumberList]:
    """Return the counts as lists of numbers; the squared error travels beside them."""
    samples, correct, confidence = zip(*counts.bins, strict=True)
    return {
        CELLS: [
            n for (true, predicted), times in counts.cells.items() for n in (true, predicted, times)
        ],
        BIN_SAMPLES: list(samples),
        BIN_CORRECT: list(correct),
        BIN_CONFIDENCE: list(confidence),
    }


def read_predictions(
    lists: Mapping[str, NumberList], numbers: Mapping[str, float], samples: int
) -> PredictionCounts:
    """Return the counts that a site has sent, or refuse what cannot be any.

    Parameters
    ----------
    lists, numbers
        The lists and numbers of the message.
    samples
        The site's number of test samples; there cannot be more cells.
    """
    names = (CELLS, BIN_SAMPLES, BIN_CORRECT, BIN_CONFIDENCE)
    if SQUARED_ERROR not in numbers or any(name not in lists for name in names):
        raise MalformedError("what its predictions add up to is missing")
    cells, *bins = (lists[name] for name in names)
    whole = all(isinstance(n, int) for values in (cells, bins[0], bins[1]) for n in values)
    if not whole or len(cells) % 3 or len(cells) > 3 * samples or {*map(len, bins)} != {BINS}:
        raise MalformedError("what its predictions add up to cannot be read")
    pairs = {(int(cells[n]), int(cells[n + 1])): int(cells[n + 2]) for n in range(0, len(cells), 3)}
    if len(pairs) < len(cells) // 3:
        raise MalformedError("it counts some of its predictions twice")
    return PredictionCounts(
        pairs,
        tuple((int(n), int(hits), float(total)) for n, hits, total in zip(*bins, strict=True)),
        numbers[SQUARED_ERROR],
    )
