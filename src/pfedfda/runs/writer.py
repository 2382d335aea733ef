"""Writing a run while it goes on."""

import csv
import io
import json
import math
import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from pfedfda.data import Federation
from pfedfda.errors import InputError
from pfedfda.files import csv_cell, flush, json_text, make_folders, write_text
from pfedfda.methods import Method, Task, Tensors
from pfedfda.runs.checkpoint import Checkpoint, read_checkpoint, tidy, write_checkpoint
from pfedfda.runs.clients import Mistake, Outcome, Roster
from pfedfda.runs.config import Config, write_config
from pfedfda.runs.layout import (
    CHECKPOINT,
    CLIENT_COLUMNS,
    CLIENTS,
    CONFIG,
    FAILURES,
    LOGS,
    MANIFEST,
    METRICS,
    MISTAKES,
    NEW_CLIENT_COLUMNS,
    NEW_CLIENTS,
    QUALITY_COLUMNS,
    SUMMARY,
)
from pfedfda.runs.mistakes import mistakes_text
from pfedfda.runs.output_config import OutputConfig
from pfedfda.runs.reader import RunResult, read_metrics, refuse_incomplete
from pfedfda.runs.states import ClientStates
from pfedfda.version import __version__


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
            "pfedfda": __version__,
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
        self.states = ClientStates(folder / CHECKPOINT / "clients")
        self.unsaved: set[int] = set()
        self.holders: set[int] = set()
        self.unflushed: set[str] = set()  # files whose content or name may not be on the disk yet
        self.states.folder.mkdir(parents=True, exist_ok=True)
        if not (folder / CONFIG).exists():
            write_text(folder / CONFIG, write_config(config))
            preprocessing = federation.preprocessing
            if preprocessing is not None and preprocessing.does_something:
                preprocessing.save(folder)
        # Whoever was here before may have been killed between a rename and its flush.
        for place in (folder / CHECKPOINT, folder, folder.parent):
            flush(place)

    def commit(self, commitment: Mapping[str, Any]) -> None:
        """Note what the run must still have in common with itself when it is resumed."""
        if commitment:
            self.about["commitment"] = dict(commitment)

    def log_sizes(self) -> dict[str, int]:
        """Return the lengths in bytes of the files that grow by lines."""
        paths = {name: self.folder / name for name in LOGS}
        return {name: path.stat().st_size for name, path in paths.items() if path.exists()}

    def resume(self, initial: Tensors) -> Checkpoint | None:
        """Return the last checkpoint, None if there is none, and bring all files back to it.

        Parameters
        ----------
        initial
            The server's initial state; what it has, the checkpoint must have in the same shape.
        """
        if not (self.folder / CHECKPOINT / MANIFEST).exists():
            return None
        checkpoint = read_checkpoint(self.folder / CHECKPOINT)
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
        if checkpoint.about.get("commitment") != self.about.get("commitment"):
            raise InputError(
                f"The run in {self.folder} has begun with another promise of privacy than its "
                f"config.toml leads to now: bring its settings back, or start a new run."
            )
        for name, tensor in initial.items():
            saved = checkpoint.state.get(name)
            if saved is None or saved.shape != tensor.shape or saved.dtype != tensor.dtype:
                raise InputError(
                    f"The checkpoint in {self.folder} does not fit its config.toml: its tensor "
                    f"{name} is missing or of another shape or type."
                )
        tidy(self.folder / CHECKPOINT, checkpoint.round)
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
        if METRICS in sizes:
            self.metrics = read_metrics(self.folder / METRICS)
        return checkpoint

    def add_metrics(self, line: dict[str, Any]) -> None:
        """Append a line to ``metrics.jsonl``."""
        self.metrics.append(line)
        self._append(METRICS, line)

    def add_failure(self, line: dict[str, Any]) -> None:
        """Append a line to ``failures.jsonl``."""
        self._append(FAILURES, line)

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
        columns = [*about, *known, accuracy, *QUALITY_COLUMNS, *extra]
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
                    *(outcome.measures[name] for name in QUALITY_COLUMNS),
                    *(outcome.metrics.get(name, "") for name in extra),
                ]
            )
        self._write_table(CLIENTS, columns, rows)

    def write_mistakes(
        self, federation: Federation, mistakes: Sequence[tuple[int, Mistake]]
    ) -> None:
        """Write ``mistakes.json``: the most confident mistakes of all clients with their images."""
        write_text(self.folder / MISTAKES, mistakes_text(federation, mistakes), durable=False)
        self.unflushed.add(MISTAKES)

    def write_new_clients(self, outcomes: Mapping[str, Sequence[Outcome]]) -> None:
        """Write ``new_clients.csv``: the accuracy of each new client under each condition."""
        rows = [
            [outcome.client_id, condition, outcome.tested, outcome.correct / outcome.tested]
            for condition, of_condition in outcomes.items()
            for outcome in sorted(of_condition, key=lambda outcome: outcome.client_id)
        ]
        self._write_table(NEW_CLIENTS, NEW_CLIENT_COLUMNS, rows)

    def write_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Make this the point to which a stopped run goes back."""
        self.states.flush(self.unsaved)
        self._flush()
        self.holders |= self.states.holders(self.unsaved, checkpoint.round)
        complete = replace(checkpoint, about=self.about, client_states=len(self.holders))
        write_checkpoint(self.folder / CHECKPOINT, complete)
        self.states = replace(self.states, checkpoint=checkpoint.round)
        self.states.prune(self.unsaved, checkpoint.round)
        self.unsaved.clear()

    def write_summary(self, summary: Mapping[str, Any]) -> RunResult:
        """Write ``summary.json`` and return the result; what it sums up is flushed before."""
        judged = {"validation_share": self.validation} if self.validation else {}
        content = {"method": self.method.name, **summary, **judged, "machine": machine()}
        refuse_incomplete(content, self.folder)
        self._flush()
        write_text(self.folder / SUMMARY, json_text(content, indent=2) + "\n")
        return RunResult(self.folder, self.method.name, content, self.metrics)


def machine() -> dict[str, Any]:
    """Return what a reader must know to judge the seconds of a run."""
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "system": f"{platform.system()} {platform.machine()}",
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "pfedfda": __version__,
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
