"""Write what the demo gives into the README, the site and the picture of both.

    pfedfda compare --demo
    python tools/write_demo.py runs/digits-compare

The numbers are kept in results/demo.csv. Without an argument the tables are written from it, and
docs/figures/demo.svg, which needs the runs, stays as it is.
"""

import csv
import re
import sys
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes

from pfedfda.report.styles import MARKERS, style_of, title_of
from pfedfda.runs import RunResult, load_run, write_csv
from pfedfda.runs.reader import read_object

ROOT = Path(__file__).parent.parent
TABLE = ROOT / "results" / "demo.csv"
FIGURE = ROOT / "docs" / "figures" / "demo.svg"
FRONT = {
    "mean_accuracy": "mean accuracy",
    "std_accuracy": "deviation over clients",
    "worst_tenth_accuracy": "mean of the worst tenth",
}
QUALITY = {
    "mean_accuracy": "accuracy",
    "mean_balanced_accuracy": "balanced",
    "test_loss": "NLL",
    "pooled_brier": "Brier",
    "pooled_ece": "ECE",
}
# A page, the marker of its table, its columns, and how many methods it has.
PAGES = {
    ROOT / "README.md": ("demo", FRONT, 4),
    ROOT / "docs" / "results.md": ("quality", QUALITY, None),
}
ALWAYS = ("local", "fedavg")  # in a short table too: no federation, and no personal models
LARGE = 1e6
SHOWN = ("local", "fedavg", "fedavg-ft", "pfedfda")


def collect(comparison: Path) -> None:
    """Write the CSV from the runs of a comparison, the most accurate first."""
    runs = [load_run(path.parent) for path in comparison.glob("*/summary.json")]
    runs.sort(key=lambda run: -run.mean_accuracy)
    columns = list(FRONT | QUALITY)
    rows = [[run.method, *(f"{run.summary[name]:.6g}" for name in columns)] for run in runs]
    write_csv(TABLE, ["method", *columns], rows)


def table(columns: dict[str, str], most: int | None) -> str:
    """Return the table of the CSV in Markdown, of the most accurate methods and some always."""
    with TABLE.open(newline="") as file:
        rows = list(csv.DictReader(file))
    if most is not None:
        rows = [row for n, row in enumerate(rows) if n < most or row["method"] in ALWAYS]
    lines = [f"| method | {' | '.join(columns.values())} |", "|---|" + "---:|" * len(columns)]
    for row in rows:
        cells = [
            f"{value:.3f}" if value < LARGE else f"{value:.0e}"
            for value in (float(row[name]) for name in columns)
        ]
        lines.append(f"| {title_of(row['method'])} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def with_table(page: Path) -> str:
    """Return the text of a page with its table in its place."""
    marker, columns, most = PAGES[page]
    begin, end = f"<!-- {marker} -->\n", f"<!-- end of {marker} -->\n"
    written = f"{begin}\n{table(columns, most)}\n{end}"
    return re.sub(f"{begin}.*?{end}", lambda _: written, page.read_text(), flags=re.DOTALL)


def draw(comparison: Path, path: Path) -> None:
    """Draw who holds what, how the methods learn, and what every client ends with."""
    names = [name for name in SHOWN if (comparison / name).is_dir()]
    runs = [load_run(comparison / name) for name in names]
    settings = {"svg.hashsalt": "pfedfda", "font.size": 9, "axes.spines.top": False}
    with mpl.rc_context(settings | {"axes.spines.right": False}):
        figure, (holdings, learning, clients) = plt.subplots(
            1, 3, figsize=(11, 3.4), layout="constrained", facecolor="white"
        )
        draw_holdings(holdings, comparison)
        draw_learning(learning, runs)
        draw_clients(clients, runs)
        figure.savefig(path, metadata={"Date": None})
        plt.close(figure)


def draw_holdings(axes: Axes, comparison: Path) -> None:
    federation = read_object(comparison / "federation.json")
    counts = np.array(federation["counts"])
    counts = counts[np.argsort(-counts.sum(axis=1), kind="stable")]
    below = np.zeros(len(counts))
    for column, colour in enumerate(mpl.colormaps["tab10"].colors):
        if column < counts.shape[1]:
            held = np.flatnonzero(counts[:, column])
            axes.bar(held, counts[held, column], 0.9, bottom=below[held], color=colour)
            below += counts[:, column]
    axes.set(
        title="1. Clients hold few samples, each its own",
        xlabel=f"{len(counts)} clients; a colour is a class",
        ylabel="training samples",
        xticks=[],
    )


def draw_learning(axes: Axes, runs: list[RunResult]) -> None:
    for run in runs:
        style = style_of(run.method)
        rounds = [line["round"] for line in run.metrics]
        accuracy = [line["mean_accuracy"] for line in run.metrics]
        dash = tuple(float(length) for length in style.dash.split())
        axes.plot(
            rounds, accuracy, color=style.light, linestyle=(0, dash) if dash else "-",
            marker=MARKERS[style.marker], markersize=4, label=title_of(run.method),
        )  # fmt: skip
    axes.set(
        title="2. They learn together, or alone",
        xlabel="round",
        ylabel="mean test accuracy over clients",
        ylim=(0, 1.03),
    )
    axes.legend(loc="upper left", ncols=2, frameon=False)


def draw_clients(axes: Axes, runs: list[RunResult]) -> None:
    for run in runs:
        style = style_of(run.method)
        accuracy = np.sort([client.accuracy for client in run.clients])
        dash = tuple(float(length) for length in style.dash.split())
        axes.step(
            np.arange(1, len(accuracy) + 1), accuracy, where="mid", color=style.light,
            linestyle=(0, dash) if dash else "-",
        )  # fmt: skip
    axes.set(
        title="3. Every client ends with its own model",
        xlabel="clients, the least accurate first",
        ylabel="test accuracy of the client",
        ylim=(0, 1.03),
    )


def main(words: list[str]) -> None:
    """Write everything, or the tables alone."""
    if words:
        collect(Path(words[0]))
        draw(Path(words[0]), FIGURE)
    for page in PAGES:
        page.write_text(with_table(page))


if __name__ == "__main__":
    main(sys.argv[1:])
