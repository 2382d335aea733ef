"""Measure accuracy against ε for private runs, and write a table of all runs:

    python experiments/privacy.py frozen
    python experiments/privacy.py many
    python experiments/privacy.py scratch

*frozen* is one round on features of a pretrained backbone, with 100 clients of CIFAR10-S at 25 %
of the training samples; *many* the same with 500 clients at 50 %, each with fewer samples;
*scratch* is 50 rounds of training on digits with 100 clients.

In *frozen* the number of dimensions is chosen for each method and ε by the mean accuracy on
validation samples with seed 0, and then tested with seeds 1, 2 and 3; so is the clip in *scratch*,
with one seed to test. A seed draws the noise anew; without noise, as at ε = inf, it changes next to
nothing in *frozen*. The set *many* has one seed and no choice, but the dimensions that were chosen
most often in *frozen*.
"""

import argparse
import csv
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pfedfda
from pfedfda.errors import DivergedRunError
from pfedfda.runs import load_run
from pfedfda.runs.config import named_federation

RESULTS = Path(__file__).parents[1] / "results" / "privacy.csv"
EPSILONS = (1.0, 2.0, 4.0, 8.0, None)
VALIDATION_SHARE = 0.2
DIVERGED = "diverged"
COLUMNS = [
    "set",
    "method",
    "epsilon",
    "delta",
    "noise_multiplier",
    "dims",
    "clip",
    "clients",
    "rounds",
    "seed",
    "judged_on",
    "mean_accuracy",
    "worst_tenth_accuracy",
]


class Setting(NamedTuple):
    """A set of runs: what all have in common, and what each may choose from."""

    settings: dict[str, Any]
    methods: Sequence[str]
    choice: str
    choices: Sequence[float]
    seeds: Sequence[int]
    epsilons: Sequence[float | None] = EPSILONS


FROZEN = named_federation("cifar10-s") | {
    "train_fraction": 0.25,
    "backbone": "efficientnet-lite0",
    "backbone_size": 96,
    "feature_transform": "sqrt",
    "rounds": 1,
}
SETS = {
    "frozen": Setting(FROZEN, ["pfedfda", "fedcgs"], "feature_dims", (32, 64, 256), (1, 2, 3)),
    "many": Setting(
        FROZEN | {"clients": 500, "train_fraction": 0.5, "min_samples": 40},
        ["pfedfda", "fedcgs"],
        "feature_dims",
        (64,),
        (1,),
    ),
    "scratch": Setting(
        {"source": "digits", "clients": 100, "alpha": 0.3, "rounds": 50, "eval_every": 0},
        ["fedavg", "pfedfda"],
        "dp_clip",
        (1.0, 0.1),
        (1,),
    ),
}


def run(
    method: str,
    epsilon: float | None,
    choice: tuple[str, float],
    seed: int,
    settings: dict[str, Any],
) -> dict[str, Any]:
    """Run once, and return the line of the table without the name of the set."""
    settings = settings | {"seed": seed, "workers": 0, "quiet": True}
    name, value = choice
    if epsilon is not None:
        settings["dp_epsilon"] = epsilon
    if epsilon is not None or name != "dp_clip":
        settings[name] = value
    with tempfile.TemporaryDirectory() as folder:
        try:
            result = pfedfda.run(method, output=Path(folder), **settings)
        except DivergedRunError:
            result = load_run(next(Path(folder).iterdir()))
        judged_on = result.judged_on
    privacy, summary = result.summary.get("privacy", {}), result.summary
    diverged = summary["status"] != "complete"
    return {
        "method": method,
        "epsilon": "inf" if epsilon is None else f"{epsilon:g}",
        "delta": f"{privacy['delta']:.4g}" if privacy else "",
        "noise_multiplier": privacy.get("noise_multiplier", ""),
        "dims": settings.get("feature_dims", ""),
        "clip": privacy.get("clip", ""),
        "clients": settings.get("clients", 100),
        "rounds": settings["rounds"],
        "seed": seed,
        "judged_on": judged_on,
        "mean_accuracy": DIVERGED if diverged else f"{result.mean_accuracy:.4f}",
        "worst_tenth_accuracy": "" if diverged else f"{summary['worst_tenth_accuracy']:.4f}",
    }


def measure(setting: Setting) -> Iterator[dict[str, Any]]:
    """Run everything of a set: first what the choice is made by, then what is told."""
    name, values = setting.choice, setting.choices
    held_out = setting.settings | {"validation_share": VALIDATION_SHARE}
    for epsilon in setting.epsilons:
        for method in setting.methods:
            lines = []
            without_choice = len(values) == 1 or (epsilon is None and name == "dp_clip")
            for value in () if without_choice else values:
                lines.append(run(method, epsilon, (name, value), 0, held_out))
                yield lines[-1]
            best = max(range(len(lines)), key=lambda i: accuracy_of(lines[i]), default=0)
            for seed in setting.seeds:
                yield run(method, epsilon, (name, values[best]), seed, setting.settings)


def accuracy_of(line: dict[str, Any]) -> float:
    """Return the accuracy of a run, 0 if it diverged."""
    return 0.0 if line["mean_accuracy"] == DIVERGED else float(line["mean_accuracy"])


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure a set, and put its lines in place of those that the table has of it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("set", choices=SETS)
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args(arguments)
    lines: list[dict[str, Any]] = []
    for line in measure(SETS[options.set]):
        lines.append({"set": options.set, **line})
        print(*lines[-1].values(), flush=True)
        write(options.output, options.set, lines)


def write(path: Path, name: str, lines: Sequence[dict[str, Any]]) -> None:
    """Write the table with these lines for one set, and what it has of the others."""
    others: list[dict[str, Any]] = []
    if path.exists():
        with path.open(newline="", encoding="utf-8") as file:
            others = [line for line in csv.DictReader(file) if line["set"] != name]
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        table.writeheader()
        table.writerows(sorted([*others, *lines], key=lambda line: list(SETS).index(line["set"])))


if __name__ == "__main__":
    main()
