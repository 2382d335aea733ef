"""Measure how the cost of a round grows with the number of clients that are not in it.

Federations of different sizes, of copies of the same digits, run the same method with the same
number of clients in a round. Each has a process of its own with its own workers; they take turns
round by round, so that a change in the machine's load meets them all. Memory is what a process has
for itself (RssAnon of Linux): pages of the mapped images belong to the system's cache. It is
sampled all the time, so the column has the peak, start-up included. The seconds until the first
round is over have the opening of the federation and the start of the workers in them.
"""

import argparse
import json
import multiprocessing
import platform
import statistics
import tempfile
import time
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

import numpy as np
import torch

from pfedfda.data import Federation
from pfedfda.data.preparing import FORMAT
from pfedfda.data.sources import Digits
from pfedfda.data.store import is_intact, write_hashes
from pfedfda.engine import LocalEngine
from pfedfda.experiment.observers import Observer
from pfedfda.experiment.rounds import Run
from pfedfda.experiment.start import make_task
from pfedfda.machine import one_thread
from pfedfda.methods import find_method
from pfedfda.runs import EngineConfig, write_class_counts
from pfedfda.runs.config import Config, ScheduleConfig

TRAIN, TEST = 10, 2
SAMPLE_SECONDS = 0.01
LAST_ROUND = 1_000_000  # in the last round everybody takes part, so it is never reached
MB = 1e6


def write_federation(folder: Path, clients: int) -> None:
    """Write a prepared federation: every client has a dozen of the digits, again and again."""
    digits = Digits().load()
    held = TRAIN + TEST
    shape = (clients * held, *digits.inputs.shape[1:])
    images = np.lib.format.open_memmap(
        folder / "inputs.npy", mode="w+", dtype=np.uint8, shape=shape
    )
    for start in range(0, len(images), len(digits.inputs)):
        part = images[start : start + len(digits.inputs)]
        part[:] = digits.inputs[: len(part)]
    images.flush()
    np.save(folder / "labels.npy", np.resize(digits.labels, len(images)))
    index = {
        "format": FORMAT,
        "config": {},
        "shape": digits.inputs.shape[1:],
        "type": "uint8",
        "class_names": digits.class_names,
        "names": [str(client) for client in range(clients)],
        "train": [TRAIN] * clients,
        "test": [TEST] * clients,
        "attributes": {},
    }
    (folder / "index.json").write_text(json.dumps(index))
    write_hashes(folder)


def run_rounds_on_demand(
    connection: Connection, folder: Path, name: str, active: int, workers: int, output: Path
) -> None:
    """Open a federation and run a round whenever asked; what each process of a size does."""
    start = time.perf_counter()
    federation = Federation(folder)
    assert is_intact(folder)
    method = find_method(name)()
    schedule = ScheduleConfig(
        rounds=LAST_ROUND, participation=active / len(federation), eval_every=0
    )
    config = Config({name: method}, schedule=schedule)
    task = make_task(config, federation)
    with LocalEngine(federation, task, EngineConfig(workers)) as engine, one_thread():
        write_class_counts(federation, output)
        (output / "checkpoint").mkdir()
        run = Run(method, config, engine, output, Observer())
        for number in iter(connection.recv, None):
            run._round(number)
            run._reach(number)
            passed = time.perf_counter() - start
            connection.send((passed, len(run.trained)))
            start = time.perf_counter()


@dataclass
class Size:
    """A federation of one size and what has been measured with it."""

    clients: int
    process: BaseProcess
    connection: Connection
    first_round: float = 0.0
    rounds: list[float] = field(default_factory=list)
    main_memory: int = 0
    worker_memory: int = 0

    def run_round(self, number: int, active: int) -> None:
        """Ask for a round, and watch the memory until it is over."""
        asked = time.perf_counter()
        self.connection.send(number)
        while not self.connection.poll(SAMPLE_SECONDS):
            self._watch_memory()
        seconds, participants = self.connection.recv()
        if number == 1:
            self.first_round = seconds
            return
        seconds = time.perf_counter() - asked
        # Who takes part is drawn, so their number is not exactly the same in every round.
        self.rounds.append(seconds * active / participants)

    def stop(self) -> None:
        self.connection.send(None)
        self.process.join()

    def _watch_memory(self) -> None:
        assert self.process.pid is not None
        self.main_memory = max(self.main_memory, own_memory(self.process.pid))
        for worker in children(self.process.pid):
            self.worker_memory = max(self.worker_memory, own_memory(worker))


def own_memory(pid: int) -> int:
    """Return the bytes that a process has for itself, 0 if it has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("RssAnon")), 0)


def children(pid: int) -> list[int]:
    try:
        return [int(n) for n in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except (FileNotFoundError, ProcessLookupError):
        return []


def measure(
    name: str, folders: dict[int, Path], active: int, rounds: int, workers: int, scratch: Path
) -> list[Size]:
    """Run a method on all federations, a round of each in turn."""
    context = multiprocessing.get_context("spawn")
    sizes = []
    for clients, folder in folders.items():
        output = scratch / f"{name}-{clients}"
        output.mkdir()
        ours, theirs = context.Pipe()
        process = context.Process(
            target=run_rounds_on_demand,
            args=(theirs, folder, name, active, workers, output),
        )
        process.start()
        theirs.close()
        size = Size(clients, process, ours)
        size.run_round(1, active)  # alone: the start-up of one does not meet that of another
        sizes.append(size)
    for number in range(2, rounds + 3):
        for size in sizes:
            size.run_round(number, active)
    for size in sizes:
        size.stop()
        del size.rounds[0]  # warms up
    return sizes


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[100, 1_000, 10_000, 100_000])
    parser.add_argument("--methods", nargs="+", default=["fedavg", "ditto", "pfedfda"])
    parser.add_argument("--active", type=int, default=30, help="clients in a round, on average")
    parser.add_argument("--rounds", type=int, default=15, help="timed rounds of each")
    parser.add_argument("--workers", type=int, default=2, help="worker processes of each")
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that it works")
    options = parser.parse_args(arguments)
    if options.quick:
        options.sizes, options.active, options.rounds = [20, 200], 5, 2
    print(f"{platform.system()} {platform.machine()}, torch {torch.__version__}, ", end="")
    print(f"{options.workers} workers, {options.active} clients in a round\n")
    print(
        "| method | clients | seconds a round | main process, MB | a worker, MB | first round, s |"
    )
    print("|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory(prefix="pfedfda-scale-") as scratch:
        folders = {}
        for clients in options.sizes:
            folders[clients] = Path(scratch) / f"federation-{clients}"
            folders[clients].mkdir()
            write_federation(folders[clients], clients)
        for name in options.methods:
            sizes = measure(
                name, folders, options.active, options.rounds, options.workers, Path(scratch)
            )
            print_rows(name, sizes)


def print_rows(name: str, sizes: list[Size]) -> None:
    """Print a row for each size, with ratios to the first; those of rounds are of the same turn."""
    first = sizes[0]
    for size in sizes:
        seconds = statistics.median(size.rounds)
        ratio = statistics.median(a / b for a, b in zip(size.rounds, first.rounds, strict=True))
        cells = [name, f"{size.clients:,}", f"{seconds:.3f} (×{ratio:.2f})"]
        for memory, base in (
            (size.main_memory, first.main_memory),
            (size.worker_memory, first.worker_memory),
        ):
            cells.append(f"{memory / MB:.0f} (×{memory / base:.2f})")
        cells.append(f"{size.first_round:.1f}")
        print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
