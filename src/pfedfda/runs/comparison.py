"""The table that compares methods, as CSV and for a terminal."""

import io
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from pfedfda.errors import printable
from pfedfda.runs.accuracy import ACCURACIES
from pfedfda.runs.layout import COMPARISON, TRAFFIC_PER_ROUND
from pfedfda.runs.writer import write_csv

COLUMNS = ("method", *ACCURACIES, "seconds", *TRAFFIC_PER_ROUND)


def write_comparison(folder: Path, summaries: Sequence[Mapping[str, Any]]) -> None:
    """Write ``comparison.csv``, with full precision, from the contents of ``summary.json``."""
    rows = []
    for summary in summaries:
        values = {**summary, "seconds": summary["seconds"]["total"]}
        rows.append([values[column] for column in COLUMNS])
    write_csv(folder / COMPARISON, COLUMNS, rows)


def mean_summaries(summaries: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return a summary for each method with the means over its runs, for ``comparison.csv``."""
    by_method: dict[str, list[Mapping[str, Any]]] = {}
    for summary in summaries:
        by_method.setdefault(summary["method"], []).append(summary)
    means = []
    for method, runs in by_method.items():
        names = (*ACCURACIES, *TRAFFIC_PER_ROUND)
        numbers = {name: statistics.fmean(run[name] for run in runs) for name in names}
        total = statistics.fmean(run["seconds"]["total"] for run in runs)
        means.append({"method": method, **numbers, "seconds": {"total": total}})
    return means


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
        "MB up\n/ round",
        "MB down\n/ round",
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
