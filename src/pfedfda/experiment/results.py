"""A run on disk: writing it while it goes on, and reading it afterwards."""

import csv
import io
import json
import math
import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

import pfedfda
from pfedfda.engine import ClientStates, Outcome, Roster
from pfedfda.errors import InputError, shown
from pfedfda.experiment.checkpoint import Checkpoint, read_checkpoint, tidy, write_checkpoint
from pfedfda.experiment.config import Config, OutputConfig, write_config
from pfedfda.files import LARGE, csv_cell, flush, json_text, make_folders, read_text, write_text
from pfedfda.methods import Method, Task, Tensors

LOGS = ("metrics.jsonl", "failures.jsonl")
CLIENT_COLUMNS = ("client", "name", "train_samples", "test_samples", "classes", "accuracy")
ACCURACIES = ("mean_accuracy", "std_accuracy", "weighted_accuracy", "worst_tenth_accuracy")
BYTES_PER_ROUND = ("bytes_up_per_round", "bytes_down_per_round")


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
        make_folders(config.output)
        if config.name is not None:
            folder = config.output / config.name
            try:
                folder.mkdir()
            except FileExistsError:
                raise InputError(
                    f"The run folder {folder} is there already: remove it or choose another --name."
                ) from None
            flush(config.output)
            return folder
        number = 1
        while True:  # mkdir either makes the folder or says that somebody else has
            folder = config.output / (default_name if number == 1 else f"{default_name}-{number}")
            try:
                folder.mkdir()
                flush(config.output)
                return folder
            except FileExistsError:
                number += 1
    except OSError as error:
        raise InputError(f"The results cannot be written to {config.output} ({error}).") from error


class RunWriter:
    """Writes the files of one run, and goes on with those of a run that was stopped.

    Parameters
    ----------
    folder
        The run's folder, which exists. If it holds a checkpoint, the run goes on from there.
    config
        What is run.
    method
        The one method of `config` that this run is about.
    task
        What server and clients know beforehand.
    federation
        Who the clients are.
    """

    def __init__(
        self, folder: Path, config: Config, method: Method, task: Task, federation: Roster
    ) -> None:
        self.folder = folder
        self.method = method
        self.validation = config.federation.validation_share
        self.about = {
            "pfedfda": pfedfda.__version__,
            "method": method.name,
            # JSON has no infinite numbers; a hyper-parameter may well be one.
            "hyperparameters": {
                name: str(value) if isinstance(value, float) and not math.isfinite(value) else value
                for name, value in asdict(method).items()
            },
            "task": asdict(task),
            "class_names": federation.class_names,
            "federation": federation.fingerprint,
        }
        self.metrics: list[dict[str, Any]] = []
        self.states = ClientStates(folder / "checkpoint" / "clients")
        self.unsaved: set[int] = set()
        self.holders: set[int] = set()
        self.unflushed: set[str] = set()  # files whose content or name may not be on the disk yet
        self.states.folder.mkdir(parents=True, exist_ok=True)
        if not (folder / "config.toml").exists():
            write_text(folder / "config.toml", write_config(config))
        # Whoever was here before may have been killed between a rename and its flush.
        for place in (folder / "checkpoint", folder, folder.parent):
            flush(place)

    def log_sizes(self) -> dict[str, int]:
        """Return the lengths in bytes of the files that grow by lines."""
        paths = {name: self.folder / name for name in LOGS}
        return {name: path.stat().st_size for name, path in paths.items() if path.exists()}

    def take_up(self, initial: Tensors) -> Checkpoint | None:
        """Return the last checkpoint, None if there is none, and bring all files back to it.

        Parameters
        ----------
        initial
            The server's initial state; what it has, the checkpoint must have in the same shape.
        """
        if not (self.folder / "checkpoint" / "manifest.json").exists():
            return None
        checkpoint = read_checkpoint(self.folder / "checkpoint")
        if checkpoint.about.get("task") != json.loads(json.dumps(self.about["task"])):
            raise InputError(
                f"The checkpoint in {self.folder} belongs to another task than its config.toml."
            )
        if checkpoint.about.get("federation", "") not in ("", self.about["federation"]):
            raise InputError(
                f"The checkpoint in {self.folder} was made with other images than those that its "
                f"config.toml leads to now, or by an older pfedfda; bring them back, or start a "
                f"new run."
            )
        for name, tensor in initial.items():
            saved = checkpoint.state.get(name)
            if saved is None or saved.shape != tensor.shape or saved.dtype != tensor.dtype:
                raise InputError(
                    f"The checkpoint in {self.folder} does not fit its config.toml: its tensor "
                    f"{name} is missing or of another shape or type."
                )
        tidy(self.folder / "checkpoint", checkpoint.round)
        self.states = replace(self.states, checkpoint=checkpoint.round)
        self.holders = self.states.rewind()
        if len(self.holders) < checkpoint.client_states:
            raise InputError(
                f"The checkpoint in {self.folder} is damaged: it has states of {len(self.holders)} "
                f"clients instead of {checkpoint.client_states}."
            )
        sizes = self.log_sizes()
        for name in {*sizes, *checkpoint.log_sizes}:
            if sizes.get(name, 0) < checkpoint.log_sizes.get(name, 0):
                raise InputError(
                    f"{self.folder / name} is shorter than the checkpoint says; it is damaged."
                )
        for name in sizes:
            os.truncate(self.folder / name, checkpoint.log_sizes.get(name, 0))
            self.unflushed.add(name)
        if "metrics.jsonl" in sizes:
            self.metrics = read_lines(self.folder / "metrics.jsonl")
        return checkpoint

    def add_metrics(self, line: dict[str, Any]) -> None:
        """Append a line to ``metrics.jsonl``."""
        self.metrics.append(line)
        self._append("metrics.jsonl", line)

    def add_failure(self, line: dict[str, Any]) -> None:
        """Append a line to ``failures.jsonl``."""
        self._append("failures.jsonl", line)

    def _append(self, name: str, line: dict[str, Any]) -> None:
        with (self.folder / name).open("a") as file:
            file.write(json_text(line) + "\n")
        self.unflushed.add(name)

    def _write_table(
        self, name: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]
    ) -> None:
        # It is written after every evaluation: flushing waits until something depends on it.
        write_csv(self.folder / name, columns, rows, durable=False)
        self.unflushed.add(name)

    def _flush(self) -> None:
        """Wait until all logs and tables are on the disk itself."""
        for path in (self.folder / name for name in self.unflushed):
            if path.exists():
                flush(path)
        if self.unflushed:
            flush(self.folder)
        self.unflushed.clear()

    def write_clients(self, federation: Roster, outcomes: Sequence[Outcome]) -> None:
        """Write ``clients.csv`` from an evaluation of all clients."""
        extra = sorted({name for outcome in outcomes for name in outcome.metrics})
        known = federation.attributes
        *about, accuracy = CLIENT_COLUMNS
        columns = [*about, *known, accuracy, *extra]
        rows = []
        for outcome in sorted(outcomes, key=lambda outcome: outcome.client_id):
            client = outcome.client_id
            rows.append(
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
        self._write_table("clients.csv", columns, rows)

    def write_new_clients(self, outcomes: Mapping[str, Sequence[Outcome]]) -> None:
        """Write ``new_clients.csv``: the accuracy of each new client under each condition."""
        rows = [
            [outcome.client_id, condition, outcome.tested, outcome.correct / outcome.tested]
            for condition, of_condition in outcomes.items()
            for outcome in sorted(of_condition, key=lambda outcome: outcome.client_id)
        ]
        columns = ["client", "condition", "test_samples", "accuracy"]
        self._write_table("new_clients.csv", columns, rows)

    def write_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Make this the point to which a stopped run goes back."""
        self.states.flush(self.unsaved)
        self._flush()
        self.holders |= self.states.holders(self.unsaved, checkpoint.round)
        complete = replace(checkpoint, about=self.about, client_states=len(self.holders))
        write_checkpoint(self.folder / "checkpoint", complete)
        self.states = replace(self.states, checkpoint=checkpoint.round)
        self.states.prune(self.unsaved, checkpoint.round)
        self.unsaved.clear()

    def write_summary(self, summary: Mapping[str, Any]) -> RunResult:
        """Write ``summary.json`` and return the result; what it sums up is flushed before."""
        judged = {"validation_share": self.validation} if self.validation else {}
        content = {"method": self.method.name, **summary, **judged, "machine": machine()}
        _refuse_strange_summary(content, self.folder)
        self._flush()
        write_text(self.folder / "summary.json", json_text(content, indent=2) + "\n")
        return RunResult(self.folder, self.method.name, content, self.metrics)


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Read a file with a JSON object in each line."""
    try:
        lines = [json.loads(line) for line in read_text(path, LARGE).splitlines()]
        if not all(isinstance(line, dict) for line in lines):
            raise ValueError("a line is not an object")
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path} cannot be read ({error}).") from error
    return lines


