"""The tables of the page: which numbers stand where."""

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from pfedfda.report.charts import Heat, all_clients
from pfedfda.report.groups import Entry, seeds_of
from pfedfda.report.paper_table import PaperCell, PaperTable
from pfedfda.report.text import counted, number, signed
from pfedfda.runs.seed_table import SeedTable, p_text
from pfedfda.runs.statistics import Interval

MOST_CLIENTS = 200
BEST: dict[str, Callable[[list[float]], float]] = {
    **dict.fromkeys(("mean", "weighted", "worst tenth", "balanced"), max),
    **dict.fromkeys(("NLL", "ECE"), min),
}
LARGE = 1e6  # from which on numbers with decimals have an exponent
MEASURES = {"balanced": "balanced_accuracy", "NLL": "nll", "ECE": "ece"}  # of a client


@dataclass(frozen=True)
class Cell:
    """A cell of a table."""

    text: str = ""
    std: str = ""  # a standard deviation, which follows in small type
    kind: str = ""  # classes of the style sheet: n for numbers, best, group
    heading: str = ""  # the scope of a heading, such as row
    sort: str | None = None  # what the page's script sorts by, where that is not the text
    index: int | None = None  # the entry that it belongs to
    shade: float | None = None  # from 0 to 1
    title: str = ""  # shown while the pointer rests on it
    columns: int = 1
    rows: int = 1


@dataclass(frozen=True)
class Row:
    """A row of a table: its cells, the entry that it belongs to, and classes."""

    cells: Sequence[Cell]
    index: int | None = None
    kind: str = ""


@dataclass(frozen=True)
class Table:
    """A table; one of the kind ``sortable`` is sorted by its headings."""

    name: str  # for people who cannot see it
    kind: str
    head: Sequence[Row]
    bodies: Sequence[Sequence[Row]]
    note: str = ""  # a sentence below


def _headings(first: str, names: Iterable[str | Entry]) -> Row:
    cells = [Cell(first, heading="col")]
    for name in names:
        text, index = (name, None) if isinstance(name, str) else (name.label, name.index)
        cells.append(Cell(text, kind="n", heading="col", index=index))
    return Row(cells)


def _number(value: float | None, digits: int = 3, kind: str = "", index: int | None = None) -> Cell:
    sort = "" if value is None else repr(value)
    text = number(value, digits)
    if value is not None and abs(value) >= LARGE and digits:  # such as the loss of a rough estimate
        text = f"{value:.0e}".replace("e+", "e")
    return Cell(text, kind=f"n {kind}".strip(), sort=sort, index=index)


def _mean(mean: float | None, std: float | None, digits: int = 3, kind: str = "") -> Cell:
    deviation = number(std, digits) if mean is not None and std is not None else ""
    return Cell(number(mean, digits), deviation, f"n {kind}".strip())


def comparison(entries: Sequence[Entry], mark_best: bool = True) -> Table:
    """Return the table that compares methods, with the means over seeds."""
    columns: list[tuple[str, Callable[[Entry], float | None], int]] = [
        ("mean", lambda e: e.number("mean_accuracy"), 3),
        ("std over clients", lambda e: e.number("std_accuracy"), 3),
        ("weighted", lambda e: e.number("weighted_accuracy"), 3),
        ("worst tenth", lambda e: e.number("worst_tenth_accuracy"), 3),
        ("balanced", lambda e: e.number("mean_balanced_accuracy"), 3),
        ("NLL", lambda e: e.number("test_loss"), 3),
        ("ECE", lambda e: e.number("pooled_ece"), 3),
        ("seeds", lambda e: float(e.seeds), 0),
        ("rounds", lambda e: float(e.first.rounds), 0),
        ("time, s", lambda e: e.seconds.get("total"), 1),
        ("MB up per round", lambda e: _mega(e.number("bytes_up_per_round")), 2),
        ("MB down per round", lambda e: _mega(e.number("bytes_down_per_round")), 2),
    ]
    if all(entry.seeds == 1 for entry in entries):
        columns = [column for column in columns if column[0] != "seeds"]
    if all(entry.number("pooled_ece") is None for entry in entries):  # of an earlier version
        columns = [column for column in columns if column[0] not in ("balanced", "NLL", "ECE")]
    rows = []
    for entry in entries:
        cells = [Cell(entry.label, heading="row", kind="entry")]
        for name, get, digits in columns:
            value = get(entry)
            ranked = mark_best and len(entries) > 1 and name in BEST
            known = [v for e in entries if (v := get(e)) is not None] if ranked else []
            best = "best" if known and value == BEST[name](known) else ""
            cells.append(_number(value, digits, best))
        rows.append(Row(cells, entry.index))
    head = _headings("method", [name for name, *_ in columns])
    return Table("comparison of methods", "sortable", [head], [rows])


