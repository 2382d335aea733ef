"""Tuning: a search for the settings of each method, on validation samples, with equal budgets.

A trial is a run. What is known of those that have ended is in ``trials.jsonl``, and the next one
follows from these lines and its number alone: the search is built anew from them for every trial.
So a search that was killed ends as it would have undisturbed, and no database is needed.
"""

import dataclasses
import json
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pfedfda.errors import (
    DivergedRunError,
    InputError,
    InterruptedRunError,
    RunStoppedError,
    unknown,
)
from pfedfda.experiment.observers import Observer
from pfedfda.files import LARGE, json_text, make_folders, read_text
from pfedfda.methods import Method, TrainingConfig
from pfedfda.methods.space import Choices, Search, Space, declared_space, parse_space
from pfedfda.runs import RunResult
from pfedfda.runs.accuracy import Accuracy
from pfedfda.runs.config import Config, checked_fields
from pfedfda.runs.layout import METRICS, SEARCH
from pfedfda.runs.reader import read_object
from pfedfda.runs.trials import Trial, read_trials, write_trials
from pfedfda.seeding import derive_seed

if TYPE_CHECKING:
    import optuna

VALIDATION_SHARE = 0.2
STARTUP = 6  # trials that are drawn at random, the default included
MEDIAN_AFTER = 4  # complete trials before any is stopped early
MOST_TRIALS = 10_000
SHARED = "lr"  # a setting that every method has


RunTrial = Callable[[Config, Path, Observer], RunResult]
"""Runs a configuration in a folder, from its last checkpoint if there is one."""


class PrunedError(RunStoppedError):
    """A trial is worse than most and was stopped."""


@dataclass(frozen=True)
class SearchPlan:
    """What a search is asked for.

    Parameters
    ----------
    config
        The methods with their defaults, the federation and everything else.
    trials
        The number of trials for each method.
    spaces
        For each method what is searched, by name.
    """

    config: Config
    trials: int
    spaces: Mapping[str, Space]

    def __str__(self) -> str:
        spaces = {
            name: {setting: str(values) for setting, values in space.items()}
            for name, space in self.spaces.items()
        }
        return json_text({"trials": self.trials, "spaces": spaces}, indent=1) + "\n"


def plan_search(config: Config, trials: int, overrides: Mapping[str, str]) -> SearchPlan:
    """Return the search of a configuration, or refuse one that cannot be made.

    Parameters
    ----------
    config
        The methods, and all other settings; without validation samples a fifth is set aside.
    trials
        The number of trials for each method.
    overrides
        Spaces by name, ``lr`` or ``METHOD.FIELD``, as `parse_space` reads them.
    """
    if not config.methods:
        raise InputError("There is no method to tune; name some, or 'all'.")
    if not 1 <= trials <= MOST_TRIALS:
        raise InputError(
            f"The number of trials is {trials}; it must lie between 1 and {MOST_TRIALS:,}."
        )
    if config.schedule.seeds is not None:
        raise InputError("A search has one seed; run what it finds with --seeds.")
    if not config.federation.validation_share:
        federation = replace(config.federation, validation_share=VALIDATION_SHARE)
        config = replace(config, federation=federation)
    lr = declared_space(TrainingConfig)[SHARED]
    spaces = {
        name: {SHARED: lr, **declared_space(type(method))}
        for name, method in config.methods.items()
    }
    for name, text in overrides.items():
        _override(config, spaces, name, text)
    for name, method in config.methods.items():
        _refuse_impossible(config, name, method, spaces[name])
    return SearchPlan(config, trials, spaces)


def read_plan(config: Config, folder: Path, trials: int | None) -> SearchPlan:
    """Return the search that was stopped in a folder.

    Parameters
    ----------
    config
        Its configuration.
    folder
        Where it was stopped.
    trials
        Another number of trials, if it is to have more.
    """
    content = read_object(folder / SEARCH)
    try:
        overrides = {
            setting if setting == SHARED else f"{config.methods[name].name}.{setting}": text
            for name, space in content["spaces"].items()
            for setting, text in space.items()
        }
        number = content["trials"] if trials is None else trials
        if type(number) is not int or not all(type(text) is str for text in overrides.values()):
            raise TypeError
    except (KeyError, TypeError, AttributeError):
        raise InputError(f"{folder / SEARCH} does not describe the search in {folder}.") from None
    return plan_search(config, number, overrides)


