"""Records: what is kept of a run for the tables, a small JSON file that can be committed."""

import json
import math
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pfedfda.data.shift import frost_photos
from pfedfda.errors import InputError
from pfedfda.files import make_folders, write_text
from pfedfda.methods import find_method
from pfedfda.paper.suites import Need, Record
from pfedfda.runs import ACCURACIES, QUALITIES, ClientRow, RunResult
from pfedfda.runs.config import Config
from pfedfda.runs.layout import CLIENTS, TRAFFIC_PER_ROUND

FORMAT = 3
UNREADABLE = (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError)
KEPT = (
    "status",
    "reason",
    "rounds",
    *ACCURACIES,
    "test_loss",
    *QUALITIES,
    "new_clients",
    "failures",
    *TRAFFIC_PER_ROUND,
    "seconds",
    "machine",
)
"""What a record keeps of ``summary.json``."""


def record_name(need: Need, rounds: int, seed: int) -> str:
    """Return the name of a run and of its record."""
    words = [
        find_method(need.method).name,
        *(f"{k}={v}" for k, v in (*need.hyperparameters, *need.settings)),
    ]
    return f"{need.federation}--{'-'.join(words)}--r{rounds}-s{seed}"


def make_record(need: Need, config: Config, result: RunResult) -> dict[str, Any]:
    """Return the record of a run from its files and the settings that it was made with."""
    clients = result.clients
    record: dict[str, Any] = {
        "format": FORMAT,
        "need": _plain(need),
        "seed": config.schedule.seed,
        **settings_of(config),
        "federation": {
            "clients": len(clients),
            "domains": sorted({row.domain for row in clients if row.domain}),
            "train_samples": sum(row.train_samples or 0 for row in clients),
            "test_samples": sum(row.test_samples or 0 for row in clients),
            "frost": _frost(config),
        },
        "by_client": _by_client(clients, result.folder),
        "betas": _betas(clients),
        "by_round": [
            {name: line[name] for name in ("round", "mean_accuracy", "seconds")}
            for line in result.metrics
        ],
    }
    return record | {name: result.summary[name] for name in KEPT if name in result.summary}


def settings_of(config: Config) -> dict[str, Any]:
    """Return all settings on which the numbers of a run depend but rounds, seed and clients.

    How many clients there are is counted, because a local copy may have fewer writers.
    """
    (method,) = config.methods.values()
    split = asdict(config.federation)
    return {
        "hyperparameters": asdict(method),
        "model": asdict(config.model),
        "training": asdict(config.training),
        "split": {k: v for k, v in split.items() if k not in ("data_dir", "clients")},
        "participation": config.schedule.participation,
    }


def _frost(config: Config) -> str | None:
    """Return what the corruption frost blends in, if there are corruptions."""
    if config.federation.shift == "none" and not config.schedule.new_clients:
        return None
    return "drawn" if frost_photos(config.federation.data_dir) is None else "photographs"


def _by_client(clients: list[ClientRow], folder: Path) -> dict[str, list[int]]:
    """Return every client's number, test samples and how many of them were classified correctly."""
    counts: dict[str, list[int]] = {"client": [], "tested": [], "correct": []}
    for row in clients:
        size, value = row.test_samples or 0, row.accuracy or 0.0
        correct = round(value * size)
        if row.accuracy is None or not size or correct / size != value:
            raise InputError(
                f"{folder / CLIENTS} has the accuracy {row.accuracy} on {size} test samples, which "
                f"is no whole number of them."
            )
        counts["client"].append(int(row.client))
        counts["tested"].append(size)
        counts["correct"].append(correct)
    return counts


def _betas(clients: list[ClientRow]) -> dict[str, dict[str, float]]:
    """Return the mean β of the clients under each corruption, if there are any."""
    kinds: dict[str, list[float]] = {}
    for row in clients:
        if "beta" in row.betas:
            kinds.setdefault(row.corruption or "clean", []).append(row.betas["beta"])
    return {
        kind: {"mean": float(np.mean(values)), "std": float(np.std(values)), "clients": len(values)}
        for kind, values in kinds.items()
    }


