"""The trials of a search: a file with a line for each, which may come from anywhere."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pfedfda.errors import InputError, quote
from pfedfda.files import LARGE, json_text, read_text, write_text
from pfedfda.runs.layout import TRIALS
from pfedfda.runs.reader import as_number

STATUSES = ("complete", "pruned", "diverged")


@dataclass(frozen=True)
class Trial:
    """One try of a search.

    Parameters
    ----------
    number
        Which one; 0 has the method's defaults.
    settings
        The values that were tried, by name.
    status
        ``complete``, ``pruned`` (stopped early, as worse than most) or ``diverged``.
    accuracies
        The mean validation accuracy by evaluated round.
    """

    number: int
    settings: Mapping[str, Any]
    status: str = "complete"
    accuracies: Mapping[int, float] = field(default_factory=dict)

    @property
    def accuracy(self) -> float | None:
        """The last mean validation accuracy; 0 if training diverged."""
        if self.status == "diverged":
            return 0.0
        return self.accuracies[max(self.accuracies)] if self.accuracies else None


def best_trial(trials: Sequence[Trial]) -> Trial:
    """Return the complete trial of the highest accuracy, of equal ones the first."""
    complete = [trial for trial in trials if trial.status != "pruned"]
    return max(complete, key=lambda trial: (trial.accuracy or 0.0, -trial.number))


def write_trials(folder: Path, trials: Sequence[Trial]) -> None:
    """Write ``trials.jsonl`` in one step."""
    write_text(folder / TRIALS, "".join(json_text(asdict(trial)) + "\n" for trial in trials))


def read_trials(folder: Path) -> list[Trial]:
    """Read ``trials.jsonl``, none if there is no file."""
    path = folder / TRIALS
    if not path.exists():
        return []
    trials = []
    try:
        for number, text in enumerate(read_text(path, LARGE).splitlines()):
            line = json.loads(text)
            if line["number"] != number or line["status"] not in STATUSES:
                raise ValueError(f"line {number + 1} is {quote(text)}")
            accuracies = {
                int(k): as_number(v, "accuracy", path) or 0.0 for k, v in line["accuracies"].items()
            }
            trials.append(Trial(number, dict(line["settings"]), line["status"], accuracies))
    except InputError:
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InputError(f"{path} is not a list of trials ({error}).") from error
    return trials
