"""The table that compares methods."""

import io
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from pfedfda.errors import printable
from pfedfda.report.paper_table import PaperTable

COLUMNS = [
    "method",
    "mean_accuracy",
    "std_accuracy",
    "weighted_accuracy",
    "worst_tenth_accuracy",
    "seconds",
    "bytes_up_per_round",
    "bytes_down_per_round",
]


def plain_console(**options: Any) -> Console:
    """Return a console that prints text as it is, since names may look like markup.

    Parameters
    ----------
    options
        Passed on to `rich.console.Console`.
    """
    return Console(**options, markup=False, emoji=False)


def build_table(summaries: Sequence[Mapping[str, Any]]) -> Table:
    """Return the comparison of runs from the contents of their ``summary.json``."""
    judged = {"validation" if s.get("validation_share") else "test" for s in summaries}
    title = f"{' or '.join(sorted(judged)).capitalize()} accuracy after the last round"
    table = Table(title=title, title_justify="left")
    table.add_column("Method", no_wrap=True)
    for heading in (
        "mean ± std\nover clients",
        "weighted",
        "worst\ntenth",
        "seconds",
        "MB up\na round",
        "MB down\na round",
    ):
        table.add_column(heading, justify="right", no_wrap=True)
    best = max((s.get("mean_accuracy", 0.0) for s in summaries), default=0.0)
    for summary in summaries:
        mean = summary["mean_accuracy"]
        table.add_row(
            printable(summary["method"]),
            f"{mean:.3f} ± {summary['std_accuracy']:.3f}",
            f"{summary['weighted_accuracy']:.3f}",
            f"{summary['worst_tenth_accuracy']:.3f}",
            f"{summary['seconds']['total']:.1f}",
            f"{summary['bytes_up_per_round'] / 1e6:.2f}",
            f"{summary['bytes_down_per_round'] / 1e6:.2f}",
            style="bold" if mean == best and len(summaries) > 1 else "",
        )
    return table


def build_paper_table(table: PaperTable) -> Table:
    """Return the paper's numbers beside ours, for a terminal."""
    shown = Table(title=printable(table.title), title_justify="left", show_lines=True)
    shown.add_column("", no_wrap=True)
    for heading in table.columns:
        shown.add_column(printable(heading), justify="right", no_wrap=True)

    def number(mean: float | None, std: float | None) -> str:
        if mean is None:
            return "-"
        behind = "" if std is None else f" ({std:.{table.digits}f})"
        return f"{mean:.{table.digits}f}{behind}"

    for row in table.rows:
        cells = []
        for cell in row.cells:
            lines = [
                f"ours  {number(cell.ours_mean, cell.ours_std)}",
                f"paper {number(cell.paper_mean, cell.paper_std)}",
            ]
            if cell.difference is not None:
                lines.append(f"diff. {cell.difference:+.{table.digits}f}")
            cells.append("\n".join(lines))
        shown.add_row(printable(row.label), *cells)
    return shown


def build_new_clients_table(summaries: Sequence[Mapping[str, Any]]) -> Table | None:
    """Return the accuracies of new clients by condition, None if no run has any."""
    chosen = [summary for summary in summaries if "new_clients" in summary]
    if not chosen:
        return None
    title = "New clients: test accuracy, mean ± std over clients"
    table = Table(title=title, title_justify="left")
    table.add_column("condition", no_wrap=True)
    for summary in chosen:
        table.add_column(printable(summary["method"]), justify="right", no_wrap=True)
    for condition in chosen[0]["new_clients"]:
        cells = [summary["new_clients"][condition] for summary in chosen]
        table.add_row(
            printable(condition.replace("_", " ")),
            *(f"{cell['mean_accuracy']:.3f} ± {cell['std_accuracy']:.3f}" for cell in cells),
        )
    return table


def comparison_table(summaries: Sequence[Mapping[str, Any]]) -> str:
    """Return the comparison as plain text."""
    buffer = io.StringIO()
    plain_console(file=buffer, width=100).print(build_table(summaries))
    return buffer.getvalue().rstrip()
