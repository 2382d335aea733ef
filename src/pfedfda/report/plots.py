"""The plots of the page: which numbers go on which axes."""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

from pfedfda.report.runs import Group, Run
from pfedfda.report.styles import Style
from pfedfda.report.svg import Axis, Series, bubbles, chart

ACCURACY_CHOICES = {  # the column, and the label of the axis for what it was judged on
    "mean": ("mean_accuracy", "mean accuracy over clients"),
    "weighted": ("weighted_accuracy", "accuracy over all {} samples"),
    "worst tenth": ("worst_tenth_accuracy", "mean accuracy of the worst tenth"),
}
MOST_RANKS = 400
FEW_RUNS = 3


@dataclass(frozen=True)
class Shown:
    """A run as the page shows it.

    Parameters
    ----------
    index
        Its number in the legend; runs of one label in different federations share it.
    run
        The run.
    style
        Its look.
    """

    index: int
    run: Run
    style: Style

    def series(
        self,
        xs: Sequence[float],
        ys: Sequence[float | None],
        titles: Sequence[str] = (),
        marked: Sequence[int] | None = None,
    ) -> Series:
        """Return points as a series in the run's look."""
        style = self.style
        return Series(self.index, self.run.label, xs, ys, style.dash, style.marker, titles, marked)


@dataclass(frozen=True)
class Unit:
    """A unit that fits the size of some numbers.

    Parameters
    ----------
    name
        What to write.
    size
        How many of the smallest unit it holds.
    """

    name: str
    size: float


def time_unit(largest: float) -> Unit:
    """Return seconds, minutes or hours."""
    if largest <= 600:
        return Unit("s", 1)
    return Unit("min", 60) if largest <= 4 * 3600 else Unit("h", 3600)


def bytes_unit(largest: float) -> Unit:
    """Return kB, MB or GB."""
    if largest < 1e6:
        return Unit("kB", 1e3)
    return Unit("MB", 1e6) if largest < 1e10 else Unit("GB", 1e9)


def accuracy_by_round(shown: Sequence[Shown], key: str) -> str:
    """Return the accuracy after each evaluated round, in each way, by round and by time."""
    longest = max((line["seconds"] or 0 for s in shown for line in s.run.metrics), default=0)
    unit = time_unit(longest)
    abscissae: dict[str, tuple[Axis, Callable[[dict[str, float | None]], float]]] = {
        "by round": (
            Axis("round", low=0, whole=True),
            lambda line: line["round"] or 0,
        ),
        "by time": (
            Axis(f"time since the start, {unit.name}", low=0),
            lambda line: (line["seconds"] or 0) / unit.size,
        ),
    }
    views = []
    for a, (accuracy_name, (column, label)) in enumerate(ACCURACY_CHOICES.items()):
        for b, (x_name, (axis, place)) in enumerate(abscissae.items()):
            series = [
                s.series(
                    [place(line) for line in s.run.metrics],
                    [line[column] for line in s.run.metrics],
                    [_point(s.run, line, column) for line in s.run.metrics],
                )
                for s in shown
            ]
            ys = [value for s in series for value in s.ys]
            y = accuracy_axis(label.format(shown[0].run.judged_on), ys)
            drawn = chart(series, axis, y, name=f"{accuracy_name} accuracy {x_name}")
            views.append(view(drawn, a, b))
    choices = (list(ACCURACY_CHOICES), list(abscissae))
    return switched(key, ("Accuracy", "Horizontal axis"), choices, views)


def _point(run: Run, line: dict[str, float | None], column: str) -> str:
    return f"{run.label}, round {line['round']:.0f}: {number(line[column])}"


def accuracy_by_client(shown: Sequence[Shown]) -> str:
    """Return the clients' accuracies, sorted, with the worst tenth marked."""
    series, most = [], 0
    for s in shown:
        ranked = sorted(
            ((client.accuracy, client) for client in s.run.clients if client.accuracy is not None),
            key=lambda pair: pair[0],
        )
        most = max(most, len(ranked))
        step = max(1, math.ceil(len(ranked) / MOST_RANKS))
        ranks = sorted({*range(0, len(ranked), step), *range(len(ranked))[-1:]})
        worst = math.ceil(len(ranked) / 10)
        marked = [place for place, rank in enumerate(ranks) if rank < worst]
        if len(shown) <= FEW_RUNS and len(ranked) <= MOST_RANKS:
            marked = list(range(len(ranks)))
        samples = f"{s.run.judged_on} samples"
        titles = [
            f"{s.run.label}, client {client.name}: {accuracy:.3f}"
            + (f" of {client.test_samples} {samples}" if client.test_samples else "")
            for accuracy, client in (ranked[rank] for rank in ranks)
        ]
        accuracies = [ranked[rank][0] for rank in ranks]
        series.append(s.series([rank + 1 for rank in ranks], accuracies, titles, marked))
    if not most:
        return chart([], Axis(""), Axis(""), name="")
    end = math.ceil(most / 10) + 0.5
    return chart(
        series,
        Axis("clients, from the lowest accuracy to the highest", 0.5, most + 0.5, whole=True),
        Axis("accuracy", 0, 1),
        name="accuracy of every client, sorted",
        band=(0.5, end, "worst tenth"),
        labels=False,  # most lines end in the same corner
    )


