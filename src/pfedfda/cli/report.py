"""``pfedfda report``."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from pfedfda.cli.printing import print_seed_table
from pfedfda.errors import InputError, printable
from pfedfda.report import write_report
from pfedfda.report.groups import read_groups


@dataclass(frozen=True)
class ReportCommand:
    """Write a page with tables and figures about runs.

    It is one file, to be opened in a browser. Of runs with several seeds the table of means with
    intervals and tests is printed too, computed from the files of the runs.

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
        page = write_report(self.runs, self.output or alone, title=self.title)
        for group in read_groups(self.runs):
            if group.statistics is not None:
                print_seed_table(group.statistics, group.runs[0].judged_on, group.heading)
        print(printable(page))
        return 0


command = ReportCommand
