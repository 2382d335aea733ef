"""The report of runs: one HTML file that needs nothing else, and figures for papers."""

import base64
import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import quote

from pfedfda.errors import InputError, printable
from pfedfda.files import inside, write_text
from pfedfda.models import default_model
from pfedfda.report import charts, tables
from pfedfda.report.charts import Bars, Chart
from pfedfda.report.groups import Entry, Group, read_groups, seeds_of
from pfedfda.report.paper_table import PaperTable
from pfedfda.report.styles import title_of
from pfedfda.report.svg import Drawing
from pfedfda.report.tables import Table
from pfedfda.report.text import counted, number, shorten, time_unit
from pfedfda.runs import RunResult
from pfedfda.runs.layout import CLIENTS, CONFIG, METRICS, NEW_CLIENTS, SUMMARY


@dataclass(frozen=True)
class Section:
    """A part of the page.

    Parameters
    ----------
    heading
        Its heading.
    text
        A sentence or two on how to read it.
    figure
        A chart, or several to choose from with switches.
    tables
        Tables, each with the entry that it is about, if it is about one.
    details
        Tables that are folded away, with what to press for them.
    notes
        Sentences in a list at the end, with its heading.
    """

    heading: str
    text: str = ""
    figure: "Figure | None" = None
    tables: Sequence[tuple[Entry | None, Table]] = ()
    details: Sequence[tuple[str, Table]] = ()
    notes: tuple[str, Sequence[str]] | None = None


@dataclass(frozen=True)
class Figure:
    """Charts to choose from.

    Parameters
    ----------
    key
        An identifier that no other figure of the page has.
    views
        The charts or bars; with two switches, those of the second for each choice of the first.
    switches
        For each switch its name and its choices; the first is chosen at the beginning.
    """

    key: str
    views: Sequence[Chart | Bars]
    switches: Sequence[tuple[str, Sequence[str]]] = ()

    def choice(self, place: int) -> tuple[int, int]:
        """Return which choices of the two switches show a view."""
        second = len(self.switches[1][1]) if len(self.switches) > 1 else 1
        return divmod(place, second)


def write_report(
    runs: Sequence[Path],
    folder: Path,
    *,
    title: str | None = None,
    suite: PaperTable | None = None,
) -> Path:
    """Write ``report.html`` and ``figures/`` from the files of runs, and return the page's path.

    Parameters
    ----------
    runs
        Folders of runs or comparisons; runs that stopped early are shown with what they have.
    folder
        Where the report goes; it is made if need be.
    title
        The heading of the page; by default made from the methods and the federation.
    suite
        The paper's numbers beside ours, for runs that repeat one of its tables.
    """
    from pfedfda.report.figures import draw_group  # Matplotlib takes long to import

    groups = read_groups(runs)
    page, figures = inside(folder, "report.html"), inside(folder, "figures")
    try:
        figures.mkdir(parents=True, exist_ok=True)
        drawn: list[Path] = []
        for place, group in enumerate(groups):
            drawn += draw_group(group, figures, f"{place + 1}-" if len(groups) > 1 else "")
        write_text(page, render(groups, folder, title or _title(groups, suite), suite, drawn))
    except OSError as error:
        raise InputError(f"The report cannot be written to {folder} ({error}).") from error
    return page


