"""Parts of docs/reproduction.md: how much of the paper is measured, and all measures.

Both are computed from the records in results/, as `write_reproduction.py` does with the rest.
"""

from collections.abc import Sequence
from typing import Any

from pfedfda.paper.records import Difference, difference, matching
from pfedfda.paper.reproduce import paper_table
from pfedfda.paper.suites import SUITES, Suite
from pfedfda.report.styles import title_of

OURS = "pfedfda"
MEASURES = {
    "mean_accuracy": "accuracy",
    "worst_tenth_accuracy": "worst tenth",
    "mean_balanced_accuracy": "balanced",
    "test_loss": "NLL",
    "pooled_brier": "Brier",
    "pooled_ece": "ECE",
}
LARGE = 1e6


def overview(records: Sequence[Any]) -> str:
    """Return a table of the paper's tables: cells that have a number of ours, and who leads."""
    lines = [
        "## How much of the paper is measured",
        "",
        "A cell counts if the paper has a number there and we have one beside it. pFedFDA (our "
        "default) leads a column if it is above every other method of ours by more than two "
        "standard errors over clients, ties if it is within two of the best other, and loses "
        "otherwise.",
        "",
        "| table | cells of the paper | with a number of ours | seeds | leads | ties | loses |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    totals = [0, 0, 0, 0, 0]
    for suite in SUITES.values():
        if suite.published is None:
            continue
        table = paper_table(suite, suite.rows, suite.columns, list(records))
        cells = [c for row in table.rows for c in row.cells if c.paper_mean is not None]
        filled = [cell for cell in cells if cell.ours_mean is not None]
        seeds = sorted({cell.seeds for cell in filled})
        counts = [len(cells), len(filled), *verdicts(suite, records)]
        totals = [total + count for total, count in zip(totals, counts, strict=True)]
        told = " to ".join(dict.fromkeys(str(n) for n in (seeds[0], seeds[-1]))) if seeds else "-"
        number = suite.key.removeprefix("table")
        lines.append(
            f"| {number} | {counts[0]} | {counts[1]} | {told} | "
            f"{' | '.join(str(count) for count in counts[2:])} |"
        )
    lines.append(
        f"| all | {totals[0]} | {totals[1]} | | {' | '.join(str(n) for n in totals[2:])} |"
    )
    lines += ["", "Tables 6 and 9 have times, and Table 5 has no method but pFedFDA.", ""]
    return "\n".join(lines)


def verdicts(suite: Suite, records: Sequence[Any]) -> tuple[int, int, int]:
    """Return in how many columns pFedFDA leads, ties and loses."""
    if OURS not in suite.rows or suite.key == "table6":
        return 0, 0, 0
    counts = [0, 0, 0]
    for column in suite.columns:
        found = {row: suite.shown(row, column) for row in suite.rows}
        kept = {row: matching(shown.need, records) for row, shown in found.items()}
        common = [r for r in kept if r != OURS and r != "local" and kept[r]]
        if not kept[OURS] or not common or found[OURS].read(kept[OURS][0]) is None:
            continue
        gaps = [_difference(found[row].read, kept[OURS], kept[row]) for row in common]
        lowest = min(gaps, key=lambda gap: gap.mean)
        clear = abs(lowest.mean) > 2 * lowest.standard_error
        counts[(0 if lowest.mean > 0 else 2) if clear else 1] += 1
    return counts[0], counts[1], counts[2]


def _difference(read: Any, ours: Sequence[Any], others: Sequence[Any]) -> Difference:
    """Return pFedFDA less another method, over the seeds that both have."""
    pairs = [(one, other) for one in ours for other in others if one["seed"] == other["seed"]]
    if not pairs:
        pairs = [(ours[0], others[0])]
    found = []
    for one, other in pairs:
        own, rival = read(one), read(other)
        if own is None or rival is None:
            continue
        if own[0] == one["mean_accuracy"]:
            found.append(difference(one, other))
            continue
        clients = one["federation"]["clients"]
        error = ((own[1] ** 2 + rival[1] ** 2) / clients) ** 0.5
        found.append(Difference(own[0] - rival[0], error, paired=False))
    mean = sum(gap.mean for gap in found) / len(found)
    # Clients are the same with every seed, so more seeds make the error no smaller.
    error = sum(gap.standard_error for gap in found) / len(found)
    return Difference(mean, error, paired=all(gap.paired for gap in found))


def measured(records: Sequence[Any]) -> dict[str, tuple[int, list[Any]]]:
    """Return for each federation the seed with which most methods have all measures, and these."""
    found: dict[tuple[str, int], list[Any]] = {}
    for record in records:
        need = record["need"]
        if "pooled_ece" in record and not need["hyperparameters"] and not need["settings"]:
            found.setdefault((need["federation"], record["seed"]), []).append(record)
    best: dict[str, tuple[int, list[Any]]] = {}
    for (federation, seed), own in sorted(found.items()):
        if len(own) > len(best.get(federation, (0, []))[1]):
            best[federation] = seed, own
    return {name: pair for name, pair in best.items() if len(pair[1]) > 2}


def measures(federation: str, records: Sequence[Any]) -> str:
    """Return the table of all methods on a federation with one seed, the most accurate first."""
    seed, own = measured(records)[federation]
    rounds = {record["rounds"] for record in own}
    lines = [
        f"## Every method on {federation}",
        "",
        f"Seed {seed}; the measures are explained "
        "[with the other results of a run](results.md#beyond-accuracy). Worst tenth is the mean "
        "accuracy of the worst tenth of the clients. NLL, Brier score and "
        "ECE are better when lower.",
        "",
        f"| method | {' | '.join(MEASURES.values())} |",
        "|---|" + "---:|" * len(MEASURES),
    ]
    for record in sorted(own, key=lambda record: -record["mean_accuracy"]):
        cells = [
            f"{record[name]:.3f}" if record[name] < LARGE else f"{record[name]:.0e}"
            for name in MEASURES
        ]
        shorter = record["rounds"] < max(rounds)
        name = title_of(record["need"]["method"])
        name += f" ({record['rounds']} rounds)" if shorter else ""
        lines.append(f"| {name} | {' | '.join(cells)} |")
    methods = " ".join(sorted(record["need"]["method"] for record in own))
    lines += [
        "",
        f"`pfedfda reproduce table1 --columns {federation} --seeds {seed} --methods {methods}` "
        "makes the runs of this table.",
        "",
    ]
    return "\n".join(lines)
