"""Charts and tables of predictions: calibration, recall by class, confusion of classes."""

from collections.abc import Sequence

from pfedfda.report.charts import Axis, Chart, Series
from pfedfda.report.groups import Entry
from pfedfda.report.tables import Cell, Row, Table
from pfedfda.report.text import number, shorten

MOST_NAMED = 60  # classes in a chart of recall; of more they are sorted and have no names
MOST_CROSSED = 25  # classes in a matrix on the page; of more the pairs that are confused most
MOST_PAIRS = 20
LEAST_SHARE = 0.01  # of the samples, that a bin must hold to be drawn


def with_predictions(entries: Sequence[Entry]) -> list[Entry]:
    """Return the entries whose runs have counted their predictions."""
    return [entry for entry in entries if entry.predictions is not None]


def reliability(entries: Sequence[Entry]) -> Chart:
    """Return the accuracy of predictions by their confidence."""
    series = []
    for entry in entries:
        bins = entry.predictions.bins if entry.predictions else []
        least = LEAST_SHARE * sum(samples for samples, _, _ in bins)
        known = [b for b in bins if b[0] and b[0] >= least]
        titles = [
            f"{entry.label}: {samples:,.0f} samples with confidence {number(total / samples, 2)}, "
            f"{number(correct / samples, 2)} of them right"
            for samples, correct, total in known
        ]
        xs = [total / samples for samples, _, total in known]
        ys = [correct / samples for samples, correct, _ in known]
        series.append(Series(entry, xs, ys, titles, range(len(xs))))
    samples = entries[0].first.judged_on
    return Chart(
        "accuracy by confidence",
        series,
        Axis("confidence: probability of the predicted class", 0, 1),
        Axis(f"accuracy on these {samples} samples", 0, 1),
        end_labels=False,  # all lines end in the same corner
        diagonal=True,
    )


def recall_by_class(entries: Sequence[Entry]) -> Chart:
    """Return the recall of each class: by name, or sorted if they are many."""
    names = [str(name) for name in _names(entries[0])]
    by_name = len(names) <= MOST_NAMED
    series = []
    for place, entry in enumerate(entries):
        recall = [(r, label) for label, r in enumerate(_recall(entry)) if r is not None]
        recall = recall if by_name else sorted(recall)
        titles = [f"{entry.label}, class {names[label]}: {number(r)}" for r, label in recall]
        shares = [r for r, _ in recall]
        if by_name:
            # Side by side, so that methods of equal values do not hide one another.
            shift = 0.6 * ((place + 0.5) / len(entries) - 0.5)
            ys: list[float | None] = [label + shift for _, label in recall]
            series.append(Series(entry, shares, ys, titles, range(len(recall))))
        else:
            series.append(Series(entry, [n + 1 for n in range(len(recall))], shares, titles))
    x, y = Axis("recall", 0, 1), Axis("class", names=names)
    if not by_name:
        x = Axis(
            "classes, from the lowest recall to the highest", 0.5, len(names) + 0.5, whole=True
        )
        y = Axis("recall", 0, 1)
    return Chart("recall by class", series, x, y, joined=not by_name, end_labels=False)


def confusion(entry: Entry) -> Table | None:
    """Return how often each class is taken for each other one, None if that is not known."""
    found = entry.predictions
    if found is None or found.confusion is None:
        return None
    names = [shorten(str(name)) for name in found.class_names]
    if len(names) > MOST_CROSSED:
        return _pairs(entry, names)
    rows = []
    for true, (name, counts) in enumerate(zip(names, found.confusion, strict=True)):
        tested = sum(counts)
        cells = [Cell(name, heading="row")]
        for predicted, times in enumerate(counts):
            share = times / tested if tested else 0.0
            kind = "n warm right" if predicted == true else "n warm"
            title = f"{name} taken for {names[predicted]}: {number(100 * share, 1)} %"
            cells.append(
                Cell(f"{times:,.0f}" if times else "", kind=kind, shade=share, title=title)
            )
        recall = Cell(number(counts[true] / tested if tested else None, 2), kind="n all")
        rows.append(Row([*cells, recall]))
    head = [Cell("true \\ predicted", heading="col")]
    head += [Cell(name, kind="n", heading="col") for name in (*names, "recall")]
    return Table(f"confusion of classes by {entry.label}", "heat", [Row(head)], [rows])


def _pairs(entry: Entry, names: Sequence[str]) -> Table:
    """Return the pairs of classes that are confused most."""
    assert entry.predictions is not None
    crossed = entry.predictions.confusion or []
    pairs = [
        (times, true, predicted)
        for true, counts in enumerate(crossed)
        for predicted, times in enumerate(counts)
        if times and true != predicted
    ]
    pairs.sort(key=lambda pair: (-pair[0], *pair[1:]))
    rows = [
        Row(
            [
                Cell(names[true], heading="row"),
                Cell(names[predicted]),
                Cell(f"{times:,.0f}", kind="n"),
                Cell(number(times / sum(crossed[true]), 2), kind="n"),
            ]
        )
        for times, true, predicted in pairs[:MOST_PAIRS]
    ]
    head = [Cell("true class", heading="col"), Cell("taken for", heading="col")]
    head += [Cell(n, kind="n", heading="col") for n in ("samples", "share of the class")]
    return Table(f"classes that {entry.label} confuses most", "sortable", [Row(head)], [rows])


def _names(entry: Entry) -> Sequence[str]:
    return entry.predictions.class_names if entry.predictions else []


def _recall(entry: Entry) -> list[float | None]:
    if entry.predictions is None:
        return []
    both = zip(entry.predictions.hits, entry.predictions.tested, strict=True)
    return [hits / tested if tested else None for hits, tested in both]
