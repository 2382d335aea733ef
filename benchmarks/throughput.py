"""Measure whole federated rounds against the bare training step.

The bare step is forward, backward and optimiser on float batches that are already there, one
pinned process of one thread for every worker, nothing else. Whole rounds are what `pfedfda run`
does in a round: broadcast, training, gathering, checks and aggregation. Both take turns in short
slices within one run, so that a change in the machine's load meets them all; the tables have
medians over the turns. Images per second of wall-clock time say what a user sees; images per second
of processor time, which counts all processes, hardly change when others use the machine too.

    python benchmarks/throughput.py            # about half an hour
    python benchmarks/throughput.py --quick    # about two minutes

Prints tables in Markdown; asserts nothing.
"""

import argparse
import json
import math
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import cycle
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from pfedfda import machine
from pfedfda.data import Federation
from pfedfda.data.store import write_hashes
from pfedfda.engine import LocalEngine, local
from pfedfda.engine import client as engine_client
from pfedfda.experiment import rounds
from pfedfda.experiment.observers import Observer
from pfedfda.experiment.tally import Losses
from pfedfda.gaussian import bayes_classifier, estimate_statistics
from pfedfda.machine import one_thread
from pfedfda.methods import Task, TrainingConfig, base, fedavg, find_method, pfedfda, training
from pfedfda.methods.training import MomentumSGD, to_input
from pfedfda.models import ModelConfig
from pfedfda.runs import EngineConfig, Outcome
from pfedfda.runs.config import make_config

METHODS = ("fedavg", "pfedfda", "pfedfda-paper")
SHAPES = {"cifar-cnn": (32, 32, 3), "emnist-cnn": (28, 28, 1), "resnet18": (64, 64, 3)}
CLASSES = {"cifar-cnn": 10, "emnist-cnn": 62, "resnet18": 200}
TEST_IMAGES = 98
BATCH = base.BATCH_SIZE
# Features, classes, rows: each grows on its own from the first line.
GROWTH = (
    (128, 10, 610),
    (128, 10, 2440),
    (128, 100, 610),
    (256, 10, 610),
    (512, 10, 610),
    (512, 200, 2200),
)


@dataclass(frozen=True)
class Setting:
    """What is measured."""

    model: str
    images: int
    clients: int
    workers: int
    slice_seconds: float
    epochs: int = 5

    @property
    def task(self) -> Task:
        training = TrainingConfig(epochs=self.epochs)
        shape, classes = SHAPES[self.model], CLASSES[self.model]
        return Task(ModelConfig(self.model), shape, classes, self.clients, training)

    @property
    def batch_sizes(self) -> list[int]:
        """The batches of an epoch."""
        return [len(rows) for rows in torch.arange(self.images).split(BATCH)]


class Cost(NamedTuple):
    """What a slice has done and what it took."""

    images: int
    wall: float
    cpu: float

    def per_second(self, clock: str) -> float:
        return self.images / float(getattr(self, clock))


# The bare step


