"""The round loop: one method on one federation, from the initial state to the results."""

import copy
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path

import torch
from safetensors import SafetensorError

from pfedfda.aggregation import AbandonedRoundError, OutOfRangeError, choose_aggregation
from pfedfda.data import CORRUPTIONS, Federation
from pfedfda.data.shift import Shift
from pfedfda.data.views import ShiftedView
from pfedfda.engine import Engine, Step
from pfedfda.errors import (
    DivergedRunError,
    InputError,
    InterruptedRunError,
    PfedfdaError,
    RunStoppedError,
)
from pfedfda.experiment.checks import NOT_FINITE, evaluation_fault, fault_of, refuse_divergence
from pfedfda.experiment.evaluation import Evaluation, has_pictures, line_of
from pfedfda.experiment.observers import Observer, Observers
from pfedfda.experiment.tally import Losses, Tally, doubt, summarize
from pfedfda.experiment.tracking import tracker
from pfedfda.methods import Method, Tensors, Update, dry_run
from pfedfda.runs import Outcome, RunResult, RunWriter
from pfedfda.runs.accuracy import Accuracy
from pfedfda.runs.checkpoint import Checkpoint, sole_use
from pfedfda.runs.config import NEW_CLIENT_SEVERITY, Config
from pfedfda.runs.layout import CLIENT_COLUMNS, QUALITY_COLUMNS
from pfedfda.seeding import torch_generator

CHECKPOINT_SECONDS = 60.0
MIN_FAILURES = 10


def draw_participants(
    num_clients: int,
    participation: float,
    seed: int,
    round_number: int,
    last_round: int,
    may_be_empty: bool = False,
) -> list[int]:
    """Return who takes part in a round.

    Each client does with the probability `participation`, independently. If nobody were drawn, one
    client is, uniformly, unless the round may be empty; in the last round all clients take part.
    """
    if round_number == last_round:
        return list(range(num_clients))
    generator = torch_generator("participation", seed, round_number)
    drawn = torch.rand(num_clients, generator=generator) < participation
    if not may_be_empty and not drawn.any():
        drawn[torch.randint(num_clients, (1,), generator=generator)] = True
    return [int(client) for client in drawn.nonzero()]


