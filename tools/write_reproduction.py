"""Write what the files in results/ say: ``python tools/write_reproduction.py``.

That is docs/reproduction.md with its figures, and the table in README.md. The files come from
``pfedfda reproduce SUITE --results results``. All on the page is computed from them, so it cannot
say anything else; what explains the numbers is in docs/differences.md.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from reproduction_overview import measured, measures, overview

from pfedfda.paper.communication import paper_loads
from pfedfda.paper.published import published_table
from pfedfda.paper.records import difference, matching, need_of, read_records
from pfedfda.paper.reproduce import tables_of_records
from pfedfda.paper.seed_tables import federation_tables
from pfedfda.paper.suites import SUITES
from pfedfda.report import PaperCell, PaperTable
from pfedfda.report.styles import MARKERS, style_of, title_of
from pfedfda.runs.seed_table import SeedTable, interval_text, p_text

ROOT = Path(__file__).parent.parent
BEGIN = "<!-- Table 1 in short, by tools/write_reproduction.py -->\n"
END = "<!-- end of Table 1 -->\n"
PRESETS = ("pfedfda", "pfedfda-paper", "pfedfda-released")
INTRODUCTION = """\
# The paper's numbers and ours

This page is written by `python tools/write_reproduction.py` from the files in `results/`, each the
record of one run by `pfedfda reproduce`. A cell shows our mean over clients with the standard
deviation over clients in brackets, the paper's numbers below it in italics, and the difference of
the means, in bold if it is larger than two standard errors over clients (as if the two means were
independent). Below each table stands how many seeds it has: one seed says nothing about others, and
its differences are over clients alone ([Several seeds](statistics.md)).