def step_bare(
    setting: Setting, kind: str, core: int, keep_memory: bool, connection: Connection
) -> None:
    """Train on batches that are there, for the length of a slice whenever asked to."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, [core])
    if keep_memory:
        machine.keep_memory()
    task = setting.task
    generator = torch.Generator().manual_seed(0)
    sizes = setting.batch_sizes if kind == "same" else [BATCH]
    batches = [
        (
            to_input(
                torch.randint(
                    0, 256, (size, *task.input_shape), dtype=torch.uint8, generator=generator
                )
            ),
            torch.randint(0, task.num_classes, (size,), generator=generator),
        )
        for size in sizes
    ]
    model = task.build_model()
    settings = task.training
    optimizer = MomentumSGD(
        list(model.parameters()), settings.lr, settings.momentum, settings.weight_decay
    )

    def step(images: Tensor, labels: Tensor) -> None:
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()

    step(*batches[0])
    connection.send(None)
    while asked(connection):
        start, cpu, count = time.perf_counter(), time.process_time(), 0
        while time.perf_counter() - start < setting.slice_seconds:
            for images, labels in batches:
                step(images, labels)
                count += len(labels)
        connection.send((count, time.perf_counter() - start, time.process_time() - cpu))


def asked(connection: Connection) -> bool:
    """Wait for an order; tell whether there is one to go on, or whoever gave orders is gone."""
    parent = os.getppid()
    while not connection.poll(1):
        if os.getppid() != parent:
            return False
    return bool(connection.recv())


class BareStep:
    """The bare step on all cores at once."""

    def __init__(self, setting: Setting, kind: str, keep_memory: bool = True) -> None:
        self.pipes: list[Connection] = []
        self.processes = []
        cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [0]
        for _, core in zip(range(setting.workers), cycle(cores), strict=False):
            ours, theirs = multiprocessing.Pipe()
            process = multiprocessing.get_context("fork").Process(
                target=step_bare, args=(setting, kind, core, keep_memory, theirs), daemon=True
            )
            process.start()
            self.pipes.append(ours)
            self.processes.append(process)
        for pipe in self.pipes:
            pipe.recv()

    def slice(self) -> Cost:
        for pipe in self.pipes:
            pipe.send(True)
        parts = [pipe.recv() for pipe in self.pipes]
        wall = statistics.mean(p[1] for p in parts)
        return Cost(sum(p[0] for p in parts), wall, sum(p[2] for p in parts))

    def close(self) -> None:
        for pipe, process in zip(self.pipes, self.processes, strict=True):
            pipe.send(False)
            process.join()


# Whole rounds


def make_federation(setting: Setting, folder: Path) -> Federation:
    """Write a federation of random images in the real shapes."""
    random = np.random.default_rng(0)
    task = setting.task
    count = setting.clients * (setting.images + TEST_IMAGES)
    images = random.integers(0, 256, (count, *task.input_shape), dtype=np.uint8)
    np.save(folder / "inputs.npy", images)
    np.save(folder / "labels.npy", random.integers(0, task.num_classes, count))
    index = {
        "shape": task.input_shape,
        "type": "uint8",
        "class_names": [str(number) for number in range(task.num_classes)],
        "train": [setting.images] * setting.clients,
        "test": [TEST_IMAGES] * setting.clients,
        "names": [str(number) for number in range(setting.clients)],
        "attributes": {},
    }
    (folder / "index.json").write_text(json.dumps(index))
    write_hashes(folder)
    return Federation(folder)


def cpu_seconds(pid: int) -> float:
    """Return the processor time of a process; Linux has a clock for each, named like this."""
    return time.clock_gettime((~pid << 3) | 2)


@dataclass
class Rounds:
    """The rounds of one method, one at a time, as `pfedfda run` makes them."""

    setting: Setting
    engine: LocalEngine
    method: str
    folder: Path
    number: int = 0
    seconds: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        method = find_method(self.method)()
        config = make_config({self.method: method}, rounds=10**6)
        (self.folder / "checkpoint").mkdir(parents=True)
        self.run = rounds.Run(method, config, self.engine, self.folder, Observer())

    def slice(self) -> Cost:
        """Train and aggregate one round of all clients."""
        return self._measure(self._train)

    def evaluation(self) -> Cost:
        """Personalise and test all clients."""
        return self._measure(lambda: self.run._evaluate(self.number, Losses(), 1))

    def checkpoint(self) -> Cost:
        """Save the run."""
        self.run._reach(self.number)
        return self._measure(self.run._save)

    def _train(self) -> None:
        self.number += 1
        participants = list(range(self.setting.clients))
        self.run._train(participants, self.number, Losses(), len(participants))

    def _measure(self, work: Callable[[], object]) -> Cost:
        start, cpu = time.perf_counter(), self._cpu()
        before = dict(self.run.tally.seconds["clients"])
        work()
        wall, cpu = time.perf_counter() - start, self._cpu() - cpu
        after = self.run.tally.seconds["clients"]
        self.seconds = {name: after[name] - before.get(name, 0.0) for name in after}
        if self.run.tally.failed:
            raise RuntimeError(f"A client failed: {self.run.last_failure}")
        images = self.setting.clients * self.setting.images * self.setting.epochs
        return Cost(images, wall, cpu)

    def _cpu(self) -> float:
        workers = self.engine.pool.workers if self.engine.pool else []
        return time.process_time() + sum(cpu_seconds(w.process.pid or 0) for w in workers)


# Where the time goes


class Probe:
    """Adds up processor time by component, each without the components inside it."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.stack: list[str] = []
        self.last = 0.0

    @contextmanager
    def __call__(self, component: str) -> Iterator[None]:
        self._turn()
        self.stack.append(component)
        try:
            yield
        finally:
            self._turn()
            self.stack.pop()

    def _turn(self) -> None:
        now = time.process_time()
        if self.stack:
            self.seconds[self.stack[-1]] += now - self.last
        self.last = now

    def wrap(self, function: Callable[..., Any], component: str) -> Callable[..., Any]:
        def timed(*arguments: Any, **keywords: Any) -> Any:
            if self.stack and self.stack[-1] == component:
                return function(*arguments, **keywords)
            with self(component):
                return function(*arguments, **keywords)

        return timed

    def wrap_iterator(self, function: Callable[..., Any], component: str) -> Callable[..., Any]:
        def timed(*arguments: Any, **keywords: Any) -> Iterator[Any]:
            iterator = function(*arguments, **keywords)
            while True:
                with self(component):
                    item = next(iterator, None)
                if item is None:
                    return
                yield item

        return timed