def beta_by_client(shown: Sequence[Shown], column: str) -> str:
    """Return β of every client by its number of training samples."""
    series = []
    for s in shown:
        clients = [c for c in s.run.clients if column in c.betas and c.train_samples is not None]
        titles = [
            f"{s.run.label}, client {c.name}: β {c.betas[column]:.3f}, {c.train_samples} training "
            f"samples"
            for c in clients
        ]
        xs = [float(c.train_samples or 0) for c in clients]
        ys = [c.betas[column] for c in clients]
        series.append(s.series(xs, ys, titles, range(len(clients))))
    return chart(
        series,
        Axis("training samples of the client", low=0, whole=True),
        Axis("β: 0 global, 1 local", 0, 1),
        name="β of every client by its number of training samples",
        lines=False,
    )


def mean_betas(run: Run, column: str) -> dict[tuple[str, int], tuple[float, int]]:
    """Return mean β and number of clients by corruption and severity; ("", 0) is not corrupted."""
    cells: dict[tuple[str, int], list[float]] = {}
    for client in run.clients:
        if column in client.betas:
            shifted = client.corruption and client.severity
            where = (client.corruption, client.severity) if shifted else ("", 0)
            cells.setdefault(where, []).append(client.betas[column])
    return {where: (statistics.fmean(betas), len(betas)) for where, betas in cells.items()}


def bytes_by_round(shown: Sequence[Shown], key: str) -> str:
    """Return what went up and down, a round and so far."""
    views = []
    for a, direction in enumerate(("up", "down")):
        for b, total in enumerate((False, True)):
            points = [_traffic(s.run, f"bytes_{direction}", total) for s in shown]
            unit = bytes_unit(max((v for _, ys in points for v in ys), default=0))
            series = [
                s.series(
                    xs,
                    [value / unit.size for value in ys],
                    [
                        f"{s.run.label}, round {x:.0f}: {value / unit.size:,.2f} {unit.name}"
                        for x, value in zip(xs, ys, strict=True)
                    ],
                )
                for s, (xs, ys) in zip(shown, points, strict=True)
            ]
            what = "so far" if total else "a round"
            drawn = chart(
                series,
                Axis("round", low=0, whole=True),
                Axis(f"{unit.name} {direction}, {what}", low=0),
                name=f"bytes {direction} {what}, by round",
            )
            views.append(view(drawn, a, b))
    choices = (["up, clients to server", "down, server to clients"], ["a round", "so far"])
    return switched(key, ("Direction", "Amount"), choices, views)


def _traffic(run: Run, column: str, total: bool) -> tuple[list[float], list[float]]:
    """Return rounds and bytes: all so far, or the mean a round since the evaluation before."""
    xs, ys = [], []
    last_round, last_bytes = 0.0, 0.0
    for line in run.metrics:
        now, so_far = line["round"] or 0.0, line[column]
        if so_far is not None and now > last_round:
            xs.append(now)
            ys.append(so_far if total else (so_far - last_bytes) / (now - last_round))
            last_round, last_bytes = now, so_far
    return xs, ys


def class_bubbles(group: Group) -> str:
    """Return the bubble chart of the federation."""
    assert group.counts is not None
    return bubbles(group.counts.counts, group.counts.client_names, group.counts.class_names)


def accuracy_axis(label: str, values: Sequence[float | None]) -> Axis:
    """Return an axis inside [0, 1] that shows the accuracies large, but noise not as mountains."""
    known = [value for value in values if value is not None]
    low, high = min(known, default=0.0), max(known, default=1.0)
    if high - low < 0.1:
        middle = min(max((low + high) / 2, 0.05), 0.95)
        low, high = min(low, middle - 0.05), max(high, middle + 0.05)
    return Axis(label, low, high)


def number(value: float | None, digits: int = 3) -> str:
    """Return a number with a true minus sign, but no minus zero; a dash for none."""
    if value is None:
        return "–"
    return f"{round(value, digits) + 0.0:,.{digits}f}".replace("-", "\u2212")


def counted(count: float, thing: str) -> str:
    """Return ``1 client``, ``2 clients``."""
    return f"{count:.0f} {thing}{'' if count == 1 else 's'}"


def view(content: str, a: int, b: int = 0) -> str:
    """Return one of the views of a switched figure."""
    return f'<div class="view" data-a="{a}" data-b="{b}">{content}</div>'


def switched(
    key: str, names: Sequence[str], choices: Sequence[Sequence[str]], views: Sequence[str]
) -> str:
    """Return a figure with switches; the style sheet shows the view that they choose.

    Parameters
    ----------
    key
        Something that no other figure of the page is called.
    names
        What each switch chooses.
    choices
        The choices of each switch; the first is chosen at the beginning.
    views
        The results of `view` for all combinations.
    """
    sets = []
    for letter, name, texts in zip("ab", names, choices, strict=False):
        buttons = "".join(
            f'<label><input type="radio" name="{key}-{letter}" class="{letter}{number}"'
            f"{' checked' if number == 0 else ''}><span>{escape(text)}</span></label>"
            for number, text in enumerate(texts)
        )
        sets.append(f'<fieldset><legend class="unseen">{escape(name)}</legend>{buttons}</fieldset>')
    return (
        f'<figure class="plot" id="{key}"><div class="switches">{"".join(sets)}</div>'
        f"{''.join(views)}</figure>"
    )