What explains the differences is in [Where our numbers and the paper's differ](differences.md); what
the paper does not say, and what we took in its place, is listed in
`pfedfda.paper.settings.NOT_STATED`.

The paper has no numbers by client, so errors of differences from it cannot be paired. Records that
are made from now on hold the counts of every client, from which `pfedfda.paper.records.difference`
computes the paired error between two of our own runs; those behind this page are older, and lack
them, unless a table below says that it is paired.

A note below a table says which of its records on corrupted federations have shift version 1; the
others, and all that are made from now on, have version 2 ([Federations](federations.md#shift)).

The runs were made on: {machines}.
"""


def main() -> None:
    """Write the page and the figures."""
    (ROOT / "docs" / "reproduction.md").write_text(page(ROOT / "results"), encoding="utf-8")
    readme = ROOT / "README.md"
    text = with_headline(readme.read_text(encoding="utf-8"), ROOT / "results")
    readme.write_text(text, encoding="utf-8")
    records = current_records(ROOT / "results")
    for federation in learning_curves(records):
        draw_curves(federation, records, ROOT / "docs" / "figures")
    for federation in with_betas(records):
        draw_betas(federation, records, ROOT / "docs" / "figures")


def page(results: Path) -> str:
    """Return the text of the page."""
    records = current_records(results)
    parts = [INTRODUCTION.format(machines="; ".join(sorted({machine(r) for r in records})) or "-")]
    parts.append(overview(records))
    for suite, table in tables_of_records(results, SUITES.values()):
        parts.append(f"## {table.title}\n\n{markdown(table, suite.key)}")
    for federation, table in federation_tables(records).items():
        parts.append(over_seeds(federation, table))
    for federation in measured(records):
        parts.append(measures(federation, records))
    for federation in with_pairs(records):
        parts.append(leads(federation, records))
    for federation in with_betas(records):
        parts.append(betas(federation, records))
    for federation in learning_curves(records):
        parts.append(time_to_accuracy(federation, records))
    parts.append(communication())
    return "\n".join(parts)


def current_records(results: Path) -> list[Any]:
    """Return the records that the tables show: of today's settings, with the most rounds."""
    records = read_records(results)
    return [record for record in records if record in matching(need_of(record), records)]


def machine(record: Any) -> str:
    about = record["machine"]
    return (
        f"{about['cores']} cores, {about['system']}, Python {about['python']}, torch "
        f"{about['torch']}"
    )


def markdown(table: PaperTable, key: str) -> str:
    """Return a table of the paper beside ours."""
    lines = [
        "| | " + " | ".join(table.columns) + " |",
        "|---|" + "---:|" * len(table.columns),
    ]
    for row in table.rows:
        cells = [cell_text(cell, table.digits) for cell in row.cells]
        lines.append(f"| {row.label} | " + " | ".join(cells) + " |")
    notes = [f"- {note}" for note in [seeds_text(table), *table.notes]]
    columns = " ".join(column.split(" (")[0] for column in table.columns)  # a heading has its unit
    command = f"pfedfda reproduce {key} --columns {columns}"
    for note in table.notes:
        if match := re.fullmatch(r"(\d+) rounds instead of \d+: all cells\.", note):
            command += f" --rounds {match[1]}"
    told = f"`{command}` makes the runs of this table."
    others = [row.label for row in table.rows if row.label not in SUITES[key].rows]
    if others:
        told += f" Rows besides the paper's need `--methods {' '.join(others)}`."
    return "\n".join([*lines, "", told, "", *notes, ""])


def seeds_text(table: PaperTable) -> str:
    """Return how many seeds the cells of a table have."""
    cells = [cell for row in table.rows for cell in row.cells if cell.ours_mean is not None]
    counts = sorted({cell.seeds for cell in cells})
    return f"Seeds per cell: {' to '.join(dict.fromkeys(map(str, [counts[0], counts[-1]])))}."


def over_seeds(federation: str, table: SeedTable) -> str:
    """Return the methods of a federation with several seeds, compared."""
    lines = [
        f"## Over seeds on {federation}",
        "",
        f"Means over seeds {', '.join(map(str, table.seeds))}, each of which draws {table.varies}.",
        "",
        "| method | mean, 95 % interval | less the best other | p, Holm |",
        "|---|---:|---:|---:|",
    ]
    for row in table.rows:
        difference = "-" if row.difference is None else interval_text(row.difference, "+")
        mean = interval_text(row.accuracy)
        lines.append(f"| {row.method} | {mean} | {difference} | {p_text(row.p_holm)} |")
    return "\n".join([*lines, ""])


def cell_text(cell: PaperCell, digits: int) -> str:
    def number(mean: float, std: float | None) -> str:
        return f"{mean:.{digits}f}" + ("" if std is None else f" ({std:.{digits}f})")

    lines = ["-" if cell.ours_mean is None else number(cell.ours_mean, cell.ours_std)]
    if cell.low is not None and cell.high is not None:
        lines.append(f"[{number(cell.low, None)}, {number(cell.high, None)}]")
    if cell.paper_mean is not None:
        lines.append(f"*{number(cell.paper_mean, cell.paper_std)}*")
    if cell.difference is not None:
        lines.append(difference_text(cell, digits))
    return "<br>".join(lines)


def difference_text(cell: PaperCell, digits: int) -> str:
    text = f"{cell.difference:+.{digits}f}"
    clear = cell.standard_errors is not None and abs(cell.standard_errors) > 2
    return f"**{text}**" if clear else text


def with_headline(text: str, results: Path) -> str:
    """Return the README's text with the table of the headline as the results have it."""
    tables = {suite.key: table for suite, table in tables_of_records(results, SUITES.values())}
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    lines = headline(tables["table1"]) if "table1" in tables else ["No runs yet."]
    return before + BEGIN + "\n".join(["", *lines, "", ""]) + END + after


def headline(table: PaperTable) -> list[str]:
    """Return Table 1 with 25 % of the samples in a few rows: the presets and the best other."""
    places = [place for place, column in enumerate(table.columns) if column.endswith("@25")]
    names = [table.columns[place].partition("@")[0].upper() for place in places]
    lines = [f"| | {' | '.join(names)} |", "|---|" + "---:|" * len(places)]
    rows = {row.label: [row.cells[place] for place in places] for row in table.rows}
    others = [name for name in rows if name not in PRESETS]
    best = [max(others, key=lambda name: rows[name][n].ours_mean or 0) for n in range(len(places))]
    shown = {title_of(name): rows[name] for name in ("local", "fedavg") if name in rows}
    title = f"best of the {len(others)} others: {', '.join(map(title_of, best))}"
    shown[title] = [rows[name][n] for n, name in enumerate(best)]
    shown |= {f"`{name}`": rows[name] for name in PRESETS if name in rows}
    for title, cells in shown.items():
        found = [in_short(cell.ours_mean, cell.ours_std) for cell in cells]
        lines.append(f"| {title} | {' | '.join(found)} |")
    found = [in_short(cell.paper_mean, cell.paper_std) for cell in rows["pfedfda"]]
    return [*lines, f"| pFedFDA in the paper | {' | '.join(found)} |"]


def in_short(mean: float | None, std: float | None) -> str:
    return "-" if mean is None else f"{mean:.3f} ({std:.2f})"


def with_pairs(records: Sequence[Any]) -> list[str]:
    """Return the federations on which another method has the same clients as pFedFDA."""
    return sorted(
        {
            record["need"]["federation"]
            for record in records
            for ours in pfedfda_on(record["need"]["federation"], records)
            if record is not ours and plain(record) and difference(ours, record).paired
        }
    )


def pfedfda_on(federation: str, records: Sequence[Any]) -> list[Any]:
    """Return the record of the default pFedFDA on a federation, if there is one."""
    own = [r for r in records if plain(r) and r["need"]["federation"] == federation]
    return [record for record in own if record["need"]["method"] == "pfedfda"]


def leads(federation: str, records: Sequence[Any]) -> str:
    """Return by how much pFedFDA differs from the other methods, over the same clients."""
    (ours,) = pfedfda_on(federation, records)
    lines = [
        f"## pfedfda less the others on {federation}",
        "",
        "Differences of the mean accuracy, in bold if larger than two standard errors over "
        "clients; seed 0. A paired error is that of the differences of the same clients.",
        "",
        "| method | difference | standard error | |",
        "|---|---:|---:|---|",
    ]
    for record in records:
        if plain(record) and record["need"]["federation"] == federation and record is not ours:
            found = difference(ours, record)
            text = f"{found.mean:+.3f}"
            text = f"**{text}**" if abs(found.mean) > 2 * found.standard_error else text
            kind = "paired" if found.paired else "unpaired"
            name = record["need"]["method"]
            lines.append(f"| {name} | {text} | {found.standard_error:.3f} | {kind} |")
    return "\n".join([*lines, ""])


def learning_curves(records: Sequence[Any]) -> list[str]:
    """Return the federations on which several methods were followed over their rounds."""
    followed: dict[str, set[str]] = {}
    for record in records:
        if plain(record) and len(record["by_round"]) > 1:
            followed.setdefault(record["need"]["federation"], set()).add(record["need"]["method"])
    return sorted(key for key, methods in followed.items() if len(methods) > 2)


def plain(record: Any) -> bool:
    need = record["need"]
    return record["seed"] == 0 and not need["hyperparameters"] and not need["settings"]


def time_to_accuracy(federation: str, records: Sequence[Any]) -> str:
    """Return how long each method took to reach the final accuracy of the released preset."""
    own = [r for r in records if plain(r) and r["need"]["federation"] == federation]
    released = [r for r in own if r["need"]["method"] == "pfedfda-released"]
    figure = figure_name("learning", federation)
    lines = [f"## Learning on {federation}", "", f"![accuracy by round](figures/{figure})", ""]
    if released:
        goal = released[0]["mean_accuracy"]
        lines += [
            f"Until the final accuracy of the preset `pfedfda-released`, {goal:.3f}, is reached "
            f"(evaluated after every 20th round, so rounds are to the next 20; seconds include the "
            f"evaluations, and the machine was shared, so they are rough):",
            "",
            "| method | rounds | seconds |",
            "|---|---:|---:|",
        ]
        for record in own:
            reached = [line for line in record["by_round"] if line["mean_accuracy"] >= goal]
            cells = (
                (f"{reached[0]['round']}", f"{reached[0]['seconds']:.0f}")
                if reached
                else (f"not in {record['rounds']}", "-")
            )
            lines.append(f"| {record['need']['method']} | {cells[0]} | {cells[1]} |")
        lines.append("")
    return "\n".join(lines)


def figure_name(kind: str, federation: str) -> str:
    return f"{kind}-{federation.replace('@', '-')}.svg"


def draw_curves(federation: str, records: Sequence[Any], folder: Path) -> None:
    """Draw accuracy by round of all methods on a federation."""
    figure, axes = plt.subplots(figsize=(8, 4.5))
    # The legend is in the order in which the curves end, and beside them: none is hidden.
    for record in sorted(records, key=lambda record: -record["mean_accuracy"]):
        if plain(record) and record["need"]["federation"] == federation:
            name = record["need"]["method"]
            rounds = [line["round"] for line in record["by_round"]]
            accuracies = [line["mean_accuracy"] for line in record["by_round"]]
            style = style_of(name)
            dash = tuple(float(length) for length in style.dash.split())
            axes.plot(
                rounds, accuracies, color=style.light, linestyle=(0, dash) if dash else "-",
                marker=MARKERS[style.marker], markersize=4, linewidth=1.4, label=title_of(name),
            )  # fmt: skip
    axes.set_xlabel("round")
    axes.set_ylabel("mean test accuracy over clients")
    axes.set_title(federation)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))
    save(figure, folder / figure_name("learning", federation))


def with_betas(records: Sequence[Any]) -> list[str]:
    """Return the federations with corrupted clients on which clients fitted a β."""
    found = {r["need"]["federation"] for r in records if plain(r) and len(r["betas"] or {}) > 1}
    return sorted(found)


def records_with_betas(federation: str, records: Sequence[Any]) -> list[Any]:
    own = [r for r in records if plain(r) and r["need"]["federation"] == federation]
    return [record for record in own if record["betas"]]


def betas(federation: str, records: Sequence[Any]) -> str:
    """Return the figure of β by corruption, and what it says on average."""
    lines = [
        f"## β by corruption on {federation}",
        "",
        f"![β by corruption](figures/{figure_name('beta', federation)})",
        "",
        "Means over the clients of a corruption, lines to one standard error on both sides. 0 is "
        "the Gaussians of the federation, 1 the client's own. On average over all:",
        "",
        "| method | β of corrupted clients | β of the others |",
        "|---|---:|---:|",
    ]
    for record in records_with_betas(federation, records):
        shifted = [value for kind, value in record["betas"].items() if kind != "clean"]
        clients = sum(value["clients"] for value in shifted)
        mean = sum(value["mean"] * value["clients"] for value in shifted) / clients
        clean = record["betas"]["clean"]["mean"]
        lines.append(f"| {record['need']['method']} | {mean:.3f} | {clean:.3f} |")
    return "\n".join([*lines, ""])


def draw_betas(federation: str, records: Sequence[Any], folder: Path) -> None:
    """Draw the mean β by corruption, the presets of pFedFDA side by side."""
    own = records_with_betas(federation, records)
    kinds = sorted(own[0]["betas"], key=lambda kind: own[0]["betas"][kind]["mean"])
    figure, axes = plt.subplots(figsize=(8, 4.5))
    for place, record in enumerate(own):
        style = style_of(record["need"]["method"])
        values = [record["betas"][kind] for kind in kinds]
        axes.errorbar(
            [value["mean"] for value in values],
            [row + 0.2 * (place - (len(own) - 1) / 2) for row in range(len(kinds))],
            # The deviation in a record is that of these clients, not yet of what they stand for.
            xerr=[value["std"] / max(value["clients"] - 1, 1) ** 0.5 for value in values],
            fmt=MARKERS[style.marker], color=style.light, markersize=5, elinewidth=1,
            label=title_of(record["need"]["method"]),
        )  # fmt: skip
    axes.set_yticks(range(len(kinds)), [kind.replace("_", " ") for kind in kinds])
    axes.set_xlabel("mean β over the clients of a corruption: 0 global, 1 local")
    axes.set_title(federation)
    axes.grid(alpha=0.3, axis="x")
    axes.legend(fontsize=8, loc="lower right")
    save(figure, folder / figure_name("beta", federation))


def save(figure: Figure, path: Path) -> None:
    mpl.rcParams["svg.hashsalt"] = "pfedfda"
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def communication() -> str:
    """Return Table 8, which is counted."""
    table = published_table("table8")
    lines = [
        f"## Table 8: {table.caption}",
        "",
        "Counted from the networks (`pfedfda reproduce table8`); the paper's numbers in italics.",
        "",
        "| | " + " | ".join(table.columns) + " |",
        "|---|" + "---:|" * len(table.columns),
    ]
    for load in paper_loads():
        cells = [
            f"{load.backbone:,}<br>*{table.cell(load.network, 'backbone').printed}*",
            f"{load.linear:,}<br>*{table.cell(load.network, 'linear').printed}*",
            f"{load.gaussian:,}<br>*{table.cell(load.network, 'gaussian').printed}*",
            f"{load.overhead:.3f}<br>*{table.cell(load.network, 'overhead').printed}*",
        ]
        lines.append(f"| {load.network} | " + " | ".join(cells) + " |")
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    main()