def _override(
    config: Config, spaces: dict[str, dict[str, Search | Choices]], name: str, text: str
) -> None:
    """Put a space that the user gave in the place of the declared one."""
    named = {
        f"{method.name}.{field.name}": (key, field.name)
        for key, method in config.methods.items()
        for field in dataclasses.fields(method)
    }
    if name != SHARED and name.replace("-", "_") not in {k.replace("-", "_") for k in named}:
        raise unknown("name in --space:", name, [SHARED, *named])
    try:
        space = parse_space(text)
    except InputError as error:
        raise InputError(f"--space {name}: {error}") from None
    for full, (key, field) in named.items():
        if full.replace("-", "_") == name.replace("-", "_"):
            spaces[key][field] = space
    if name == SHARED:
        for of_method in spaces.values():
            of_method[SHARED] = space


def _refuse_impossible(config: Config, name: str, method: Method, space: Space) -> None:
    """Refuse a space with an end that the method, or the training, does not accept."""
    for setting, values in space.items():
        for end in values.ends:
            try:
                tuned_config(config, name, {setting: end})
            except InputError as error:
                raise InputError(f"--space {method.name}.{setting} {values}: {error}") from None


def tuned_config(config: Config, name: str, settings: Mapping[str, Any]) -> Config:
    """Return the configuration of one method with some of its settings and the learning rate."""
    method = config.methods[name]
    own = {key: value for key, value in settings.items() if key != SHARED}
    checked = checked_fields(type(method), own, f"methods.{name}")
    training = config.training
    if SHARED in settings:
        training = replace(training, lr=checked_fields(
            TrainingConfig, {SHARED: settings[SHARED]}, "training")[SHARED])  # fmt: skip
    return replace(config, methods={name: replace(method, **checked)}, training=training)


def default_settings(plan: SearchPlan, name: str) -> dict[str, Any]:
    """Return a method's settings before the search."""
    method = plan.config.methods[name]
    return {
        setting: plan.config.training.lr if setting == SHARED else getattr(method, setting)
        for setting in plan.spaces[name]
    }


