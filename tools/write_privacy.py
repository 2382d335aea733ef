"""Write the tables of docs/privacy.md: what updates reveal, and what guards cost.

    python tools/write_privacy.py            the tables, from the methods and the records
    python tools/write_privacy.py --attack   first attack updates anew, which takes seconds

The records are results/leak.csv, which the notebook what_an_update_reveals.py measures, and
results/min-class-count.csv, which experiments/min_class_count.py measures.
"""

import csv
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import torch

from pfedfda.engine.base import num_bytes
from pfedfda.methods import Client, Method, Samples, Task, Tensors, all_methods, dry_run
from pfedfda.methods.traffic import parts
from pfedfda.models import ModelConfig
from pfedfda.report.styles import title_of

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "privacy.md"
NOTEBOOK = ROOT / "examples" / "notebooks" / "what_an_update_reveals.py"
LEAK = ROOT / "results" / "leak.csv"
COST = ROOT / "results" / "min-class-count.csv"
DEFAULT = Task(ModelConfig(), (28, 28, 1), num_classes=10, num_clients=2)  # as `pfedfda methods`
# A frozen body, under which nothing but heads is trained.
FROZEN = Task(ModelConfig("linear"), (4,), num_classes=3, num_clients=2, input_type="float32")
NAMES = {"digits": "demo", "cifar10-s@25, frozen": "CIFAR10-S, 25 %, frozen backbone"}


WEIGHTS = ("body", "head")


def has_class_statistics(method: Method) -> bool:
    """Tell whether a least count of a class changes what a method sends besides trained weights."""
    sent = []
    for least in (1, 5):
        task = replace(FROZEN, min_class_count=least)
        labels = torch.tensor([0] * 12 + [1] * 12 + [2])
        generator = torch.Generator().manual_seed(0)
        inputs = torch.randn(len(labels), *task.input_shape, generator=generator)
        client = Client(
            0, 1, task, Samples(inputs, labels), {}, task.build_model(), generator.manual_seed(1)
        )
        update = method.train(client, method.message(method.init(task), 0))
        sent.append({n: t for n, t in update.tensors.items() if parts({n: t})[0] not in WEIGHTS})
    return any(differ(*both) for both in pairwise(sent))


def differ(first: Tensors, second: Tensors) -> bool:
    """Tell whether two sets of tensors differ in a bit."""
    return any(not torch.equal(tensor, second[name]) for name, tensor in first.items())


def updates() -> str:
    """Return the table of methods, from what they send and say of themselves.

    Methods of which the same is to be said share a row.
    """
    alike: dict[tuple[str, ...], list[str]] = {}
    for name, kind in all_methods().items():
        method = kind()
        up = dry_run(method, DEFAULT, method.init(DEFAULT)).up
        if up:
            cells: tuple[str, ...] = (
                ", ".join(parts(up)),
                f"{num_bytes(up) / 1e6:.2f} MB",
                "yes" if method.additive else "no",
                method.reveals,
                "yes" if has_class_statistics(method) else "–",
            )
        else:
            cells = ("nothing", "0 MB", "–", "nothing", "–")
        alike.setdefault(cells, []).append(f"`{name}`")
    lines = [
        "| method | what goes up | size | sum is enough | what it reveals | least count guards |",
        "|---|---|---:|---|---|---|",
    ]
    lines += [f"| {', '.join(names)} | {' | '.join(cells)} |" for cells, names in alike.items()]
    return "\n".join(lines) + "\n"


def read(path: Path) -> list[dict[str, str]]:
    """Return the rows of a CSV."""
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def leak() -> str:
    """Return the table of the attack."""
    lines = [
        "| `--min-class-count` | samples of a class | classes | means sent | identified | likeness "
        "| of the class's average |",
        "|---:|---|---:|---:|---:|---:|---:|",
    ]
    lines += ["| " + " | ".join(row.values()) + " |" for row in read(LEAK)]
    return "\n".join(lines) + "\n"


def cost() -> str:
    """Return the table of accuracies: a row a method, a column a least count."""
    rows = read(COST)
    counts = list(dict.fromkeys(row["min_class_count"] for row in rows))
    table = {
        (row["federation"], row["method"], row["min_class_count"]): row["mean_accuracy"]
        for row in rows
    }
    kept = {(row["federation"], row["min_class_count"]): row["samples_kept_home"] for row in rows}
    lines = [f"| federation | method | {' | '.join(counts)} |", "|---|---|" + "---:|" * len(counts)]
    for federation in NAMES:
        shares = [f"{100 * float(kept[federation, count]):.0f} %" for count in counts]
        lines.append(f"| {NAMES[federation]} | *samples kept at home* | {' | '.join(shares)} |")
        for method in dict.fromkeys(r["method"] for r in rows if r["federation"] == federation):
            cells = [f"{float(table[federation, method, count]):.3f}" for count in counts]
            lines.append(f"| | {title_of(method)} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


TABLES = {"updates": updates, "leak": leak, "cost": cost}


def page() -> str:
    """Return the text of the page with its tables in their places."""
    text = PAGE.read_text()
    for marker, table in TABLES.items():
        begin, end = f"<!-- {marker} -->\n", f"<!-- end of {marker} -->\n"
        written = f"{begin}\n{table()}\n{end}"
        text = re.sub(f"{begin}.*?{end}", lambda _, w=written: w, text, flags=re.DOTALL)
    return text


def attack() -> None:
    """Run the notebook, which writes the record."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            [sys.executable, str(NOTEBOOK), "--csv", str(LEAK)],
            cwd=folder,
            env={**os.environ, "MPLBACKEND": "agg"},
            check=True,
        )


def main(words: list[str]) -> None:
    """Write the page."""
    if words == ["--attack"]:
        attack()
    PAGE.write_text(page())


if __name__ == "__main__":
    main(sys.argv[1:])
