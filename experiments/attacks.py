"""Clients that lie, against every way to combine updates: the table of docs/robust.md.

Some clients send what harms the others. All goes through the ordinary round loop: the engine is
wrapped, and changes what the liars send, or the liars' training labels are changed on disk. They
know what is checked, so that all they send passes. Accuracies are means over the clients that are
honest in every row, so that rows can be compared:

    python experiments/attacks.py
    python tools/write_attacks.py

Rows that results/attacks.csv already has are not run again. With --cifar10-s it runs a few rows on
CIFAR10-S with 25 % of the training images instead, from the copies that PFEDFDA_DATA names.
"""

import argparse
import csv
import json
import math
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from rich.progress import Progress
from torch import Tensor

from pfedfda.data import Federation, prepare
from pfedfda.data.store import write_hashes
from pfedfda.engine import Engine, LocalEngine, Step
from pfedfda.errors import DivergedRunError
from pfedfda.experiment.observers import Observer
from pfedfda.experiment.rounds import run_rounds
from pfedfda.experiment.start import make_task
from pfedfda.gaussian import pack_symmetric, unpack_symmetric
from pfedfda.machine import one_thread
from pfedfda.methods import Method, Summand, Tensors, find_method
from pfedfda.runs import Outcome, RunResult
from pfedfda.runs.config import Config, make_config
from pfedfda.runs.writer import write_csv
from pfedfda.seeding import numpy_generator, torch_generator

TABLE = Path(__file__).parents[1] / "results" / "attacks.csv"
METHODS = ("fedavg", "pfedfda")
RULES = ("sum", "median", "trimmed-mean", "multi-krum", "clipped")
ATTACKS = ("sign flip x10", "noise x10", "a little is enough", "label flip")
SHARES = (0.1, 0.2)
TIMES = 10  # by how much the loud attacks are louder than what is honest
Z = 1.5  # standard deviations by which the quiet attack lies beside the mean
SETTINGS: dict[str, Any] = {
    "model": "mlp",
    "clients": 20,
    "rounds": 10,
    "participation": 1.0,
    "epochs": 2,
    "batch_size": 16,
    "lr": 0.05,
}
# The settings of the federations, and of their runs.
FEDERATIONS: dict[str, dict[str, Any]] = {
    "digits, α = 1": {"alpha": 1.0, **SETTINGS},
    "digits, α = 0.1": {"alpha": 0.1, **SETTINGS},
    "cifar10-s": {"train_fraction": 0.25, "rounds": 20, "participation": 0.15},
}


@dataclass(frozen=True)
class Cell:
    """One run; its fields but the accuracy say which."""

    federation: str
    method: str
    attack: str
    liars: float
    aggregation: str
    seed: int

    @property
    def rounds(self) -> int:
        return int(FEDERATIONS[self.federation]["rounds"])


class Found(NamedTuple):
    """What came of a run."""

    accuracy: float
    """The mean over the clients that never lie, NaN if training diverged."""
    refused: int
    """How many updates of liars did not pass the checks."""


class LyingEngine:
    """An engine in which some clients send something else than they have trained.

    Parameters
    ----------
    engine
        Runs the clients.
    liars
        Who lies.
    attack
        How.
    """

    def __init__(self, engine: Engine, liars: frozenset[int], attack: str) -> None:
        self.engine = engine
        self.liars = liars
        self.attack = attack
        self.federation = engine.federation
        self.task = engine.task

    def run(self, step: Step, state: Tensors, client_ids: Sequence[int]) -> Iterator[Outcome]:
        outcomes = self.engine.run(step, state, client_ids)
        if step.kind != "train":
            yield from outcomes
            return
        heard = list(outcomes)  # liars know what the honest send
        honest = [o.update.tensors for o in heard if o.update and o.client_id not in self.liars]
        for outcome in heard:
            if outcome.update is None or outcome.client_id not in self.liars or not honest:
                yield outcome
                continue
            generator = torch_generator("attack", self.task.seed, step.round, outcome.client_id)
            tensors = dict(outcome.update.tensors)
            for name, own in tensors.items():
                start = state.get(name)
                if start is None or start.shape != own.shape or not own.is_floating_point():
                    continue  # counts and the like are checked; what they stand for is not
                said = torch.stack([other[name] for other in honest])
                lie = self._lie(start, own, said, generator)
                kind = step.method.summands.get(name.split(".")[0], Summand())
                tensors[name] = made_covariance(lie) if kind.covariance else lie.contiguous()
            yield replace(outcome, update=replace(outcome.update, tensors=tensors))

    def close(self) -> None:
        self.engine.close()

    def _lie(
        self, start: Tensor, own: Tensor, honest: Tensor, generator: torch.Generator
    ) -> Tensor:
        if self.attack == "sign flip x10":
            return start - TIMES * (own - start)
        if self.attack == "noise x10":
            moved = (own - start).square().mean().sqrt()
            return own + TIMES * moved * torch.randn(own.shape, generator=generator)
        if self.attack == "a little is enough":
            return honest.mean(0) - Z * honest.std(0, correction=0)
        return own


def made_covariance(packed: Tensor) -> Tensor:
    """Return the nearest matrix without negative eigenvalues, and a little above."""
    values, vectors = torch.linalg.eigh(unpack_symmetric(packed).double())
    raised = (vectors * values.clamp(min=1e-3)) @ vectors.T
    return pack_symmetric((raised + raised.T) / 2).to(packed.dtype)


