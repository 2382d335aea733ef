"""Write what lying clients do to each way to combine updates into docs/robust.md.

    python experiments/attacks.py
    python tools/write_attacks.py

The numbers are those of results/attacks.csv, averaged over its seeds.
"""

import csv
import math
import re
from pathlib import Path

from pfedfda.report.styles import title_of

ROOT = Path(__file__).parent.parent
TABLE = ROOT / "results" / "attacks.csv"
PAGE = ROOT / "docs" / "robust.md"
RULES = ("sum", "median", "trimmed-mean", "multi-krum", "clipped")
# The markers of the tables, and the federations in them.
TABLES = {"attacks": "digits, α = 1", "skewed": "digits, α = 0.1", "cifar": "cifar10-s"}


def rows_of(federation: str) -> dict[tuple[str, str, str], dict[str, list[dict[str, str]]]]:
    """Return the runs on a federation by method and attack, then by rule."""
    found: dict[tuple[str, str, str], dict[str, list[dict[str, str]]]] = {}
    with TABLE.open(newline="") as file:
        for row in csv.DictReader(file):
            if row["federation"] == federation:
                key = row["method"], row["attack"], row["liars"]
                found.setdefault(key, {}).setdefault(row["aggregation"], []).append(row)
    return found


def table(federation: str) -> str:
    """Return a table in Markdown, a row for each method and attack."""
    found = rows_of(federation)
    rules = [rule for rule in RULES if any(rule in by_rule for by_rule in found.values())]
    lines = [f"| method | liars | {' | '.join(rules)} |", "|---|---|" + "---:|" * len(rules)]
    for (method, attack, liars), by_rule in sorted(found.items(), key=lambda item: item[0][0]):
        what = "none" if float(liars) == 0 else f"{float(liars):.0%}, {attack}"
        cells = [cell(by_rule.get(rule, [])) for rule in rules]
        lines.append(f"| {title_of(method)} | {what} | {' | '.join(cells)} |")
    return "\n".join(lines).replace("%", " %") + "\n"


def cell(runs: list[dict[str, str]]) -> str:
    """Return the mean accuracy over seeds; one that diverged has none."""
    if not runs:
        return "–"
    accuracies = [float(run["accuracy"]) for run in runs]
    diverged = sum(math.isnan(accuracy) for accuracy in accuracies)
    if diverged:
        return "diverged" if diverged == len(runs) else f"{diverged} of {len(runs)} diverged"
    return f"{sum(accuracies) / len(accuracies):.3f}"


def with_tables(text: str) -> str:
    """Return the text of the page with its tables in their places."""
    for marker, federation in TABLES.items():
        begin, end = f"<!-- {marker} -->\n", f"<!-- end of {marker} -->\n"
        written = f"{begin}\n{table(federation)}\n{end}"
        text = re.sub(f"{begin}.*?{end}", lambda _, w=written: w, text, flags=re.DOTALL)
    return text


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text()))
