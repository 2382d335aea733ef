"""The local engine: many clients on one machine, a few at a time.

A pool of persistent worker processes, one compute thread each, plays the clients. The server's
state is written to shared memory once a round and mapped by every worker; the pipes carry only
client numbers and small results. Clients are handed out largest first, so that no long one is left
for the end, and outcomes come back in that same order, so that the server's sums do not depend on
the number of workers. A worker that dies is replaced, and its client tries again; so is, on Linux,
one that has stopped: while it computes, its processor time grows, however long a client takes.
"""

import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import TracebackType

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from pfedfda.data import Federation
from pfedfda.data.shift import Shift
from pfedfda.engine.runner import (
    Broadcast,
    ClientRunner,
    JobKind,
    Outcome,
    keep_memory,
    num_bytes,
    one_thread,
)
from pfedfda.engine.states import ClientStates
from pfedfda.errors import InputError, PfedfdaError, RunStoppedError
from pfedfda.files import FolderLock, remove_abandoned
from pfedfda.methods import Method, Task, Tensors
from pfedfda.methods.registry import load_method_file, user_files

SHARED_MEMORY = Path("/dev/shm")
MIN_SHARED_MEMORY = 2**28
SCRATCH = "pfedfda-scratch-"
ABANDONED_SECONDS = 60.0
MAX_WAITING_BYTES = 2**30
TRIES = 2
LIFELESS_SECONDS = 300.0  # for which a worker may use no processor time while we wait for it
LOOKS = 10  # at its processor time, in these seconds
MOST_WORKERS = 1024


@dataclass(frozen=True)
class EngineConfig:
    """What runs where.

    Parameters
    ----------
    workers
        Worker processes; by default one a core (one in all if the device is not the CPU). 0 runs
        everything in the calling process, for debugging. Results do not depend on it.
    device
        Where the networks run: cpu, cuda, cuda:1, mps.
    """

    workers: int | None = None
    device: str = "cpu"

    def __post_init__(self) -> None:
        if self.workers is not None and not 0 <= self.workers <= MOST_WORKERS:
            raise InputError(
                f"The number of workers is {self.workers}; it must lie between 0 and "
                f"{MOST_WORKERS}."
            )
        resolve_device(self.device)

    @property
    def num_workers(self) -> int:
        """The number of worker processes that this configuration means on this machine."""
        if self.workers is not None:
            return self.workers
        return available_cores() if self.device == "cpu" else 1


def available_cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def resolve_device(name: str) -> torch.device:
    """Return the device of this name if this machine has it."""
    try:
        device = torch.device(name)
    except RuntimeError:
        raise InputError(f"Unknown device {name!r}: choose from cpu, cuda, cuda:N, mps.") from None
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise InputError(
            f"The device {name!r} is not there: torch sees {torch.cuda.device_count()} CUDA "
            f"devices; use --device cpu."
        )
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise InputError("The device 'mps' is not available on this machine; use --device cpu.")
    if device.type not in ("cpu", "cuda", "mps"):
        raise InputError(f"Unknown device {name!r}: choose from cpu, cuda, cuda:N, mps.")
    return device


@dataclass
class Worker:
    """A worker process as the engine sees it.

    Parameters
    ----------
    process
        The process.
    connection
        Our end of its pipe.
    clients
        What it was given: the client it is busy with, and perhaps the next, with their positions.
    told
        The broadcast that it was told last.
    ticks, still
        Its processor time when we last looked, and how often in a row that was no more than before.
    """

    process: BaseProcess
    connection: Connection
    clients: deque[tuple[int, int]] = field(default_factory=deque)
    told: "SharedBroadcast | None" = None
    ticks: int = -1
    still: int = 0

    def is_lifeless(self) -> bool:
        """Look whether it has done something; tell whether it has not for too long."""
        ticks = _processor_ticks(self.process.pid)
        self.still = 0 if ticks is None or ticks != self.ticks else self.still + 1
        self.ticks = -1 if ticks is None else ticks
        return self.still >= LOOKS


@dataclass(frozen=True)
class SharedBroadcast:
    """A broadcast whose tensors lie in a file of the shared memory."""

    method: Method
    path: Path
    round: int
    states: ClientStates
    shift: Shift | None
    frost: list[NDArray[np.uint8]] | None


