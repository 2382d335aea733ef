"""``pfedfda report``."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from pfedfda.errors import InputError, printable
from pfedfda.report import write_report


@dataclass(frozen=True)
class ReportCommand:
    """Write a page with tables and figures about runs.

    It is one file, to be opened in a browser.

    Parameters
    ----------
    runs
        Folders of runs or comparisons.
    output
        The folder for report.html and figures; by default that of the run if there is one, else
        report.
    title
        The heading of the page.
    """

    runs: Annotated[
        tyro.conf.Positional[tuple[Path, ...]], tyro.conf.arg(metavar="FOLDER [FOLDER ...]")
    ]
    output: Path | None = None
    title: str | None = None

    def execute(self) -> int:
        """Write the page."""
        if not self.runs:
            raise InputError("There is no run to report on; name the folder of one.")
        alone = self.runs[0] if len(self.runs) == 1 else Path("report")
        print(printable(write_report(self.runs, self.output or alone, title=self.title)))
        return 0


command = ReportCommand