def write_record(folder: Path, need: Need, record: Record) -> Path:
    """Write a record into a folder of results."""
    make_folders(folder)
    path = folder / f"{record_name(need, record['rounds'], record['seed'])}.json"
    text = json.dumps(record, indent=1)
    # A list of numbers takes a line, not one for each number; no text has a line break in JSON.
    text = re.sub(r"\[\n[\d,\s]+\]", lambda match: json.dumps(json.loads(match[0])), text)
    write_text(path, text + "\n")
    return path


def read_records(folder: Path) -> list[Record]:
    """Read all records of a folder, in the order of their names."""
    records = []
    for path in sorted(folder.glob("*.json")):
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
            if record["format"] != FORMAT:
                raise ValueError(f"its format is {record['format']!r}, not {FORMAT}")
            record["split"].setdefault("shift_version", 1)  # from before there was another
        except UNREADABLE as error:
            raise InputError(f"{path} is not a record of a run ({error!r}).") from error
        records.append(record)
    return records


@dataclass(frozen=True)
class Difference:
    """By how much the mean accuracy over clients differs between two runs.

    Parameters
    ----------
    mean
        That of the first less that of the second.
    standard_error
        Of this mean, over clients.
    paired
        Whether it is the error of the differences of the same clients, or, where these are not
        known, that of two independent means, which is larger if clients agree on what is hard.
    """

    mean: float
    standard_error: float
    paired: bool


def difference(first: Record, second: Record) -> Difference:
    """Return the difference of two runs with its standard error over clients.

    It is paired if both records hold the counts of every client (``by_client``, which old records
    lack) and their clients are the same: equal settings of the federation, the same clients
    evaluated on as many samples. The error says nothing about other seeds.

    Parameters
    ----------
    first, second
        Two records.
    """
    if _same_clients(first, second):
        counts = [record["by_client"] for record in (first, second)]
        one, other = (np.array(c["correct"]) / np.array(c["tested"]) for c in counts)
        differences = one - other
        error = differences.std(ddof=1) / math.sqrt(len(differences))
        return Difference(float(differences.mean()), float(error), paired=True)
    variances = [
        record["std_accuracy"] ** 2 / record["federation"]["clients"] for record in (first, second)
    ]
    mean = first["mean_accuracy"] - second["mean_accuracy"]
    return Difference(mean, math.sqrt(sum(variances)), paired=False)


def _same_clients(first: Record, second: Record) -> bool:
    if "by_client" not in first or "by_client" not in second:
        return False
    one, other = (
        (r["split"], r["federation"], r["by_client"]["client"], r["by_client"]["tested"])
        for r in (first, second)
    )
    return one == other and len(one[2]) > 1


def valid(need: Need, records: Iterable[Record]) -> list[Record]:
    """Return the records of a needed run.

    Those that were made with other settings than they would be made with today do not count.
    Hyper-parameters that a method no longer has make no difference where they had the value that
    now always holds; those that came after a record had the value that the method names, and other
    settings their defaults. Nor does an older shift make one: its noise has the same distribution,
    and `pfedfda.paper.suites.differences` tells of it.
    """
    today = {"need": _plain(need), **settings_of(need.config())}
    same_shift = {"shift_version": today["split"]["shift_version"]}
    defaults = settings_of(Config({need.method: find_method(need.method)()}))
    kind = find_method(need.method)

    def then(record: Record, name: str) -> Any:
        value = record[name]
        if name in ("split", "model", "training"):
            value = defaults[name] | value
        if name == "split":
            return value | same_shift
        return kind.of_record(value) if name == "hyperparameters" else value

    return [
        record
        for record in records
        if all(then(record, name) == value for name, value in today.items())
    ]


def matching(need: Need, records: Iterable[Record]) -> list[Record]:
    """Return the valid records of a needed run with the most rounds, one for each seed."""
    found = valid(need, records)
    most = max((record["rounds"] for record in found), default=0)
    return [record for record in found if record["rounds"] == most]


def need_of(record: Record) -> Need:
    """Return the need that a record is for."""
    need = record["need"]
    further = (tuple(need[name].items()) for name in ("hyperparameters", "settings"))
    return Need(need["federation"], need["method"], *further)


def _plain(need: Need) -> dict[str, Any]:
    return {
        "federation": need.federation,
        "method": need.method,
        "hyperparameters": dict(need.hyperparameters),
        "settings": dict(need.settings),
    }
