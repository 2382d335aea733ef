"""Charts: what is drawn, for the page and for papers alike."""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from pfedfda.report.groups import Entry, mean
from pfedfda.report.text import bytes_unit, number, spaced, time_unit
from pfedfda.runs import ClassCounts, ClientRow

FEW_CLIENTS = 12  # so few are shown by name, and have no worst tenth to speak of
MOST_RANKS = 400
FEW_ENTRIES = 3
MOST_MARKERS = 12
MOST_CLIENTS, MOST_CLASSES = 60, 100  # of a bubble chart

ACCURACY_CHOICES = {  # the column, and the label of the axis
    "mean": ("mean_accuracy", "mean accuracy over clients"),
    "weighted": ("weighted_accuracy", "accuracy over all {} samples"),
    "worst tenth": ("worst_tenth_accuracy", "mean accuracy of the worst tenth"),
}


@dataclass(frozen=True)
class Axis:
    """An axis.

    Parameters
    ----------
    label
        What is on it, with the unit.
    low, high
        Its ends, if they are fixed; otherwise they follow the data.
    whole
        Whether only whole numbers make sense as ticks.
    names
        The categories at 0, 1, 2, … in place of numbers; on a vertical axis the first is on top.
    """

    label: str
    low: float | None = None
    high: float | None = None
    whole: bool = False
    names: Sequence[str] = ()


@dataclass(frozen=True)
class Series:
    """Points of one colour, joined or not.

    Parameters
    ----------
    entry
        Whose points they are, which gives their look; None for those of the federation itself.
    xs, ys
        The points; a y of None breaks the line.
    titles
        A text for each point, shown while the pointer rests on it.
    marked
        Which points get a marker; by default some, evenly spaced.
    ranges
        For each point the lowest and the highest value of any seed, to shade.
    sizes
        For each point its area relative to the largest that fits, for bubbles.
    """

    entry: Entry | None
    xs: Sequence[float]
    ys: Sequence[float | None]
    titles: Sequence[str] = ()
    marked: Sequence[int] | None = None
    ranges: Sequence[tuple[float, float] | None] = ()
    sizes: Sequence[float] = ()

    @property
    def label(self) -> str:
        """What stands at the end of the line and in the legend."""
        return self.entry.label if self.entry else ""

    @property
    def markers(self) -> Sequence[int]:
        """The numbers of the points with markers."""
        return spaced(len(self.xs), MOST_MARKERS) if self.marked is None else self.marked


@dataclass(frozen=True)
class Chart:
    """A chart.

    Parameters
    ----------
    name
        A sentence for people who cannot see it.
    series
        What is on it.
    x, y
        The axes.
    joined
        Whether points are joined by lines.
    end_labels
        Whether to name the lines at their ends, where there is room.
    shaded
        A range of x to shade, with its name.
    diagonal
        Whether to draw the line on which y is x, from 0 to 1.
    """

    name: str
    series: Sequence[Series]
    x: Axis
    y: Axis
    joined: bool = True
    end_labels: bool = True
    shaded: tuple[float, float, str] | None = None
    diagonal: bool = False

    @property
    def drawn(self) -> list[Series]:
        """The series that have a point."""
        return [s for s in self.series if any(value is not None for value in s.ys)]


@dataclass(frozen=True)
class Heat:
    """Means between 0 and 1 by row and column, each with the number of values it is of."""

    entry: Entry
    name: str
    rows: Sequence[str]
    columns: Sequence[int]
    cells: Mapping[tuple[str, int], tuple[float, int]]


@dataclass(frozen=True)
class Bars:
    """A bar for each entry, made of its seconds by component."""

    entries: Sequence[Entry]
    components: Sequence[Mapping[str, float]]

    @property
    def names(self) -> list[str]:
        """The names of all components."""
        return list(dict.fromkeys(name for parts in self.components for name in parts))

    @property
    def longest(self) -> float:
        """The length of the longest bar."""
        return max((sum(parts.values()) for parts in self.components), default=0.0)


def accuracy_by_round(entries: Sequence[Entry], accuracy: str, by_time: bool = False) -> Chart:
    """Return an accuracy after each evaluated round: the mean over seeds, and their range."""
    column, label = ACCURACY_CHOICES[accuracy]
    times = [[mean(values) or 0 for values in entry.curve("seconds")] for entry in entries]
    unit = time_unit(max((time for of_entry in times for time in of_entry), default=0))
    series = []
    for entry, seconds in zip(entries, times, strict=True):
        curve = entry.curve(column)
        xs = [time / unit.size for time in seconds] if by_time else entry.rounds
        ys = [mean(values) for values in curve]
        titles = [
            f"{entry.label}, round {number_:.0f}: {number(y)}"
            for number_, y in zip(entry.rounds, ys, strict=True)
        ]
        ranges = [_range(values) for values in curve] if entry.seeds > 1 else []
        series.append(Series(entry, xs, ys, titles, ranges=ranges))
    known = [value for s in series for pair in s.ranges if pair for value in pair]
    known += [value for s in series for value in s.ys if value is not None]
    x = Axis(f"time since the start, {unit.name}", low=0) if by_time else rounds_axis()
    y = accuracy_axis(label.format(entries[0].first.judged_on), known)
    return Chart(f"{accuracy} accuracy by {'time' if by_time else 'round'}", series, x, y)


