"""``pfedfda federate init`` and ``pfedfda federate check``."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from pfedfda.errors import printable
from pfedfda.flower import control, project


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


@dataclass(frozen=True)
class FederateCheckCommand:
    """Tell whether whoever is on this machine can control a SuperLink.

    Whoever controls it can run code on the server and at every site. Exit code 0: no; 1: yes; 2:
    that could not be determined.

    Parameters
    ----------
    address
        Where the control interface of the SuperLink is.
    root_certificates
        The authority that must have signed the server's certificate; without it, the certificate is
        not checked.
    """

    address: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="HOST:PORT")]
    root_certificates: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None

    def execute(self) -> int:
        """Print what was found."""
        finding = control.check(self.address, self.root_certificates)
        print(printable(finding.sentence))
        return finding.exit_code


command = {"init": FederateInitCommand, "check": FederateCheckCommand}