def privacy(entries: Sequence[Entry]) -> Table:
    """Return the table of what runs promise and have spent; a run without promises nothing."""
    columns = [
        ("ε spent", "epsilon", 2),
        ("ε budget", "epsilon_budget", 2),
        ("δ", "delta", 6),
        ("clip", "clip", 3),
        ("noise multiplier", "noise_multiplier", 4),
        ("clients", "clients", 0),
    ]
    rows = []
    for entry in entries:
        told = entry.first.privacy
        cells = [Cell(entry.label, heading="row", kind="entry"), Cell("client" if told else "none")]
        cells += [_number(told.get(name), digits) for _, name, digits in columns]
        rows.append(Row(cells, entry.index))
    head = _headings("method", ["unit", *(heading for heading, *_ in columns)])
    return Table("differential privacy", "sortable", [head], [rows])


def over_seeds(table: SeedTable, entries: Sequence[Entry]) -> Table:
    """Return the means over seeds with intervals, and the differences from the best other."""
    indices = {entry.label: entry.index for entry in entries}
    best = max(row.accuracy.mean for row in table.rows)
    rows = []
    for row in table.rows:
        mark = "best" if row.accuracy.mean == best and len(table.rows) > 1 else ""
        cells = [Cell(row.method, heading="row", kind="entry"), _number(row.accuracy.mean, 3, mark)]
        cells += [_range(row.accuracy), _number(row.accuracies["std_accuracy"])]
        if len(table.rows) > 1:
            found, p = row.difference, row.p_holm
            cells += [
                Cell(row.best_other or "–", sort=row.best_other),
                Cell(signed(found.mean, 3), kind="n", sort=repr(found.mean))
                if found
                else _number(None),
                _range(found) if found else _number(None),
                Cell(p_text(p), kind="n", sort="" if p is None else repr(p)),
            ]
        rows.append(Row(cells, indices[row.method]))
    names = ["mean", "95 % interval", "std over clients"]
    if len(table.rows) > 1:
        names += ["best other", "less that", "95 % interval", "p, Holm"]
    return Table("means over seeds", "sortable", [_headings("method", names)], [rows])


def all_pairs(table: SeedTable) -> Table:
    """Return a row for each pair of methods with the test between them."""
    rows = [
        Row(
            [
                Cell(pair.first, heading="row"),
                Cell(pair.second),
                Cell(signed(pair.difference.mean, 3), kind="n", sort=repr(pair.difference.mean)),
                _range(pair.difference),
                Cell(p_text(pair.difference.p), kind="n", sort=repr(pair.difference.p or 0.0)),
                Cell(p_text(pair.p_holm), kind="n", sort=repr(pair.p_holm or 0.0)),
            ]
        )
        for pair in table.pairs
    ]
    names = ["less", "difference", "95 % interval", "p", "p, Holm"]
    return Table("all pairs", "sortable", [_headings("method", names)], [rows])


def _range(interval: Interval) -> Cell:
    if interval.low is None or interval.high is None:
        return Cell("–", kind="n", sort="")
    text = f"{number(interval.low, 3)} to {number(interval.high, 3)}".replace("-", "−")
    return Cell(text, kind="n", sort=repr(interval.low))


def every_run(entries: Sequence[Entry]) -> Table:
    """Return a row for each run, so for each seed of a method."""
    alone = [
        Entry([run], f"{entry.label}, {seeds_of([run])}", entry.index, entry.style)
        for entry in entries
        for run in entry.runs
    ]
    return comparison(alone, mark_best=False)


def _mega(value: float | None) -> float | None:
    return None if value is None else value / 1e6


def clients(entries: Sequence[Entry], measure: str = "accuracy") -> Table:
    """Return a row for each client, with a test result under each method.

    Parameters
    ----------
    entries
        The methods; a single one has a column for each of its test results.
    measure
        Which test result: accuracy, or one of `MEASURES`.
    """
    entries = [entry for entry in entries if entry.clients]
    by_entry = [{row.client: row for row in entry.clients} for entry in entries]
    everyone = all_clients(entries)
    shifts = ("domain", "corruption", "severity")
    texts = [name for name in shifts if any(getattr(client, name) for client in everyone)]
    judged_on = entries[0].first.judged_on
    counts = {"training": "train_samples", judged_on: "test_samples", "classes": "classes"}
    alone = len(entries) == 1 and any(client.quality for client in everyone)
    more_columns = MEASURES if alone else {}
    rows = []
    for client in everyone[:MOST_CLIENTS]:
        cells = [Cell(client.name, heading="row")]
        for name in texts:
            text = str(getattr(client, name) or "–").replace("_", " ")
            cells.append(Cell(text, kind="n", sort=text))
        cells += [_number(getattr(client, name), 0) for name in counts.values()]
        for entry, of_entry in zip(entries, by_entry, strict=True):
            row = of_entry.get(client.client)
            value = row.accuracy if row and measure == "accuracy" else None
            if row and measure != "accuracy":
                value = row.quality.get(measure)
            cells.append(_number(value, 2, index=entry.index))
        cells += [_number(client.quality.get(name), 2) for name in more_columns.values()]
        rows.append(Row(cells))
    left = len(everyone) - MOST_CLIENTS
    more = f"{left} more clients are in the files clients.csv." if left > 0 else ""
    head = _headings("client", [*texts, *counts, *entries, *more_columns])
    return Table(f"{measure.replace('_', ' ')} of every client", "sortable", [head], [rows], more)