def _range(values: Sequence[float | None]) -> tuple[float, float] | None:
    known = [value for value in values if value is not None]
    return (min(known), max(known)) if known and len(known) == len(values) else None


def rounds_axis() -> Axis:
    """Return an axis of rounds."""
    return Axis("round", low=0, whole=True)


def accuracy_axis(label: str, known: Sequence[float]) -> Axis:
    """Return an axis inside [0, 1] that shows the accuracies large, but noise not as mountains."""
    low, high = min(known, default=0.0), max(known, default=1.0)
    if high - low < 0.1:
        middle = min(max((low + high) / 2, 0.05), 0.95)
        low, high = min(low, middle - 0.05), max(high, middle + 0.05)
    return Axis(label, low, high)


def accuracy_by_client(entries: Sequence[Entry]) -> Chart:
    """Return the clients' accuracies: by name if they are few, otherwise sorted."""
    axis, name = Axis("accuracy", 0, 1), "accuracy of every client"
    if are_few(entries):
        return _by_name(name, entries, axis, lambda row: row.accuracy, _client_title)
    series, most = [], 0
    for entry in entries:
        ranked = sorted(
            ((row.accuracy, row) for row in entry.clients if row.accuracy is not None),
            key=lambda pair: pair[0],
        )
        most = max(most, len(ranked))
        step = max(1, math.ceil(len(ranked) / MOST_RANKS))
        ranks = sorted({*range(0, len(ranked), step), *range(len(ranked))[-1:]})
        worst = math.ceil(len(ranked) / 10)
        marked = [place for place, rank in enumerate(ranks) if rank < worst]
        if len(entries) <= FEW_ENTRIES and len(ranked) <= MOST_RANKS:
            marked = list(range(len(ranks)))
        titles = [_client_title(entry, ranked[rank][1]) for rank in ranks]
        accuracies = [ranked[rank][0] for rank in ranks]
        series.append(Series(entry, [rank + 1 for rank in ranks], accuracies, titles, marked))
    return Chart(
        f"{name}, sorted",
        series,
        Axis("clients, from the lowest accuracy to the highest", 0.5, most + 0.5, whole=True),
        axis,
        end_labels=False,  # most lines end in the same corner
        shaded=(0.5, math.ceil(most / 10) + 0.5, "worst tenth"),
    )


def _by_name(
    name: str,
    entries: Sequence[Entry],
    x: Axis,
    value: Callable[[ClientRow], float | None],
    title: Callable[[Entry, ClientRow], str],
) -> Chart:
    """Return a number of every client with the names of the clients on the vertical axis."""
    everyone = all_clients(entries)
    places = {row.client: place for place, row in enumerate(everyone)}
    series = []
    for number_, entry in enumerate(entries):
        rows = [(v, row) for row in entry.clients if (v := value(row)) is not None]
        # Side by side, so that methods of equal values do not hide one another.
        shift = 0.6 * ((number_ + 0.5) / len(entries) - 0.5)
        xs, ys = [v for v, _ in rows], [places[row.client] + shift for _, row in rows]
        titles = [title(entry, row) for _, row in rows]
        series.append(Series(entry, xs, ys, titles, range(len(rows))))
    return Chart(name, series, x, Axis("client", names=[r.name for r in everyone]), joined=False)


def _client_title(entry: Entry, row: ClientRow) -> str:
    samples = f" of {row.test_samples} {entry.first.judged_on} samples" if row.test_samples else ""
    return f"{entry.label}, client {row.name}: {row.accuracy:.3f}{samples}"


def all_clients(entries: Sequence[Entry]) -> list[ClientRow]:
    """Return every client once, in the order of their numbers.

    A client that a run could not evaluate is not in its file.
    """
    rows = {row.client: row for entry in reversed(entries) for row in entry.clients}
    return [rows[client] for client in sorted(rows, key=lambda client: (len(client), client))]


def are_few(entries: Sequence[Entry]) -> bool:
    """Tell whether there are so few clients that each can be shown by its name."""
    return len(all_clients(entries)) <= FEW_CLIENTS


def beta_columns(entries: Sequence[Entry]) -> list[str]:
    """Return the names of the βs that the methods report."""
    return list(dict.fromkeys(n for e in entries for row in e.clients for n in row.betas))


def with_beta(entries: Sequence[Entry], column: str) -> list[Entry]:
    """Return the entries that report a β."""
    return [entry for entry in entries if any(column in row.betas for row in entry.clients)]


def beta_name(column: str) -> str:
    """Return β, and of what if a method has several."""
    return "β" + column.removeprefix("beta").replace("_", " of the ")


def is_shifted(entries: Sequence[Entry]) -> bool:
    """Tell whether the images of a client are corrupted."""
    return any(row.corruption and row.severity for entry in entries for row in entry.clients)