# What belongs to which component: (where, name, component). "step" is what the bare step has too.
PARTS: list[tuple[Any, str, str]] = [
    (training.MomentumSGD, "step", "step"),
    (torch.Tensor, "backward", "step"),
    (F, "cross_entropy", "step"),
    (base, "load", "loading the model"),
    (fedavg, "model_tensors", "update"),
    (pfedfda, "model_tensors", "update"),
    (pfedfda, "load", "loading the model"),
    (pfedfda, "bayes_classifier", "classifier"),
    (pfedfda, "estimate_statistics", "statistics"),
    (pfedfda, "adapt", "statistics and β"),
    (local, "save_file", "update"),
    (engine_client.ClientRunner, "_load", "client's data"),
]


def busy_client(probe: Probe, real: Callable[..., Outcome]) -> Callable[..., Outcome]:
    """Return `ClientRunner.run` with its time, and that of all components, in the outcome."""

    def run(self: Any, *arguments: Any) -> Outcome:
        start = time.perf_counter()
        probe.seconds.clear()
        with probe("rest of the client"):
            outcome = real(self, *arguments)
        parts = {f"cpu {name}": seconds for name, seconds in probe.seconds.items()}
        return replace(outcome, seconds={"busy": time.perf_counter() - start} | parts)

    return run


@contextmanager
def probed() -> Iterator[None]:
    """Take times inside the workers that are started in this block."""
    probe = Probe()
    kept = [(where, name, getattr(where, name)) for where, name, _ in PARTS]
    kept.append((engine_client.ClientRunner, "run", engine_client.ClientRunner.run))
    kept.append((training, "batches", training.batches))
    kept.append((torch.nn.Module, "__call__", torch.nn.Module.__call__))
    for where, name, component in PARTS:
        setattr(where, name, probe.wrap(getattr(where, name), component))
    training.batches = probe.wrap_iterator(training.batches, "batches")
    torch.nn.Module.__call__ = probe.wrap(torch.nn.Module.__call__, "step")
    run = busy_client(probe, engine_client.ClientRunner.run)
    engine_client.ClientRunner.run = run  # type: ignore[method-assign]
    try:
        yield
    finally:
        for where, name, real in kept:
            setattr(where, name, real)


def breakdown(setting: Setting, federation: Federation, folder: Path) -> None:
    """Print where the time of a round goes, in milliseconds per client."""
    parts: dict[str, dict[str, float]] = {}
    engine = LocalEngine(federation, setting.task, EngineConfig(setting.workers))
    with probed(), engine:
        for method in METHODS:
            measured = Rounds(setting, engine, method, folder / method)
            measured.slice()  # warms up
            own = time.process_time()
            cost = measured.slice()
            own = time.process_time() - own
            in_clients = sum(s for name, s in measured.seconds.items() if name[:3] == "cpu")
            idle = setting.workers * cost.wall - measured.seconds["busy"]
            column = {
                name[4:]: seconds
                for name, seconds in sorted(measured.seconds.items())
                if name[:3] == "cpu"
            }
            column["server: broadcast, gathering, checks, aggregation"] = own
            column["workers: mapping the broadcast, pipes, leaving updates"] = (
                cost.cpu - own - in_clients
            )
            column["(wall-clock) idle workers: hand-out, end of the round"] = idle
            column["(wall-clock) the round, times workers"] = setting.workers * cost.wall
            column["evaluation of everybody"] = measured.evaluation().cpu
            column["checkpoint, once"] = measured.checkpoint().cpu * setting.clients
            parts[method] = column
    names = list(dict.fromkeys(name for column in parts.values() for name in column))
    print("\nMilliseconds of processor time a client:\n")
    print("| component | " + " | ".join(METHODS) + " |")
    print("|---|" + "---:|" * len(METHODS))
    for name in names:
        cells = [f"{1000 * parts[m].get(name, 0.0) / setting.clients:.2f}" for m in METHODS]
        print(f"| {name} | " + " | ".join(cells) + " |")


