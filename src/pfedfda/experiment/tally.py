"""What a run has cost and how its training goes, counted while it runs."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pfedfda.errors import InputError
from pfedfda.methods import Task
from pfedfda.runs import Outcome
from pfedfda.runs.checkpoint import Checkpoint

MOST_COMPONENTS = 100
NEAR, FAR = 0.95, 1.5  # times ln C: a loss from which there is doubt, and one that training made


@dataclass
class Tally:
    """What a run has cost so far.

    Parameters
    ----------
    rounds
        Complete rounds.
    bytes_down, bytes_up
        What all clients have received and sent.
    asked, failed, used
        How often a client was asked to train or to be evaluated, how often it failed or its update
        was left out, and how many updates entered an average.
    abandoned
        Rounds from which no sum could be had.
    seconds
        Wall-clock seconds by phase, and under ``clients`` the time inside the clients by component.
    """

    rounds: int = 0
    bytes_down: int = 0
    bytes_up: int = 0
    asked: int = 0
    failed: int = 0
    used: int = 0
    abandoned: list[int] = field(default_factory=list)
    seconds: dict[str, Any] = field(
        default_factory=lambda: {"total": 0.0, "train": 0.0, "evaluate": 0.0, "clients": {}}
    )

    @classmethod
    def of(cls, checkpoint: Checkpoint, folder: Path) -> "Tally":
        """Return what a run had cost at a checkpoint."""
        tally = cls(rounds=checkpoint.round)
        try:
            for name in ("bytes_down", "bytes_up", "asked", "failed", "used"):
                setattr(tally, name, int(checkpoint.tally.get(name, 0)))
            tally.abandoned = [int(number) for number in checkpoint.tally.get("abandoned", [])]
            seconds = checkpoint.tally.get("seconds", tally.seconds)
            clients = {str(name): float(value) for name, value in seconds["clients"].items()}
            phases = {name: float(seconds[name]) for name in ("total", "train", "evaluate")}
        except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
            raise InputError(
                f"The checkpoint in {folder} has a strange tally ({error})."
            ) from error
        tally.seconds = phases | {"clients": clients}
        return tally

    def add(self, outcome: Outcome) -> None:
        """Count a client that has trained."""
        self.bytes_down += outcome.bytes_down
        self.bytes_up += outcome.bytes_up
        components = self.seconds["clients"]
        for component, seconds in outcome.seconds.items():
            # Whoever invents new names cannot make the results grow without end.
            if component in components or len(components) < MOST_COMPONENTS:
                components[component] = components.get(component, 0.0) + seconds


@dataclass
class Losses:
    """The training loss of a round, as a mean over clients weighted by their samples."""

    total: float = 0.0
    weight: float = 0.0

    def add(self, loss: float | None, weight: float) -> None:
        """Count a client; methods without a training loss report none."""
        if loss is not None:
            self.total += loss * weight
            self.weight += weight

    @property
    def mean(self) -> float:
        """The mean so far, 0 if no client reported a loss."""
        return self.known or 0.0

    @property
    def known(self) -> float | None:
        """The mean so far, None if no client reported a loss."""
        return self.total / self.weight if self.weight else None


def doubt(final: Mapping[str, Any], tested: int, task: Task) -> str:
    """Return a sentence if models tell classes apart no better than guessing, otherwise nothing.

    Two things must speak for it: the training loss of the last round is not clearly below ln C, the
    cross-entropy of giving all C classes the same probability, and the accuracy is not two standard
    errors above 1/C. The loss alone would not do: pFedFDA's is that of a Gaussian classifier, which
    can be far too sure of itself and still be right more often than wrong.

    Parameters
    ----------
    final
        The results of the last evaluation; a train_loss of 0 means that there is none.
    tested
        The number of test samples behind the accuracy.
    task
        The task of the run.
    """
    classes, loss = task.num_classes, final.get("train_loss", 0.0)
    guessing, chance = math.log(classes), 1 / classes
    noise = 2 * math.sqrt(chance * (1 - chance) / max(tested, 1))
    if loss < NEAR * guessing or final["weighted_accuracy"] > chance + noise:
        return ""
    lr = "smaller" if loss > FAR * guessing else "larger"
    backbone = ", or a pretrained --backbone" if task.input_type == "uint8" else ""
    return (
        f"the model has hardly learned anything: its training loss is {loss:.2f}, and guessing "
        f"among {classes} classes has {guessing:.2f}. Try a smaller --batch-size, a {lr} --lr, "
        f"more --rounds{backbone}."
    )


def summarize(status: str, tally: Tally, final: Mapping[str, Any]) -> dict[str, Any]:
    """Return what ``summary.json`` says of a run that is over."""
    rounds = max(tally.rounds, 1)
    return {
        "status": status,
        "rounds": tally.rounds,
        **final,
        "bytes_down": tally.bytes_down,
        "bytes_up": tally.bytes_up,
        "bytes_down_per_round": tally.bytes_down / rounds,
        "bytes_up_per_round": tally.bytes_up / rounds,
        "failures": tally.failed,
        **({"abandoned_rounds": tally.abandoned} if tally.abandoned else {}),
        "seconds": tally.seconds,
    }
