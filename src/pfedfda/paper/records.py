"""Records: what is kept of a run for the tables, a small JSON file that can be committed."""

import csv
import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from pfedfda.data.shift import frost_photos
from pfedfda.errors import InputError
from pfedfda.experiment.config import Config
from pfedfda.experiment.results import RunResult, write_text
from pfedfda.files import csv_text
from pfedfda.methods import find_method
from pfedfda.paper.suites import Need, Record

FORMAT = 3
SUMMARY = (
    "status",
    "reason",
    "rounds",
    "mean_accuracy",
    "std_accuracy",
    "weighted_accuracy",
    "worst_tenth_accuracy",
    "new_clients",
    "failures",
    "bytes_up_per_round",
    "bytes_down_per_round",
    "seconds",
    "machine",
)


def record_name(need: Need, rounds: int, seed: int) -> str:
    """Return the name of a run and of its record."""
    words = [
        find_method(need.method).name,
        *(f"{k}={v}" for k, v in (*need.hyperparameters, *need.settings)),
    ]
    return f"{need.federation}--{'-'.join(words)}--r{rounds}-s{seed}"


def make_record(need: Need, config: Config, result: RunResult) -> dict[str, Any]:
    """Return the record of a run from its files and the settings that it was made with."""
    with (result.folder / "clients.csv").open(newline="") as file:
        clients = list(csv.DictReader(file))
    record: dict[str, Any] = {
        "format": FORMAT,
        "need": _plain(need),
        "seed": config.schedule.seed,
        **settings_of(config),
        "federation": {
            "clients": len(clients),
            "domains": sorted({csv_text(row["domain"]) for row in clients if row.get("domain")}),
            "train_samples": sum(int(row["train_samples"]) for row in clients),
            "test_samples": sum(int(row["test_samples"]) for row in clients),
            "frost": _frost(config),
        },
        "betas": _betas(clients),
        "by_round": [
            {name: line[name] for name in ("round", "mean_accuracy", "seconds")}
            for line in result.metrics
        ],
    }
    return record | {name: result.summary[name] for name in SUMMARY if name in result.summary}


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


def _betas(clients: list[dict[str, str]]) -> dict[str, dict[str, float]]:
    """Return the mean β of the clients under each corruption, if there are any."""
    kinds: dict[str, list[float]] = {}
    for row in clients:
        if row.get("beta"):
            kind = row.get("corruption") or "clean"
            kinds.setdefault(kind, []).append(float(row["beta"]))
    return {
        kind: {"mean": float(np.mean(values)), "std": float(np.std(values)), "clients": len(values)}
        for kind, values in kinds.items()
    }


def write_record(folder: Path, need: Need, record: Record) -> Path:
    """Write a record into a folder of results."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{record_name(need, record['rounds'], record['seed'])}.json"
    write_text(path, json.dumps(record, indent=1) + "\n")
    return path


def read_records(folder: Path) -> list[Record]:
    """Read all records of a folder, in the order of their names."""
    records = []
    for path in sorted(folder.glob("*.json")):
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
            if record["format"] != FORMAT:
                raise ValueError(f"its format is {record['format']!r}, not {FORMAT}")
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise InputError(f"{path} is not a record of a run ({error!r}).") from error
        records.append(record)
    return records


def valid(need: Need, records: Iterable[Record]) -> list[Record]:
    """Return the records of a needed run.

    Those that were made with other settings than they would be made with today do not count.
    """
    today = {"need": _plain(need), **settings_of(need.config())}
    return [
        record for record in records if all(record[name] == value for name, value in today.items())
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
