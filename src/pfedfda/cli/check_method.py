"""``pfedfda check-method``."""

from dataclasses import dataclass
from typing import Annotated

import tyro

from pfedfda.errors import printable
from pfedfda.experiment.check_method import check_method
from pfedfda.methods import find_method


@dataclass(frozen=True)
class CheckMethodCommand:
    """Check that a method of your own keeps the contract.

    One line is printed for each clause; it takes about ten seconds.

    Parameters
    ----------
    method
        A Python file that registers a method, or the name of one.
    """

    method: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="FILE")]

    def execute(self) -> int:
        """Print what was found; the exit code is 1 if a clause does not hold."""
        failed = 0
        for finding in check_method(find_method(self.method)()):
            print(printable(finding), flush=True)
            failed += finding.violation is not None
        return 1 if failed else 0


command = CheckMethodCommand
