"""``pfedfda federate init``."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from pfedfda.errors import printable
from pfedfda.flower import project


@dataclass(frozen=True)
class FederateInitCommand:
    """Write a Flower app that runs any method over real sites.

    It has the settings, the server's and the sites' programs, and a README with every command from
    certificates to results.

    Parameters
    ----------
    folder
        The folder to make, new or empty.
    """

    folder: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="FOLDER")]

    def execute(self) -> int:
        """Write the app."""
        project.init(self.folder)
        readme = self.folder / "README.md"
        print(printable(f"Wrote {self.folder}; {readme} says how to go on."))
        return 0


command = {"init": FederateInitCommand}
