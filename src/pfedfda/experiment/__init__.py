"""Experiments: configuration, the round loop, and results on disk."""

from pfedfda.experiment.accuracy import Accuracy
from pfedfda.experiment.api import Comparison, compare, resume, run
from pfedfda.experiment.config import Config, ScheduleConfig, read_config, write_config
from pfedfda.experiment.results import RunResult, load_run

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
