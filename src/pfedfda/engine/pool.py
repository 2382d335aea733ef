"""A pool of worker processes that survives the death of any of them.

Workers are persistent and take orders over pipes: first something that all orders of a batch have
in common, then one item after another. Answers are yielded in the order of the items, whoever was
quicker. A worker that dies is replaced and its item is tried again, but not for ever; so is, on
Linux, one that has stopped: while it computes, its processor time grows, however long it takes.
"""

import multiprocessing
import signal
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Protocol

TRIES = 2
LIFELESS_SECONDS = 300.0  # for which a worker may use no processor time while we wait for it
LOOKS = 10  # at its processor time, in these seconds


class Handler(Protocol):
    """What a worker process does with its orders."""

    def prepare(self, common: Any) -> None:
        """Take what the next items have in common; called right before the first of them."""

    def handle(self, item: int) -> Any:
        """Return the answer to an item. An exception as the answer ends the batch."""

    def close(self) -> None:
        """Clean up after the process that gave the orders is gone."""


@dataclass(frozen=True)
class Lost:
    """The answer to an item at which every worker died.

    Parameters
    ----------
    reason
        How the last one ended.
    """

    reason: str


@dataclass(frozen=True)
class Common:
    """What the items that follow have in common, on its way to a worker."""

    content: Any


@dataclass
class Worker:
    """A worker process as the pool sees it.

    Parameters
    ----------
    process
        The process.
    connection
        Our end of its pipe.
    items
        What it was given: the item it is busy with, and perhaps the next, with their positions.
    common
        What its items have in common, as it was sent last.
    ticks, still
        Its processor time when we last looked, and how often in a row that was no more than before.
    """

    process: BaseProcess
    connection: Connection
    items: deque[tuple[int, int]] = field(default_factory=deque)
    common: Common | None = None
    ticks: int = -1
    still: int = 0

    def is_lifeless(self) -> bool:
        """Look whether it has done something; tell whether it has not for too long."""
        ticks = _processor_ticks(self.process.pid)
        self.still = 0 if ticks is None or ticks != self.ticks else self.still + 1
        self.ticks = -1 if ticks is None else ticks
        return self.still >= LOOKS


@dataclass
class PoolBatch:
    """How far a batch of items has come.

    Parameters
    ----------
    common
        What its items have in common.
    pending
        Items that nobody works at yet, with their positions.
    answers
        Answers that wait for their turn, by item.
    deaths
        How many workers have died at each item.
    """

    common: Common
    pending: deque[tuple[int, int]]
    answers: dict[int, Any] = field(default_factory=dict)
    deaths: Counter[int] = field(default_factory=Counter)


