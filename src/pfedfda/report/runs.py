"""Reading runs for a report: their files may come from anywhere, so nothing in them is trusted."""

import csv
import io
import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pfedfda.errors import InputError, printable
from pfedfda.files import LARGE, csv_text, read_text, read_toml
from pfedfda.report.styles import title_of

ACCURACIES = ("mean_accuracy", "std_accuracy", "weighted_accuracy", "worst_tenth_accuracy")
COUNTS = ("bytes_up", "bytes_down", "bytes_up_per_round", "bytes_down_per_round")
LARGEST = 1e18  # more bytes or seconds than any run can have
COUNTS_SO_FAR = ("round", "seconds", "bytes_up", "bytes_down")


@dataclass(frozen=True)
class ClientLine:
    """A client in ``clients.csv``.

    Parameters
    ----------
    client, name
        The client's number, which is the same in all runs on a federation, and its name.
    train_samples, test_samples, classes
        What it holds.
    corruption, severity, domain
        How its images are shifted, as far as the federation says; severity 0 means clean.
    accuracy
        Its test accuracy, None if it is not a number.
    betas
        The interpolation weights that the method reports, by the name of the column.
    """

    client: str
    name: str
    train_samples: int | None
    test_samples: int | None
    classes: int | None
    corruption: str
    severity: int
    domain: str
    accuracy: float | None
    betas: dict[str, float] = field(default_factory=dict)


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
    clients: list[ClientLine]
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
class Counts:
    """Who holds how many training samples of which class, as ``federation.json`` tells.

    Parameters
    ----------
    class_names, client_names
        The names, in the order of the columns and rows of the counts.
    counts
        A list for each client with its training samples of each class.
    """

    class_names: list[str]
    client_names: list[str]
    counts: list[list[int]]


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
    counts: Counts | None
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
    counts: dict[str, Counts | None] = {}
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
                    counts[key] = read_counts(place / "federation.json")
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
    """Read the files of one run.

    Parameters
    ----------
    folder
        The folder; ``summary.json`` and ``config.toml`` must be there, the files of the evaluations
        only if there was one.
    """
    path = folder / "summary.json"
    summary = _read_json(path)
    method = summary.get("method")
    if not isinstance(method, str) or not method:
        raise InputError(f"{path} does not name its method.")
    seconds = _table(summary, "seconds", path)
    metrics = _read_metrics(folder / "metrics.jsonl")
    clients = _read_clients(folder / "clients.csv")
    if "mean_accuracy" in summary:
        for name, content in (("metrics.jsonl", metrics), ("clients.csv", clients)):
            if not content:
                raise InputError(f"{folder / name} is missing or empty, although the run has it.")
    return Run(
        folder=folder,
        method=printable(method),
        label=title_of(printable(method)),
        status=printable(summary.get("status", "complete")),
        reason=printable(summary.get("reason", "")),
        rounds=int(_number(summary.get("rounds"), "rounds", path) or 0),
        summary={name: _number(summary.get(name), name, path) for name in (*ACCURACIES, *COUNTS)},
        seconds=_numbers({k: v for k, v in seconds.items() if k != "clients"}, path),
        client_seconds=_numbers(_table(seconds, "clients", path), path),
        machine={printable(k): printable(v) for k, v in _table(summary, "machine", path).items()},
        metrics=metrics,
        clients=clients,
        new_clients=_read_new_clients(folder / "new_clients.csv"),
        config=_read_config(folder / "config.toml"),
    )


def read_counts(path: Path) -> Counts | None:
    """Read ``federation.json``, None if there is none.

    Parameters
    ----------
    path
        The file, with ``class_names``, ``names`` of clients, and ``counts`` of training samples.
    """
    if not path.exists():
        return None
    content = _read_json(path)
    lists = {name: content.get(name) for name in ("class_names", "names", "counts")}
    for name, values in lists.items():
        if not isinstance(values, list) or not values:
            raise InputError(f"{name} in {path} is not a list with something in it.")
    classes, names, counts = ([*values] for values in lists.values() if values)
    if len(names) != len(counts):
        raise InputError(f"{path} has {len(names)} names for {len(counts)} clients.")
    for row in counts:
        if not isinstance(row, list) or len(row) != len(classes):
            raise InputError(f"A row of counts in {path} does not have {len(classes)} numbers.")
        if any(type(count) is not int or not 0 <= count < 2**53 for count in row):
            raise InputError(f"A row of counts in {path} has a value that is not a count.")
    return Counts(
        [printable(name) for name in classes], [printable(name) for name in names], counts
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
    tables = _read_config(folder / "config.toml").get("methods")
    order = list(tables) if isinstance(tables, dict) else []
    known = {name: place for place, name in enumerate(order)}
    runs = [read_run(part) for part in parts.values()]
    # A method may be named by the path of its file, then its folder has another name.
    runs.sort(key=lambda run: known.get(run.method, len(known)))
    started = {run.method for run in runs} | {n for run in runs for n in run.config["methods"]}
    return runs, [title_of(name) for name in order if name not in started]


def _read_text(path: Path) -> str:
    try:
        return read_text(path, LARGE)
    except FileNotFoundError:
        raise InputError(f"The file {path} is missing.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"The file {path} cannot be read ({error}).") from error


def _parse_object(text: str, where: str) -> dict[str, Any]:
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where} is not JSON ({error}).") from error
    if not isinstance(content, dict):
        raise InputError(f"{where} is not a JSON object.")
    return content


def _read_json(path: Path) -> dict[str, Any]:
    return _parse_object(_read_text(path), str(path))


def _read_config(path: Path) -> dict[str, Any]:
    try:
        content = read_toml(path)
    except FileNotFoundError:
        raise InputError(f"The file {path} is missing.") from None
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"The file {path} is not TOML ({error}).") from error
    for name, table in content.items():
        if not isinstance(table, dict):
            raise InputError(f"{name} in {path} is not a table.")
    content.setdefault("methods", {})
    return content


