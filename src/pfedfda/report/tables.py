"""The tables and bars of the page, as HTML."""

import statistics
from collections.abc import Callable, Sequence
from html import escape

from pfedfda.report.paper_table import PaperCell, PaperTable
from pfedfda.report.plots import Shown, counted, mean_betas, number, switched, time_unit, view
from pfedfda.report.runs import Run

MOST_CLIENTS = 200

Column = tuple[str, Callable[[Run], float | None], Callable[[float | None], str], bool]


def scrolled(table: str, name: str) -> str:
    """Return a table in a box that scrolls when it is too wide for the screen."""
    return f'<div class="box" role="region" aria-label="{escape(name)}" tabindex="0">{table}</div>'


def comparison(shown: Sequence[Shown], mark_best: bool = True) -> str:
    """Return the table that compares runs; the page's script makes it sortable.

    Parameters
    ----------
    shown
        Runs, or means over seeds.
    mark_best
        Whether to mark the best of each column.
    """
    mega = 1e6
    columns: list[Column] = [
        ("mean", lambda r: r.summary["mean_accuracy"], number, True),
        ("std over clients", lambda r: r.summary["std_accuracy"], number, False),
        ("weighted", lambda r: r.summary["weighted_accuracy"], number, True),
        ("worst tenth", lambda r: r.summary["worst_tenth_accuracy"], number, True),
        ("seeds", lambda r: float(r.seeds), lambda v: number(v, 0), False),
        ("rounds", lambda r: float(r.rounds), lambda v: number(v, 0), False),
        ("time, s", lambda r: r.seconds.get("total"), lambda v: number(v, 1), False),
        (
            "MB up a round",
            lambda r: _divided(r.summary["bytes_up_per_round"], mega),
            lambda v: number(v, 2),
            False,
        ),
        (
            "MB down a round",
            lambda r: _divided(r.summary["bytes_down_per_round"], mega),
            lambda v: number(v, 2),
            False,
        ),
    ]
    if all(s.run.seeds == 1 for s in shown):
        columns = [column for column in columns if column[0] != "seeds"]
    head = '<th scope="col">method</th>' + "".join(
        f'<th scope="col" class="n">{escape(name)}</th>' for name, *_ in columns
    )
    best = [
        max((value for s in shown if (value := get(s.run)) is not None), default=None)
        if marks and mark_best and len(shown) > 1
        else None
        for _, get, _, marks in columns
    ]
    rows = []
    for s in shown:
        cells = []
        for (_, get, write, _), top in zip(columns, best, strict=True):
            value = get(s.run)
            winner = " best" if value is not None and value == top else ""
            key = "" if value is None else f"{value!r}"
            cells.append(f'<td class="n{winner}" data-v="{key}">{write(value)}</td>')
        # The row of several runs has the colour of the first, but the legend does not hide it.
        whose = "data-m" if s.run.seeds == 1 else "data-c"
        rows.append(f'<tr {whose}="{s.index}">{_run_heading(s)}{"".join(cells)}</tr>')
    table = (
        f'<table class="sortable"><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table>"
    )
    return scrolled(table, "comparison of methods")


def _divided(value: float | None, by: float) -> float | None:
    return None if value is None else value / by


def _run_heading(s: Shown) -> str:
    return f'<th scope="row"><i class="dot"></i>{escape(s.run.label)}</th>'


def paper(table: PaperTable) -> str:
    """Return the paper's numbers, ours and the difference: side by side, or below if many."""
    content = _paper_below(table) if len(table.columns) > 3 else _paper_beside(table)
    notes = "".join(f"<li>{escape(note)}</li>" for note in table.notes)
    heading = "<h3>What differs from the paper’s setting</h3>"
    return scrolled(content, table.title) + (
        f'{heading}<ul class="notes">{notes}</ul>' if notes else ""
    )


def _paper_beside(table: PaperTable) -> str:
    groups = "".join(
        f'<th scope="colgroup" colspan="3" class="group">{escape(column)}</th>'
        for column in table.columns
    )
    names = '<th scope="col" class="n group">paper</th>'
    names += '<th scope="col" class="n">ours</th><th scope="col" class="n">difference</th>'
    rows = "".join(
        f'<tr><th scope="row">{escape(row.label)}</th>'
        + "".join(
            f'<td class="n{" group" if not place else ""}">{text}</td>'
            for cell in row.cells
            for place, text in enumerate(_paper_texts(cell, table.digits))
        )
        + "</tr>"
        for row in table.rows
    )
    return (
        f'<table class="paper"><thead><tr><td></td>{groups}</tr><tr><td></td>'
        f"{names * len(table.columns)}</tr></thead><tbody>{rows}</tbody></table>"
    )


