"""What the page says in words: its heading, the number to remember, and the settings."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pfedfda.models import default_model
from pfedfda.report.groups import Entry, Group, seeds_of
from pfedfda.report.paper_table import PaperTable
from pfedfda.report.styles import title_of
from pfedfda.report.text import counted, number
from pfedfda.runs import RunResult
from pfedfda.runs.seed_table import p_text
from pfedfda.runs.statistics import LEVEL

SETTINGS = {  # by heading: a table of config.toml, and what is worth telling of it
    "federation": (
        "federation",
        "source partition alpha train_fraction validation_share shift shift_table partition_seed",
    ),
    "model": ("model", "model init"),
    "rounds": ("schedule", "rounds participation eval_every new_clients"),
    "training": ("training", "epochs batch_size lr momentum weight_decay"),
}


def title(groups: Sequence[Group], suite: PaperTable | None) -> str:
    """Return the heading of the page."""
    if suite is not None:
        return suite.title
    methods = {run.method for group in groups for run in group.runs}
    who = title_of(methods.pop()) if len(methods) == 1 else f"{len(methods)} methods"
    if len(groups) > 1:
        return f"{who} on {len(groups)} federations"
    return f"{who} on {_source(groups[0].runs[0])}"


def _source(run: RunResult) -> str:
    """Return where the images come from, in short: of a path only the name."""
    name = Path(_text(run.setting("federation", "source"))).name or "a federation"
    shift = run.setting("federation", "shift")
    shifted = run.setting("federation", "shift_table") or shift not in (None, "none")
    return f"{name}, shifted" if shifted else name


def about(groups: Sequence[Group]) -> list[str]:
    """Return what the runs are about, in short."""
    runs = [run for group in groups for run in group.runs]
    dates = sorted({run.machine["date"] for run in runs if "date" in run.machine})
    when = [" to ".join(dict.fromkeys([dates[0], dates[-1]]))] if dates else []
    if len(groups) > 1:
        return [f"{len(runs)} runs", *when]
    clients = max(len(run.clients) for run in runs)
    parts = [
        _source(runs[0]),
        counted(clients, "client") if clients else "",
        counted(max(run.rounds for run in runs), "round"),
        seeds_of(runs),
        *when,
    ]
    return [part for part in parts if part]


def warnings(groups: Sequence[Group]) -> list[str]:
    """Return a sentence for each run that stopped or has no results."""
    sentences = []
    for group in groups:
        for entry in group.entries:
            for run in entry.runs:
                if run.status != "complete":
                    why = f": {run.reason}" if run.reason else "."
                    rounds = counted(run.rounds, "round")
                    sentences.append(f"{run_label(entry, run)} stopped after {rounds}{why}")
        sentences += [f"{name} has no results yet." for name in group.unfinished]
    return sentences


def run_label(entry: Entry, run: RunResult) -> str:
    """Return what to call one of the runs of an entry."""
    return entry.label if entry.seeds == 1 else f"{entry.label}, {seeds_of([run])}"


def headline(
    groups: Sequence[Group], suite: PaperTable | None
) -> tuple[str, str, list[tuple[str, str]]]:
    """Return the number to remember, what it is, and some more."""
    if suite is not None:
        cells = [cell for row in suite.rows for cell in row.cells]
        differences = [abs(c.difference) for c in cells if c.difference is not None]
        if differences:
            mean = sum(differences) / len(differences)
            facts = [(number(max(differences), suite.digits), "largest difference")]
            many = f"{len(differences)} of {len(cells)} numbers"
            what = f"mean absolute difference from the paper, over {many}"
            return number(mean, suite.digits), what, facts
    ranked = [_ranked(group) for group in groups if _ranked(group)]
    if not ranked:
        return "–", "no evaluation yet", []
    if len(groups) > 1:
        winners = [title_of(entries[0][1].first.method) for entries in ranked]
        best = max(winners, key=winners.count)
        what = f"federations in which {best} has the highest mean accuracy"
        return f"{winners.count(best)} of {len(ranked)}", what, []
    (highest, first), *others = ranked[0]
    judged_on = first.first.judged_on
    rounds = first.rounds[-1] if first.rounds else first.first.rounds
    methods = {entry.first.method for _, entry in ranked[0]}
    kind = "methods" if len(methods) == len(ranked[0]) else "results"
    what = f"mean {judged_on} accuracy of {first.label}"
    what += f", the highest of {len(ranked[0])} {kind}," if others else ""
    what += f" over {counted(len(first.first.clients), 'client')}"
    what += f" and {first.seeds} seeds" if first.seeds > 1 else ""
    what += f" after {counted(rounds, 'round')}"
    facts = _over_seeds(groups[0], first)
    facts += [(f"+{number(highest - mean)}", f"over {e.label}, next") for mean, e in others[:1]]
    facts += [
        (number(first.number("weighted_accuracy")), f"weighted by {judged_on} size"),
        (number(first.number("worst_tenth_accuracy")), "worst tenth of the clients"),
        (number(first.number("std_accuracy")), "std over clients"),
    ]
    return number(highest), what, facts


def _over_seeds(group: Group, first: Entry) -> list[tuple[str, str]]:
    """Return the interval of the highest mean, and whether the lead is beyond chance."""
    rows = (
        [row for row in group.statistics.rows if row.method == first.label]
        if group.statistics
        else []
    )
    facts = []
    for row in rows:
        low, high = row.accuracy.low, row.accuracy.high
        if low is not None and high is not None:
            facts.append((f"{number(low)} to {number(high)}", "95 % interval over seeds"))
        if row.p_holm is not None:
            verdict = "beyond chance" if row.p_holm <= 1 - LEVEL else "not beyond chance"
            how = f"is the lead over {row.best_other} (p {p_text(row.p_holm)}, Holm)"
            facts.append((verdict, how))
    return facts


def _ranked(group: Group) -> list[tuple[float, Entry]]:
    """Return the evaluated entries with their mean accuracies, the best first."""
    means = [(entry.number("mean_accuracy"), entry) for entry in group.entries]
    known = [(mean, entry) for mean, entry in means if mean is not None]
    return sorted(known, key=lambda pair: -pair[0])


def settings(runs: Sequence[RunResult]) -> dict[str, list[str]]:
    """Return each kind of setting with its different values in the runs."""
    texts = {name: [_setting_text(run, name) for run in runs] for name in SETTINGS}
    kind, _, seeds = seeds_of(runs).partition(" ")
    texts |= {kind: [seeds], "machine": [_machine(run) for run in runs]}
    known = ("pfedfda", "torch", "python")
    texts["versions"] = [
        ", ".join(f"{name} {run.machine[name]}" for name in known if name in run.machine)
        for run in runs
    ]
    return {
        name: [text for text in dict.fromkeys(values) if text]
        for name, values in texts.items()
        if any(values)
    }


def _setting_text(run: RunResult, kind: str) -> str:
    """Return settings with their names; source and model go by their values alone."""
    table, names = SETTINGS[kind]
    texts = []
    for name in names.split():
        value = run.setting(table, name)
        unused = name == "alpha" and run.setting(table, "partition") in ("iid", "group")
        if name == "model" and value == "auto" and (size := run.image_size):
            texts.append(f"{default_model(*size)} (chosen for images of {size[0]}×{size[1]})")
        elif name in ("source", "model"):
            texts.append(_text(value))
        elif value not in (None, 0.0, "none") and not unused:
            texts.append(f"{name.replace('_', ' ')} {_text(value)}")
    return ", ".join(text for text in texts if text)


def _machine(run: RunResult) -> str:
    texts = [run.machine[name] for name in ("system", "processor") if name in run.machine]
    texts += [f"{run.machine['cores']} cores"] if "cores" in run.machine else []
    device = run.setting("engine", "device")
    return ", ".join(texts + ([f"device {_text(device)}"] if device else []))


def hyperparameters(run: RunResult) -> str:
    """Return the hyper-parameters of the method."""
    fields = [table for table in run.config["methods"].values() if isinstance(table, dict)]
    return ", ".join(f"{n} {_text(v)}" for table in fields for n, v in table.items()) or "none"


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "" if value is None else str(value)