def is_complete(folder: Path) -> bool:
    """Tell whether a run has come to its end."""
    try:
        return bool(json.loads(read_text(folder / "summary.json"))["status"] == "complete")
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return False


def load_run(folder: Path) -> RunResult:
    """Read a run from its folder."""
    try:
        summary = json.loads(read_text(folder / "summary.json"))
        metrics = read_lines(folder / "metrics.jsonl")
        _refuse_strange_summary(summary, folder)
        return RunResult(folder, str(summary["method"]), summary, metrics)
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputError(f"{folder} is not a finished run ({error}).") from error


def _refuse_strange_summary(summary: Mapping[str, Any], folder: Path) -> None:
    """Refuse a complete run without the numbers that every table has."""
    if summary["status"] != "complete":
        return
    try:
        numbers = [summary[name] for name in (*ACCURACIES, *BYTES_PER_ROUND)]
        numbers.append(summary["seconds"]["total"])
        for accuracies in summary.get("new_clients", {}).values():
            numbers += [accuracies[name] for name in ACCURACIES]
        strange = [value for value in numbers if type(value) not in (int, float)]
    except (KeyError, TypeError, AttributeError) as error:
        raise InputError(f"The results in {folder} are incomplete ({shown(error)}).") from error
    if strange:
        raise InputError(f"The results in {folder} have {shown(strange[0])} in place of a number.")


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


def write_csv(
    path: Path, columns: Sequence[str], rows: Iterable[Sequence[Any]], durable: bool = True
) -> None:
    """Write a table in one step, as `pfedfda.files.replacing` does."""
    buffer = io.StringIO(newline="")
    writer = csv.writer(buffer)
    writer.writerow(map(csv_cell, columns))
    writer.writerows(map(csv_cell, row) for row in rows)
    write_text(path, buffer.getvalue(), durable)
