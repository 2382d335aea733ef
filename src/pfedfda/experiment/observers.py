"""Who watches a run: progress on a terminal, plain lines in a log, or nobody."""

import math
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from pfedfda.errors import printable
from pfedfda.methods import Method
from pfedfda.runs.accuracy import Accuracy

SECONDS_PER_LINE, ROUNDS_PER_LINE = 10.0, 10  # at most, without a terminal


class Observer:
    """Is told what happens in a run; this one keeps quiet.

    Derive from it to send the numbers of a run elsewhere, and give an instance as ``observer=`` to
    `pfedfda.run` or `pfedfda.compare`. Every method may be left out. It is a context manager, which
    is entered before the federation is prepared and left after the last run, whatever happened.
    What an observer raises ends the run, which can be resumed.
    """

    def __enter__(self) -> "Observer":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        pass

    def say(self, text: str) -> None:
        """Tell something that is worth a line."""

    def preparing(self, step: str, done: int, total: int) -> None:
        """Hear that the federation is being prepared."""

    def opened(self, folder: Path) -> None:
        """Hear where the results of the next method go."""

    def started(self, method: Method, rounds: int, done: int = 0) -> None:
        """Hear that a method begins, or goes on after some rounds that are done."""

    def progressed(self, fraction: float) -> None:
        """Hear that a part of a round is done."""

    def trained(self, round_number: int, train_loss: float | None) -> None:
        """Hear that a round without an evaluation is complete; not all methods have a loss."""

    def evaluated(self, round_number: int, accuracy: Accuracy, train_loss: float | None) -> None:
        """Hear that all clients have been evaluated at the end of a round."""

    def recorded(self, line: Mapping[str, float]) -> None:
        """Hear the numbers of an evaluation, as they are in ``metrics.jsonl``.

        Before `evaluated`.

        Parameters
        ----------
        line
            The ``round``, and the numbers by their names in ``metrics.jsonl``. Besides, how many
            clients were evaluated (``evaluated_clients``), and how many there are (``clients``).
        """

    def finished(self) -> None:
        """Hear that the method has ended."""


class Observers(Observer):
    """Several observers, who are all told the same.

    Parameters
    ----------
    observers
        The observers.
    """

    def __init__(self, observers: Sequence[Observer]) -> None:
        self.observers = observers
        self._stack = ExitStack()

    def __enter__(self) -> "Observers":
        with ExitStack() as stack:  # if one cannot be entered, those before are left
            for observer in self.observers:
                stack.enter_context(observer)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.__exit__(kind, error, trace)

    def say(self, text: str) -> None:
        """Tell all."""
        for observer in self.observers:
            observer.say(text)

    def preparing(self, step: str, done: int, total: int) -> None:
        """Tell all."""
        for observer in self.observers:
            observer.preparing(step, done, total)

    def opened(self, folder: Path) -> None:
        """Tell all."""
        for observer in self.observers:
            observer.opened(folder)

    def started(self, method: Method, rounds: int, done: int = 0) -> None:
        """Tell all."""
        for observer in self.observers:
            observer.started(method, rounds, done)

    def progressed(self, fraction: float) -> None:
        """Tell all."""
        for observer in self.observers:
            observer.progressed(fraction)

    def trained(self, round_number: int, train_loss: float | None) -> None:
        """Tell all."""
        for observer in self.observers:
            observer.trained(round_number, train_loss)

    def recorded(self, line: Mapping[str, float]) -> None:
        """Tell all."""
        for observer in self.observers:
            observer.recorded(line)

    def evaluated(self, round_number: int, accuracy: Accuracy, train_loss: float | None) -> None:
        """Tell all."""
        for observer in self.observers:
            observer.evaluated(round_number, accuracy, train_loss)

    def finished(self) -> None:
        """Tell all."""
        for observer in self.observers:
            observer.finished()


