"""The round loop: one method on one federation, from the initial state to the results."""

import math
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from pfedfda.data import CORRUPTIONS
from pfedfda.data.shift import Shift, frost_photos
from pfedfda.engine import LocalEngine, Outcome
from pfedfda.errors import RunStoppedError
from pfedfda.experiment.accuracy import Accuracy
from pfedfda.experiment.config import Config
from pfedfda.experiment.observers import Observer
from pfedfda.experiment.results import RunResult, RunWriter
from pfedfda.methods import Method, Tensors, Update
from pfedfda.seeding import torch_generator

NEW_CLIENT_SEVERITY = 3


class InterruptedRunError(RunStoppedError):
    """The user stopped the run."""


@dataclass
class Tally:
    """What a run has cost so far.

    Parameters
    ----------
    rounds
        Complete rounds.
    bytes_down, bytes_up
        What all clients have received and sent.
    seconds
        Wall-clock seconds by phase, and under ``clients`` the time inside the clients by component.
    """

    rounds: int = 0
    bytes_down: int = 0
    bytes_up: int = 0
    seconds: dict[str, Any] = field(
        default_factory=lambda: {"total": 0.0, "train": 0.0, "evaluate": 0.0, "clients": {}}
    )

    def add(self, outcome: Outcome) -> None:
        """Count a client that has trained."""
        self.bytes_down += outcome.bytes_down
        self.bytes_up += outcome.bytes_up
        components = self.seconds["clients"]
        for component, seconds in outcome.seconds.items():
            components[component] = components.get(component, 0.0) + seconds


def draw_participants(
    num_clients: int, participation: float, seed: int, round_number: int, last_round: int
) -> list[int]:
    """Return who takes part in a round.

    Each client does with the probability `participation`, independently. If nobody were drawn, one
    client is, uniformly; in the last round all clients take part.
    """
    if round_number == last_round:
        return list(range(num_clients))
    generator = torch_generator("participation", seed, round_number)
    drawn = torch.rand(num_clients, generator=generator) < participation
    if not drawn.any():
        drawn[torch.randint(num_clients, (1,), generator=generator)] = True
    return [int(client) for client in drawn.nonzero()]


def run_rounds(
    method: Method, config: Config, engine: LocalEngine, folder: Path, observer: Observer
) -> RunResult:
    """Run a method to its last round and write its results.

    Parameters
    ----------
    method
        The method.
    config
        The settings; only `schedule` matters here, the rest is written down.
    engine
        Runs the clients.
    folder
        Where the results go; it exists and is empty.
    observer
        Is told about the progress.

    Raises
    ------
    RunStoppedError
        If a worker died, training diverged, or the user interrupted. What the complete rounds gave
        has been written.
    """
    schedule, federation, task = config.schedule, engine.federation, engine.task
    writer = RunWriter(folder, config, method, federation.class_names)
    tally = Tally()
    start = time.perf_counter()
    everybody = range(schedule.trained_clients(len(federation)))
    state = method.init(task)
    final: dict[str, Any] = {}
    observer.started(method, schedule.rounds)
    try:
        for round_number in range(1, schedule.rounds + 1):
            participants = draw_participants(
                len(everybody),
                schedule.participation,
                schedule.seed,
                round_number,
                schedule.rounds,
            )
            evaluates = schedule.evaluates(round_number)
            steps = len(participants) + (len(everybody) if evaluates else 0)

            phase = time.perf_counter()
            outcomes = engine.train(method, state, participants, round_number, writer.states)
            losses = Losses()
            updates = _updates(outcomes, tally, losses, observer, steps)
            state_after = method.aggregate(state, updates)
            for _ in updates:  # a method may stop reading early; every client still trains
                pass
            _refuse_divergence(state_after, losses.mean, round_number)
            writer.states.commit(participants)
            state = state_after
            tally.rounds = round_number
            tally.seconds["train"] += time.perf_counter() - phase

            if evaluates:
                phase = time.perf_counter()
                evaluations = []
                for outcome in engine.evaluate(
                    method, state, everybody, round_number, writer.states
                ):
                    evaluations.append(outcome)
                    observer.progressed(1 / steps)
                accuracy = Accuracy.of(
                    [e.correct for e in evaluations], [e.tested for e in evaluations]
                )
                tally.seconds["evaluate"] += time.perf_counter() - phase
                final = {
                    **accuracy.as_dict(),
                    "test_loss": sum(e.loss for e in evaluations)
                    / sum(e.tested for e in evaluations),
                    "train_loss": losses.mean,
                }
                writer.add_metrics(
                    {
                        "round": round_number,
                        **final,
                        "participants": len(participants),
                        "bytes_down": tally.bytes_down,
                        "bytes_up": tally.bytes_up,
                        "seconds": time.perf_counter() - start,
                    }
                )
                writer.write_clients(federation, evaluations)
                writer.write_checkpoint(state, round_number, task)
                observer.evaluated(round_number, accuracy, losses.mean)
        phase = time.perf_counter()
        newcomers = range(len(everybody), len(federation))
        if newcomers:
            final["new_clients"] = _evaluate_newcomers(
                method, state, newcomers, config, engine, writer, observer
            )
        tally.seconds["evaluate"] += time.perf_counter() - phase
    except (RunStoppedError, KeyboardInterrupt) as error:
        engine.close()
        interrupted = isinstance(error, KeyboardInterrupt)
        reason = "The run was interrupted." if interrupted else str(error)
        writer.states.discard()
        writer.write_checkpoint(state, tally.rounds, task)
        tally.seconds["total"] = time.perf_counter() - start
        writer.write_summary(_summary("stopped", tally, final) | {"reason": reason})
        kind = InterruptedRunError if interrupted else RunStoppedError
        raise kind(
            f"{reason} {tally.rounds} of {schedule.rounds} rounds are complete; their results are "
            f"in {folder}."
        ) from error
    observer.finished()
    tally.seconds["total"] = time.perf_counter() - start
    return writer.write_summary(_summary("complete", tally, final))


