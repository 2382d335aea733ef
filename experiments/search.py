"""Try settings of pFedFDA on a validation part of the training images, and keep what came out.

A run trains on 80 % of each client's kept training samples and is judged on the other 20 %; test
images are never looked at. Settings are given as differences from the preset ``pfedfda-pooled``,
which stays as it is, so that every row of the results can be run again; some are options of
`pfedfda_variants` alone:

    python experiments/search.py --dataset cifar10-s --rounds 50 ridge=0.03 init=he

appends a row to results/search.csv, and ``--table`` writes the tables of docs/search.md from it.
"""

import argparse
import csv
import dataclasses
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

from pfedfda.errors import RunStoppedError
from pfedfda.experiment import load_run, run
from pfedfda.methods import Method, find_method
from pfedfda.runs.config import checked_fields
from pfedfda_variants import PFedFDAVariants

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "results" / "search.csv"
PAGE = ROOT / "docs" / "search.md"
BEGIN, END = "<!-- made by experiments/search.py --table -->\n", "<!-- end -->\n"
COLUMNS = (
    *("dataset", "train_fraction", "rounds", "seed", "method", "settings"),
    *("mean_accuracy", "weighted_accuracy", "worst_tenth_accuracy"),
    *("earlier", "seconds", "diverged"),
)
VALIDATION_SHARE = 0.2


def read_settings(words: list[str]) -> dict[str, Any]:
    """Return the values of words such as ridge=0.1 and init=he."""
    settings = {}
    for word in words:
        name, _, text = word.partition("=")
        try:
            settings[name] = json.loads(text)
        except ValueError:
            settings[name] = text
    return settings


def is_variant(settings: dict[str, Any]) -> bool:
    """Tell whether settings of pFedFDA are among those that only `pfedfda_variants` has."""
    return (
        bool({"relative_ridge", "scatter"} & settings.keys())
        or settings.get("features") in ("last", "before", "after")
        or settings.get("initial_means") == "estimated"
    )


def make_method(name: str, settings: dict[str, Any]) -> tuple[Method, dict[str, Any]]:
    """Return the method with those settings that are its own, and the other settings."""
    kind = find_method(name)
    if name == "pfedfda-pooled" and is_variant(settings):
        kind = PFedFDAVariants  # has the same defaults
    own = {f.name for f in dataclasses.fields(kind)}
    fields = {key: value for key, value in settings.items() if key in own}
    others = {key: value for key, value in settings.items() if key not in own}
    return kind(**checked_fields(kind, fields, name)), others


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Run one combination of settings; return its row."""
    method, others = make_method(options.method, read_settings(options.settings))
    row = {name: getattr(options, name) for name in ("dataset", "train_fraction", "rounds", "seed")}
    row |= {"method": options.method, "settings": " ".join(sorted(options.settings))}
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.output or Path(temporary)
        try:
            run(
                method,
                options.dataset,
                train_fraction=options.train_fraction,
                validation_share=VALIDATION_SHARE,
                rounds=options.rounds,
                seed=options.seed,
                eval_every=options.eval_every,
                workers=options.workers,
                quiet=True,
                output=folder,
                name="run",
                **others,
            )
        except RunStoppedError as error:
            if "diverged" not in str(error):
                raise
        result = load_run(folder / "run")
    complete = result.summary["status"] == "complete"
    for name in ("mean_accuracy", "weighted_accuracy", "worst_tenth_accuracy"):
        row[name] = f"{result.summary[name]:.4f}" if complete else ""
    before = [line for line in result.metrics if line["round"] < options.rounds]
    row["earlier"] = " ".join(f"{line['round']}:{line['mean_accuracy']:.3f}" for line in before)
    row["seconds"] = round(time.perf_counter() - start)
    row["diverged"] = "" if complete else f"round {result.summary['rounds'] + 1}"
    return row


def append(row: dict[str, Any], path: Path) -> None:
    """Add a row to the results in one write, so that runs at the same time do not mix."""
    path.parent.mkdir(exist_ok=True)
    new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        if new:
            writer.writeheader()
        writer.writerow(row)


def make_tables(rows: list[dict[str, str]]) -> str:
    """Return a Markdown table for each dataset and number of rounds, the best mean first."""
    groups: dict[tuple[str, str, int], list[dict[str, str]]] = {}
    for row in rows:
        key = row["dataset"], row["train_fraction"], int(row["rounds"])
        groups.setdefault(key, []).append(row)
    text = ""
    for (dataset, fraction, rounds), group in sorted(groups.items()):
        text += (
            f"\n### {dataset}, {float(fraction):.0%} of the training samples, {rounds} rounds\n\n"
        )
        text += "| settings | seed | mean | weighted | worst tenth | mean at earlier rounds |\n"
        text += "|---|---|---|---|---|---|\n"
        for row in sorted(group, key=lambda row: row["mean_accuracy"] or "0", reverse=True):
            name = "" if row["method"] == "pfedfda-pooled" else f"**{row['method']}** "
            name += f"`{row['settings']}`" if row["settings"] else "as it is"
            accuracies = [
                row[f"{kind}_accuracy"] or "–" for kind in ("mean", "weighted", "worst_tenth")
            ]
            told = row["earlier"] + (f" diverged in {row['diverged']}" if row["diverged"] else "")
            text += f"| {name} | {row['seed']} | {' | '.join(accuracies)} | {told.strip()} |\n"
    return text


def write_page(results: Path) -> None:
    """Put the tables in their place on the page."""
    with results.open(newline="") as file:
        tables = make_tables(list(csv.DictReader(file)))
    page = PAGE.read_text()
    before, after = page.split(BEGIN)[0], page.split(END)[-1]
    PAGE.write_text(before + BEGIN + tables + "\n" + END + after)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("settings", nargs="*", help="differences from the preset, NAME=VALUE")
    parser.add_argument("--dataset", default="cifar10-s", help="one of the paper's federations")
    parser.add_argument("--train-fraction", type=float, default=0.25)
    parser.add_argument("--method", default="pfedfda-pooled", help="the preset to differ from")
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--eval-every", type=int, default=25)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--output", type=Path, help="keep the run in a folder of this one")
    parser.add_argument("--table", action="store_true", help="only write the tables of the page")
    options = parser.parse_args()
    if options.table:
        write_page(options.results)
        return
    row = measure(options)
    append(row, options.results)
    print(", ".join(f"{name} {value}" for name, value in row.items() if value != ""))


if __name__ == "__main__":
    main()