@dataclass
class HandOut:
    """How far a round has come.

    Parameters
    ----------
    kind
        What the clients do.
    pending
        Clients that nobody works at yet, with their positions.
    shared
        What the workers were told.
    arrived
        Outcomes that wait for their turn, by client.
    deaths
        How many workers have died at each client.
    """

    kind: JobKind
    pending: deque[tuple[int, int]]
    shared: SharedBroadcast
    arrived: dict[int, Outcome] = field(default_factory=dict)
    deaths: Counter[int] = field(default_factory=Counter)


class LocalEngine:
    """Runs clients on this machine; a context manager.

    Parameters
    ----------
    federation
        Whose data it is.
    task
        What everybody knows.
    config
        The number of workers and the device.
    """

    def __init__(
        self, federation: Federation, task: Task, config: EngineConfig | None = None
    ) -> None:
        config = config or EngineConfig()
        self.federation = federation
        self.task = task
        self.device = resolve_device(config.device)
        self.num_workers = config.num_workers
        self._workers: list[Worker] = []
        self._runner: ClientRunner | None = None
        self._scratch: Path | None = None
        self._lock: FolderLock | None = None
        self._broadcasts = 0

    def __enter__(self) -> "LocalEngine":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def train(
        self,
        method: Method,
        state: Tensors,
        client_ids: Sequence[int],
        round_number: int,
        states: ClientStates,
    ) -> Iterator[Outcome]:
        """Train these clients; yield their outcomes as a stream in a fixed order."""
        return self._run("train", client_ids, Broadcast(method, state, round_number, states))

    def evaluate(
        self,
        method: Method,
        state: Tensors,
        client_ids: Sequence[int],
        round_number: int,
        states: ClientStates,
        shift: Shift | None = None,
        frost: list[NDArray[np.uint8]] | None = None,
    ) -> Iterator[Outcome]:
        """Personalise and test these clients; yield their outcomes in a fixed order.

        Parameters
        ----------
        method, state, client_ids, round_number, states
            As for `train`.
        shift, frost
            Corrupt all images of these clients, with these photographs for frost.
        """
        broadcast = Broadcast(method, state, round_number, states, shift, frost)
        return self._run("evaluate", client_ids, broadcast)

    def _start(self) -> None:
        """Start the workers, if they are not running."""
        if self._workers or self.num_workers == 0:
            return
        self._scratch = _make_scratch(self.task, self.num_workers)
        self._lock = FolderLock(self._scratch)
        for number in range(self.num_workers):
            self._workers.append(self._start_worker(number))

    def _start_worker(self, number: int) -> Worker:
        # Forking is quick and lets a method be defined in a script or a notebook; an accelerator's
        # runtime does not survive it.
        fork = sys.platform == "linux" and self.device.type == "cpu"
        context = multiprocessing.get_context("fork" if fork else "spawn")
        ours, theirs = context.Pipe()
        # A forked child holds copies of our ends: it must close them, or a worker would never
        # notice that we are gone.
        inherited = [w.connection for w in self._workers] + [ours] if fork else []
        # A fresh process has not run the files that brought the user's methods.
        files = [] if fork else user_files()
        process = context.Process(  # type: ignore[attr-defined]
            target=_work,
            name=f"pfedfda-worker-{number}",
            args=(
                theirs,
                inherited,
                files,
                self.federation,
                self.task,
                str(self.device),
                self._scratch,
            ),
            daemon=True,
        )
        process.start()
        theirs.close()
        return Worker(process, ours)

    def _replace(self, worker: Worker) -> str:
        """Start a process in the place of one that died; return how that one ended."""
        worker.process.join(timeout=5)
        code = worker.process.exitcode
        how = f"ended with code {code}"
        if code is not None and code < 0:
            how = f"was ended by signal {-code} ({signal.Signals(-code).name})"
            if -code == signal.SIGKILL:
                how += ", as the system does when memory runs out"
        worker.connection.close()
        number = self._workers.index(worker)
        del self._workers[number]
        fresh = self._start_worker(number)
        self._workers.insert(number, fresh)
        return how

    def close(self) -> None:
        """Stop the workers and remove the shared memory."""
        for worker in self._workers:
            if worker.clients:
                worker.process.terminate()
            worker.connection.close()
        for worker in self._workers:
            worker.process.join(timeout=5)
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()
        self._workers = []
        if self._scratch is not None:
            shutil.rmtree(self._scratch, ignore_errors=True)
            self._scratch = None
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _run(
        self, kind: JobKind, client_ids: Sequence[int], broadcast: Broadcast
    ) -> Iterator[Outcome]:
        sizes = self.federation.train_sizes
        order = sorted(client_ids, key=lambda client_id: (-int(sizes[client_id]), client_id))
        if self.num_workers == 0:
            yield from self._run_here(kind, order, broadcast)
            return
        # An outcome that must wait for its turn occupies shared memory; the window bounds how many.
        per_update = max(num_bytes(broadcast.state), 1)
        window = max(2 * self.num_workers, min(256, MAX_WAITING_BYTES // per_update))
        finished = False
        try:
            self._start()
            hand_out = HandOut(kind, deque(enumerate(order)), self._share(broadcast))
            for position, client_id in enumerate(order):
                # Whoever became idle while the last outcome was taken in gets work first.
                self._collect(hand_out, timeout=0)
                self._hand_out(hand_out, position + window)
                while client_id not in hand_out.arrived:
                    self._collect(hand_out, timeout=None)
                    self._hand_out(hand_out, position + window)
                yield self._take(hand_out.arrived.pop(client_id))
            hand_out.shared.path.unlink(missing_ok=True)
            finished = True
        except (OSError, SafetensorError) as error:
            raise RunStoppedError(
                f"The {kind} step of round {broadcast.round} failed ({error})."
            ) from error
        finally:
            if not finished:  # an error, or the consumer lost interest: workers may still be busy
                self.close()

    def _run_here(
        self, kind: JobKind, order: Sequence[int], broadcast: Broadcast
    ) -> Iterator[Outcome]:
        if self._runner is None:
            self._runner = ClientRunner(self.federation, self.task, self.device)
        with one_thread():
            for client_id in order:
                yield self._runner.run(kind, client_id, broadcast)

    def _share(self, broadcast: Broadcast) -> SharedBroadcast:
        """Write the state where every worker can map it."""
        assert self._scratch is not None
        self._broadcasts += 1
        path = self._scratch / f"broadcast-{self._broadcasts}.safetensors"
        save_file(broadcast.state, path)
        return SharedBroadcast(
            broadcast.method,
            path,
            broadcast.round,
            broadcast.states,
            broadcast.shift,
            broadcast.frost,
        )

    def _hand_out(self, hand_out: HandOut, limit: int) -> None:
        """Give workers the next clients whose positions are below the limit.

        An idle worker gets one. A busy one gets its next in advance, so that it need not wait for
        us; but not the last clients, which are for whoever is idle first.
        """
        for waiting in range(2):
            for worker in list(self._workers):
                enough = len(hand_out.pending) > waiting * len(self._workers)
                if len(worker.clients) == waiting and enough and hand_out.pending[0][0] < limit:
                    self._give(worker, hand_out)

    def _give(self, worker: Worker, hand_out: HandOut) -> None:
        """Give a worker the next client."""
        try:
            if worker.told is not hand_out.shared:
                worker.connection.send(hand_out.shared)
                worker.told = hand_out.shared
            worker.connection.send((hand_out.kind, hand_out.pending[0][1]))
            worker.clients.append(hand_out.pending.popleft())
        except (BrokenPipeError, ConnectionResetError):
            if not worker.clients:  # it died while it was idle; else we shall hear of it
                self._replace(worker)

    def _collect(self, hand_out: HandOut, timeout: float | None) -> None:
        """Take the outcomes that are there; without a timeout wait, and look after the workers.

        Only looks count, not the clock: if all of us are suspended for a while, nobody is late.
        """
        busy = {w.connection: w for w in self._workers if w.clients}
        if not busy:
            return  # all had died while they were idle, and others are in their place
        ready = wait(list(busy), LIFELESS_SECONDS / LOOKS if timeout is None else timeout)
        if not ready and timeout is None:
            for worker in [w for w in busy.values() if w.is_lifeless()]:
                worker.process.kill()  # also ends one that is stopped
                self._mourn(worker, hand_out, f"did nothing for {LIFELESS_SECONDS:g} s")
        for connection in ready:
            worker = busy[connection]  # type: ignore[index]
            try:
                answer = worker.connection.recv()
            except (EOFError, ConnectionResetError):
                self._mourn(worker, hand_out)
                continue
            if isinstance(answer, Exception):
                raise answer
            worker.clients.popleft()
            worker.still = 0
            hand_out.arrived[answer.client_id] = answer

    def _mourn(self, worker: Worker, hand_out: HandOut, how: str = "") -> None:
        """Replace a worker that died and let its client try again, though not for ever."""
        (_, client_id), *rest = worker.clients
        hand_out.pending.extendleft(reversed(rest))
        ended = self._replace(worker)
        hand_out.deaths[client_id] += 1
        if hand_out.deaths[client_id] < TRIES:
            hand_out.pending.appendleft((-1, client_id))  # before all limits: it is waited for
        else:
            failure = f"its worker process {how or ended}, {TRIES} times"
            hand_out.arrived[client_id] = Outcome(client_id, failure=failure)

    def _take(self, outcome: Outcome) -> Outcome:
        """Map the tensors of an update that a worker left in the shared memory."""
        if outcome.update is None or not outcome.bytes_up:
            return outcome
        assert self._scratch is not None
        path = _update_path(self._scratch, outcome.client_id)
        tensors = load_file(path)
        path.unlink()
        return replace(outcome, update=replace(outcome.update, tensors=tensors))


def _work(
    connection: Connection,
    inherited: list[Connection],
    method_files: list[Path],
    federation: Federation,
    task: Task,
    device: str,
    scratch: Path,
) -> None:
    """Serve clients until the other end of the pipe closes; what a worker process runs."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that started us
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    keep_memory()
    for other in inherited:
        other.close()
    for file in method_files:
        load_method_file(file)
    with one_thread():
        runner = ClientRunner(federation, task, torch.device(device))
        broadcast: Broadcast | None = None
        while True:
            try:
                order = connection.recv()
            except (EOFError, OSError):
                shutil.rmtree(scratch, ignore_errors=True)  # in case our parent could not
                return
            if isinstance(order, SharedBroadcast):
                state: dict[str, Tensor] = load_file(order.path)
                broadcast = Broadcast(
                    order.method, state, order.round, order.states, order.shift, order.frost
                )
                continue
            kind, client_id = order
            assert broadcast is not None
            answer: Outcome | Exception
            try:
                answer = _leave(runner.run(kind, client_id, broadcast), scratch)
            except PfedfdaError as error:
                answer = error
            except (OSError, SafetensorError) as error:
                answer = RunStoppedError(
                    f"The update of client {client_id} cannot be written to {scratch} ({error})."
                )
            try:
                connection.send(answer)
            except (BrokenPipeError, ConnectionResetError):
                shutil.rmtree(scratch, ignore_errors=True)
                return


def _leave(outcome: Outcome, scratch: Path) -> Outcome:
    """Put the tensors of an update into the shared memory; the pipe carries the rest."""
    if outcome.update is None or not outcome.bytes_up:
        return outcome
    save_file(outcome.update.tensors, _update_path(scratch, outcome.client_id))
    return replace(outcome, update=replace(outcome.update, tensors={}))


def _processor_ticks(pid: int | None) -> int | None:
    """Return how long a process has computed so far; None where the system does not say."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        return int(fields[11]) + int(fields[12])  # for itself, and in the system on its behalf
    except (OSError, ValueError, IndexError):
        return None


def _update_path(scratch: Path, client_id: int) -> Path:
    return scratch / f"update-{client_id}.safetensors"


def _make_scratch(task: Task, workers: int) -> Path:
    """Make a folder in shared memory if there is room for a few models each, else on disk.

    First remove those of processes that were killed together with all their workers.
    """
    for place in {SHARED_MEMORY, Path(tempfile.gettempdir())}:
        remove_abandoned(place, SCRATCH, ABANDONED_SECONDS)
    needed = max(MIN_SHARED_MEMORY, 16 * workers * num_bytes(task.initial_tensors()))
    parent = None
    if SHARED_MEMORY.is_dir() and os.access(SHARED_MEMORY, os.W_OK):
        parent = SHARED_MEMORY if shutil.disk_usage(SHARED_MEMORY).free >= needed else None
    return Path(tempfile.mkdtemp(prefix=SCRATCH, dir=parent))
