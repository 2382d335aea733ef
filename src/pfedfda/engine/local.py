"""The local engine: many clients on one machine, a few at a time.

A pool of persistent worker processes, one compute thread each, plays the clients. The server's
state is written to shared memory once per step and mapped by every worker, which makes the messages
of its own clients from it; the pipes carry only client numbers and small results.
"""

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import TracebackType

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from pfedfda.data import Federation
from pfedfda.engine.base import Step, largest_first, num_bytes
from pfedfda.engine.client import ClientRunner
from pfedfda.engine.pool import Lost, Pool
from pfedfda.errors import PfedfdaError, RunStoppedError
from pfedfda.files import FolderLock, remove_abandoned
from pfedfda.machine import keep_memory, one_thread, resolve_device
from pfedfda.methods import Task, Tensors
from pfedfda.methods.registry import load_method_file, user_files
from pfedfda.runs import EngineConfig, Outcome

SHARED_MEMORY = Path("/dev/shm")
MIN_SHARED_MEMORY = 2**28
SCRATCH = "pfedfda-scratch-"
ABANDONED_SECONDS = 60.0
MAX_WAITING_BYTES = 2**30


class LocalEngine:
    """Runs clients on this machine; a context manager.

    Parameters
    ----------
    federation
        Whose data it is.
    task
        Settings shared by the server and all clients.
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
        self.pool: Pool | None = None
        self._runner: ClientRunner | None = None
        self._scratch: Path | None = None
        self._lock: FolderLock | None = None
        self._steps = 0

    def __enter__(self) -> "LocalEngine":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def run(self, step: Step, state: Tensors, client_ids: Sequence[int]) -> Iterator[Outcome]:
        """Let clients do a step; yield their outcomes as a stream, largest clients first.

        The parameters are those of `pfedfda.engine.Engine.run`.
        """
        order = largest_first(client_ids, self.federation)
        run = self._run_in_pool if self.num_workers else self._run_here
        return run(step, state, order)

    def close(self) -> None:
        """Stop the workers and remove the shared memory."""
        if self.pool is not None:
            self.pool.close()
            self.pool = None
        if self._scratch is not None:
            shutil.rmtree(self._scratch, ignore_errors=True)
            self._scratch = None
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _run_here(self, step: Step, state: Tensors, order: Sequence[int]) -> Iterator[Outcome]:
        if self._runner is None:
            self._runner = ClientRunner(self.task, self.device)
        with one_thread():
            for client_id in order:
                receive = partial(step.method.message, state, client_id)
                yield self._runner.run(step, client_id, self.federation.client(client_id), receive)

    def _run_in_pool(self, step: Step, state: Tensors, order: Sequence[int]) -> Iterator[Outcome]:
        # An outcome that must wait for its turn occupies shared memory; the window bounds how many.
        window = MAX_WAITING_BYTES // max(num_bytes(state), 1)
        window = max(2 * self.num_workers, min(256, window))
        finished = False
        try:
            pool, scratch = self._start()
            self._steps += 1
            path = scratch / f"state-{self._steps}.safetensors"
            save_file(state, path)
            for client_id, answer in zip(
                order, pool.run(SharedStep(step, path), order, window), strict=True
            ):
                if isinstance(answer, Lost):
                    yield Outcome(client_id, failure=answer.reason)
                else:
                    yield fetch_update(answer, scratch)
            path.unlink(missing_ok=True)
            finished = True
        except (OSError, SafetensorError) as error:
            raise RunStoppedError(
                f"The {step.kind} step of round {step.round} failed ({error})."
            ) from error
        finally:
            if not finished:  # an error, or the consumer lost interest
                self.close()

    def _start(self) -> tuple[Pool, Path]:
        """Return the pool and the folder in which workers leave updates."""
        if self.pool is None or self._scratch is None:
            self._scratch = _make_scratch(self.task, self.num_workers)
            self._lock = FolderLock(self._scratch)
            # An accelerator's runtime does not survive forking.
            fork = sys.platform == "linux" and self.device.type == "cpu"
            # A fresh process has not run the files that brought the user's methods.
            files = [] if fork else user_files()
            work = ClientWork(
                self.federation, self.task, str(self.device), self._scratch, tuple(files)
            )
            self.pool = Pool(self.num_workers, work, fork)
        return self.pool, self._scratch


@dataclass(frozen=True)
class SharedStep:
    """A step, and the file of the shared memory with the server's state."""

    step: Step
    path: Path


@dataclass(frozen=True)
class ClientWork:
    """What a worker process needs to play clients.

    Parameters
    ----------
    federation
        Whose data it is.
    task, device
        As for `ClientRunner`.
    scratch
        The folder in which updates are left.
    method_files
        Files with methods to load first.
    """

    federation: Federation
    task: Task
    device: str
    scratch: Path
    method_files: tuple[Path, ...] = ()

    def __call__(self) -> "ClientHandler":
        """Return the handler of a worker process."""
        keep_memory()
        for file in self.method_files:
            load_method_file(file)
        return ClientHandler(self)


class ClientHandler:
    """Plays clients in a worker process.

    Parameters
    ----------
    work
        What it needs.
    """

    def __init__(self, work: ClientWork) -> None:
        self.federation = work.federation
        self.scratch = work.scratch
        self._one_thread = one_thread()
        self._one_thread.__enter__()
        self.runner = ClientRunner(work.task, torch.device(work.device))
        self.shared: SharedStep | None = None
        self.state: Tensors = {}

    def prepare(self, common: SharedStep) -> None:
        """Take the next step, and map its state."""
        self.shared, self.state = common, load_file(common.path)

    def handle(self, item: int) -> Outcome | Exception:
        """Return a client's outcome; its tensors are left in the shared memory."""
        assert self.shared is not None
        step = self.shared.step
        try:
            receive = partial(step.method.message, self.state, item)
            outcome = self.runner.run(step, item, self.federation.client(item), receive)
            return leave_update(outcome, self.scratch)
        except PfedfdaError as error:
            return error
        except (OSError, SafetensorError) as error:
            return RunStoppedError(
                f"The update of client {item} cannot be written to {self.scratch} ({error})."
            )

    def close(self) -> None:
        """Remove the shared memory, in case the parent could not."""
        shutil.rmtree(self.scratch, ignore_errors=True)


def leave_update(outcome: Outcome, scratch: Path) -> Outcome:
    """Put the tensors of an update into the shared memory; the pipe carries the rest."""
    outcome = replace(outcome, personal=None)
    if outcome.update is None or not outcome.bytes_up:
        return outcome
    save_file(outcome.update.tensors, _update_path(scratch, outcome.client_id))
    return replace(outcome, update=replace(outcome.update, tensors={}))


def fetch_update(outcome: Outcome, scratch: Path) -> Outcome:
    """Map the tensors of an update that a worker left in the shared memory."""
    if outcome.update is None or not outcome.bytes_up:
        return outcome
    path = _update_path(scratch, outcome.client_id)
    tensors = load_file(path)
    path.unlink()
    return replace(outcome, update=replace(outcome.update, tensors=tensors))


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