def flip_labels(federation: Federation, liars: frozenset[int]) -> None:
    """Turn the liars' training labels round, in the files: the first class becomes the last."""
    labels = np.load(federation.folder / "labels.npy", mmap_mode="r+")
    start = 0
    for client in range(len(federation)):
        trained = slice(start, start + int(federation.train_sizes[client]))
        if client in liars:
            labels[trained] = len(federation.class_names) - 1 - labels[trained]
        start = trained.stop + int(federation.test_sizes[client])
    labels.flush()
    write_hashes(federation.folder)


def draw_liars(clients: int, share: float, seed: int) -> frozenset[int]:
    """Return who lies: of a larger share those of a smaller one, and more."""
    order = numpy_generator("liars", seed).permutation(clients)
    return frozenset(int(client) for client in order[: round(share * clients)])


def make(cell: Cell) -> tuple[Config, Method]:
    """Return the settings of a run."""
    settings = FEDERATIONS[cell.federation]
    name = cell.federation if cell.federation == "cifar10-s" else None
    method = find_method(cell.method)()
    config = make_config(
        {cell.method: method},
        name,
        **settings,
        eval_every=0,
        seed=cell.seed,
        aggregation=cell.aggregation,
        assumed_liars=max(SHARES),
        mistakes=0,
    )
    return config, method


def measure(cell: Cell, workers: int, folder: Path) -> Found:
    """Return what comes of a run."""
    config, method = make(cell)
    config = replace(config, engine=replace(config.engine, workers=workers))
    federation = prepare(config.federation)
    liars = draw_liars(len(federation), cell.liars, cell.seed)
    if cell.attack == "label flip":
        copy = folder / "federation"
        shutil.copytree(federation.folder, copy)
        federation = Federation(copy)
        flip_labels(federation, liars)
        federation = Federation(copy)
    with LocalEngine(federation, make_task(config, federation), config.engine) as engine:
        lying = LyingEngine(engine, liars, cell.attack)
        try:
            with one_thread():
                result = run_rounds(method, config, lying, folder, Observer())
        except DivergedRunError:
            return Found(math.nan, count_refused(folder, liars))
    mean = honest_accuracy(result, draw_liars(len(federation), max(SHARES), cell.seed))
    return Found(mean, count_refused(folder, liars))


def honest_accuracy(result: RunResult, ever: frozenset[int]) -> float:
    """Return the mean accuracy over the clients that are not among those who ever lie."""
    honest = [row.accuracy for row in result.clients if int(row.client) not in ever]
    return float(np.mean([accuracy for accuracy in honest if accuracy is not None]))


def count_refused(folder: Path, liars: frozenset[int]) -> int:
    """Return how many updates of liars were left out of their rounds."""
    path = folder / "failures.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    failures = [json.loads(line) for line in lines]
    return sum(f["step"] == "train" and f["client"] in liars for f in failures)


def all_cells(cifar: bool, seeds: Sequence[int]) -> list[Cell]:
    """Return the rows of the table."""
    if cifar:
        few = ("sum", "median", "trimmed-mean")
        kinds = [("cifar10-s", ATTACKS[0], 0.2, few), ("cifar10-s", "none", 0.0, few)]
    else:
        mild, skewed = list(FEDERATIONS)[:2]
        kinds = [(mild, "none", 0.0, RULES)]
        kinds += [(mild, attack, share, RULES) for attack in ATTACKS for share in SHARES]
        kinds += [(skewed, "none", 0.0, RULES), (skewed, ATTACKS[0], 0.2, RULES)]
    return [
        Cell(federation, method, attack, share, rule, seed)
        for seed in seeds
        for federation, attack, share, rules in kinds
        for method in METHODS
        for rule in rules
    ]


def read(path: Path) -> dict[Cell, Found]:
    """Return the rows that are there."""
    if not path.exists():
        return {}
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    return {
        Cell(
            row["federation"], row["method"], row["attack"], float(row["liars"]),
            row["aggregation"], int(row["seed"]),
        ): Found(float(row["accuracy"]), int(row["refused"]))
        for row in rows
    }  # fmt: skip


def write(path: Path, found: dict[Cell, Found]) -> None:
    """Write all rows, each with its number of rounds."""
    names = [f.name for f in fields(Cell)]
    rows = [
        [*(getattr(cell, name) for name in names), cell.rounds, f"{accuracy:.4f}", refused]
        for cell, (accuracy, refused) in found.items()
    ]
    write_csv(path, [*names, "rounds", "accuracy", "refused"], rows)


def main() -> None:
    """Run what is missing."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cifar10-s", action="store_true", help="a few rows on CIFAR10-S instead")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--workers", type=int, default=0, help="processes; 0 is this one")
    parser.add_argument("--table", type=Path, default=TABLE, help="where the rows are kept")
    options = parser.parse_args()
    found = read(options.table)
    missing = [c for c in all_cells(options.cifar10_s, options.seeds) if c not in found]
    with Progress() as progress:
        bar = progress.add_task("attacks", total=len(missing))
        for cell in missing:
            what = f"{cell.method}, {cell.attack} {cell.liars:.0%}, {cell.aggregation}"
            progress.update(bar, description=what)
            with tempfile.TemporaryDirectory() as folder:
                found[cell] = measure(cell, options.workers, Path(folder))
            write(options.table, found)
            progress.advance(bar)
    if not os.isatty(1):
        print(f"{len(missing)} runs; {options.table} has {len(found)} rows.")


if __name__ == "__main__":
    main()