def render(
    groups: Sequence[Group],
    folder: Path,
    title: str,
    suite: PaperTable | None = None,
    figures: Sequence[Path] = (),
) -> str:
    """Return the page.

    Parameters
    ----------
    groups
        The runs by federation.
    folder
        Where the page will be; links are relative to it.
    title
        Its heading.
    suite
        The paper's numbers beside ours.
    figures
        The files of the figures, to link to.
    """
    from jinja2 import Environment, PackageLoader
    from markupsafe import Markup

    resources = files("pfedfda.report")
    script = resources.joinpath("page.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    # Text in the page may come from anybody: it is escaped, and control characters are replaced.
    environment = Environment(
        loader=PackageLoader("pfedfda.report"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: (
            printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value
        ),
    )
    environment.globals.update(Drawing=Drawing, number=number, shorten=shorten, time_unit=time_unit)
    big, what, facts = _headline(groups, suite)
    return environment.get_template("page.html").render(
        title=title,
        style=Markup(resources.joinpath("page.css").read_text(encoding="utf-8")),
        script=Markup(script),
        # The policy lets nothing in from outside, and runs no script but the page's own.
        policy=f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'",
        about=" · ".join(_about(groups)),
        big=big,
        what=what,
        facts=facts,
        warnings=_warnings(groups),
        legend={entry.index: entry for group in groups for entry in group.entries}.values(),
        suite=_suite_section(suite) if suite else None,
        groups=[
            (group.heading, _sections(group, f"g{place}")) for place, group in enumerate(groups)
        ],
        settings=_settings([run for group in groups for run in group.runs]),
        hyperparameters={
            entry.label: _hyperparameters(entry.first)
            for group in groups
            for entry in group.entries
        },
        files=[
            (_run_label(entry, run), _relative(run.folder, folder), _links(run, folder))
            for group in groups
            for entry in group.entries
            for run in entry.runs
        ],
        figures=[(path.name, quote(_relative(path, folder))) for path in figures],
    )


def _title(groups: Sequence[Group], suite: PaperTable | None) -> str:
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


def _about(groups: Sequence[Group]) -> list[str]:
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


def _warnings(groups: Sequence[Group]) -> list[str]:
    warnings = []
    for group in groups:
        for entry in group.entries:
            for run in entry.runs:
                if run.status != "complete":
                    why = f": {run.reason}" if run.reason else "."
                    rounds = counted(run.rounds, "round")
                    warnings.append(f"{_run_label(entry, run)} stopped after {rounds}{why}")
        warnings += [f"{name} has no results yet." for name in group.unfinished]
    return warnings


def _run_label(entry: Entry, run: RunResult) -> str:
    return entry.label if entry.seeds == 1 else f"{entry.label}, {seeds_of([run])}"


def _headline(
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
    rounds = first.evaluations[-1].round if first.evaluations else first.first.rounds
    methods = {entry.first.method for _, entry in ranked[0]}
    kind = "methods" if len(methods) == len(ranked[0]) else "results"
    what = f"mean {judged_on} accuracy of {first.label}"
    what += f", the highest of {len(ranked[0])} {kind}," if others else ""
    what += f" over {counted(len(first.clients), 'client')}"
    what += f" and {first.seeds} seeds" if first.seeds > 1 else ""
    what += f" after {counted(rounds, 'round')}"
    facts = [(f"+{number(highest - mean)}", f"over {e.label}, next") for mean, e in others[:1]]
    facts += [
        (number(first.number("weighted_accuracy")), f"weighted by {judged_on} size"),
        (number(first.number("worst_tenth_accuracy")), "worst tenth of the clients"),
        (number(first.number("std_accuracy")), "std over clients"),
    ]
    return number(highest), what, facts


def _ranked(group: Group) -> list[tuple[float, Entry]]:
    """Return the evaluated entries with their mean accuracies, the best first."""
    means = [(entry.number("mean_accuracy"), entry) for entry in group.entries]
    known = [(mean, entry) for mean, entry in means if mean is not None]
    return sorted(known, key=lambda pair: -pair[0])


def _suite_section(suite: PaperTable) -> Section:
    return Section(
        "The paper’s numbers and ours",
        "As the paper reports them, as they came out here, and ours less the paper’s.",
        tables=[(None, tables.paper(suite))],
        notes=("What differs from the paper’s setting", suite.notes) if suite.notes else None,
    )


def _sections(group: Group, key: str) -> list[Section]:
    entries = group.entries
    sections = [_comparison_section(entries)]
    evaluated = [entry for entry in entries if entry.evaluations]
    if evaluated:
        sections.append(_rounds_section(evaluated, key))
    if any(entry.clients for entry in entries):
        sections.append(_clients_section(entries, key))
    sections += _beta_sections(entries, key)
    if any(entry.new_clients for entry in entries):
        text = (
            "Clients that never took part in training, on their own images and with these images "
            "corrupted: mean accuracy ± standard deviation over clients."
        )
        table = tables.new_clients(entries)
        sections.append(Section("New clients", text, tables=[(None, table)]))
    if group.counts is not None:
        largest = max(max(row) for row in group.counts.counts)
        text = (
            "Training samples by client and class. The area of a circle is their number; the "
            f"largest stands for {largest:,}."
        )
        figure = Figure(f"{key}-classes", [charts.bubbles(group.counts)])
        sections.append(Section("Who holds what", text, figure))
    text = (
        "Training and evaluation on the clock; inside the clients, the time of all clients is "
        "summed, whichever worker they ran on."
    )
    bars = [charts.wall_time(entries), charts.client_time(entries)]
    switch = ("Time", ["on the clock", "inside the clients, summed"])
    sections.append(Section("Time by component", text, Figure(f"{key}-time", bars, [switch])))
    if evaluated:
        sections.append(_bytes_section(evaluated, key))
    return sections


def _comparison_section(entries: Sequence[Entry]) -> Section:
    judged_on = entries[0].first.judged_on
    text = (
        f"{judged_on.capitalize()} accuracy after the last evaluation. The weighted mean counts "
        f"every {judged_on} sample the same; the worst tenth is the mean over the clients with the "
        f"lowest accuracy."
    )
    details = []
    if any(entry.seeds > 1 for entry in entries):
        text += " All numbers of a method are means over its seeds."
        details.append(("Every run", tables.every_run(entries)))
    heading = "Comparison" if len(entries) > 1 else "Result"
    return Section(heading, text, tables=[(None, tables.comparison(entries))], details=details)


def _rounds_section(entries: Sequence[Entry], key: str) -> Section:
    judged_on = entries[0].first.judged_on.capitalize()
    text = f"{judged_on} accuracy of all clients after each evaluated round."
    if any(entry.seeds > 1 for entry in entries):
        text += " A line is the mean over seeds; the shade reaches from the lowest to the highest."
    views = [
        charts.accuracy_by_round(entries, accuracy, by_time)
        for accuracy in charts.ACCURACY_CHOICES
        for by_time in (False, True)
    ]
    switches = [
        ("Accuracy", list(charts.ACCURACY_CHOICES)),
        ("Horizontal axis", ["by round", "by time"]),
    ]
    return Section("Accuracy by round", text, Figure(f"{key}-accuracy", views, switches))


def _clients_section(entries: Sequence[Entry], key: str) -> Section:
    chart = charts.accuracy_by_client(entries)
    text = ""
    if chart.shaded:
        text = "Each method sorts the clients for itself. " if len(entries) > 1 else ""
        text += "The shaded part is the tenth of the clients with the lowest accuracy."
    details = [("Every client", tables.clients(entries))]
    figure = Figure(f"{key}-clients", [chart])
    return Section("Accuracy by client", text, figure, details=details)


def _beta_sections(entries: Sequence[Entry], key: str) -> list[Section]:
    """Return what is known about β: by corruption where there are any, otherwise by client."""
    sections = []
    for column in charts.beta_columns(entries):
        name, chosen = charts.beta_name(column), charts.with_beta(entries, column)
        if charts.is_shifted(chosen):
            heats = [
                (entry, tables.heat(charts.beta_by_corruption(entry, column))) for entry in chosen
            ]
            text = "Mean over clients: 0 is the global estimate, 1 the client’s own."
            sections.append(Section(f"{name} by corruption and severity", text, tables=heats))
        else:
            text = "How far each client leans on its own estimate (1) or on the global one (0)"
            text += "." if charts.are_few(chosen) else ", by its number of training samples."
            figure = Figure(f"{key}-{column}", [charts.beta_by_client(chosen, column)])
            sections.append(Section(f"{name} by client", text, figure))
    return sections


def _bytes_section(entries: Sequence[Entry], key: str) -> Section:
    text = (
        "Content of all tensors that crossed between server and clients. An amount per round is "
        "the mean since the evaluation before; in the last round every client takes part."
    )
    views = [
        charts.bytes_by_round(entries, direction, total)
        for direction in ("up", "down")
        for total in (False, True)
    ]
    switches = [
        ("Direction", ["up, clients to server", "down, server to clients"]),
        ("Amount", ["per round", "so far"]),
    ]
    return Section("Bytes by round", text, Figure(f"{key}-bytes", views, switches))


def _settings(runs: Sequence[RunResult]) -> dict[str, list[str]]:
    """Return each kind of setting with its different values in the runs."""
    wanted: dict[str, Callable[[RunResult], str]] = {
        "federation": _federation,
        "model": _model,
        "rounds": lambda run: _joined(
            run,
            "schedule",
            rounds="{}",
            participation="participation {}",
            eval_every="evaluated every {}",
            new_clients="share of new clients {}",
        ),
        "training": lambda run: _joined(
            run,
            "training",
            epochs="{} epochs",
            batch_size="batches of {}",
            lr="learning rate {}",
            momentum="momentum {}",
            weight_decay="weight decay {}",
        ),
        "machine": _machine,
        "versions": lambda run: ", ".join(
            f"{name} {run.machine[name]}"
            for name in ("pfedfda", "torch", "python")
            if name in run.machine
        ),
    }
    values = {name: [*dict.fromkeys(map(write, runs))] for name, write in wanted.items()}
    name, _, seeds = seeds_of(runs).partition(" ")
    values[name] = [seeds]
    return {name: [text for text in texts if text] for name, texts in values.items() if any(texts)}


def _joined(run: RunResult, table: str, **texts: str) -> str:
    values = [(text, run.setting(table, name)) for name, text in texts.items()]
    return ", ".join(text.format(_text(v)) for text, v in values if v not in (None, 0.0))


def _federation(run: RunResult) -> str:
    texts = {"source": "{}", "partition": "partition {}"}
    partition = run.setting("federation", "partition")
    if partition in (None, "auto", "dirichlet", "client-dirichlet", "group-dirichlet"):
        texts["alpha"] = "α {}"
    texts["train_fraction"] = "fraction of the training samples {}"
    texts["validation_share"] = "share of them held out for validation {}"
    if run.setting("federation", "shift") != "none":
        texts["shift"] = "shift {}"
    texts |= {"shift_table": "shift table {}", "partition_seed": "partition seed {}"}
    return _joined(run, "federation", **texts)


def _model(run: RunResult) -> str:
    texts = {"model": "{}", "init": "initial weights {}"}
    size = run.image_size
    if run.setting("model", "model") == "auto" and size is not None:
        texts["model"] = f"{default_model(*size)} (chosen for images of {size[0]}×{size[1]})"
    return _joined(run, "model", **texts)


def _machine(run: RunResult) -> str:
    texts = [run.machine[name] for name in ("system", "processor") if name in run.machine]
    texts += [f"{run.machine['cores']} cores"] if "cores" in run.machine else []
    device = run.setting("engine", "device")
    return ", ".join(texts + ([f"device {_text(device)}"] if device else []))


def _hyperparameters(run: RunResult) -> str:
    fields = [table for table in run.config["methods"].values() if isinstance(table, dict)]
    return ", ".join(f"{n} {_text(v)}" for table in fields for n, v in table.items()) or "none"


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "" if value is None else str(value)


def _links(run: RunResult, folder: Path) -> list[tuple[str, str]]:
    paths = [run.folder / name for name in (CONFIG, METRICS, CLIENTS, NEW_CLIENTS, SUMMARY)]
    return [(path.name, quote(_relative(path, folder))) for path in paths if path.exists()]


def _relative(path: Path, folder: Path) -> str:
    try:
        return os.path.relpath(path, folder).replace(os.sep, "/")
    except ValueError:  # another drive
        return path.as_posix()