def beta_by_client(entries: Sequence[Entry], column: str) -> Chart:
    """Return β of every client: by name if they are few, else by number of training samples."""
    axis = Axis(f"{beta_name(column)}: 0 global, 1 local", 0, 1)
    name = f"{beta_name(column)} of every client"

    def title(entry: Entry, row: ClientRow) -> str:
        samples = f"{row.train_samples} training samples"
        return f"{entry.label}, client {row.name}: β {row.betas[column]:.3f}, {samples}"

    if are_few(entries):
        return _by_name(name, entries, axis, lambda row: row.betas.get(column), title)
    series = []
    for entry in entries:
        rows = [r for r in entry.clients if column in r.betas and r.train_samples is not None]
        xs = [float(row.train_samples or 0) for row in rows]
        ys = [row.betas[column] for row in rows]
        titles = [title(entry, row) for row in rows]
        series.append(Series(entry, xs, ys, titles, range(len(rows))))
    x = Axis("training samples of the client", low=0, whole=True)
    return Chart(f"{name} by its number of training samples", series, x, axis, joined=False)


def beta_by_corruption(entry: Entry, column: str) -> Heat:
    """Return the mean β by corruption and severity; ("", 0) is not corrupted."""
    betas: dict[tuple[str, int], list[float]] = {}
    for row in entry.clients:
        if column in row.betas:
            shifted = row.corruption and row.severity
            where = (row.corruption, row.severity) if shifted else ("", 0)
            betas.setdefault(where, []).append(row.betas[column])
    return Heat(
        entry,
        beta_name(column),
        sorted({corruption for corruption, _ in betas if corruption}),
        sorted({severity for _, severity in betas if severity}),
        {where: (statistics.fmean(values), len(values)) for where, values in betas.items()},
    )


def bytes_by_round(entries: Sequence[Entry], direction: str, total: bool) -> Chart:
    """Return the bytes ``up`` or ``down``: in total so far, or on average per round."""
    points = [_traffic(entry, f"bytes_{direction}", total) for entry in entries]
    unit = bytes_unit(max((value for _, ys in points for value in ys), default=0))
    series = [
        Series(
            entry,
            xs,
            [value / unit.size for value in ys],
            [
                f"{entry.label}, round {x:.0f}: {value / unit.size:,.2f} {unit.name}"
                for x, value in zip(xs, ys, strict=True)
            ],
        )
        for entry, (xs, ys) in zip(entries, points, strict=True)
    ]
    what = "so far" if total else "per round"
    y = Axis(f"{unit.name} {direction}, {what}", low=0)
    return Chart(f"bytes {direction} {what}, by round", series, rounds_axis(), y)


def _traffic(entry: Entry, column: str, total: bool) -> tuple[list[float], list[float]]:
    """Return rounds and bytes; those per round are the mean since the evaluation before."""
    xs, ys = [], []
    last_round, last_bytes = 0.0, 0.0
    for now, values in zip(entry.rounds, entry.curve(column), strict=True):
        so_far = mean(values)
        if so_far is not None and now > last_round:
            xs.append(now)
            ys.append(so_far if total else (so_far - last_bytes) / (now - last_round))
            last_round, last_bytes = now, so_far
    return xs, ys


def bubbles(counts: ClassCounts, samples: str = "training samples") -> Chart:
    """Return samples by client and class as circles; of many, evenly spaced ones."""
    clients = spaced(len(counts.client_names), MOST_CLIENTS)
    classes = spaced(len(counts.class_names), MOST_CLASSES)
    largest = max((max(row) for row in counts.counts), default=0) or 1
    xs, ys, sizes, titles = [], [], [], []
    for x, client in enumerate(clients):
        for y, label in enumerate(classes):
            if count := counts.counts[client][label]:
                xs.append(float(x))
                ys.append(float(y))
                sizes.append(count / largest)
                client_name, class_name = counts.client_names[client], counts.class_names[label]
                titles.append(f"client {client_name}, class {class_name}: {count}")
    some = f", {len(clients)} of {len(counts.client_names)}"
    return Chart(
        f"{samples} by client and class".capitalize(),
        [Series(None, xs, ys, titles, range(len(xs)), sizes=sizes)],
        Axis(
            "client" + (some if len(clients) < len(counts.client_names) else ""),
            names=[counts.client_names[client] for client in clients],
        ),
        Axis("class", names=[counts.class_names[label] for label in classes]),
        joined=False,
    )


def wall_time(entries: Sequence[Entry]) -> Bars:
    """Return the seconds on the clock by phase."""
    components = []
    for entry in entries:
        phases = {name: value for name, value in entry.seconds.items() if name != "total"}
        # The small rest, such as writing files, is not worth a colour.
        total = entry.seconds.get("total", 0.0)
        rest = total - sum(phases.values())
        components.append(phases | ({"other": rest} if rest > 0.01 * total else {}))
    return Bars(entries, components)


def client_time(entries: Sequence[Entry]) -> Bars:
    """Return the seconds inside the clients by component, summed over clients."""
    return Bars(entries, [entry.client_seconds for entry in entries])
