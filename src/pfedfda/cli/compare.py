"""``pfedfda compare``."""

import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

import tyro

from pfedfda.cli import complain
from pfedfda.cli.parsing import Flag
from pfedfda.cli.run_options import SettingsCommand, with_settings
from pfedfda.errors import InputError, printable
from pfedfda.experiment.api import compare_config
from pfedfda.experiment.observers import choose_observer
from pfedfda.runs.config import Config

DEMO = Path(__file__).with_name("demo.toml")
AFTER_DEMO = """
Open the report.html named above in a browser. Next, in a minute or two: is the lead chance?
  {program} compare --methods fedavg-ft pfedfda --clients 30 --alpha 0.1 --rounds 10 --seeds 0 1 2
"""


@dataclass(frozen=True)
class CompareCommand(SettingsCommand):
    """Run several methods on one federation and compare them in one table.

    The same command again goes on with a comparison that was stopped.

    Parameters
    ----------
    methods
        Methods by name, or Python files that register one; all stands for every method. By default
        those of the configuration file, or all.
    demo
        Start from the settings of the demo: twelve methods on fifty clients with few handwritten
        digits each, a minute or two; other options override them.
    """

    methods: Annotated[tuple[str, ...] | None, tyro.conf.arg(metavar="METHOD [METHOD ...]")] = None
    demo: Flag = False

    name: ClassVar[str] = "compare"

    @property
    def asked(self) -> list[str]:
        """The methods that were asked for."""
        if self.methods == ():
            raise InputError("--methods names no method; 'pfedfda methods' lists them.")
        return list(self.methods or ())

    @property
    def config_file(self) -> Path | None:
        """The configuration file to start from."""
        if self.demo and self.config is not None:
            raise InputError("--demo and --config both name settings to start from; give one.")
        return DEMO if self.demo else self.config

    def execute(self) -> int:
        """Run the methods; the demo also says what to look at and what to try."""
        code = run_methods(self.settings(), self, "compare")
        if self.demo and not self.quiet and code == 0:
            print(AFTER_DEMO.format(program=program()), end="")
        return code


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


def program() -> str:
    """Return how this program is started here: by its name, if that is on the path."""
    started = Path(sys.argv[0])
    if started.name != "pfedfda":
        return "python -m pfedfda"
    found = shutil.which("pfedfda")
    return "pfedfda" if found and Path(found).samefile(started) else str(started)


def command_for(words: Sequence[str] | None) -> type[CompareCommand]:
    """Return the command with the options that these words can have."""
    return with_settings(CompareCommand, words)
