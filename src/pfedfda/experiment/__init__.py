"""Experiments: configuration, the round loop, and results on disk."""

from pfedfda.experiment.api import Comparison, compare, resume, run
from pfedfda.runs import RunResult, load_run
from pfedfda.runs.accuracy import Accuracy
from pfedfda.runs.config import Config, ScheduleConfig, read_config, write_config

__all__ = [
    "Accuracy",
    "Comparison",
    "Config",
    "RunResult",
    "ScheduleConfig",
    "compare",
    "load_run",
    "read_config",
    "resume",
    "run",
    "write_config",
]