class Pool:
    """Worker processes; they start with the first batch.

    Parameters
    ----------
    size
        How many.
    make_handler
        Called in each worker process. Where workers are spawned it must survive pickling.
    fork
        Whether workers are forked, which is quick and lets a method be defined in a script or a
        notebook, or spawned.
    """

    def __init__(self, size: int, make_handler: Callable[[], Handler], fork: bool) -> None:
        self.size = size
        self.make_handler = make_handler
        self.fork = fork
        self.workers: list[Worker] = []

    def run(self, common: Any, items: Sequence[int], window: int) -> Iterator[Any]:
        """Yield the answers to items, in their order; `Lost` for one that no worker survives.

        Parameters
        ----------
        common
            What the items have in common; every worker gets it before its first item.
        items
            What to do; all are different.
        window
            How many items beyond the next answer may be handed out: their answers have to wait.
        """
        batch = PoolBatch(Common(common), deque(enumerate(items)))
        finished = False
        try:
            while len(self.workers) < self.size:
                self.workers.append(self._start_worker(len(self.workers)))
            for position, item in enumerate(items):
                # Whoever became idle while the last answer was taken in gets work first.
                self._collect(batch, timeout=0)
                self._hand_out(batch, position + window)
                while item not in batch.answers:
                    self._collect(batch, timeout=None)
                    self._hand_out(batch, position + window)
                yield batch.answers.pop(item)
            finished = True
        finally:
            if not finished:  # an error, or the consumer lost interest: workers may still be busy
                self.close()

    def close(self) -> None:
        """Stop the workers; a later batch starts new ones."""
        for worker in self.workers:
            if worker.items:
                worker.process.terminate()
            worker.connection.close()
        for worker in self.workers:
            worker.process.join(timeout=5)
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()
        self.workers = []

    def _start_worker(self, number: int) -> Worker:
        context = multiprocessing.get_context("fork" if self.fork else "spawn")
        ours, theirs = context.Pipe()
        # A forked child holds copies of our ends: it must close them, or a worker would never
        # notice that we are gone.
        inherited = [w.connection for w in self.workers] + [ours] if self.fork else []
        process = context.Process(  # type: ignore[attr-defined]
            target=serve,
            name=f"pfedfda-worker-{number}",
            args=(theirs, inherited, self.make_handler),
            daemon=True,
        )
        process.start()
        theirs.close()
        return Worker(process, ours)

    def _hand_out(self, batch: PoolBatch, limit: int) -> None:
        """Give workers the next items whose positions are below the limit.

        An idle worker gets one. A busy one gets its next in advance, so that it need not wait for
        us; but not the last items, which are for whoever is idle first.
        """
        for waiting in range(2):
            for worker in list(self.workers):
                enough = len(batch.pending) > waiting * len(self.workers)
                if len(worker.items) == waiting and enough and batch.pending[0][0] < limit:
                    self._give(worker, batch)

    def _give(self, worker: Worker, batch: PoolBatch) -> None:
        """Give a worker the next item."""
        try:
            if worker.common is not batch.common:
                worker.connection.send(batch.common)
                worker.common = batch.common
            worker.connection.send(batch.pending[0][1])
            worker.items.append(batch.pending.popleft())
        except (BrokenPipeError, ConnectionResetError):
            if not worker.items:  # it died while it was idle; else we shall hear of it
                self._replace(worker)

    def _collect(self, batch: PoolBatch, timeout: float | None) -> None:
        """Take the answers that have come; without a timeout wait, and look after the workers.

        Only looks count, not the clock: if all of us are suspended for a while, nobody is late.
        """
        busy = {w.connection: w for w in self.workers if w.items}
        if not busy:
            return  # all had died while they were idle, and others are in their place
        ready = wait(list(busy), LIFELESS_SECONDS / LOOKS if timeout is None else timeout)
        if not ready and timeout is None:
            for worker in [w for w in busy.values() if w.is_lifeless()]:
                worker.process.kill()  # also ends one that is stopped
                reason = f"did nothing for {LIFELESS_SECONDS:g} s"
                self._replace_dead_worker(worker, batch, reason)
        for connection in ready:
            worker = busy[connection]  # type: ignore[index]
            try:
                answer = worker.connection.recv()
            except (EOFError, ConnectionResetError):
                self._replace_dead_worker(worker, batch)
                continue
            if isinstance(answer, Exception):
                raise answer
            _, item = worker.items.popleft()
            worker.still = 0
            batch.answers[item] = answer

    def _replace_dead_worker(self, worker: Worker, batch: PoolBatch, reason: str = "") -> None:
        """Replace a worker that died at an item; try the item again, or give it up."""
        (_, item), *rest = worker.items
        batch.pending.extendleft(reversed(rest))
        end = self._replace(worker)
        batch.deaths[item] += 1
        if batch.deaths[item] < TRIES:
            batch.pending.appendleft((-1, item))  # before all limits: it is waited for
        else:
            batch.answers[item] = Lost(f"its worker process {reason or end}, {TRIES} times")

    def _replace(self, worker: Worker) -> str:
        """Start a process in the place of one that died; return how that one ended."""
        worker.process.join(timeout=5)
        code = worker.process.exitcode
        reason = f"ended with code {code}"
        if code is not None and code < 0:
            reason = f"was ended by signal {-code} ({signal.Signals(-code).name})"
            if -code == signal.SIGKILL:
                reason += ", as the system does when memory runs out"
        worker.connection.close()
        number = self.workers.index(worker)
        del self.workers[number]
        fresh = self._start_worker(number)
        self.workers.insert(number, fresh)
        return reason


def _processor_ticks(pid: int | None) -> int | None:
    """Return how long a process has computed so far; None where the system does not say."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        return int(fields[11]) + int(fields[12])  # for itself, and in the system on its behalf
    except (OSError, ValueError, IndexError):
        return None


def serve(
    connection: Connection, inherited: list[Connection], make_handler: Callable[[], Handler]
) -> None:
    """Answer orders until the other end of the pipe closes; what a worker process runs."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that started us
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for other in inherited:
        other.close()
    handler = make_handler()
    while True:
        try:
            order = connection.recv()
        except (EOFError, OSError):
            break
        if isinstance(order, Common):
            handler.prepare(order.content)
            continue
        answer = handler.handle(order)
        try:
            connection.send(answer)
        except (BrokenPipeError, ConnectionResetError):
            break
    handler.close()  # the process that gave the orders is gone