def new_clients(entries: Sequence[Entry]) -> Table:
    """Return the accuracies of clients that never took part in training, by condition."""
    entries = [entry for entry in entries if entry.new_clients]
    rows = []
    for condition in dict.fromkeys(name for entry in entries for name in entry.new_clients):
        values = [entry.new_clients.get(condition, []) for entry in entries]
        means = [statistics.fmean(of_entry) if of_entry else None for of_entry in values]
        known = [mean for mean in means if mean is not None] if len(entries) > 1 else []
        cells = [Cell(condition.replace("_", " "), heading="row")]
        for entry, mean, of_entry in zip(entries, means, values, strict=True):
            cell = _mean(
                mean,
                statistics.pstdev(of_entry) if of_entry else None,
                kind="best" if known and mean == max(known) else "",
            )
            cells.append(Cell(cell.text, cell.std, cell.kind, index=entry.index))
        rows.append(Row(cells))
    return Table("accuracy of new clients", "stacked", [_headings("condition", entries)], [rows])


def heat(map_: Heat) -> Table:
    """Return a map of β as a table, with the mean of each row."""
    rows = []
    for name in map_.rows:
        cells = [map_.cells.get((name, column)) for column in map_.columns]
        known = [cell for cell in cells if cell]
        many = sum(count for _, count in known)
        together = (sum(mean * count for mean, count in known) / many, many)
        shaded = [*(_shaded(cell) for cell in cells), _shaded(together, "all")]
        rows.append(Row([Cell(name.replace("_", " "), heading="row"), *shaded]))
    clean = _shaded(map_.cells.get(("", 0)), "all")
    blank = Cell(columns=len(map_.columns))
    rows.append(Row([Cell("not corrupted", heading="row"), blank, clean], kind="clean"))
    head = _headings("severity", [*map(str, map_.columns), "all"])
    name = f"{map_.name} of {map_.entry.label} by corruption and severity"
    return Table(name, "heat", [head], [rows])


def _shaded(cell: tuple[float, int] | None, kind: str = "") -> Cell:
    if cell is None:
        return Cell("–", kind=f"n {kind}".strip())
    mean, many = cell
    shade = min(max(mean, 0.0), 1.0)
    title = counted(many, "client")
    return Cell(number(mean, 2), kind=f"n warm {kind}".strip(), shade=shade, title=title)


def paper(table: PaperTable) -> Table:
    """Return the paper's numbers, ours and the difference: side by side, or below if many."""
    if len(table.columns) > 3:
        head = [Row([Cell(), *_headings("", table.columns).cells])]
        bodies = []
        for row in table.rows:
            lines = zip(*(_paper_cells(cell, table.digits) for cell in row.cells), strict=True)
            rows: list[Row] = []
            for name, cells in zip(("paper", "ours", "difference"), lines, strict=True):
                first = [Cell(row.label, heading="rowgroup", rows=3)] if not rows else []
                rows.append(Row([*first, Cell(name, heading="row"), *cells], kind=name))
            bodies.append(rows)
        return Table(table.title, "paper many", head, bodies)
    groups = [Cell(c, kind="group", heading="colgroup", columns=3) for c in table.columns]
    names = [
        Cell(name, kind="n group" if name == "paper" else "n", heading="col")
        for name in ("paper", "ours", "difference")
    ]
    head = [Row([Cell(), *groups]), Row([Cell(), *names * len(table.columns)])]
    rows = [
        Row(
            [
                Cell(row.label, heading="row"),
                *(c for cell in row.cells for c in _paper_cells(cell, table.digits, "group")),
            ]
        )
        for row in table.rows
    ]
    return Table(table.title, "paper", head, [rows])


def _seeds_title(cell: PaperCell, digits: int) -> str:
    if cell.low is None or cell.high is None:
        return ""
    ends = f"{number(cell.low, digits)} to {number(cell.high, digits)}"
    return f"mean over {cell.seeds} seeds, 95 % interval {ends}"


def _paper_cells(cell: PaperCell, digits: int, kind: str = "") -> tuple[Cell, Cell, Cell]:
    return (
        _mean(cell.paper_mean, cell.paper_std, digits, kind),
        replace(_mean(cell.ours_mean, cell.ours_std, digits), title=_seeds_title(cell, digits)),
        Cell(signed(cell.difference, digits), kind="n best"),
    )
