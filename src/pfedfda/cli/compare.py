"""``pfedfda compare``."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import tyro

from pfedfda.cli import complain
from pfedfda.cli.run_options import SettingsCommand, with_settings
from pfedfda.errors import InputError, printable
from pfedfda.experiment.api import compare_config
from pfedfda.experiment.observers import choose_observer
from pfedfda.runs.config import Config


@dataclass(frozen=True)
class CompareCommand(SettingsCommand):
    """Run several methods on one federation and compare them in one table.

    The same command again goes on with a comparison that was stopped.

    Parameters
    ----------
    methods
        Methods by name, or Python files that register one; all stands for every method. By default
        those of the configuration file, or all.
    """

    methods: Annotated[tuple[str, ...] | None, tyro.conf.arg(metavar="METHOD [METHOD ...]")] = None

    name: ClassVar[str] = "compare"

    @property
    def asked(self) -> list[str]:
        """The methods that were asked for."""
        if self.methods == ():
            raise InputError("--methods names no method; 'pfedfda methods' lists them.")
        return list(self.methods or ())

    def execute(self) -> int:
        """Run the methods."""
        return run_methods(self.settings(), self, "compare")


def run_methods(config: Config, options: SettingsCommand, command: str) -> int:
    """Run all methods, with all seeds, and print their table; return the exit code."""
    from pfedfda.cli.printing import print_comparison

    with choose_observer(options.quiet) as observer:
        comparison = compare_config(config, observer, options.resume, command)
    if not options.quiet and comparison.results:
        print_comparison(comparison)
    print(printable(comparison.folder))
    if comparison.stopped:
        if config.schedule.seeds is None:
            complain(f"{len(comparison.stopped)} of {len(config.methods)} methods diverged.")
        else:
            runs = len(config.methods) * len(config.schedule.seeds)
            complain(f"{len(comparison.stopped)} of {runs} runs diverged.")
    return 1 if comparison.stopped else 0


def command_for(words: Sequence[str] | None) -> type[CompareCommand]:
    """Return the command with the options that these words can have."""
    return with_settings(CompareCommand, words)