def run_rounds(
    method: Method, config: Config, engine: Engine, folder: Path, observer: Observer
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
        Where the results go; it exists. If it holds a checkpoint, the run goes on from there.
    observer
        Is told about the progress.

    Raises
    ------
    RunStoppedError
        If the run cannot go on, training diverged, or the user interrupted. The last complete round
        has been written, and the run can be taken up from there.
    """
    (folder / "checkpoint").mkdir(exist_ok=True)
    with sole_use(folder / "checkpoint"), tracker(config.output.track) as tracking:
        try:
            run = Run(method, config, engine, folder, Observers([observer, tracking]))
        except (OSError, SafetensorError) as error:
            raise RunStoppedError(
                f"The results cannot be written to {folder} ({error})."
            ) from error
        return run.go()


class Run:
    """One method on one federation, from the initial state or the last checkpoint to the results.

    The parameters are those of `run_rounds`.
    """

    def __init__(
        self, method: Method, config: Config, engine: Engine, folder: Path, observer: Observer
    ) -> None:
        self.method = method
        self.config = config
        self.schedule = config.schedule
        self.engine = engine
        self.observer = observer
        self.everybody = range(self.schedule.trained_clients(len(engine.federation)))
        self.aggregation = choose_aggregation(config, method, len(self.everybody))
        self.writer = RunWriter(folder, config, method, engine.task, engine.federation)
        initial = method.init(engine.task)
        self.expected = self._expected_update(initial)
        self.aggregation.prepare(len(self.everybody), initial, self.expected)
        self.writer.commit(self.aggregation.commitment())
        checkpoint = self.writer.resume(initial)
        if checkpoint is not None:
            self.aggregation.refuse_resume()
        else:
            checkpoint = Checkpoint(0, initial)
            self.writer.write_checkpoint(checkpoint)
        self.reached = self.saved = checkpoint
        self.state = dict(checkpoint.state)
        self.tally = Tally.of(checkpoint, folder)
        self.final = dict(checkpoint.final)
        self.last_save = self.start = time.perf_counter()
        self.seconds_before = float(self.tally.seconds["total"])
        self.last_failure = ""
        self.trained: list[int] = []
        self.diverged: set[int] = set()  # the clients whose last training had no finite end
        self.columns = {*CLIENT_COLUMNS, *QUALITY_COLUMNS, *engine.federation.attributes}

    def _expected_update(self, initial: Tensors) -> Tensors | None:
        """Return names, shapes and types of a proper update, None if a dry run does not tell."""
        try:
            return dry_run(self.method, self.engine.task, initial).up
        except DivergedRunError:
            return None  # the run will say so
        except InputError:
            raise
        except Exception as error:  # whatever a user's method does with made-up samples
            self.observer.say(
                f"{self.method.title}: updates are not checked by name and shape, because training "
                f"on two made-up samples failed ({type(error).__name__}: {error})."
            )
            return None

    def go(self) -> RunResult:
        """Run to the end."""
        writer, folder = self.writer, self.writer.folder
        self.observer.opened(folder)
        self.observer.started(self.method, self.schedule.rounds, self.tally.rounds)
        if self.method.training_free and self.schedule.rounds > 1:
            self.observer.say(f"{self.method.title} trains nothing: one round is enough.")
        try:
            for round_number in range(self.tally.rounds + 1, self.schedule.rounds + 1):
                self._round(round_number)
                self._reach(round_number)
            if self.tally.failed and not self.tally.used:
                raise self._nobody("client could be trained")
            if self.tally.abandoned and not self.tally.used:
                raise RunStoppedError("Every round was abandoned.")
            self._evaluate_newcomers()
            self.tally.seconds["total"] = self._seconds()
            summary = summarize("complete", self.tally, self.final)
            summary |= self.aggregation.summary(self.tally.rounds)
            result = writer.write_summary(summary)
        except (PfedfdaError, KeyboardInterrupt, OSError, SafetensorError) as error:
            self.engine.close()
            reason = f"The results cannot be written ({error})."
            if isinstance(error, KeyboardInterrupt):
                reason = "The run was interrupted."
            elif isinstance(error, PfedfdaError):
                reason = str(error)
            self._stop(reason)
            kind = RunStoppedError
            if isinstance(error, KeyboardInterrupt):
                kind = InterruptedRunError
            elif isinstance(error, DivergedRunError):
                kind = DivergedRunError
            raise kind(
                f"{reason} {self.saved.round} of {self.schedule.rounds} rounds are complete; "
                f"their results are in {folder}."
            ) from error
        self.observer.finished()
        if words := self.aggregation.closing_words(self.tally.rounds):
            self.observer.say(f"{self.method.title}: {words}")
        tested = int(self.engine.federation.test_sizes[: len(self.everybody)].sum())
        if doubts := doubt(self.final, tested, self.engine.task):
            self.observer.say(f"{self.method.title}: {doubts}")
        return result

    def _round(self, round_number: int) -> None:
        """Train who takes part, aggregate, and evaluate everybody if it is time."""
        schedule = self.schedule
        participants = draw_participants(
            len(self.everybody),
            schedule.participation,
            schedule.seed,
            round_number,
            schedule.rounds,
            self.aggregation.fills_empty_rounds,
        )
        evaluates = schedule.evaluates(round_number)
        steps = len(participants) + (len(self.everybody) if evaluates else 0)
        losses = Losses()
        start = time.perf_counter()
        self._train(participants, round_number, losses, steps)
        self.tally.seconds["train"] += time.perf_counter() - start
        if evaluates:
            start = time.perf_counter()
            accuracy = self._evaluate(round_number, losses, steps)
            self.tally.seconds["evaluate"] += time.perf_counter() - start
            line = {
                "round": round_number,
                **line_of(self.final),
                "participants": len(participants),
                "bytes_down": self.tally.bytes_down,
                "bytes_up": self.tally.bytes_up,
                "seconds": self._seconds(),
            }
            self.writer.add_metrics(line)
            clients = len(self.everybody)
            self.observer.recorded({"evaluated_clients": clients, **line, "clients": clients})
            self.observer.evaluated(round_number, accuracy, losses.known)
        else:
            self.observer.trained(round_number, losses.known)

    def _train(
        self, participants: list[int], round_number: int, losses: Losses, steps: int
    ) -> None:
        self.trained = []
        used = self.tally.used
        try:
            sizes = self.engine.federation.train_sizes[participants]
            summation = self.aggregation.begin(self.method, self.state, self.expected, sizes)
            self.trained = participants
            step = Step("train", self.method, round_number, self.writer.states, summation=summation)
            outcomes = self.engine.run(step, self.state, participants)
            updates = self._usable(outcomes, step, losses, 1 / max(steps, 1))
            first = list(islice(updates, 1))
            # Without a usable update a round leaves everything as it was, as a rule.
            if first or summation is not None or self.aggregation.fills_empty_rounds:
                updates = chain(first, updates)
                after = self.aggregation.aggregate(self.method, self.state, updates, round_number)
                for _ in updates:  # a method may stop reading early; every client still trains
                    pass
                if summation is not None:
                    losses.total, losses.weight = self.aggregation.loss
                refuse_divergence(after, losses.mean, round_number)
                self.state = after
        except AbandonedRoundError as error:
            self.tally.used = used
            self.tally.abandoned.append(round_number)
            self.observer.say(f"{self.method.title}: round {round_number} is abandoned: {error}.")
        self._refuse_many_failures()

    def _usable(
        self, outcomes: Iterable[Outcome], step: Step, losses: Losses, progress: float
    ) -> Iterator[Update]:
        """Yield the updates of a round that are in order; name the clients of the others."""
        summation = step.summation
        for outcome in outcomes:
            self.tally.asked += 1
            self.observer.progressed(progress)
            fault, update = outcome.failure, outcome.update
            if fault is None:
                assert update is not None or outcome.masked
                if summation is not None:  # of 64 bits a number, masked or not
                    up, down = summation.fixed.num_bytes, summation.state_bytes
                    outcome = replace(outcome, bytes_up=up, bytes_down=outcome.bytes_down + down)
                self.tally.add(outcome)
            if fault is None and update is not None:
                fault, update = self._checked(update, outcome.client_id, step.round)
            if fault is None:
                self.tally.used += 1
                self.diverged.discard(outcome.client_id)
                if update is not None:  # else it is masked, and part of the sum
                    if summation is None:
                        losses.add(outcome.metrics.get("train_loss"), update.weight)
                    yield update
            else:
                self.writer.states.forget(outcome.client_id, step.round)
                if NOT_FINITE in fault:
                    self.diverged.add(outcome.client_id)
                self._report(outcome, step.round, "train", fault)

    def _checked(
        self, update: Update, client_id: int, round_number: int
    ) -> tuple[str | None, Update]:
        """Return why an update is left out, None if it is not, and what is aggregated of it."""
        samples = int(self.engine.federation.train_sizes[client_id])
        longest = self.schedule.max_update_norm
        fault = fault_of(update, self.method, self.expected, longest, samples)
        if fault is not None:
            return fault, update
        try:
            return None, self.aggregation.take(self.method, update, round_number)
        except OutOfRangeError as error:
            return str(error), update

    def _report(self, outcome: Outcome, round_number: int, step: str, reason: str) -> None:
        """Write down that a client was left out, and say so."""
        self.tally.failed += 1
        client = self.engine.federation.client_names[outcome.client_id]
        who = f"{self.engine.federation.client_noun} {client}"
        self.last_failure = f"{who}: {reason}"
        self.writer.add_failure(
            {
                "round": round_number,
                "client": outcome.client_id,
                "name": client,
                "step": step,
                "reason": reason,
                "trace": outcome.trace,
            }
        )
        self.observer.say(
            f"{self.method.title}: {who} is left out of the {step} step of round {round_number}: "
            f"{reason}"
        )

    def _refuse_many_failures(self) -> None:
        tally, limit = self.tally, self.schedule.max_failures
        if len(self.diverged) > limit * len(self.everybody):
            raise DivergedRunError(
                f"Training diverged: {len(self.diverged)} of {len(self.everybody)} clients were "
                f"left out, the last because of {self.last_failure}; a smaller --lr usually helps."
            )
        if tally.failed >= MIN_FAILURES and tally.failed > limit * tally.asked:
            hint = "; a smaller --lr usually helps" if NOT_FINITE in self.last_failure else ""
            raise DivergedRunError(
                f"Too many clients fail: {tally.failed} of {tally.asked} were left out, the last "
                f"because of {self.last_failure}{hint}."
            )

    def _nobody(self, could: str) -> RunStoppedError:
        """Return the error for a step that every client failed."""
        if NOT_FINITE in self.last_failure:
            return DivergedRunError(
                f"Training diverged: no {could} ({self.last_failure}); a smaller --lr usually "
                f"helps."
            )
        return RunStoppedError(f"No {could} ({self.last_failure}).")

    def _evaluation_fault(self, outcome: Outcome) -> str | None:
        samples = int(self.engine.federation.test_sizes[outcome.client_id])
        classes = self.engine.task.num_classes
        return outcome.failure or evaluation_fault(outcome, samples, self.columns, classes)

    def _evaluate(self, round_number: int, losses: Losses, steps: int) -> Accuracy:
        """Personalise and test everybody; return the accuracy over those who could be tested."""
        federation = self.engine.federation
        last = round_number == self.schedule.rounds and has_pictures(federation)
        kept = self.config.output.mistakes if last else 0
        evaluation = Evaluation(self.engine.task.num_classes, kept)
        step = Step("evaluate", self.method, round_number, self.writer.states)
        for outcome in self.engine.run(step, self.state, self.everybody):
            self.tally.asked += 1
            self.observer.progressed(1 / steps)
            fault = self._evaluation_fault(outcome)
            if fault is None:
                evaluation.add(outcome)
            else:
                self._report(outcome, round_number, "evaluate", fault)
        if not evaluation.outcomes:
            raise self._nobody("client could be evaluated")
        self._refuse_many_failures()
        self.final = evaluation.results(losses.mean, federation.class_names)
        if len(evaluation.outcomes) < len(self.everybody):
            self.final["evaluated_clients"] = len(evaluation.outcomes)
        self.writer.write_clients(federation, evaluation.outcomes)
        if kept and isinstance(federation, Federation):
            self.writer.write_mistakes(federation, evaluation.mistakes)
        return evaluation.accuracy

    def _reach(self, round_number: int) -> None:
        """Remember that a round is complete, and save it if it is time."""
        self.writer.unsaved.update(self.trained)
        self.tally.rounds = round_number
        self.tally.seconds["total"] = self._seconds()
        self.reached = Checkpoint(
            round_number,
            self.state,
            self.writer.log_sizes(),
            copy.deepcopy(vars(self.tally)),
            self.final,
        )
        # Only now: an interrupt before would go back to the round whose states this removes.
        self.writer.states.prune(self.trained, round_number)
        every = self.schedule.checkpoint_every
        due = time.perf_counter() - self.last_save > CHECKPOINT_SECONDS
        if (round_number % every == 0 if every else due) or round_number == self.schedule.rounds:
            self._save()

    def _save(self) -> None:
        self.writer.write_checkpoint(self.reached)
        self.saved = self.reached
        self.last_save = time.perf_counter()

    def _stop(self, reason: str) -> None:
        """Save what is complete; if even that fails, the checkpoint before is still there."""
        try:
            if self.saved is not self.reached:
                self._save()
            tally = Tally.of(self.reached, self.writer.folder)
            summary = summarize("stopped", tally, self.reached.final)
            summary |= self.aggregation.summary(tally.rounds)
            self.writer.write_summary({**summary, "reason": reason})
        except (PfedfdaError, OSError, SafetensorError):
            pass

    def _seconds(self) -> float:
        return self.seconds_before + time.perf_counter() - self.start

    def _evaluate_newcomers(self) -> None:
        """Evaluate clients that never took part: on their own images, and under each corruption."""
        newcomers = range(len(self.everybody), len(self.engine.federation))
        if not newcomers:
            return
        start = time.perf_counter()
        seed, data_dir = self.schedule.seed, self.config.federation.data_dir
        conditions: dict[str, ShiftedView | None] = {"clean": None}
        images = self.engine.task.input_type == "uint8"
        for name in CORRUPTIONS if images else ():
            conditions[name] = ShiftedView(Shift(name, NEW_CLIENT_SEVERITY), seed, data_dir)
        accuracies: dict[str, dict[str, float]] = {}
        outcomes: dict[str, list[Outcome]] = {}
        last = self.schedule.rounds
        for condition, view in conditions.items():
            self.observer.say(f"{self.method.title}: new clients, {condition.replace('_', ' ')}")
            outcomes[condition] = []
            step = Step("evaluate", self.method, last, self.writer.states, view)
            for outcome in self.engine.run(step, self.state, newcomers):
                fault = self._evaluation_fault(outcome)
                if fault is None:
                    outcomes[condition].append(replace(outcome, predictions=None, mistakes=()))
                else:
                    self._report(outcome, last, f"evaluate ({condition})", fault)
            if not outcomes[condition]:
                raise self._nobody("new client could be evaluated")
            accuracy = Accuracy.of(
                [o.correct for o in outcomes[condition]], [o.tested for o in outcomes[condition]]
            )
            accuracies[condition] = accuracy.as_dict()
        self.writer.write_new_clients(outcomes)
        self.final["new_clients"] = accuracies
        self.tally.seconds["evaluate"] += time.perf_counter() - start