class TerminalObserver(Observer):
    """Draws a progress bar with the round, the last accuracy and the time left.

    It draws when something happens, at most ten times a second, and has no thread of its own: the
    engine forks, and a fork must not happen while another thread holds a lock.

    Parameters
    ----------
    console
        Where to draw.
    """

    def __init__(self, console: Console) -> None:
        self.console = console
        self.progress = Progress(
            TextColumn("{task.description:<10}", markup=False),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[unit]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(compact=True),
            TextColumn("{task.fields[note]}"),
            console=console,
            auto_refresh=False,
        )
        self.last_draw = 0.0
        self.method_task: TaskID | None = None
        self.steps: dict[str, TaskID] = {}
        self.done = 0.0

    def __enter__(self) -> "TerminalObserver":
        self.progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.progress.refresh()
        self.progress.stop()

    def _draw(self, now: bool = False) -> None:
        if now or time.monotonic() - self.last_draw > 0.1:
            self.progress.refresh()
            self.last_draw = time.monotonic()

    def say(self, text: str) -> None:
        """Print above the bars."""
        self.progress.console.print(
            _printable_lines(text), markup=False, emoji=False, highlight=False
        )

    def preparing(self, step: str, done: int, total: int) -> None:
        """Draw a bar for this step of the preparation."""
        if step not in self.steps:
            self.steps[step] = self.progress.add_task(
                printable(step), total=total, unit="", note=""
            )
        self.progress.update(self.steps[step], completed=done)
        self._draw()

    def started(self, method: Method, rounds: int, done: int = 0) -> None:
        """Add a bar for the method and take those of the preparation away."""
        for task in self.steps.values():
            self.progress.update(task, visible=False)
        self.done = float(done)
        self.method_task = self.progress.add_task(
            printable(method.title), total=rounds, completed=done, unit="rounds", note=""
        )
        self._draw(now=True)

    def progressed(self, fraction: float) -> None:
        """Move the bar; the number shows complete rounds."""
        assert self.method_task is not None
        self.done += fraction
        self.progress.update(self.method_task, completed=int(self.done + 1e-6))
        self._draw()

    def evaluated(self, round_number: int, accuracy: Accuracy, train_loss: float | None) -> None:
        """Show the accuracy behind the bar."""
        assert self.method_task is not None
        note = f"accuracy {accuracy.mean_accuracy:.3f} ± {accuracy.std_accuracy:.3f}"
        self.progress.update(self.method_task, note=note)
        self._draw(now=True)

    def finished(self) -> None:
        """Leave the bar as it is."""
        self.method_task = None


class PlainObserver(Observer):
    """Prints lines for logs and pipes: each evaluation, and what happens in between.

    There is a line at least every ten rounds or ten seconds, whichever is first, as far as there is
    something to tell: like the bar on a terminal, it has no thread of its own.

    Parameters
    ----------
    clients
        What to call the clients, of whom the accuracies are.
    """

    def __init__(self, clients: str = "clients") -> None:
        self.clients = clients
        self.title = ""
        self.rounds = 0
        self.done = 0.0  # rounds, with the part of the present one
        self.first = 0.0
        self.start = 0.0
        self.last_step = ""
        self.last_line = 0.0
        self.last_round = 0
        self.train_loss: float | None = None
        self.over = ""

    def say(self, text: str) -> None:
        """Print a line to the error stream, which leaves the output to the results."""
        with suppress(BrokenPipeError):
            print(_printable_lines(text), file=sys.stderr, flush=True)

    def preparing(self, step: str, done: int, total: int) -> None:
        """Print each step of the preparation, and how far it is if it takes long."""
        if step != self.last_step or time.perf_counter() - self.last_line >= SECONDS_PER_LINE:
            far = f", {done:,} of {total:,}" if step == self.last_step else ""
            self.say(f"preparing the federation: {step}{far}")
            self.last_step, self.last_line = step, time.perf_counter()

    def started(self, method: Method, rounds: int, done: int = 0) -> None:
        """Remember when the method began."""
        self.title, self.rounds, self.train_loss = method.title, rounds, None
        self.done = self.first = float(done)
        self.start = self.last_line = time.perf_counter()
        self.last_round = done

    def progressed(self, fraction: float) -> None:
        """Print a line if the last one was long ago."""
        self.done += fraction
        if time.perf_counter() - self.last_line >= SECONDS_PER_LINE:
            self._tell(math.ceil(self.done - 1e-6))

    def trained(self, round_number: int, train_loss: float | None) -> None:
        """Print a line if the last one was many rounds ago."""
        self.done, self.train_loss = float(round_number), train_loss
        if round_number - self.last_round >= ROUNDS_PER_LINE:
            self._tell(round_number)

    def recorded(self, line: Mapping[str, float]) -> None:
        """Remember over how many clients the accuracy is."""
        evaluated, known = line.get("evaluated_clients"), line.get("clients")
        some = f"{evaluated:.0f} of " if evaluated != known else ""
        self.over = f" over {some}{known:.0f} {self.clients}" if known else ""

    def evaluated(self, round_number: int, accuracy: Accuracy, train_loss: float | None) -> None:
        """Print round, accuracy, loss and time."""
        self.done, self.train_loss = float(round_number), train_loss
        told = f", accuracy {accuracy.mean_accuracy:.3f} ± {accuracy.std_accuracy:.3f}{self.over}"
        self._tell(round_number, told)

    def _tell(self, round_number: int, accuracy: str = "") -> None:
        now = time.perf_counter()
        passed = now - self.start
        left = passed / (self.done - self.first) * (self.rounds - self.done)
        loss = "" if self.train_loss is None else f", training loss {self.train_loss:.3f}"
        self.say(
            f"{self.title}: round {round_number}/{self.rounds}{accuracy}{loss}, {passed:.0f} s, "
            f"about {left:.0f} s left"
        )
        self.last_line, self.last_round = now, round_number


def _printable_lines(text: str) -> str:
    return "\n".join(printable(line) for line in text.split("\n"))


def choose_observer(quiet: bool) -> Observer:
    """Return the observer that fits where the output goes."""
    if quiet:
        return Observer()
    from pfedfda.experiment.notebook import NotebookObserver, in_notebook

    if in_notebook():
        return NotebookObserver()
    console = Console(stderr=True)
    return TerminalObserver(console) if console.is_terminal else PlainObserver()
