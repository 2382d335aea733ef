"""Reading runs for a report: their files may come from anywhere, so nothing in them is trusted."""

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pfedfda.errors import InputError, printable
from pfedfda.report.styles import title_of
from pfedfda.runs import ACCURACIES, ClassCounts, ClientRow, read_class_counts, read_tables
from pfedfda.runs import reader as runs

COUNTS = ("bytes_up", "bytes_down", "bytes_up_per_round", "bytes_down_per_round")
COUNTS_SO_FAR = ("round", "seconds", "bytes_up", "bytes_down")


@dataclass(frozen=True)
class Run:
    """A run as its files tell.

    Parameters
    ----------
    folder
        Where the files are.
    method
        The name of the method.
    label
        What the report calls the run: the method's title, and more if that is not unique.
    status, reason
        ``complete`` or ``stopped``, and why.
    rounds
        Complete rounds.
    summary
        The final accuracies and bytes, by their names in ``summary.json``; None where undefined.
    seconds, client_seconds
        Wall-clock seconds by phase, and seconds inside the clients by component.
    machine
        What the run says about machine and versions.
    metrics
        The evaluated rounds.
    clients
        The clients after the last evaluation.
    new_clients
        The accuracies of new clients by condition.
    config
        The tables of ``config.toml``.
    seeds
        Of how many runs with different seeds the numbers of the summary are the mean.
    """

    folder: Path
    method: str
    label: str
    status: str
    reason: str
    rounds: int
    summary: dict[str, float | None]
    seconds: dict[str, float]
    client_seconds: dict[str, float]
    machine: dict[str, str]
    metrics: list[dict[str, float | None]]
    clients: list[ClientRow]
    new_clients: dict[str, list[float]]
    config: dict[str, Any]
    seeds: int = 1

    @property
    def mean(self) -> float | None:
        """Mean accuracy over clients after the last evaluation."""
        return self.summary["mean_accuracy"]

    @property
    def judged_on(self) -> str:
        """What the accuracies were measured on: test or validation images."""
        return "validation" if self.setting("federation", "validation_share") else "test"

    def setting(self, table: str, name: str) -> Any:
        """Return a setting of ``config.toml``, None if it is not there."""
        return self.config.get(table, {}).get(name)


@dataclass(frozen=True)
class Group:
    """Runs on the same federation, which can share a plot.

    Parameters
    ----------
    runs
        The runs, each with a label of its own.
    unfinished
        Methods of a comparison that have no results yet.
    counts
        Who holds what, if one of the folders has a ``federation.json``.
    heading
        What tells this federation from the others in the report; empty if there is only one.
    """

    runs: list[Run]
    unfinished: list[str]
    counts: ClassCounts | None
    heading: str = ""


def read_groups(folders: Sequence[Path]) -> list[Group]:
    """Read run and comparison folders, and group the runs by federation.

    Parameters
    ----------
    folders
        Folders of runs or of comparisons.
    """
    if not folders:
        raise InputError("There is no run to report on; name at least one folder.")
    groups: dict[str, list[Run]] = {}
    unfinished: dict[str, list[str]] = {}
    counts: dict[str, ClassCounts | None] = {}
    taken: set[Path] = set()
    for folder in folders:
        runs, missing = _read_folder(Path(folder))
        for run in runs:
            if run.folder.resolve() in taken:  # named twice, or alone and in its comparison
                continue
            taken.add(run.folder.resolve())
            key = json.dumps(_federation_of(run), sort_keys=True, default=str)
            groups.setdefault(key, []).append(run)
            for place in (run.folder, Path(folder)):
                if counts.get(key) is None:
                    counts[key] = read_class_counts(place)
        last = json.dumps(_federation_of(runs[-1]), sort_keys=True, default=str)
        unfinished.setdefault(last, []).extend(missing)
    headings = _headings([_federation_of(runs[0]) for runs in groups.values()])
    return [
        Group(_labelled(runs), unfinished.get(key, []), counts[key], heading)
        for (key, runs), heading in zip(groups.items(), headings, strict=True)
    ]


def mean_runs(runs: Sequence[Run]) -> list[Run]:
    """Return a run for each method and settings, with the means over its seeds.

    Runs belong together if they are equal in all but the seed, what they ran on and what they are
    called. Summary and seconds are means; all else is of the first of them. Of two runs with the
    same seed the second stands alone.

    Parameters
    ----------
    runs
        Runs on the same federation, each with a label of its own.
    """
    together: dict[str, list[Run]] = {}
    for run in runs:
        schedule = run.config.get("schedule", {})
        settings = [
            run.method,
            run.status,
            run.rounds,
            {n: v for n, v in schedule.items() if n not in ("seed", "checkpoint_every")},
            *(run.config.get(table, {}) for table in ("model", "training")),
            *run.config["methods"].values(),
        ]
        key = json.dumps(settings, sort_keys=True, default=str)
        while any(_seed_of(run) == _seed_of(other) for other in together.get(key, [])):
            key += " again"
        together.setdefault(key, []).append(run)
    methods = [of_method[0].method for of_method in together.values()]
    return [_mean_run(same, methods.count(same[0].method) == 1) for same in together.values()]


