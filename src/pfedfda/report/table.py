"""The table that compares methods."""

import io
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

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


def build_table(summaries: Sequence[Mapping[str, Any]]) -> Table:
    """Return the comparison of runs from the contents of their ``summary.json``."""
    table = Table(title="Test accuracy after the last round", title_justify="left")
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
            summary["method"],
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
        table.add_column(summary["method"], justify="right", no_wrap=True)
    for condition in chosen[0]["new_clients"]:
        cells = [summary["new_clients"][condition] for summary in chosen]
        table.add_row(
            condition.replace("_", " "),
            *(f"{cell['mean_accuracy']:.3f} ± {cell['std_accuracy']:.3f}" for cell in cells),
        )
    return table


def comparison_table(summaries: Sequence[Mapping[str, Any]]) -> str:
    """Return the comparison as plain text."""
    buffer = io.StringIO()
    Console(file=buffer, width=100).print(build_table(summaries))
    return buffer.getvalue().rstrip()
