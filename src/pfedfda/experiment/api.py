"""Running and comparing methods: what the command line and the Python interface share."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any

from pfedfda.data import Federation, FederationConfig
from pfedfda.engine import LocalEngine
from pfedfda.errors import DivergedRunError, InputError, RunStoppedError, quote
from pfedfda.experiment.exporting import MODELS, write_models
from pfedfda.experiment.finished import load_finished
from pfedfda.experiment.observers import Observer, Observers, choose_observer
from pfedfda.experiment.rounds import run_rounds
from pfedfda.experiment.start import prepare_run, run_stem, seed_configs, with_choices
from pfedfda.files import make_folders, refuse_links, write_text
from pfedfda.machine import one_thread
from pfedfda.methods import Method, expand_names, find_method
from pfedfda.models.factories import allow_given, is_program
from pfedfda.runs import (
    EngineConfig,
    RunResult,
    is_complete,
    load_run,
    make_folder,
    write_class_counts,
)
from pfedfda.runs.comparison import comparison_table, mean_summaries, write_comparison
from pfedfda.runs.config import Config, make_config, read_config, write_config
from pfedfda.runs.html import COLUMNS, results_html
from pfedfda.runs.layout import SEARCH
from pfedfda.runs.output_config import OutputConfig
from pfedfda.runs.seed_table import SeedRun, SeedTable, seed_table_text, write_seed_table
from pfedfda.runs.seeds import seed_folder


@dataclass(frozen=True)
class Comparison:
    """Several methods on one federation.

    Parameters
    ----------
    folder
        Where the runs are, a folder for each method.
    results
        The runs, in the order in which they ran.
    stopped
        For each method that diverged, what happened to it.
    seeds
        The seeds if there are several; then each method has a run for each, and `statistics` has
        the means with their intervals.
    own_partitions
        Whether every seed has a partition of its own.
    """

    folder: Path
    results: list[RunResult]
    stopped: list[str] = field(default_factory=list)
    seeds: tuple[int, ...] | None = None
    own_partitions: bool = False

    def __str__(self) -> str:
        if self.seeds is not None:
            return seed_table_text(self.statistics)
        return comparison_table([result.summary for result in self.results])

    @property
    def statistics(self) -> SeedTable:
        """Means over seeds with intervals, and the tested differences between methods."""
        methods: dict[str, list[SeedRun]] = {}
        for result in self.results:
            methods.setdefault(result.method, []).append(SeedRun.of(result))
        return SeedTable(methods, self.own_partitions)

    def _repr_html_(self) -> str:
        rows = [(r.method, {name: r.number(name) for name in COLUMNS}) for r in self.results]
        return results_html(rows, self.folder)

    def write(self) -> None:
        """Write the table as ``comparison.csv``, and of several seeds their statistics."""
        summaries = [result.summary for result in self.results]
        write_comparison(self.folder, mean_summaries(summaries) if self.seeds else summaries)
        if self.seeds is not None:
            write_seed_table(self.folder, self.statistics)


def run(
    method: str | Method, federation: FederationConfig | str | None = None, **settings: Any
) -> RunResult:
    """Run one method on a federation.

    Parameters
    ----------
    method
        A method, or the name of one with its default hyper-parameters.
    federation
        Who holds which images, or the name of one of the paper's federations, e.g.
        ``"cifar10-s"``; the digits by default.
    settings
        Any other setting by its name on the command line, e.g. ``rounds=20, participation=0.5,
        lr=0.02, workers=0, seed=1, quiet=True``. An `Observer` given as ``observer`` is told of
        everything too.

    Examples
    --------
    >>> import pfedfda
    >>> federation = pfedfda.FederationConfig(source="digits", clients=20, alpha=0.3)
    >>> result = pfedfda.run("fedavg-ft", federation, rounds=10)  # doctest: +SKIP
    >>> print(result.mean_accuracy, result.folder)  # doctest: +SKIP
    """
    watching = _observer(settings)
    config = make_config(instances([method]), federation, **settings)
    with watching as observer:
        return run_config(config, observer)


def compare(
    methods: Iterable[str | Method],
    federation: FederationConfig | str | None = None,
    **settings: Any,
) -> Comparison:
    """Run several methods on one federation; print the result for a table.

    Parameters
    ----------
    methods
        Methods or their names; ``"all"`` stands for every method.
    federation, settings
        As for `run`; with ``seeds=[0, 1, 2]`` every method runs with each of these seeds, and
        printing the result shows means over them with intervals and tests.
    """
    watching = _observer(settings)
    config = make_config(instances(methods), federation, **settings)
    with watching as observer:
        return compare_config(config, observer)


def resume(
    folder: Path | str,
    workers: int | None = None,
    quiet: bool = False,
    model: str | Callable[..., Any] | None = None,
    backbone: str | Callable[..., Any] | None = None,
    observer: Observer | None = None,
) -> RunResult:
    """Go on with a run that was stopped, from its last checkpoint to its end.

    Parameters
    ----------
    folder
        The folder of the run. A method of your own must have been registered before.
    workers
        Worker processes, as for `run`; the result does not depend on it.
    quiet
        Print nothing.
    model, backbone
        The run's model or backbone, if it is a function of your own: settings alone run none.
    observer
        Is told of everything too.
    """
    allow_given(model, backbone)
    folder = Path(folder)
    config = read_config(folder / "config.toml")
    config = replace(config, engine=replace(config.engine, workers=workers))
    with _observer({"quiet": quiet, "observer": observer}) as watching:
        return run_config(config, watching, folder)


def run_config(config: Config, observer: Observer, folder: Path | None = None) -> RunResult:
    """Run the one method of a configuration; in a given folder, go on with the run in it."""
    if config.schedule.seeds is not None:
        raise InputError("run() has one seed; compare() takes several, of one method too.")
    if len(config.methods) != 1:
        raise InputError(f"Exactly one method can be run, not {len(config.methods)}; see compare.")
    method = next(iter(config.methods.values()))
    if folder is not None:
        refuse_links(folder)
    if folder is not None and is_complete(folder):
        observer.say(f"{folder} is complete already.")
        return load_run(folder)
    if folder is None:
        config = with_choices(config, observer)
    federation, task = prepare_run(config, observer)
    with LocalEngine(federation, task, config.engine) as engine, one_thread():
        folder = folder or make_folder(config.output, f"{run_stem(config)}-{method.name}")
        write_class_counts(federation, folder)
        with _saying_how_to_go_on("run", folder, config):
            result = run_rounds(method, config, engine, folder, observer)
        _save_models(config, federation, folder, observer)
        return result


def compare_config(
    config: Config, observer: Observer, folder: Path | None = None, command: str = "compare"
) -> Comparison:
    """Run all methods of a configuration, one after the other, with one pool of workers.

    A comparison with the same settings that was stopped is taken up where it was. A method that
    diverges is told of, and the others go on. If a method stops early for another reason, the
    comparison does too; the table of those before it is on disk.

    With several seeds, all methods run with the first, then with the next.
    """
    if not config.methods:
        raise InputError("There is no method to compare; name some, or 'all'.")
    seeds = config.schedule.seeds
    name = f"{run_stem(config)}-compare"
    if command == "run":
        name = f"{run_stem(config)}-{next(iter(config.methods.values())).name}-seeds"
    if folder is None:
        config = with_choices(config, observer)
    folder = folder or find_unfinished(config, name)
    if folder is not None:
        refuse_links(folder)
        observer.say(f"Going on with {folder}, which was stopped.")
    results: list[RunResult] = []
    stopped: list[str] = []
    for part in seed_configs(config):
        place = None if folder is None else _place(config, folder, part)
        if seeds is not None and place is not None and _all_complete(part, place):
            results += [load_run(place / method.name) for method in part.methods.values()]
            continue
        federation, task = prepare_run(part, observer)
        with LocalEngine(federation, task, part.engine) as engine, one_thread():
            if folder is None:
                folder = make_folder(config.output, name)
            write_text(folder / "config.toml", write_config(config))
            place = _place(config, folder, part)
            if seeds is not None:
                observer.say(f"Seed {part.schedule.seed}")
                make_folders(place)
                write_text(place / "config.toml", write_config(part))
            write_class_counts(federation, place)
            with _saying_how_to_go_on(command, folder, config):
                of_seed = _compare_methods(part, place, engine, observer)
        results += of_seed.results
        stopped += of_seed.stopped
    assert folder is not None
    comparison = Comparison(
        folder, results, stopped, seeds, config.schedule.partition_seeds is not None
    )
    if results:
        comparison.write()  # a kill may have come between the last run and its line
    return comparison


def _compare_methods(
    config: Config, folder: Path, engine: LocalEngine, observer: Observer
) -> Comparison:
    """Run all methods with one seed; those that are complete are not run again."""
    comparison = Comparison(folder, [])
    for method_name, method in config.methods.items():
        subfolder = folder / method.name
        if is_complete(subfolder):
            comparison.results.append(load_run(subfolder))
            continue
        make_folders(subfolder)
        alone = replace(config, methods={method_name: method})
        try:
            result = run_rounds(method, alone, engine, subfolder, observer)
        except DivergedRunError as error:
            comparison.stopped.append(f"{method.title}: {error}")
            observer.say(comparison.stopped[-1])
            continue
        except RunStoppedError:
            if comparison.results:
                observer.say(str(comparison))  # what there is so far
            raise
        comparison.results.append(result)
        comparison.write()
        _save_models(config, engine.federation, subfolder, observer)
    return comparison


def _place(config: Config, folder: Path, part: Config) -> Path:
    """Return the folder of the runs of one seed."""
    return folder if config.schedule.seeds is None else seed_folder(folder, part.schedule.seed)


def _all_complete(part: Config, folder: Path) -> bool:
    return all(is_complete(folder / method.name) for method in part.methods.values())


def find_unfinished(config: Config, default_name: str) -> Path | None:
    """Return the newest folder of this name if the same comparison was stopped in it."""
    newest = None
    if config.output.name is not None:
        newest = config.output.output / config.output.name
    else:
        for number in count(1):
            name = default_name if number == 1 else f"{default_name}-{number}"
            if not (config.output.output / name).exists():
                break
            newest = config.output.output / name
    if newest is None or not (newest / "config.toml").is_file():
        return None
    if all(_all_complete(part, _place(config, newest, part)) for part in seed_configs(config)):
        return None
    try:
        before = read_config(newest / "config.toml")
    except InputError:
        return None
    return newest if same_settings(before, config) else None


def same_settings(first: Config, second: Config) -> bool:
    """Tell whether two configurations give the same results."""
    texts = [
        write_config(replace(config, engine=EngineConfig(), output=OutputConfig()))
        for config in (first, second)
    ]
    return texts[0] == texts[1]


def resumed_config(command: str, folder: Path) -> Config:
    """Return the configuration of a run, or of a comparison, that was stopped.

    Parameters
    ----------
    command
        What to go on with: ``"run"``, ``"compare"`` or ``"tune"``.
    folder
        Where it was stopped.
    """
    if not (folder / "config.toml").is_file():
        raise InputError(f"There is no run in {folder} to go on with.")
    kind = "run" if (folder / "checkpoint").is_dir() else "compare"
    if (folder / SEARCH).exists():
        kind = "tune"
    if kind == "compare" and (folder / "metrics.jsonl").exists():
        raise InputError(f"The run in {folder} has lost its checkpoint and cannot go on.")
    config = read_config(folder / "config.toml") if kind in (command, "compare") else None
    # Of one method with several seeds, both commands make the same.
    seeds_of_one = config and config.schedule.seeds is not None and len(config.methods) == 1
    if config is None or (kind != command and not seeds_of_one):
        raise InputError(f"{folder} comes from the other command: pfedfda {kind} --resume {folder}")
    return config


@contextmanager
def _saying_how_to_go_on(command: str, folder: Path, config: Config) -> Iterator[None]:
    try:
        yield
    except DivergedRunError:
        raise
    except RunStoppedError as error:
        # Settings must not run a program by themselves, so the user names each one again.
        methods = ""
        if any(name.endswith(".py") for name in config.methods):
            methods = " --method" + "s" * (command == "compare")
            methods += "".join(f" {name}" for name in config.methods if name.endswith(".py"))
        named = {"model": config.model.model, "backbone": config.federation.backbone}
        own = "".join(f" --{option} {spec}" for option, spec in named.items() if is_program(spec))
        raise type(error)(
            f"{error} To go on: pfedfda {command} --resume {folder}{methods}{own}"
        ) from error


def _observer(settings: dict[str, Any]) -> Observer:
    """Return who watches, and take ``quiet`` and ``observer`` from the settings."""
    shown = choose_observer(bool(settings.pop("quiet", False)))
    own = settings.pop("observer", None)
    if own is None:
        return shown
    if not isinstance(own, Observer):
        raise InputError(f"observer is {quote(own)}; it must be an instance of pfedfda.Observer.")
    return Observers([shown, own])


def instances(methods: Iterable[str | Method]) -> dict[str, Method]:
    """Return methods by name, those that are given by name with their defaults."""
    instances: dict[str, Method] = {}
    for method in methods:
        if isinstance(method, Method):
            if instances.get(method.name, method) != method:
                raise InputError(
                    f"{method.name} is there twice with different hyper-parameters; a comparison "
                    f"has each method once."
                )
            instances[method.name] = method
        else:
            instances |= {name: find_method(name)() for name in expand_names([method])}
    return instances


def _save_models(config: Config, federation: Federation, folder: Path, observer: Observer) -> None:
    """Write every client's model, if that was asked for."""
    if config.output.save_models:
        written = write_models(load_finished(folder), federation, range(len(federation)))
        observer.say(f"{len(written)} models are in {folder / MODELS}.")