class MethodSearch:
    """The search for one method.

    Parameters
    ----------
    plan
        The search for all methods.
    name
        The method, by its name in the configuration.
    folder
        Where its trials are written down.
    """

    def __init__(self, plan: SearchPlan, name: str, folder: Path) -> None:
        self.plan, self.name, self.folder = plan, name, folder
        self.space = plan.spaces[name]
        self.default = default_settings(plan, name)
        self.distributions = {
            setting: _distribution(values, self.default[setting])
            for setting, values in self.space.items()
        }
        self.trials = read_trials(folder)[: plan.trials]
        for trial in self.trials:
            if set(trial.settings) != set(self.space):
                raise InputError(f"The trials in {folder} are of another search.")

    def run(self, run_trial: RunTrial, observer: Observer) -> list[Trial]:
        """Make the trials that are missing, one after the other, and return all."""
        make_folders(self.folder)
        while len(self.trials) < self.plan.trials:
            number = len(self.trials)
            settings, pruning = self._next(number)
            folder = self.folder / f"trial-{number}"
            trial = self._try(number, settings, pruning, folder, run_trial)
            self.trials.append(trial)
            write_trials(self.folder, self.trials)
            if folder.exists():
                shutil.rmtree(folder)  # its line is written, and settings make the run again
            observer.say(self._told(trial))
        return self.trials

    def _next(self, number: int) -> tuple[dict[str, Any], "optuna.Trial"]:
        """Return the settings of a trial; the first has the defaults."""
        study = self._study(number)
        trial = study.ask(self.distributions)
        return (self.default if number == 0 else _rounded(trial.params, self.space)), trial

    def _study(self, number: int) -> "optuna.Study":
        """Return the search after the trials so far, seeded by the number of the next."""
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        seed = derive_seed("tune", self.plan.config.schedule.seed, self.name, number) % 2**32
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about experimental features, by optuna's own defaults
            sampler = optuna.samplers.TPESampler(n_startup_trials=STARTUP, seed=seed)
            pruner = optuna.pruners.MedianPruner(MEDIAN_AFTER)
        study = optuna.create_study(direction="maximize", sampler=sampler, pruner=pruner)
        for trial in self.trials[:number]:
            # The default may lie outside of a space that the user gave.
            if all(trial.settings[name] in values for name, values in self.space.items()):
                state = "PRUNED" if trial.status == "pruned" else "COMPLETE"
                study.add_trial(
                    optuna.trial.create_trial(
                        state=optuna.trial.TrialState[state],
                        value=trial.accuracy,
                        params=dict(trial.settings),
                        distributions=self.distributions,
                        intermediate_values=dict(trial.accuracies),
                    )
                )
        return study

    def _try(
        self,
        number: int,
        settings: dict[str, Any],
        pruning: "optuna.Trial",
        folder: Path,
        run_trial: RunTrial,
    ) -> Trial:
        watch = PruningObserver(pruning)
        config = tuned_config(self.plan.config, self.name, settings)
        status = "complete"
        try:
            # What a killed trial had evaluated; its run goes on from its checkpoint.
            for round_number, accuracy in _known_accuracies(folder / METRICS):
                watch.report(round_number, accuracy)
            run_trial(config, folder, watch)
        except InterruptedRunError:
            raise
        except DivergedRunError:
            status = "diverged"
        except RunStoppedError as error:
            if not isinstance(error, PrunedError) and not isinstance(error.__cause__, PrunedError):
                raise
            status = "pruned"
        return Trial(number, settings, status, watch.accuracies)

    def _told(self, trial: Trial) -> str:
        method = self.plan.config.methods[self.name]
        how = "" if trial.status == "complete" else f" ({trial.status})"
        accuracy = "–" if trial.accuracy is None else f"{trial.accuracy:.3f}"
        return (
            f"{method.title}, trial {trial.number + 1} of {self.plan.trials}: "
            f"{settings_text(trial.settings)}: {accuracy}{how}"
        )


class PruningObserver(Observer):
    """Stops a trial that is worse than the median of the others after as many rounds."""

    def __init__(self, trial: "optuna.Trial") -> None:
        self.trial = trial
        self.accuracies: dict[int, float] = {}

    def report(self, round_number: int, accuracy: float) -> None:
        """Take in an accuracy, which may be known from before a kill."""
        if round_number in self.accuracies:
            return
        self.accuracies[round_number] = accuracy
        self.trial.report(accuracy, round_number)
        if self.trial.should_prune():
            raise PrunedError(f"The trial is worse than most after round {round_number}.")

    def evaluated(self, round_number: int, accuracy: Accuracy, train_loss: float | None) -> None:
        """Take in the accuracy of a round."""
        self.report(round_number, accuracy.mean_accuracy)


def _known_accuracies(path: Path) -> Iterator[tuple[int, float]]:
    """Yield the evaluated rounds of a trial that was killed, perhaps within a line."""
    if path.exists():
        for text in read_text(path, LARGE).split("\n")[:-1]:
            line = json.loads(text)
            yield int(line["round"]), float(line["mean_accuracy"])


def _distribution(values: Search | Choices, default: Any) -> Any:
    from optuna import distributions

    if isinstance(values, Choices):
        return distributions.CategoricalDistribution(values.values)
    if type(default) is int:
        return distributions.IntDistribution(int(values.low), int(values.high), log=values.log)
    return distributions.FloatDistribution(float(values.low), float(values.high), log=values.log)


def _rounded(settings: Mapping[str, Any], space: Space) -> dict[str, Any]:
    """Return settings of four digits, which people can read, inside their bounds."""
    rounded = {}
    for name, values in space.items():
        value = settings[name]
        if isinstance(value, float) and isinstance(values, Search):
            value = min(max(float(f"{value:.4g}"), values.low), values.high)
        rounded[name] = value
    return rounded


def settings_text(settings: Mapping[str, Any]) -> str:
    """Return settings in a line."""
    return ", ".join(f"{name.replace('_', '-')} {value}" for name, value in settings.items())