def _read_metrics(path: Path) -> list[dict[str, float | None]]:
    if not path.exists():
        return []
    lines = []
    for number, text in enumerate(_read_text(path).splitlines(), start=1):
        if text.strip():
            where = f"Line {number} of {path}"
            line = _parse_object(text, where)
            values = {n: _number(line.get(n), n, where) for n in (*COUNTS_SO_FAR, *ACCURACIES)}
            if values["round"] is None:
                raise InputError(f"{where} does not say which round it is about.")
            lines.append(values)
    return sorted(lines, key=lambda line: line["round"] or 0)


def _read_rows(path: Path, needed: Sequence[str]) -> list[dict[str, str]]:
    if not path.exists():
        return []
    try:
        lines = csv.reader(io.StringIO(_read_text(path), newline=""), strict=True)
        columns = [csv_text(cell) for cell in next(lines, [])]
        for name in needed:
            if name not in columns:
                raise InputError(f"{path} has no column {name}.")
        rows = [dict(zip(columns, map(csv_text, line), strict=False)) for line in lines if line]
    except csv.Error as error:
        raise InputError(f"The file {path} is not CSV ({error}).") from error
    for number, row in enumerate(rows, start=2):
        if any(name not in row for name in needed):
            raise InputError(f"Line {number} of {path} is too short.")
    return rows


def _read_clients(path: Path) -> list[ClientLine]:
    clients = []
    for row in _read_rows(path, ["client", "accuracy"]):

        def whole(name: str, row: Mapping[str, str] = row) -> int | None:
            value = _number(row.get(name), name, path)
            return None if value is None else int(value)

        betas = {n: _number(v, n, path) for n, v in row.items() if n.split("_")[0] == "beta"}
        clients.append(
            ClientLine(
                client=printable(row["client"]),
                name=printable(row.get("name") or row["client"]),
                train_samples=whole("train_samples"),
                test_samples=whole("test_samples"),
                classes=whole("classes"),
                corruption=printable(row.get("corruption", "")),
                severity=whole("severity") or 0,
                domain=printable(row.get("domain", "")),
                accuracy=_number(row["accuracy"], "accuracy", path),
                betas={name: value for name, value in betas.items() if value is not None},
            )
        )
    return clients


def _read_new_clients(path: Path) -> dict[str, list[float]]:
    conditions: dict[str, list[float]] = {}
    for row in _read_rows(path, ["condition", "accuracy"]):
        accuracy = _number(row["accuracy"], "accuracy", path)
        of_condition = conditions.setdefault(printable(row["condition"]), [])
        if accuracy is not None:
            of_condition.append(accuracy)
    return conditions


def _number(value: Any, name: str, where: object) -> float | None:
    """Return a finite number, None for nothing or NaN or infinity, and refuse everything else."""
    if value is None or value == "":
        return None
    try:
        if isinstance(value, bool | list | dict):
            raise ValueError
        number = float(value)
    except (ValueError, OverflowError):
        raise InputError(f"{name} in {where} is {value!r}; it must be a number.") from None
    if not math.isfinite(number):
        return None
    if abs(number) > LARGEST:
        raise InputError(f"{name} in {where} is {value!r}; it must not exceed {LARGEST:g}.")
    return number


def _numbers(values: Mapping[str, Any], path: Path) -> dict[str, float]:
    return {printable(name): _number(value, name, path) or 0.0 for name, value in values.items()}


def _table(values: Mapping[str, Any], name: str, path: Path) -> dict[str, Any]:
    table = values.get(name, {})
    if not isinstance(table, dict):
        raise InputError(f"{name} in {path} is {table!r}; it must be an object.")
    return table


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
