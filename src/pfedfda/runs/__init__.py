"""A run on disk: the one place that knows its files, with one reader and one writer."""

from pfedfda.runs.accuracy import ACCURACIES, Accuracy
from pfedfda.runs.class_counts import ClassCounts, read_class_counts, write_class_counts
from pfedfda.runs.clients import Mistake, Outcome, Roster
from pfedfda.runs.engine_config import EngineConfig
from pfedfda.runs.quality import QUALITIES, PooledCounts, PredictionCounts, Quality
from pfedfda.runs.reader import (
    ClientRow,
    RunResult,
    as_number,
    is_complete,
    load_run,
    read_run,
    read_tables,
)
from pfedfda.runs.states import ClientStates
from pfedfda.runs.writer import RunWriter, make_folder, write_csv

__all__ = [
    "ACCURACIES",
    "QUALITIES",
    "Accuracy",
    "ClassCounts",
    "ClientRow",
    "ClientStates",
    "EngineConfig",
    "Mistake",
    "Outcome",
    "PooledCounts",
    "PredictionCounts",
    "Quality",
    "Roster",
    "RunResult",
    "RunWriter",
    "as_number",
    "is_complete",
    "load_run",
    "make_folder",
    "read_class_counts",
    "read_run",
    "read_tables",
    "write_class_counts",
    "write_csv",
]
