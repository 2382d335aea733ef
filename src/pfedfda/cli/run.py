"""``pfedfda run``."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import tyro

from pfedfda.cli.compare import run_methods
from pfedfda.cli.run_options import SettingsCommand, with_settings
from pfedfda.errors import printable
from pfedfda.experiment.api import run_config
from pfedfda.experiment.observers import choose_observer


@dataclass(frozen=True)
class RunCommand(SettingsCommand):
    """Run one method on a federation.

    Everything about the run is written to a folder.

    Parameters
    ----------
    method
        The method by name, or a Python file that registers one; by default that of the
        configuration file, or fedavg.
    """

    method: Annotated[str | None, tyro.conf.arg(metavar="METHOD")] = None

    name: ClassVar[str] = "run"

    @property
    def asked(self) -> list[str]:
        """The method that was asked for."""
        return [] if self.method is None else [self.method]

    def execute(self) -> int:
        """Run the method."""
        from pfedfda.cli.printing import print_results

        config = self.settings()
        if config.schedule.seeds is not None:
            return run_methods(config, self, "run")
        with choose_observer(self.quiet) as observer:
            result = run_config(config, observer, self.resume)
        if not self.quiet:
            print_results([result.summary], result.folder)
        print(printable(result.folder))
        return 0


def command_for(words: Sequence[str] | None) -> type[RunCommand]:
    """Return the command with the options that these words can have."""
    return with_settings(RunCommand, words)