def _evaluate_newcomers(
    method: Method,
    state: Tensors,
    newcomers: range,
    config: Config,
    engine: LocalEngine,
    writer: RunWriter,
    observer: Observer,
) -> dict[str, dict[str, float]]:
    """Evaluate clients that never took part: on their own images, and under each corruption."""
    frost = frost_photos(config.federation.data_dir)
    conditions: dict[str, Shift | None] = {"clean": None}
    conditions |= {name: Shift(name, NEW_CLIENT_SEVERITY) for name in CORRUPTIONS}
    accuracies: dict[str, dict[str, float]] = {}
    outcomes = {}
    for condition, shift in conditions.items():
        observer.say(f"{method.title}: new clients, {condition.replace('_', ' ')}")
        outcomes[condition] = list(
            engine.evaluate(
                method, state, newcomers, config.schedule.rounds, writer.states, shift, frost
            )
        )
        accuracy = Accuracy.of(
            [o.correct for o in outcomes[condition]], [o.tested for o in outcomes[condition]]
        )
        accuracies[condition] = accuracy.as_dict()
    writer.write_new_clients(outcomes)
    return accuracies


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
        return self.total / self.weight if self.weight else 0.0


def _updates(
    outcomes: Iterable[Outcome], tally: Tally, losses: Losses, observer: Observer, steps: int
) -> Iterator[Update]:
    """Yield the updates of a round while counting what they cost."""
    for outcome in outcomes:
        assert outcome.update is not None
        tally.add(outcome)
        losses.add(outcome.metrics.get("train_loss"), outcome.update.weight)
        observer.progressed(1 / steps)
        yield outcome.update


def _refuse_divergence(state: Tensors, train_loss: float, round_number: int) -> None:
    """Stop a run whose numbers have become infinite or undefined; more rounds cannot mend it."""
    broken = [name for name, tensor in state.items() if not bool(torch.isfinite(tensor).all())]
    if broken or not math.isfinite(train_loss):
        what = f"tensor {broken[0]}" if broken else "training loss"
        raise RunStoppedError(
            f"Training diverged: the {what} is not finite after round {round_number}; a smaller "
            f"--lr usually helps."
        )


def _summary(status: str, tally: Tally, final: dict[str, Any]) -> dict[str, Any]:
    rounds = max(tally.rounds, 1)
    return {
        "status": status,
        "rounds": tally.rounds,
        **final,
        "bytes_down": tally.bytes_down,
        "bytes_up": tally.bytes_up,
        "bytes_down_per_round": tally.bytes_down / rounds,
        "bytes_up_per_round": tally.bytes_up / rounds,
        "seconds": tally.seconds,
    }