# The tables


def take_turns(
    limit: BareStep, sources: dict[str, BareStep | Rounds], repeats: int
) -> tuple[dict[str, list[Cost]], dict[str, dict[str, list[float]]]]:
    """Return the costs of all sources, and their speeds over the bare step's beside them.

    A slice of the bare step comes before and after each slice of anything else.
    """
    costs: dict[str, list[Cost]] = {name: [] for name in sources}
    ratios: dict[str, dict[str, list[float]]] = {name: {"wall": [], "cpu": []} for name in sources}
    before = limit.slice()
    for turn in range(repeats + 1):
        for name, source in sources.items():
            cost, after = source.slice(), limit.slice()
            if turn:  # the first warms up
                costs[name].append(cost)
                for clock, values in ratios[name].items():
                    beside = (before.per_second(clock) + after.per_second(clock)) / 2
                    values.append(cost.per_second(clock) / beside)
            before = after
    return costs, ratios


def print_ratios(costs: dict[str, list[Cost]], ratios: dict[str, dict[str, list[float]]]) -> None:
    titles = {
        "same": "bare step, same batch sizes",
        "full": f"bare step, batches of {BATCH}",
        "default": "bare step, same sizes, allocator as it comes",
    }
    middle = {
        name: {clock: statistics.median(values) for clock, values in both.items()}
        for name, both in ratios.items()
    }
    print("| | images/s wall | images/s CPU | over the same batches: wall | CPU ", end="")
    print("| over full batches: wall | CPU | CPU time over FedAvg's |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|")
    for name, both in middle.items():
        cells = [
            f"{statistics.median(c.per_second(clock) for c in costs[name]):,.0f}" for clock in both
        ]
        cells += [f"{ratio:.3f}" for ratio in both.values()]
        cells += [f"{ratio / middle['full'][clock]:.3f}" for clock, ratio in both.items()]
        cells.append(f"{middle['fedavg']['cpu'] / both['cpu']:.3f}" if name in METHODS else "")
        print(f"| {titles.get(name, name)} | " + " | ".join(cells) + " |", flush=True)


def measure(setting: Setting, repeats: int) -> None:
    """Measure one model and size of clients, and print its tables."""
    sizes = "+".join(str(size) for size in setting.batch_sizes)
    print(
        f"\n## {setting.model}, {setting.images} images per client (batches of {sizes}), "
        f"{setting.clients} clients, {setting.workers} workers\n",
        flush=True,
    )
    bare = {
        "same": BareStep(setting, "same"),
        "full": BareStep(setting, "full"),
        "default": BareStep(setting, "same", keep_memory=False),
    }
    with tempfile.TemporaryDirectory() as folder:
        federation = make_federation(setting, Path(folder))
        with LocalEngine(federation, setting.task, EngineConfig(setting.workers)) as engine:
            whole = {m: Rounds(setting, engine, m, Path(folder) / "runs" / m) for m in METHODS}
            costs, ratios = take_turns(bare["same"], bare | whole, repeats)
        for source in bare.values():
            source.close()
        print_ratios(costs, ratios)
        breakdown(setting, federation, Path(folder) / "probed")


