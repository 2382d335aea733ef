"""Write the table of docs/results.md about the predictions of all methods on the demo.

    pfedfda compare --demo
    python tools/write_quality.py runs/digits-compare

The numbers are kept in results/demo-quality.csv; without an argument the page is written from it.
"""

import csv
import re
import sys
from pathlib import Path

from pfedfda.report.styles import title_of
from pfedfda.runs import load_run, write_csv

ROOT = Path(__file__).parent.parent
TABLE = ROOT / "results" / "demo-quality.csv"
PAGE = ROOT / "docs" / "results.md"
COLUMNS = {
    "mean_accuracy": "accuracy",
    "mean_balanced_accuracy": "balanced",
    "test_loss": "NLL",
    "pooled_brier": "Brier",
    "pooled_ece": "ECE",
}
LARGE = 1e6
BEGIN, END = "<!-- quality -->\n", "<!-- end of quality -->\n"


def collect(comparison: Path) -> None:
    """Write the CSV from the runs of a comparison, the most accurate first."""
    runs = [load_run(path.parent) for path in comparison.glob("*/summary.json")]
    runs.sort(key=lambda run: -run.mean_accuracy)
    rows = [[run.method, *(f"{run.summary[name]:.6g}" for name in COLUMNS)] for run in runs]
    write_csv(TABLE, ["method", *COLUMNS], rows)


def table() -> str:
    """Return the table of the CSV in Markdown."""
    with TABLE.open(newline="") as file:
        rows = list(csv.DictReader(file))
    lines = [f"| method | {' | '.join(COLUMNS.values())} |", "|---" * (len(COLUMNS) + 1) + "|"]
    for row in rows:
        cells = [
            f"{value:.3f}" if value < LARGE else f"{value:.0e}"
            for value in (float(row[name]) for name in COLUMNS)
        ]
        lines.append(f"| {title_of(row['method'])} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def with_table(page: str) -> str:
    """Return the page with the table in its place."""
    return re.sub(f"{BEGIN}.*?{END}", lambda _: f"{BEGIN}\n{table()}\n{END}", page, flags=re.DOTALL)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        collect(Path(sys.argv[1]))
    PAGE.write_text(with_table(PAGE.read_text()))
