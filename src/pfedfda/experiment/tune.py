"""Tuning methods: the searches, the runs with what they found, and the table."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pfedfda.data import FederationConfig
from pfedfda.engine import LocalEngine
from pfedfda.errors import DivergedRunError, InputError, InterruptedRunError
from pfedfda.experiment.api import instances, same_settings
from pfedfda.experiment.observers import Observer, choose_observer
from pfedfda.experiment.rounds import run_rounds
from pfedfda.experiment.start import prepare_run, run_stem, with_choices
from pfedfda.experiment.tuning import (
    MethodSearch,
    SearchPlan,
    default_settings,
    plan_search,
    settings_text,
    tuned_config,
)
from pfedfda.files import make_folders, read_text, refuse_links, write_text
from pfedfda.machine import one_thread
from pfedfda.methods import Method
from pfedfda.runs import RunResult, is_complete, load_run, make_folder, write_csv
from pfedfda.runs.config import Config, make_config, read_config, write_config
from pfedfda.runs.layout import CONFIG, SEARCH, TUNING
from pfedfda.runs.trials import best_trial

TRIALS = 20
COLUMNS = (
    *("method", "trials", "pruned", "diverged", "default_validation", "tuned_validation"),
    *("default_test", "tuned_test", "default", "tuned"),
)


@dataclass(frozen=True)
class TunedMethod:
    """What the search found for a method.

    Parameters
    ----------
    method, title
        Its name and its title.
    trials, pruned, diverged
        The number of trials, and of those that were stopped early or diverged.
    default, tuned
        The settings before and after.
    default_validation, tuned_validation
        Mean accuracy over clients on validation samples, of these two trials.
    default_test, tuned_test
        That on test samples, after training on all training samples; None if training diverged.
    """

    method: str
    title: str
    trials: int
    pruned: int
    diverged: int
    default: Mapping[str, Any]
    tuned: Mapping[str, Any]
    default_validation: float
    tuned_validation: float
    default_test: float | None
    tuned_test: float | None

    @property
    def row(self) -> list[Any]:
        """The row of ``tuning.csv``."""
        numbers = [self.default_validation, self.tuned_validation, self.default_test]
        return [
            self.method, self.trials, self.pruned, self.diverged, *numbers, self.tuned_test,
            settings_text(self.default), settings_text(self.tuned),
        ]  # fmt: skip


@dataclass(frozen=True)
class Tuning:
    """What came out of tuning: a row for each method, and the folder with a config.toml for each.

    Parameters
    ----------
    folder
        Where everything is.
    methods
        The methods in the order given.
    """

    folder: Path
    methods: list[TunedMethod]


def tune(
    methods: Iterable[str | Method],
    federation: FederationConfig | str | None = None,
    trials: int = TRIALS,
    space: Mapping[str, str] | None = None,
    **settings: Any,
) -> Tuning:
    """Search the settings of several methods, each with the same number of trials.

    Parameters
    ----------
    methods
        Methods or their names.
    federation, settings
        As for `compare`.
    trials
        The number of trials for each method.
    space
        What to search in place of what the methods declare, e.g.
        ``{"lr": "0.001:0.1:log", "fedpac.head_lr": "0.05,0.1"}``.
    """
    quiet = bool(settings.pop("quiet", False))
    config = make_config(instances(methods), federation, **settings)
    with choose_observer(quiet) as observer:
        return tune_config(plan_search(config, trials, space or {}), observer)


def tune_config(plan: SearchPlan, observer: Observer, folder: Path | None = None) -> Tuning:
    """Make a search; in a given folder, or one where the same was stopped, go on with it.

    Parameters
    ----------
    plan
        What to search.
    observer
        Is told about the progress.
    folder
        The folder of a search that was stopped.
    """
    _refuse_without_optuna()
    name = f"{run_stem(plan.config)}-tune"
    if folder is None:
        plan = replace(plan, config=with_choices(plan.config, observer))
    folder = folder or _unfinished(plan, name)
    if folder is not None:
        refuse_links(folder)
        observer.say(f"Going on with {folder}, which was stopped.")
    prepare_run(plan.config, observer)  # refuses bad input before there is a folder
    folder = folder or make_folder(plan.config.output, name)
    write_text(folder / CONFIG, write_config(plan.config))
    write_text(folder / SEARCH, str(plan))
    try:
        tuned = [
            _tune_method(plan, key, folder / method.name, observer)
            for key, method in plan.config.methods.items()
        ]
    except InterruptedRunError as error:
        raise InterruptedRunError(
            f"The search was interrupted. To go on: pfedfda tune --resume {folder}"
        ) from error
    write_csv(folder / TUNING, COLUMNS, [_blanks(method.row) for method in tuned])
    return Tuning(folder, tuned)


def _tune_method(plan: SearchPlan, name: str, folder: Path, observer: Observer) -> TunedMethod:
    search = MethodSearch(plan, name, folder)
    trials = search.run(_run_quietly, observer)
    best, method = best_trial(trials), plan.config.methods[name]
    # Nothing is searched any more: training has all samples, and test samples are used once.
    whole = replace(plan.config, federation=replace(plan.config.federation, validation_share=0.0))
    chosen = tuned_config(whole, name, best.settings)
    write_text(folder / CONFIG, write_config(chosen))
    tests: dict[str, float | None] = {}
    for kind, settings in (("default", search.default), ("tuned", best.settings)):
        if kind == "tuned" and best.settings == search.default:
            tests[kind] = tests["default"]
            continue
        observer.say(f"{method.title}: testing the {kind} settings")
        try:
            result = _run_quietly(
                tuned_config(whole, name, settings), folder / f"test-{kind}", Observer()
            )
            tests[kind] = result.mean_accuracy
        except DivergedRunError:
            tests[kind] = None
    return TunedMethod(
        method=method.name,
        title=method.title,
        trials=len(trials),
        pruned=sum(trial.status == "pruned" for trial in trials),
        diverged=sum(trial.status == "diverged" for trial in trials),
        default=default_settings(plan, name),
        tuned=best.settings,
        default_validation=trials[0].accuracy or 0.0,
        tuned_validation=best.accuracy or 0.0,
        default_test=tests["default"],
        tuned_test=tests["tuned"],
    )


def _run_quietly(config: Config, folder: Path, observer: Observer) -> RunResult:
    """Run one configuration in a folder, from its last checkpoint if it was stopped."""
    if is_complete(folder):
        return load_run(folder)
    federation, task = prepare_run(config, Observer())
    (method,) = config.methods.values()
    make_folders(folder)
    with LocalEngine(federation, task, config.engine) as engine, one_thread():
        return run_rounds(method, config, engine, folder, observer)


def _unfinished(plan: SearchPlan, name: str) -> Path | None:
    """Return the newest folder of this name if the same search was stopped in it."""
    output = plan.config.output
    places = sorted(output.output.glob(f"{name}*"), key=lambda path: (len(path.name), path.name))
    newest = output.output / output.name if output.name is not None else next(
        iter(places[::-1]), None)  # fmt: skip
    if newest is None or not (newest / SEARCH).is_file() or (newest / TUNING).exists():
        return None
    try:
        same = same_settings(read_config(newest / CONFIG), plan.config)
        return newest if same and read_text(newest / SEARCH) == str(plan) else None
    except (InputError, OSError, ValueError):
        return None


def _refuse_without_optuna() -> None:
    try:
        import optuna  # noqa: F401
    except ImportError as error:
        raise InputError("Tuning needs Optuna: pip install 'pfedfda[tune]'.") from error


def _blanks(row: list[Any]) -> list[Any]:
    return ["" if value is None else value for value in row]
