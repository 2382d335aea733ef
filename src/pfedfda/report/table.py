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


def comparison_table(summaries: Sequence[Mapping[str, Any]]) -> str:
    """Return the comparison as plain text."""
    buffer = io.StringIO()
    Console(file=buffer, width=100).print(build_table(summaries))
    return buffer.getvalue().rstrip()
