"""Reading runs: their files may come from anywhere, so nothing in them is trusted."""

import csv
import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from pfedfda.errors import InputError, printable, quote
from pfedfda.files import LARGE, csv_text, read_text, read_toml
from pfedfda.inputs import read_inputs
from pfedfda.runs.accuracy import ACCURACIES
from pfedfda.runs.html import COLUMNS, results_html
from pfedfda.runs.layout import (
    CHECKPOINT,
    CLIENTS,
    CONFIG,
    MANIFEST,
    METRICS,
    NEW_CLIENTS,
    PRIVACY,
    QUALITY_COLUMNS,
    SUMMARY,
    TRAFFIC,
    TRAFFIC_PER_ROUND,
)
from pfedfda.runs.quality import PREDICTIONS, QUALITIES, Predictions, read_predictions

LARGEST = 1e18  # more bytes or seconds than any run can have
LARGEST_LOSS = 1e40  # beyond single precision, in which losses are computed
LOSSES = ("test_loss", "nll")


@dataclass(frozen=True)
class ClientRow:
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
    quality
        Its other test results, such as ``balanced_accuracy`` and ``ece``, as far as they are there:
        runs of earlier versions have none.
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
    quality: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class RunResult:
    """A run as its files describe it.

    Parameters
    ----------
    folder
        Where the files are.
    method
        The name of the method.
    summary
        The content of ``summary.json``: the final accuracies, seconds and bytes.
    metrics
        The lines of ``metrics.jsonl``, one per evaluated round.
    """

    folder: Path
    method: str
    summary: dict[str, Any] = field(repr=False)
    metrics: list[dict[str, Any]] = field(repr=False)

    @property
    def mean_accuracy(self) -> float:
        """Mean over clients after the last round."""
        return float(self.summary["mean_accuracy"])

    def number(self, name: str) -> float | None:
        """Return a number of the summary, None if it is missing or undefined."""
        return as_number(self.summary.get(name), name, self.folder / SUMMARY)

    def _repr_html_(self) -> str:
        numbers = {name: self.number(name) for name in COLUMNS}
        return results_html([(self.method, numbers)], self.folder)

    @property
    def status(self) -> str:
        """``complete`` or ``stopped``."""
        return printable(self.summary.get("status", "complete"))

    @property
    def reason(self) -> str:
        """Why the run stopped; empty if it did not."""
        return printable(self.summary.get("reason", ""))

    @property
    def rounds(self) -> int:
        """The number of complete rounds."""
        return int(self.number("rounds") or 0)

    @property
    def seconds(self) -> dict[str, float]:
        """Wall-clock seconds by phase."""
        return self._numbers({k: v for k, v in self._table("seconds").items() if k != "clients"})

    @property
    def client_seconds(self) -> dict[str, float]:
        """Seconds inside the clients by component, summed over clients."""
        return self._numbers(self._object(self._table("seconds"), "clients"))

    @property
    def privacy(self) -> dict[str, float]:
        """The numbers of differential privacy, empty for a run without."""
        table = self._table("privacy")
        return self._numbers({name: table.get(name) for name in PRIVACY} if table else {})

    @property
    def machine(self) -> dict[str, str]:
        """The machine and the versions of the software."""
        return {printable(k): printable(v) for k, v in self._table("machine").items()}

    @cached_property
    def clients(self) -> list[ClientRow]:
        """The clients after the last evaluation."""
        return read_clients(self.folder / CLIENTS)

    @cached_property
    def predictions(self) -> Predictions | None:
        """What the predictions add up to, None for a run of an earlier version."""
        tables = self._table(PREDICTIONS)
        try:
            return read_predictions(tables) if tables else None
        except ValueError as error:
            where = self.folder / SUMMARY
            raise InputError(f"predictions in {where} cannot be read ({error}).") from error

    @cached_property
    def new_clients(self) -> dict[str, list[float]]:
        """The accuracies of new clients by condition."""
        return _read_new_clients(self.folder / NEW_CLIENTS)

    @cached_property
    def config(self) -> dict[str, Any]:
        """The tables of ``config.toml``."""
        return read_tables(self.folder / CONFIG)

    @property
    def judged_on(self) -> str:
        """Which samples the accuracies were measured on: test or validation."""
        return "validation" if self.setting("federation", "validation_share") else "test"

    def setting(self, table: str, name: str) -> Any:
        """Return a setting of ``config.toml``, None if it is not there."""
        return self.config.get(table, {}).get(name)

    @property
    def image_size(self) -> tuple[int, int] | None:
        """Height and width of the images, None if there is no checkpoint that says so."""
        try:
            manifest = read_object(self.folder / CHECKPOINT / MANIFEST)
            shape, input_type = read_inputs(manifest["about"]["task"])
            return (shape[0], shape[1]) if input_type == "uint8" else None
        except (InputError, LookupError, TypeError, ValueError, OverflowError):
            return None

    def _table(self, name: str) -> dict[str, Any]:
        return self._object(self.summary, name)

    def _object(self, values: Mapping[str, Any], name: str) -> dict[str, Any]:
        table = values.get(name, {})
        if not isinstance(table, dict):
            where = self.folder / SUMMARY
            raise InputError(f"{name} in {where} is {quote(table)}; it must be an object.")
        return table

    def _numbers(self, values: Mapping[str, Any]) -> dict[str, float]:
        where = self.folder / SUMMARY
        return {printable(k): as_number(v, k, where) or 0.0 for k, v in values.items()}


