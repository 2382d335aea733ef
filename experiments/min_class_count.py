"""What it costs to send no statistics of classes with few samples.

Runs the methods that send class statistics with ``--min-class-count`` 1, 2, 5 and 10, and writes
mean accuracies and those of the worst tenth to a CSV, from which docs/privacy.md has its table. On
the demo's digits bodies are trained, for ten rounds and three seeds; on CIFAR10-S with 25 % of the
samples the body is a pretrained network that stays as it is, and there is one round:

    PFEDFDA_DATA=... python experiments/min_class_count.py
"""

import argparse
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import mean

import numpy as np

from pfedfda.cli.compare import DEMO
from pfedfda.data import Federation, prepare
from pfedfda.experiment.api import run_config
from pfedfda.experiment.observers import Observer
from pfedfda.methods import find_method
from pfedfda.runs import RunResult, write_csv
from pfedfda.runs.config import Config, change, make_config, read_config

TABLE = Path(__file__).parents[1] / "results" / "min-class-count.csv"
COUNTS = (1, 2, 5, 10)
COLUMNS = (
    "federation", "method", "min_class_count", "samples_kept_home", "mean_accuracy",
    "worst_tenth_accuracy",
)  # fmt: skip
# A name for the table, the methods, and the seeds.
FEDERATIONS = {
    "digits": (("pfedfda", "fedpac", "fedproto"), (0, 1, 2)),
    "cifar10-s@25, frozen": (("pfedfda", "fedncm", "fedcgs", "fed3r", "fedcof"), (0,)),
}


def settings_of(name: str) -> Config:
    """Return the settings of a federation, without methods."""
    if name == "digits":
        return replace(read_config(DEMO), methods={})
    chosen = {"train_fraction": 0.25, "backbone": "efficientnet-lite0", "rounds": 1}
    return make_config({}, "cifar10-s", **chosen)


def kept_home(federation: Federation, least: int) -> float:
    """Return the share of the training samples that are of their client's rare classes."""
    classes = len(federation.class_names)
    counts = np.stack(
        [
            np.bincount(federation.client(client).train_labels, minlength=classes)
            for client in range(len(federation))
        ]
    )
    return float(counts[counts < least].sum() / counts.sum())


def measure(name: str, output: Path) -> Iterator[list[object]]:
    """Yield the rows of a federation."""
    methods, seeds = FEDERATIONS[name]
    settings = settings_of(name)
    federation = prepare(settings.federation)
    for method in methods:
        for least in COUNTS:
            results: list[RunResult] = []
            for seed in seeds:
                chosen = {"min_class_count": least, "seed": seed, "output": output}
                config = replace(change(settings, chosen), methods={method: find_method(method)()})
                results.append(run_config(config, Observer()))
            numbers = [
                f"{mean(float(r.summary[column]) for r in results):.4f}" for column in COLUMNS[4:]
            ]
            yield [name, method, least, f"{kept_home(federation, least):.4f}", *numbers]


def main() -> None:
    """Run everything and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=Path("runs"), help="where runs are written")
    options = parser.parse_args()
    rows = []
    for name in FEDERATIONS:
        for row in measure(name, options.output):
            print(*row, sep=",", flush=True)
            rows.append(row)
    write_csv(TABLE, COLUMNS, rows)


if __name__ == "__main__":
    main()