def _paper_below(table: PaperTable) -> str:
    head = "".join(f'<th scope="col" class="n">{escape(column)}</th>' for column in table.columns)
    bodies = []
    for row in table.rows:
        texts = [_paper_texts(cell, table.digits) for cell in row.cells]
        first = f'<th scope="rowgroup" rowspan="3">{escape(row.label)}</th>'
        lines = ""
        for place, name in enumerate(("paper", "ours", "difference")):
            cells = "".join(f'<td class="n">{of_cell[place]}</td>' for of_cell in texts)
            lines += f'<tr class="{name}">{first}<th scope="row">{name}</th>{cells}</tr>'
            first = ""
        bodies.append(f"<tbody>{lines}</tbody>")
    return (
        f'<table class="paper many"><thead><tr><td></td><td></td>{head}</tr></thead>'
        f"{''.join(bodies)}</table>"
    )


def _paper_texts(cell: PaperCell, digits: int) -> tuple[str, str, str]:
    text = number(cell.difference, digits)
    if cell.difference is not None and round(cell.difference, digits) > 0:
        text = f"+{text}"
    return (
        _with_std(cell.paper_mean, cell.paper_std, digits),
        _with_std(cell.ours_mean, cell.ours_std, digits),
        f"<b>{text}</b>",
    )


def _with_std(mean: float | None, std: float | None, digits: int = 3) -> str:
    if mean is None or std is None:
        return number(mean, digits)
    return f'{number(mean, digits)} <span class="std">± {number(std, digits)}</span>'


def new_clients(shown: Sequence[Shown]) -> str:
    """Return the accuracies of clients that never took part in training, by condition."""
    shown = [s for s in shown if s.run.new_clients]
    conditions = list(dict.fromkeys(c for s in shown for c in s.run.new_clients))
    head = "".join(
        f'<th scope="col" class="n" data-m="{s.index}">{escape(s.run.label)}</th>' for s in shown
    )
    rows = []
    for condition in conditions:
        means = [_mean(s.run.new_clients.get(condition, [])) for s in shown]
        top = max((m for m in means if m is not None), default=None) if len(shown) > 1 else None
        cells = "".join(
            f'<td class="n{" best" if mean is not None and mean == top else ""}" '
            f'data-m="{s.index}">{_with_std(mean, _std(s.run.new_clients.get(condition, [])))}</td>'
            for s, mean in zip(shown, means, strict=True)
        )
        rows.append(f'<tr><th scope="row">{escape(condition.replace("_", " "))}</th>{cells}</tr>')
    return scrolled(
        f'<table class="stacked"><thead><tr><th scope="col">condition</th>{head}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table>",
        "accuracy of new clients",
    )


def _mean(values: Sequence[float]) -> float | None:
    return statistics.fmean(values) if values else None


def _std(values: Sequence[float]) -> float | None:
    return statistics.pstdev(values) if values else None


def beta_by_corruption(s: Shown, column: str) -> str:
    """Return the mean β for each corruption (rows) and severity (columns)."""
    cells = mean_betas(s.run, column)
    severities = sorted({severity for _, severity in cells if severity})
    head = "".join(f'<th scope="col" class="n">{severity}</th>' for severity in severities)
    rows = []
    for corruption in sorted({name for name, _ in cells if name}):
        of_row = [cells.get((corruption, severity)) for severity in severities]
        known = [cell for cell in of_row if cell]
        many = sum(count for _, count in known)
        together = (sum(mean * count for mean, count in known) / many, many)
        rows.append(
            f'<tr><th scope="row">{escape(corruption.replace("_", " "))}</th>'
            f"{''.join(map(_beta_cell, of_row))}{_beta_cell(together, ' all')}</tr>"
        )
    rows.append(
        f'<tr class="clean"><th scope="row">not corrupted</th>'
        f'<td colspan="{len(severities)}"></td>{_beta_cell(cells.get(("", 0)), " all")}</tr>'
    )
    return scrolled(
        f'<table class="heat" data-m="{s.index}"><thead><tr><th scope="col">severity</th>{head}'
        f'<th scope="col" class="n">all</th></tr></thead><tbody>{"".join(rows)}</tbody></table>',
        f"β of {s.run.label} by corruption and severity",
    )