def read_run(folder: Path) -> RunResult:
    """Read the files of a run, complete or stopped, and refuse what no run can have written.

    Parameters
    ----------
    folder
        The folder; ``summary.json`` and ``config.toml`` must be there, the files of the evaluations
        only if there was one.
    """
    run = _read_summary(folder)
    for name in (*ACCURACIES, *QUALITIES, "test_loss", *TRAFFIC, *TRAFFIC_PER_ROUND, "rounds"):
        run.number(name)
    for read in (
        "seconds",
        "client_seconds",
        "privacy",
        "machine",
        "config",
        "new_clients",
        "predictions",
    ):
        getattr(run, read)
    if "mean_accuracy" in run.summary:
        for name, content in ((METRICS, run.metrics), (CLIENTS, run.clients)):
            if not content:
                raise InputError(f"{folder / name} is missing or empty, although the run has it.")
    return run


def load_run(folder: Path | str) -> RunResult:
    """Read a run from its folder; refuse a complete one without the numbers of every table."""
    folder = Path(folder)
    try:
        run = _read_summary(folder)
    except InputError as error:
        raise InputError(f"{folder} is not a finished run: {error}") from error
    refuse_incomplete(run.summary, folder)
    return run


def _read_summary(folder: Path) -> RunResult:
    path = folder / SUMMARY
    summary = read_object(path)
    method = summary.get("method")
    if not isinstance(method, str) or not method:
        raise InputError(f"{path} does not name its method.")
    return RunResult(folder, method, summary, read_metrics(folder / METRICS))


def is_complete(folder: Path) -> bool:
    """Tell whether a run has come to its end."""
    try:
        return bool(json.loads(read_text(folder / SUMMARY))["status"] == "complete")
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return False


def refuse_incomplete(summary: Mapping[str, Any], folder: Path) -> None:
    """Refuse the summary of a complete run without the numbers that every table has."""
    if summary.get("status") != "complete":
        return
    try:
        numbers = [summary[name] for name in (*ACCURACIES, *TRAFFIC_PER_ROUND)]
        numbers.append(summary["seconds"]["total"])
        for accuracies in summary.get("new_clients", {}).values():
            numbers += [accuracies[name] for name in ACCURACIES]
        strange = [value for value in numbers if type(value) not in (int, float)]
    except (KeyError, TypeError, AttributeError) as error:
        raise InputError(f"The results in {folder} are incomplete ({quote(error)}).") from error
    if strange:
        raise InputError(f"The results in {folder} have {quote(strange[0])} in place of a number.")


def read_object(path: Path) -> dict[str, Any]:
    """Read a file that holds a JSON object."""
    return _parse_object(_read_text(path), str(path))


def read_tables(path: Path) -> dict[str, Any]:
    """Read the tables of a ``config.toml`` as they are; there is always a table of methods."""
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


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Read ``metrics.jsonl``: the evaluated rounds in their order, none if there is no file."""
    if not path.exists():
        return []
    lines = []
    for number, text in enumerate(_read_text(path).splitlines(), start=1):
        if text.strip():
            where = f"Line {number} of {path}"
            line = _parse_object(text, where)
            for name in ("round", "seconds", *TRAFFIC, *ACCURACIES, *QUALITIES, "test_loss"):
                as_number(line.get(name), name, where)
            if as_number(line.get("round"), "round", where) is None:
                raise InputError(f"{where} does not say which round it is about.")
            lines.append(line)
    return sorted(lines, key=lambda line: float(line["round"]))


def as_number(value: Any, name: str, where: object) -> float | None:
    """Return a finite number, None for nothing or NaN or infinity, and refuse everything else."""
    if value is None or value == "":
        return None
    try:
        if isinstance(value, bool | list | dict):
            raise ValueError
        number = float(value)
    except (ValueError, OverflowError):
        raise InputError(f"{name} in {where} is {quote(value)}; it must be a number.") from None
    if not math.isfinite(number):
        return None
    largest = LARGEST_LOSS if name in LOSSES else LARGEST
    if abs(number) > largest:
        raise InputError(f"{name} in {where} is {value!r}; it must not exceed {largest:g}.")
    return number


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


def read_clients(path: Path) -> list[ClientRow]:
    """Read ``clients.csv``: the clients after the last evaluation, none if there is no file."""
    clients = []
    for row in _read_rows(path, ["client", "accuracy"]):
        values = {n: as_number(row.get(n), n, path) for n in ("accuracy", "severity")}
        counts = {
            name: None if (value := as_number(row.get(name), name, path)) is None else int(value)
            for name in ("train_samples", "test_samples", "classes")
        }
        betas = {n: as_number(v, n, path) for n, v in row.items() if n.split("_")[0] == "beta"}
        quality = {n: as_number(row.get(n), n, path) for n in QUALITY_COLUMNS}
        clients.append(
            ClientRow(
                client=printable(row["client"]),
                name=printable(row.get("name") or row["client"]),
                **counts,
                corruption=printable(row.get("corruption", "")),
                severity=int(values["severity"] or 0),
                domain=printable(row.get("domain", "")),
                accuracy=values["accuracy"],
                betas={name: value for name, value in betas.items() if value is not None},
                quality={name: value for name, value in quality.items() if value is not None},
            )
        )
    return clients


def _read_new_clients(path: Path) -> dict[str, list[float]]:
    conditions: dict[str, list[float]] = {}
    for row in _read_rows(path, ["condition", "accuracy"]):
        accuracy = as_number(row["accuracy"], "accuracy", path)
        of_condition = conditions.setdefault(printable(row["condition"]), [])
        if accuracy is not None:
            of_condition.append(accuracy)
    return conditions