def _seed_of(run: Run) -> Any:
    return run.setting("schedule", "seed")


def _mean_run(runs: Sequence[Run], alone: bool) -> Run:
    """Return the mean of runs; it has the name of its method if no other has."""
    first = runs[0]
    if len(runs) == 1:
        return first

    def mean(values: Sequence[float | None]) -> float | None:
        known = [value for value in values if value is not None]
        return statistics.fmean(known) if len(known) == len(values) else None

    seconds = {name: mean([run.seconds.get(name) for run in runs]) for name in first.seconds}
    return replace(
        first,
        label=title_of(first.method) if alone else f"{first.label} and {len(runs) - 1} more",
        summary={name: mean([run.summary[name] for run in runs]) for name in first.summary},
        seconds={name: value for name, value in seconds.items() if value is not None},
        seeds=len(runs),
    )


def read_run(folder: Path) -> Run:
    """Read the files of one run."""
    result = runs.read_run(folder)
    lines = [
        {n: runs.as_number(line.get(n), n, folder) for n in (*COUNTS_SO_FAR, *ACCURACIES)}
        for line in result.metrics
    ]
    return Run(
        folder=folder,
        method=printable(result.method),
        label=title_of(printable(result.method)),
        status=result.status,
        reason=result.reason,
        rounds=result.rounds,
        summary={name: result.number(name) for name in (*ACCURACIES, *COUNTS)},
        seconds=result.seconds,
        client_seconds=result.client_seconds,
        machine=result.machine,
        metrics=lines,
        clients=result.clients,
        new_clients=result.new_clients,
        config=result.config,
    )


def _read_folder(folder: Path) -> tuple[list[Run], list[str]]:
    """Return the runs of a folder, and the methods of a comparison that have none yet."""
    if not folder.is_dir():
        raise InputError(f"There is no run folder {folder}.")
    if any((folder / name).exists() for name in ("summary.json", "metrics.jsonl", "checkpoint")):
        return [read_run(folder)], []
    parts = {path.parent.name: path.parent for path in sorted(folder.glob("*/summary.json"))}
    if not parts:
        raise InputError(f"{folder} has no summary.json and no folder of a run that has one.")
    tables = read_tables(folder / "config.toml").get("methods")
    order = list(tables) if isinstance(tables, dict) else []
    known = {name: place for place, name in enumerate(order)}
    runs = [read_run(part) for part in parts.values()]
    # A method may be named by the path of its file, then its folder has another name.
    runs.sort(key=lambda run: known.get(run.method, len(known)))
    started = {run.method for run in runs} | {n for run in runs for n in run.config["methods"]}
    return runs, [title_of(name) for name in order if name not in started]


def _federation_of(run: Run) -> dict[str, Any]:
    """Return what must agree for runs to share a plot; where the data lies does not matter."""
    settings = {k: v for k, v in run.config.get("federation", {}).items() if k != "data_dir"}
    return settings | {"new_clients": run.setting("schedule", "new_clients") or 0.0}


def _headings(federations: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return for each federation its source and the settings that not all have in common."""
    if len(federations) == 1:
        return [""]
    names = sorted({name for federation in federations for name in federation} - {"source"})
    differing = [n for n in names if len({str(f.get(n)) for f in federations}) > 1]
    return [
        ", ".join(
            [str(f.get("source", "federation"))]
            + [f"{n.replace('_', ' ')} {f[n]}" for n in differing if n in f]
        )
        for f in federations
    ]


def _labelled(runs: Sequence[Run]) -> list[Run]:
    """Return the runs with labels that are unique: by method, then seed, then folder."""
    labels = [run.label for run in runs]
    seeds = [f"{run.label}, seed {run.setting('schedule', 'seed')}" for run in runs]
    folders = [f"{run.label}, {run.folder.parent.name}/{run.folder.name}" for run in runs]
    numbers = [f"{label} ({number})" for number, label in enumerate(folders, start=1)]
    for choice in (labels, seeds, folders, numbers):
        chosen = [
            label if labels.count(plain) == 1 else better
            for plain, label, better in zip(labels, labels, choice, strict=True)
        ]
        if len(set(chosen)) == len(chosen):
            return [replace(run, label=label) for run, label in zip(runs, chosen, strict=True)]
    raise AssertionError("numbers are unique")