def growth(repeats: int) -> None:
    """Print how what pFedFDA adds grows with features, classes and samples."""
    print(
        "\n## What pFedFDA adds at a client: milliseconds of processor time, least of the turns\n"
    )
    print("| d | classes | rows of features | estimate | classifier | message, MB |")
    print("|---:|---:|---:|---:|---:|---:|")
    generator = torch.Generator().manual_seed(0)
    for d, classes, rows in GROWTH:
        features = torch.randn(rows, d, generator=generator)
        labels = torch.randint(classes, (rows,), generator=generator)
        prior = torch.zeros(classes, d)
        statistics_of_rows = estimate_statistics(
            features, labels, classes, prior_means=prior, ridge=0.1
        )
        work = (
            lambda f=features, y=labels, c=classes, p=prior: estimate_statistics(
                f, y, c, prior_means=p, ridge=0.1
            ),
            lambda s=statistics_of_rows, c=classes: bayes_classifier(s, torch.ones(c)),
        )
        cells = []
        for function in work:
            times = []
            for _ in range(3 * repeats):
                start = time.process_time()
                function()
                times.append(time.process_time() - start)
            cells.append(f"{1000 * min(times):.2f}")
        size = 4 * (classes * d + d * (d + 1) // 2) / 1e6
        print(f"| {d} | {classes} | {rows} | {cells[0]} | {cells[1]} | {size:.2f} |", flush=True)


def start_seconds(repeats: int) -> tuple[float, float]:
    """Return wall-clock and processor seconds from `pfedfda run` to its first training step."""
    program = """if True:
        import sys, time
        from pfedfda.methods import training
        class First(training.MomentumSGD):
            def __init__(self, *arguments, **keywords):
                print("FIRST", time.time(), time.process_time(), flush=True)
                super().__init__(*arguments, **keywords)
        training.MomentumSGD = First
        from pfedfda.cli import main
        status = main(sys.argv[1:])
        print("CPU", time.process_time())
        sys.exit(status)
    """
    with tempfile.TemporaryDirectory() as folder:
        words = ["run", "--method", "fedavg", "--clients", "10", "--rounds", "1", "--epochs", "1"]
        command = [sys.executable, "-c", program, *words, "--output", folder, "--quiet"]
        environment = os.environ | {"PFEDFDA_CACHE": f"{folder}/cache"}
        walls, cpus = [], []
        for turn in range(repeats + 1):
            start = time.time()
            done = subprocess.run(
                command, env=environment, capture_output=True, text=True, check=True
            )
            lines = [line.split() for line in done.stdout.splitlines()]
            first = min(float(line[1]) for line in lines if line[0] == "FIRST")
            cpu = next(float(line[1]) for line in lines if line[0] == "CPU")
            if turn:  # the first prepares the federation
                walls.append(first - start)
                cpus.append(cpu)
    return statistics.median(walls), statistics.median(cpus)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument(
        "--images", nargs="+", type=int, default=[122, 488], help="training images of a client"
    )
    parser.add_argument("--clients", type=int, default=30, help="clients a round")
    parser.add_argument(
        "--resnet-clients", type=int, default=4, help="the same for resnet18, which is slow"
    )
    parser.add_argument("--workers", type=int, default=EngineConfig().num_workers)
    parser.add_argument("--repeats", type=int, default=9, help="turns of each part")
    parser.add_argument("--seconds", type=float, default=1.5, help="length of a bare slice")
    parser.add_argument("--epochs", type=int, default=TrainingConfig().epochs)
    parser.add_argument("--quick", action="store_true", help="the small networks, few turns")
    parser.add_argument("--no-start", action="store_true", help="leave out the start of a run")
    options = parser.parse_args()
    if options.quick:
        options.models = [m for m in options.models if m != "resnet18"] or options.models
        options.clients, options.resnet_clients = min(options.clients, 10), 2
        options.repeats, options.seconds = min(options.repeats, 3), min(options.seconds, 0.5)
        options.images = options.images[:1]
    with one_thread():  # before any process is forked: it could not use the threads of this one
        measure_all(options)


def measure_all(options: argparse.Namespace) -> None:
    if not options.no_start:
        wall, cpu = start_seconds(max(options.repeats // 3, 1))
        print(f"From `pfedfda run` to the first training step: {wall:.1f} s of wall-clock time;")
        print(f"the whole process of that short run takes {cpu:.1f} s of processor time.")
    for model in options.models:
        for images in options.images:
            slow = model == "resnet18"
            setting = Setting(
                model,
                images,
                clients=options.resnet_clients if slow else options.clients,
                workers=options.workers,
                slice_seconds=options.seconds * (4 if slow else 1),
                epochs=options.epochs,
            )
            measure(setting, max(math.ceil(options.repeats / 3), 2) if slow else options.repeats)
    # Last: large blocks change the C library's allocator, which forked processes inherit.
    growth(options.repeats)


if __name__ == "__main__":
    main()
