"""What several commands print."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from pfedfda.errors import printable
from pfedfda.experiment import Comparison
from pfedfda.report import write_report
from pfedfda.runs.comparison import build_new_clients_table, build_table, plain_console
from pfedfda.runs.seed_table import SeedTable, build_seed_table

WIDEST = 1000  # columns of a table


def print_results(summaries: Sequence[Mapping[str, Any]], folder: Path) -> None:
    """Print the tables of runs, and where their report is."""
    console = plain_console()
    console.print(build_table(summaries))
    new_clients = build_new_clients_table(summaries)
    if new_clients is not None:
        console.print(new_clients)
    print(printable(f"report: {write_report([folder], folder)}"))


def print_comparison(comparison: Comparison) -> None:
    """Print the table of a comparison, over seeds if there are several, and where its report is."""
    summaries = [result.summary for result in comparison.results]
    if comparison.seeds is None:
        print_results(summaries, comparison.folder)
        return
    print_seed_table(comparison.statistics, comparison.results[0].judged_on)
    print(printable(f"report: {write_report([comparison.folder], comparison.folder)}"))


def print_seed_table(table: SeedTable, judged_on: str, heading: str = "") -> None:
    """Print means over seeds; a table wider than the terminal is printed in full."""
    built, console = build_seed_table(table, judged_on, heading), plain_console()
    wide = console.options.update(max_width=WIDEST)
    needed = console.measure(built, options=wide).maximum
    plain_console(width=max(console.width, needed)).print(built)


def print_list(name: str, what: str, rows: Mapping[str, str], title: str | None = None) -> None:
    """Print names with a text each.

    Parameters
    ----------
    name, what
        The headings of the two columns.
    rows
        The names and texts.
    title
        A heading of both.
    """
    table = Table(title=title, title_justify="left")
    table.add_column(name, no_wrap=True)
    table.add_column(what, overflow="fold")
    for key, text in rows.items():
        table.add_row(printable(key), printable(text))
    plain_console().print(table)
