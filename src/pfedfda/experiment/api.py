"""Running and comparing methods: what the command line and the Python interface share."""

import csv
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pfedfda.data import Federation, FederationConfig, prepare
from pfedfda.engine import LocalEngine, one_thread
from pfedfda.errors import InputError, RunStoppedError
from pfedfda.experiment.config import Config, make_config, write_config
from pfedfda.experiment.observers import Observer, choose_observer
from pfedfda.experiment.results import RunResult, make_folder
from pfedfda.experiment.rounds import run_rounds
from pfedfda.methods import Method, Task, expand_names, find_method
from pfedfda.report.table import COLUMNS, comparison_table


@dataclass(frozen=True)
class Comparison:
    """Several methods on one federation.

    Parameters
    ----------
    folder
        Where the runs are, a folder for each method.
    results
        The runs, in the order in which they ran.
    """

    folder: Path
    results: list[RunResult]

    def __str__(self) -> str:
        return comparison_table([result.summary for result in self.results])


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
        lr=0.02, workers=0, seed=1, quiet=True``.

    Examples
    --------
    >>> import pfedfda
    >>> federation = pfedfda.FederationConfig(source="digits", clients=20, alpha=0.3)
    >>> result = pfedfda.run("fedavg-ft", federation, rounds=10)  # doctest: +SKIP
    >>> print(result.mean_accuracy, result.folder)  # doctest: +SKIP
    """
    quiet = bool(settings.pop("quiet", False))
    config = make_config(_instances([method]), federation, **settings)
    with choose_observer(quiet) as observer:
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
    quiet = bool(settings.pop("quiet", False))
    config = make_config(_instances(methods), federation, **settings)
    with choose_observer(quiet) as observer:
        return compare_config(config, observer)


def run_config(config: Config, observer: Observer) -> RunResult:
    """Run the one method of a configuration."""
    if len(config.methods) != 1:
        raise InputError(f"Exactly one method can be run, not {len(config.methods)}; see compare.")
    method = next(iter(config.methods.values()))
    federation, task = _prepare(config, observer)
    with LocalEngine(federation, task, config.engine) as engine, one_thread():
        folder = make_folder(config.output, f"{_stem(config)}-{method.name}")
        return run_rounds(method, config, engine, folder, observer)


def compare_config(config: Config, observer: Observer) -> Comparison:
    """Run all methods of a configuration, one after the other, with one pool of workers.

    If a method stops early, the comparison does too; the table of those before it is on disk.
    """
    if not config.methods:
        raise InputError("There is no method to compare; name some, or 'all'.")
    federation, task = _prepare(config, observer)
    with LocalEngine(federation, task, config.engine) as engine, one_thread():
        folder = make_folder(config.output, f"{_stem(config)}-compare")
        (folder / "config.toml").write_text(write_config(config), encoding="utf-8")
        comparison = Comparison(folder, [])
        for name, method in config.methods.items():
            subfolder = folder / method.name
            subfolder.mkdir()
            alone = replace(config, methods={name: method})
            try:
                result = run_rounds(method, alone, engine, subfolder, observer)
            except RunStoppedError:
                if comparison.results:
                    observer.say(str(comparison))  # what there is so far
                raise
            comparison.results.append(result)
            _write_table(comparison)
    return comparison


def make_task(config: Config, federation: Federation) -> Task:
    """Return what server and clients of a run know beforehand."""
    task = Task(
        model=config.model,
        image_shape=federation.image_shape,
        num_classes=len(federation.class_names),
        num_clients=len(federation),
        training=config.training,
        seed=config.schedule.seed,
    )
    task.initial_tensors()  # refuses a model that does not fit the images, before anything is made
    return task


def _instances(methods: Iterable[str | Method]) -> dict[str, Method]:
    instances: dict[str, Method] = {}
    for method in methods:
        if isinstance(method, Method):
            instances[method.name] = method
        else:
            instances |= {name: find_method(name)() for name in expand_names([method])}
    return instances


def _prepare(config: Config, observer: Observer) -> tuple[Federation, Task]:
    federation = prepare(config.federation, progress=observer.preparing)
    task = make_task(config, federation)
    observer.say(f"{config.federation.source}: {federation.describe()}")
    return federation, task


def _stem(config: Config) -> str:
    """Return a name for the folder of a run, from its source."""
    name = config.federation.source.removeprefix("folder:").removeprefix("hub:")
    shifted = config.federation.shift != "none" or config.federation.shift_table is not None
    return (Path(name).stem or "run") + ("-s" if shifted else "")


def _write_table(comparison: Comparison) -> None:
    """Write the table of a comparison as CSV, with full precision."""
    with (comparison.folder / "comparison.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        for result in comparison.results:
            seconds = result.summary["seconds"]["total"]
            values = {**result.summary, "seconds": seconds}
            writer.writerow([values[column] for column in COLUMNS])
