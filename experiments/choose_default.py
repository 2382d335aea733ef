"""Choose the default of pFedFDA by the rule of docs/search.md, on validation samples.

The first step gives each candidate a rank on each federation, after 60 rounds with one seed (one
round with a frozen backbone). The second compares the two best with the present default, after 200
rounds with three seeds:

    python experiments/choose_default.py --step 1
    python experiments/choose_default.py --step 2

Runs are kept in a folder, so that a step that was stopped goes on where it was; their accuracies
are a line each in results/default.jsonl. With `--table` nothing runs, and what the records say is
printed.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.progress import track

import pfedfda
from pfedfda.methods import find_method
from pfedfda.runs.reader import RunResult, is_complete, load_run
from pfedfda.runs.statistics import crossed_parts, mean_ranks

ROOT = Path(__file__).parent.parent
RECORDS = ROOT / "results" / "default.jsonl"
VALIDATION_SHARE = 0.2
TODAY = "default"

CANDIDATES: dict[str, tuple[str, dict[str, Any]]] = {
    TODAY: ("pfedfda-pooled", {"features": "first"}),
    "before": ("pfedfda-pooled", {"features": "first", "gaussian_features": True}),
    "levels": ("pfedfda-pooled", {"features": "first", "adaptation": "levels"}),
    "before and levels": (
        "pfedfda-pooled",
        {"features": "first", "gaussian_features": True, "adaptation": "levels"},
    ),
    "pfedfda-levels, ridge 0.3": ("pfedfda-levels", {"personal_ridge": 0.3}),
    "pfedfda-levels, ridge 1": ("pfedfda-levels", {"personal_ridge": 1.0}),
}
"""Preset and differences from it, the fewest changes first: of equal ranks the earlier goes on."""

FROZEN = {
    "backbone": "efficientnet-lite0",
    "backbone_size": 96,
    "feature_dims": 256,
    "feature_transform": "sqrt",
    "participation": 1.0,
}
QUARTER = {"train_fraction": 0.25}
FEDERATIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "CIFAR10-S": ("cifar10-s", QUARTER),
    "CIFAR100-S": ("cifar100-s", QUARTER),
    "CIFAR-10": ("cifar10", QUARTER),
    "CIFAR-100": ("cifar100", QUARTER),
    "EMNIST": ("emnist", {}),
    "CIFAR10-S, frozen": ("cifar10-s", {**QUARTER, **FROZEN}),
    "CIFAR100-S, frozen": ("cifar100-s", {**QUARTER, **FROZEN}),
    "EMNIST, frozen": ("emnist", FROZEN),
}
LONG = ("CIFAR10-S", "CIFAR100-S")
SEEDS = (0, 1, 2)

Record = dict[str, Any]
Key = tuple[str, str, int, int]


def key_of(record: Mapping[str, Any]) -> Key:
    """Return what a record is about."""
    return (record["federation"], record["candidate"], record["rounds"], record["seed"])


def read_records(path: Path) -> dict[Key, Record]:
    """Return the records by what they are about."""
    lines = path.read_text().splitlines() if path.exists() else []
    records = [json.loads(line) for line in lines]
    return {key_of(record): record for record in records}


def rounds_of(federation: str, step: int) -> int:
    """Return the rounds of a run."""
    if "backbone" in FEDERATIONS[federation][1]:
        return 1
    return 60 if step == 1 else 200


def wanted(step: int, candidates: Sequence[str]) -> list[Key]:
    """Return the runs of a step."""
    if step == 1:
        return [(f, c, rounds_of(f, 1), 0) for f in FEDERATIONS for c in candidates]
    return [(f, c, rounds_of(f, 2), seed) for seed in SEEDS for f in LONG for c in candidates]


def go(key: Key, output: Path, workers: int | None) -> RunResult:
    """Make a run, or go on with it."""
    name, candidate, rounds, seed = key
    folder = output / f"{name}--{candidate}--r{rounds}-s{seed}".replace(", ", "-").replace(" ", "-")
    if is_complete(folder):
        return load_run(folder)
    if (folder / "checkpoint" / "manifest.json").exists():
        return pfedfda.resume(folder, workers=workers, quiet=True)
    preset, changes = CANDIDATES[candidate]
    federation, settings = FEDERATIONS[name]
    return pfedfda.run(
        find_method(preset)(**changes),
        federation,
        validation_share=VALIDATION_SHARE,
        rounds=rounds,
        seed=seed,
        eval_every=20,
        workers=workers,
        quiet=True,
        output=output,
        name=folder.name,
        **settings,
    )


def record_of(key: Key, result: RunResult) -> Record:
    """Return what is kept of a run."""
    record: Record = dict(zip(("federation", "candidate", "rounds", "seed"), key, strict=True))
    for name in ("mean_accuracy", "worst_tenth_accuracy"):
        record[name] = round(result.summary[name], 5)
    record["by_round"] = {m["round"]: round(m["mean_accuracy"], 4) for m in result.metrics}
    record["seconds"] = round(result.summary["seconds"]["total"])
    record["accuracies"] = [round(row.accuracy or 0.0, 4) for row in result.clients]
    return record


def first_step(records: Mapping[Key, Record]) -> tuple[str, list[str]]:
    """Return the table of the first step, and the candidates in the order of their mean ranks."""
    complete = [
        name
        for name in FEDERATIONS
        if all((name, c, rounds_of(name, 1), 0) in records for c in CANDIDATES)
    ]
    if not complete:
        return "No federation is complete.", []
    scores = [
        [records[name, c, rounds_of(name, 1), 0]["mean_accuracy"] for c in CANDIDATES]
        for name in complete
    ]
    ranks = mean_ranks(scores)
    text = "| | " + " | ".join(complete) + " | mean rank |\n|---|" + "---:|" * (len(complete) + 1)
    for place, candidate in enumerate(CANDIDATES):
        cells = []
        for name, row in zip(complete, scores, strict=True):
            worst = records[name, candidate, rounds_of(name, 1), 0]["worst_tenth_accuracy"]
            cells.append(f"{row[place]:.4f} ({worst:.3f})")
        text += f"\n| {candidate} | {' | '.join(cells)} | {ranks[place]:.2f} |"
    order = sorted(range(len(ranks)), key=lambda place: (ranks[place], place))
    return text, [list(CANDIDATES)[place] for place in order]


def worst_tenth(accuracies: np.ndarray) -> np.ndarray:
    """Return the mean of the worst tenth of the clients, by seed."""
    count = max(accuracies.shape[1] // 10, 1)
    return np.asarray(np.sort(accuracies, axis=1)[:, :count].mean(axis=1))


def second_step(records: Mapping[Key, Record], candidates: Sequence[str]) -> str:
    """Return the table of the second step."""
    text = "| | federation | seeds | mean | worst tenth | difference | worst tenth's |\n"
    text += "|---|---|---:|---:|---:|---:|---:|"
    for candidate in candidates:
        for name in LONG:
            seeds = [
                s
                for s in SEEDS
                if (name, candidate, 200, s) in records and (name, TODAY, 200, s) in records
            ]
            if not seeds:
                continue
            own, today = (
                np.array([records[name, c, 200, s]["accuracies"] for s in seeds])
                for c in (candidate, TODAY)
            )
            error = sum(part.variance for part in crossed_parts(own - today)) ** 0.5
            worst = worst_tenth(own) - worst_tenth(today)
            worst_error = worst.std(ddof=1) / len(worst) ** 0.5 if len(worst) > 1 else np.nan
            text += (
                f"\n| {candidate} | {name} | {len(seeds)} | {own.mean():.4f} | "
                f"{worst_tenth(own).mean():.3f} | {(own - today).mean():+.4f} ± {error:.4f} | "
                f"{worst.mean():+.3f} ± {worst_error:.3f} |"
            )
    return text


def main() -> None:
    """Run a step, and print its table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--step", type=int, choices=(1, 2), default=1)
    parser.add_argument("--table", action="store_true", help="only print what the records say")
    parser.add_argument("--records", type=Path, default=RECORDS)
    parser.add_argument("--output", type=Path, default=Path("runs/default"))
    parser.add_argument("--workers", type=int)
    options = parser.parse_args()
    records = read_records(options.records)
    order = first_step(records)[1]
    if options.step == 2 and not order:
        raise SystemExit("The second step needs the records of the first.")
    candidates = list(CANDIDATES)
    if options.step == 2:
        candidates = [TODAY, *[c for c in order[:2] if c != TODAY]]
    missing = [key for key in wanted(options.step, candidates) if key not in records]
    for key in track(missing, "runs") if not options.table else ():
        record = record_of(key, go(key, options.output, options.workers))
        records[key] = record
        with options.records.open("a") as file:
            file.write(json.dumps(record) + "\n")
        print(*key, record["mean_accuracy"], record["worst_tenth_accuracy"], flush=True)
    print(first_step(records)[0])
    if options.step == 2:
        print("\n" + second_step(records, candidates))


if __name__ == "__main__":
    main()
