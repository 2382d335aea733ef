"""A run on disk: writing it while it goes on, and reading it afterwards."""

import csv
import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

import pfedfda
from pfedfda.data import Federation
from pfedfda.engine import ClientStates, Outcome
from pfedfda.errors import InputError
from pfedfda.experiment.config import Config, OutputConfig, write_config
from pfedfda.methods import Method, Task, Tensors


@dataclass(frozen=True)
class RunResult:
    """A finished run, as its files tell.

    Parameters
    ----------
    folder
        Where the files are.
    method
        The name of the method.
    summary
        The content of ``summary.json``: the final accuracies, seconds and bytes.
    metrics
        The lines of ``metrics.jsonl``, one an evaluated round.
    """

    folder: Path
    method: str
    summary: dict[str, Any]
    metrics: list[dict[str, Any]]

    @property
    def mean_accuracy(self) -> float:
        """Mean over clients after the last round."""
        return float(self.summary["mean_accuracy"])


def make_folder(config: OutputConfig, default_name: str) -> Path:
    """Make the folder of a new run.

    Parameters
    ----------
    config
        The folder for runs and the name, if the user gave one; a given name must be new.
    default_name
        The name to use otherwise, with a number behind it if it is taken.
    """
    try:
        config.output.mkdir(parents=True, exist_ok=True)
        if config.name is not None:
            folder = config.output / config.name
            try:
                folder.mkdir()
            except FileExistsError:
                raise InputError(
                    f"The run folder {folder} is there already: remove it or choose another --name."
                ) from None
            return folder
        number = 1
        while True:  # mkdir either makes the folder or says that somebody else has
            folder = config.output / (default_name if number == 1 else f"{default_name}-{number}")
            try:
                folder.mkdir()
                return folder
            except FileExistsError:
                number += 1
    except OSError as error:
        raise InputError(f"The results cannot be written to {config.output} ({error}).") from error


class RunWriter:
    """Writes the files of one run.

    Parameters
    ----------
    folder
        The run's folder, which exists.
    config
        What is run.
    method
        The one method of `config` that this run is about.
    class_names
        The names of the classes, in the order of the labels.
    """

    def __init__(
        self, folder: Path, config: Config, method: Method, class_names: tuple[str, ...]
    ) -> None:
        self.folder = folder
        self.method = method
        self.class_names = class_names
        self.metrics: list[dict[str, Any]] = []
        self.states = ClientStates(folder / "checkpoint" / "clients")
        self.states.folder.mkdir(parents=True)
        (folder / "config.toml").write_text(write_config(config), encoding="utf-8")

    def add_metrics(self, line: dict[str, Any]) -> None:
        """Append a line to ``metrics.jsonl``."""
        self.metrics.append(line)
        with (self.folder / "metrics.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")

    def write_clients(self, federation: Federation, outcomes: Sequence[Outcome]) -> None:
        """Write ``clients.csv`` from an evaluation of all clients."""
        extra = sorted({name for outcome in outcomes for name in outcome.metrics})
        known = federation.attributes
        columns = ["client", "name", "train_samples", "test_samples", "classes", *known]
        columns += ["accuracy", *extra]
        with _replacing(self.folder / "clients.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(columns)
            for outcome in sorted(outcomes, key=lambda outcome: outcome.client_id):
                client = outcome.client_id
                writer.writerow(
                    [
                        client,
                        federation.client_names[client],
                        int(federation.train_sizes[client]),
                        int(federation.test_sizes[client]),
                        federation.classes_held(client),
                        *(values[client] for values in known.values()),
                        outcome.correct / outcome.tested,
                        *(outcome.metrics.get(name, "") for name in extra),
                    ]
                )
        _finish(self.folder / "clients.csv")

    def write_new_clients(self, outcomes: Mapping[str, Sequence[Outcome]]) -> None:
        """Write ``new_clients.csv``: the accuracy of each new client under each condition."""
        with (self.folder / "new_clients.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["client", "condition", "test_samples", "accuracy"])
            for condition, of_condition in outcomes.items():
                for outcome in sorted(of_condition, key=lambda outcome: outcome.client_id):
                    accuracy = outcome.correct / outcome.tested
                    writer.writerow([outcome.client_id, condition, outcome.tested, accuracy])

    def write_checkpoint(self, state: Tensors, round_number: int, task: Task) -> None:
        """Write the server's state after a complete round; the clients' states are there."""
        folder = self.folder / "checkpoint"
        save_file(state, _replacing(folder / "server.safetensors"))
        _finish(folder / "server.safetensors")
        manifest = {
            "pfedfda": pfedfda.__version__,
            "method": self.method.name,
            "hyperparameters": asdict(self.method),
            "round": round_number,
            "task": asdict(task),
            "class_names": self.class_names,
        }
        _write_json(folder / "manifest.json", manifest)

    def write_summary(self, summary: Mapping[str, Any]) -> RunResult:
        """Write ``summary.json`` and return the result."""
        content = {"method": self.method.name, **summary, "machine": machine()}
        _write_json(self.folder / "summary.json", content)
        return RunResult(self.folder, self.method.name, content, self.metrics)


def load_run(folder: Path) -> RunResult:
    """Read a run from its folder."""
    try:
        summary = json.loads((folder / "summary.json").read_text())
        lines = (folder / "metrics.jsonl").read_text().splitlines()
        return RunResult(folder, summary["method"], summary, [json.loads(line) for line in lines])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{folder} is not a finished run ({error}).") from error


def machine() -> dict[str, Any]:
    """Return what a reader must know to judge the seconds of a run."""
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "system": f"{platform.system()} {platform.machine()}",
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "pfedfda": pfedfda.__version__,
    }


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    _replacing(path).write_text(json.dumps(content, indent=2) + "\n")
    _finish(path)


def _replacing(path: Path) -> Path:
    """Return the name under which a file is written before it takes the place of the old one."""
    return path.with_name(path.name + ".new")


def _finish(path: Path) -> None:
    _replacing(path).replace(path)
