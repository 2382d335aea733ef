"""The paper's numbers beside ours."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from rich.table import Table

from pfedfda.errors import printable


@dataclass(frozen=True)
class PaperCell:
    """A number of the paper and its counterpart.

    Parameters
    ----------
    paper_mean, paper_std
        What the paper reports, None where it reports nothing.
    ours_mean, ours_std
        What was measured here, None where nothing was.
    clients
        The number of clients behind the standard deviations, if they are over clients.
    seeds
        The number of seeds of which ours is the mean.
    low, high
        The 95 % interval of ours over seeds, None with one seed.
    """

    paper_mean: float | None = None
    paper_std: float | None = None
    ours_mean: float | None = None
    ours_std: float | None = None
    clients: int | None = None
    seeds: int = 1
    low: float | None = None
    high: float | None = None

    @property
    def difference(self) -> float | None:
        """Ours less the paper's, None unless both are there."""
        if self.paper_mean is None or self.ours_mean is None:
            return None
        return self.ours_mean - self.paper_mean

    @property
    def standard_errors(self) -> float | None:
        """The difference in standard errors over clients, as if both means were independent."""
        if self.difference is None or not self.clients or not (self.ours_std and self.paper_std):
            return None
        error = math.sqrt((self.ours_std**2 + self.paper_std**2) / self.clients)
        return self.difference / error


@dataclass(frozen=True)
class PaperRow:
    """A row of a table of the paper.

    Parameters
    ----------
    label
        What the row is about, mostly a method.
    cells
        One for each column of the table.
    """

    label: str
    cells: Sequence[PaperCell]


@dataclass(frozen=True)
class PaperTable:
    """A table of the paper with the same numbers as they came out here.

    Parameters
    ----------
    title
        Which table, and what it is about.
    columns
        The headings.
    rows
        The rows, each with a cell for every heading.
    notes
        Whole sentences that say what differs from the paper's setting.
    digits
        Decimal places to show.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[PaperRow]
    notes: Sequence[str] = field(default_factory=list)
    digits: int = 3

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row.cells) != len(self.columns):
                raise ValueError(
                    f"The row {row.label!r} has {len(row.cells)} cells for {len(self.columns)} "
                    f"columns."
                )


def build_paper_table(table: PaperTable) -> Table:
    """Return the paper's numbers beside ours, for a terminal."""
    built = Table(title=printable(table.title), title_justify="left", show_lines=True)
    built.add_column("", no_wrap=True)
    for heading in table.columns:
        built.add_column(printable(heading), justify="right", no_wrap=True)

    def number(mean: float | None, std: float | None) -> str:
        if mean is None:
            return "-"
        deviation = "" if std is None else f" ({std:.{table.digits}f})"
        return f"{mean:.{table.digits}f}{deviation}"

    for row in table.rows:
        cells = []
        for cell in row.cells:
            lines = [
                f"ours  {number(cell.ours_mean, cell.ours_std)}",
                f"paper {number(cell.paper_mean, cell.paper_std)}",
            ]
            if cell.low is not None and cell.high is not None:
                low, high = (f"{end:.{table.digits}f}" for end in (cell.low, cell.high))
                lines.insert(1, f"95 % {low} to {high}")
            if cell.difference is not None:
                lines.append(f"diff. {cell.difference:+.{table.digits}f}")
            cells.append("\n".join(lines))
        built.add_row(printable(row.label), *cells)
    return built