def _beta_cell(cell: tuple[float, int] | None, kind: str = "") -> str:
    if cell is None:
        return f'<td class="n{kind}">–</td>'
    mean, many = cell
    shade = min(max(mean, 0.0), 1.0)
    return (
        f'<td class="n warm{kind}" style="--v:{shade:.2f}" title="{counted(many, "client")}">'
        f"{number(mean, 2)}</td>"
    )


def clients(shown: Sequence[Shown]) -> str:
    """Return a table with a row for each client and a column for each run."""
    runs = [s for s in shown if s.run.clients]
    # A client that a run could not evaluate is not in its file, so places do not tell who is who.
    by_run = [{client.client: client for client in s.run.clients} for s in runs]
    everyone = {client.client: client for s in reversed(runs) for client in s.run.clients}
    first = [everyone[key] for key in sorted(everyone, key=lambda key: (len(key), key))]
    kinds = [
        (name, [str(getattr(client, name) or "–").replace("_", " ") for client in first])
        for name in ("domain", "corruption", "severity")
        if any(getattr(client, name) for client in first)
    ]
    for name, field in (
        ("training", "train_samples"),
        (runs[0].run.judged_on, "test_samples"),
        ("classes", "classes"),
    ):
        kinds.append((name, [number(getattr(client, field), 0) for client in first]))
    head = '<th scope="col">client</th>' + "".join(
        f'<th scope="col" class="n">{escape(name)}</th>' for name, _ in kinds
    )
    head += "".join(
        f'<th scope="col" class="n" data-m="{s.index}">{escape(s.run.label)}</th>' for s in runs
    )
    rows = []
    for place, client in enumerate(first[:MOST_CLIENTS]):
        cells = "".join(
            f'<td class="n" data-v="{escape(values[place])}">{escape(values[place])}</td>'
            for _, values in kinds
        )
        for s, clients in zip(runs, by_run, strict=True):
            value = clients[client.client].accuracy if client.client in clients else None
            key = "" if value is None else f"{value!r}"
            cells += f'<td class="n" data-v="{key}" data-m="{s.index}">{number(value, 2)}</td>'
        rows.append(f'<tr><th scope="row">{escape(client.name)}</th>{cells}</tr>')
    left = len(first) - MOST_CLIENTS
    more = f"<p>{left} more clients are in the files clients.csv.</p>" if left > 0 else ""
    return (
        scrolled(
            f'<table class="sortable"><thead><tr>{head}</tr></thead>'
            f"<tbody>{''.join(rows)}</tbody></table>",
            "every client",
        )
        + more
    )


def time_by_component(shown: Sequence[Shown], key: str) -> str:
    """Return bars of the seconds by component: on the clock, and inside the clients."""
    wall = []
    for s in shown:
        phases = {name: value for name, value in s.run.seconds.items() if name != "total"}
        # The small rest, such as writing files, is not worth a colour.
        rest = s.run.seconds.get("total", 0.0) - sum(phases.values())
        small = 0.01 * s.run.seconds.get("total", 0.0)
        wall.append(phases | ({"other": rest} if rest > small else {}))
    inside = [s.run.client_seconds for s in shown]
    views = [view(_bars(shown, wall), 0), view(_bars(shown, inside), 1)]
    choices = [["on the clock", "inside the clients, summed"]]
    return switched(key, ["Time"], choices, views)


def _bars(shown: Sequence[Shown], components: Sequence[dict[str, float]]) -> str:
    names = list(dict.fromkeys(name for parts in components for name in parts))
    longest = max((sum(parts.values()) for parts in components), default=0.0)
    if longest <= 0:
        return '<p class="empty">These runs do not report it.</p>'
    unit = time_unit(longest)
    legend = "".join(
        f'<li><i class="piece p{place % 4}"></i>{escape(name)}</li>'
        for place, name in enumerate(names)
    )
    rows = []
    for s, parts in zip(shown, components, strict=True):
        pieces = "".join(
            f'<i class="piece p{place % 4}" style="width:{100 * parts[name] / longest:.2f}%"></i>'
            for place, name in enumerate(names)
            if parts.get(name, 0) > 0
        )
        told = " · ".join(
            f"{escape(name)} {number(parts[name] / unit.size, 1)}"
            for name in names
            if name in parts
        )
        total = number(sum(parts.values()) / unit.size, 1)
        rows.append(
            f'<li data-m="{s.index}"><span class="who">{escape(s.run.label)}</span>'
            f'<span class="bar">{pieces}</span><span class="total">{total} {unit.name}</span>'
            f'<span class="told">{told}</span></li>'
        )
    return f'<ul class="key">{legend}</ul><ul class="bars">{"".join(rows)}</ul>'
