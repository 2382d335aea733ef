"""``pfedfda tune``."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import tyro
from rich.table import Table

from pfedfda.cli.run_options import SettingsCommand, with_settings
from pfedfda.errors import InputError, printable
from pfedfda.experiment.observers import choose_observer
from pfedfda.experiment.tune import TRIALS, Tuning, tune_config
from pfedfda.experiment.tuning import plan_search, read_plan, settings_text
from pfedfda.report.search import draw_search
from pfedfda.runs.comparison import plain_console


@dataclass(frozen=True)
class TuneCommand(SettingsCommand):
    """Search the settings of methods on validation samples, with the same budget for each.

    The first trial has the defaults, and a trial that is worse than most is stopped early. Then the
    default and the best settings are trained on all training samples and tested once. The same
    command again goes on with a search that was stopped.

    Parameters
    ----------
    methods
        Methods by name, or Python files that register one; all stands for every method. By default
        those of the configuration file, or all.
    trials
        The number of trials for each method, 20 by default; with --resume, the search's own, or
        more.
    space
        What to search in place of what the methods declare: lr or METHOD.FIELD, then = and
        LOW:HIGH, LOW:HIGH:log, or values with commas between them.
    """

    methods: Annotated[
        tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="[METHOD [METHOD ...]]")
    ] = ()
    trials: int | None = None
    space: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME=SPACE [NAME=SPACE ...]")] = ()

    name: ClassVar[str] = "tune"

    @property
    def asked(self) -> list[str]:
        """The methods that were asked for."""
        return list(self.methods)

    def execute(self) -> int:
        """Search, test, and print the table."""
        config = self.settings()
        if self.resume is not None:
            if self.space:
                raise InputError("A search that goes on keeps its space.")
            plan = read_plan(config, self.resume, self.trials)
        else:
            trials = TRIALS if self.trials is None else self.trials
            plan = plan_search(config, trials, dict(map(_split, self.space)))
        with choose_observer(self.quiet) as observer:
            tuning = tune_config(plan, observer, self.resume)
        figures = draw_search(tuning.folder)
        if not self.quiet:
            print_tuning(tuning)
            for figure in figures:
                print(printable(f"figure: {figure}"))
        print(printable(tuning.folder))
        return 0


def _split(text: str) -> tuple[str, str]:
    name, equals, space = text.partition("=")
    if not equals:
        raise InputError(f"--space {text!r} has no '='; write NAME=LOW:HIGH or NAME=VALUE,VALUE.")
    return name, space


def print_tuning(tuning: Tuning) -> None:
    """Print the default against the tuned settings of each method."""
    table = Table(title="Mean accuracy over clients, default → tuned", title_justify="left")
    table.add_column("Method", no_wrap=True)
    for heading in ("trials", "stopped\nearly", "validation", "test"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("tuned settings")
    for method in tuning.methods:
        table.add_row(
            printable(method.title),
            str(method.trials),
            str(method.pruned + method.diverged),
            f"{method.default_validation:.3f} → {method.tuned_validation:.3f}",
            f"{_number(method.default_test)} → {_number(method.tuned_test)}",
            printable(settings_text(method.tuned)),
        )
    plain_console().print(table)


def _number(value: float | None) -> str:
    return "diverged" if value is None else f"{value:.3f}"


def command_for(words: Sequence[str] | None) -> type[TuneCommand]:
    """Return the command with the options that these words can have."""
    return with_settings(TuneCommand, words)
