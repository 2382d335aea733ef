"""The report of runs: one HTML file that needs nothing else, and figures for papers."""

import base64
import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import quote

from pfedfda.errors import InputError
from pfedfda.files import inside, write_text
from pfedfda.report import plots, tables
from pfedfda.report.paper_table import PaperTable
from pfedfda.report.plots import Shown, counted, number
from pfedfda.report.runs import Group, Run, mean_runs, read_groups
from pfedfda.report.styles import Style, styles_of, title_of
from pfedfda.report.svg import marker

RUN_FILES = ("config.toml", "metrics.jsonl", "clients.csv", "new_clients.csv", "summary.json")


@dataclass(frozen=True)
class Section:
    """A part of the page.

    Parameters
    ----------
    heading
        Its heading.
    text
        A sentence or two on how to read it.
    content
        HTML.
    """

    heading: str
    text: str
    content: str


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
    legend = _legend(groups)
    page, figures = inside(folder, "report.html"), inside(folder, "figures")
    try:
        figures.mkdir(parents=True, exist_ok=True)
        drawn: list[Path] = []
        for place, group in enumerate(groups):
            prefix = f"{place + 1}-" if len(groups) > 1 else ""
            drawn += draw_group(_shown(group, legend), group, figures, prefix)
        text = render(groups, folder, title or _title(groups, suite), suite, drawn)
        write_text(page, text.encode("utf-8", errors="replace").decode("utf-8"))
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
    legend = _legend(groups)
    body = [_header(groups, title, suite), _legend_list(legend)]
    if suite is not None:
        text = "As the paper reports them, as they came out here, and ours less the paper’s."
        section = Section("The paper’s numbers and ours", text, tables.paper(suite))
        body.append(_section(section, "paper"))
    for place, group in enumerate(groups):
        if group.heading:
            body.append(f'<h2 class="federation">{escape(group.heading)}</h2>')
        for part, section in enumerate(_sections(group, _shown(group, legend), f"g{place}")):
            body.append(_section(section, f"g{place}-{part}"))
    body.append(_section(Section("Settings", "", _settings(groups)), "settings"))
    body.append(_section(Section("Files", "", _files(groups, folder, figures)), "files"))
    resources = files("pfedfda.report")
    script = resources.joinpath("page.js").read_text(encoding="utf-8")
    sheet = resources.joinpath("page.css").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    # The policy lets nothing in from outside, and runs no script but the one below.
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{escape(title)}</title>\n<style>\n{sheet}{_colours(legend)}</style>\n</head>\n"
        f"<body>\n<main>\n{chr(10).join(body)}\n</main>\n<script>{script}</script>\n</body>\n"
        "</html>\n"
    )


def _legend(groups: Sequence[Group]) -> dict[str, tuple[int, Style]]:
    """Return number and look of every label; the same label looks the same in all federations."""
    methods = {run.label: run.method for group in groups for run in group.runs}
    looks = styles_of(methods.values())
    return {
        label: (place, look) for place, (label, look) in enumerate(zip(methods, looks, strict=True))
    }


def _shown(group: Group, legend: dict[str, tuple[int, Style]]) -> list[Shown]:
    return [Shown(legend[run.label][0], run, legend[run.label][1]) for run in group.runs]


def _colours(legend: dict[str, tuple[int, Style]]) -> str:
    who = ":is([data-m='{0}'],[data-c='{0}'])"
    light = "".join(f"{who.format(i)}{{--c:{look.light}}}" for i, look in legend.values())
    dark = "".join(f"{who.format(i)}{{--c:{look.dark}}}" for i, look in legend.values())
    return f"{light}\n@media screen and (prefers-color-scheme:dark){{{dark}}}\n"


def _legend_list(legend: dict[str, tuple[int, Style]]) -> str:
    items = []
    for label, (place, look) in legend.items():
        dash = f' stroke-dasharray="{look.dash}"' if look.dash else ""
        items.append(
            f'<li data-m="{place}"><svg class="swatch" viewBox="0 0 30 12" aria-hidden="true">'
            f'<path class="line" d="M1 6H29"{dash}/>{marker(look.marker, 15, 6, 3.6)}</svg>'
            f"<span>{escape(label)}</span></li>"
        )
    return f'<ul class="legend" aria-label="Methods">{"".join(items)}</ul>'


def _section(section: Section, key: str) -> str:
    text = f'<p class="how">{section.text}</p>' if section.text else ""
    return (
        f'<section id="s-{key}"><h2>{escape(section.heading)}</h2>{text}{section.content}</section>'
    )


def _title(groups: Sequence[Group], suite: PaperTable | None) -> str:
    if suite is not None:
        return suite.title
    methods = {run.method for group in groups for run in group.runs}
    who = title_of(methods.pop()) if len(methods) == 1 else f"{len(methods)} methods"
    if len(groups) > 1:
        return f"{who} on {len(groups)} federations"
    return f"{who} on {_source(groups[0].runs[0])}"


def _source(run: Run) -> str:
    """Return where the images come from, in short: of a path only the name."""
    name = Path(_text(run.setting("federation", "source"))).name or "a federation"
    shift = run.setting("federation", "shift")
    shifted = run.setting("federation", "shift_table") or shift not in (None, "none")
    return f"{name}, shifted" if shifted else name


def _header(groups: Sequence[Group], title: str, suite: PaperTable | None) -> str:
    runs = [run for group in groups for run in group.runs]
    big, what, facts = _headline(groups, suite)
    dates = sorted({run.machine["date"] for run in runs if "date" in run.machine})
    about = [_about(groups[0])] if len(groups) == 1 else [f"{len(runs)} runs"]
    about += [" to ".join(dict.fromkeys([dates[0], dates[-1]]))] if dates else []
    notes = [
        f"{escape(run.label)} stopped after {counted(run.rounds, 'round')}"
        f"{': ' + escape(run.reason) if run.reason else '.'}"
        for run in runs
        if run.status != "complete"
    ]
    notes += [f"{escape(name)} has no results yet." for g in groups for name in g.unfinished]
    told = "".join(f"<li><b>{escape(value)}</b> {escape(name)}</li>" for value, name in facts)
    return (
        f'<header><p class="brand">pfedfda</p><h1>{escape(title)}</h1>'
        f'<p class="about">{escape(" · ".join(about))}</p>'
        f'<div class="headline"><p class="big">{escape(big)}</p><p class="what">{escape(what)}</p>'
        f'</div><ul class="facts">{told}</ul>'
        + "".join(f'<p class="warning">{note}</p>' for note in notes)
        + "</header>"
    )


def _about(group: Group) -> str:
    run = group.runs[0]
    clients = max(len(run.clients) for run in group.runs)
    parts = [_source(run)]
    parts += [counted(clients, "client")] if clients else []
    parts += [counted(max(run.rounds for run in group.runs), "round")]
    seeds = sorted({str(r.setting("schedule", "seed")) for r in group.runs} - {"None"})
    parts += [f"seed{'s' * (len(seeds) > 1)} {', '.join(seeds)}"] if seeds else []
    return " · ".join(parts)


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
    ranked = [sorted(_evaluated(group), key=lambda run: -(run.mean or 0)) for group in groups]
    ranked = [runs for runs in ranked if runs]
    if not ranked:
        return "–", "no evaluation yet", []
    if len(groups) > 1:
        winners = [title_of(runs[0].method) for runs in ranked]
        best = max(winners, key=winners.count)
        what = f"federations in which {best} has the highest mean accuracy"
        return f"{winners.count(best)} of {len(ranked)}", what, []
    first, *others = ranked[0]
    rounds = first.metrics[-1]["round"] or first.rounds
    what = f"mean {first.judged_on} accuracy of {first.label}"
    methods = len({run.method for run in ranked[0]})
    kind = "runs" if all(run.seeds == 1 for run in ranked[0]) else "results"
    many = f"{methods} methods" if methods == len(ranked[0]) else f"{len(ranked[0])} {kind}"
    what += f", the highest of {many}," if others else ""
    what += f" over {counted(len(first.clients), 'client')}"
    what += f" and {first.seeds} seeds" if first.seeds > 1 else ""
    what += f" after {counted(rounds, 'round')}"
    facts = []
    if others and first.mean is not None and others[0].mean is not None:
        facts.append((f"+{number(first.mean - others[0].mean)}", f"over {others[0].label}, next"))
    facts += [
        (number(first.summary["weighted_accuracy"]), f"weighted by {first.judged_on} size"),
        (number(first.summary["worst_tenth_accuracy"]), "worst tenth of the clients"),
        (number(first.summary["std_accuracy"]), "std over clients"),
    ]
    return number(first.mean), what, facts


def _evaluated(group: Group) -> list[Run]:
    return [run for run in mean_runs(group.runs) if run.mean is not None]


def _sections(group: Group, shown: Sequence[Shown], key: str) -> list[Section]:
    judged_on = group.runs[0].judged_on
    looks = {s.run.folder: s for s in shown}
    means = [replace(looks[run.folder], run=run) for run in mean_runs(group.runs)]
    text = (
        f"{judged_on.capitalize()} accuracy after the last evaluation. The weighted mean counts "
        f"every {judged_on} sample the same; the worst tenth is the mean over the clients with the "
        f"lowest accuracy."
    )
    content = tables.comparison(means)
    if len(means) < len(shown):
        text += " All numbers of a method are means over its seeds."
        every = tables.comparison(shown, mark_best=False)
        content += f"<details><summary>Every run</summary>{every}</details>"
    sections = [Section("Comparison" if len(shown) > 1 else "Result", text, content)]
    if any(run.metrics for run in group.runs):
        sections.append(
            Section(
                "Accuracy by round",
                f"{judged_on.capitalize()} accuracy of all clients after each evaluated round.",
                plots.accuracy_by_round(shown, f"{key}-accuracy"),
            )
        )
    if any(run.clients for run in group.runs):
        content = f'<figure class="plot">{plots.accuracy_by_client(shown)}</figure>'
        content += f"<details><summary>Every client</summary>{tables.clients(shown)}</details>"
        text = "Each method sorts the clients for itself. " if len(shown) > 1 else ""
        text += "The shaded part is the tenth of the clients with the lowest accuracy."
        sections.append(Section("Accuracy by client", text, content))
    sections += _beta_sections(shown)
    if any(run.new_clients for run in group.runs):
        text = (
            "Clients that never took part in training, on their own images and with these images "
            "corrupted: mean accuracy ± standard deviation over clients."
        )
        sections.append(Section("New clients", text, tables.new_clients(shown)))
    if group.counts is not None:
        largest = max(max(row) for row in group.counts.counts)
        text = (
            "Training samples by client and class. The area of a circle is their number; the "
            f"largest stands for {largest:,}."
        )
        content = f'<figure class="plot">{plots.class_bubbles(group)}</figure>'
        sections.append(Section("Who holds what", text, content))
    text = (
        "Training and evaluation on the clock; inside the clients, the time of all clients is "
        "summed, whichever worker they ran on."
    )
    content = tables.time_by_component(shown, f"{key}-time")
    sections.append(Section("Time by component", text, content))
    if any(run.metrics for run in group.runs):
        text = (
            "Content of all tensors that crossed between server and clients. An amount a round is "
            "the mean since the evaluation before; in the last round every client takes part."
        )
        content = plots.bytes_by_round(shown, f"{key}-bytes")
        sections.append(Section("Bytes by round", text, content))
    return sections


def _beta_sections(shown: Sequence[Shown]) -> list[Section]:
    """Return what is known about β: by corruption where there are any, otherwise by client."""
    columns = dict.fromkeys(n for s in shown for c in s.run.clients for n in c.betas)
    sections = []
    for column in columns:
        telling = [s for s in shown if any(column in c.betas for c in s.run.clients)]
        name = "β" + column.removeprefix("beta").replace("_", " of the ")
        if any(c.corruption and c.severity for s in telling for c in s.run.clients):
            content = "".join(
                f'<h3 data-m="{s.index}"><i class="dot"></i>{escape(s.run.label)}</h3>'
                f"{tables.beta_by_corruption(s, column)}"
                for s in telling
            )
            text = "Mean over clients: 0 is the global estimate, 1 the client’s own."
            sections.append(Section(f"{name} by corruption and severity", text, content))
        else:
            content = f'<figure class="plot">{plots.beta_by_client(telling, column)}</figure>'
            text = (
                "How far each client leans on its own estimate (1) or on the global one (0), by "
                "its number of training samples."
            )
            sections.append(Section(f"{name} by client", text, content))
    return sections


def _settings(groups: Sequence[Group]) -> str:
    runs = [run for group in groups for run in group.runs]
    wanted: list[tuple[str, Callable[[Run], str]]] = [
        ("federation", _federation),
        ("model", lambda r: _joined(r, "model", model="{}", init="initial weights {}")),
        (
            "rounds",
            lambda r: _joined(
                r,
                "schedule",
                rounds="{}",
                participation="participation {}",
                eval_every="evaluated every {}",
                new_clients="share of new clients {}",
            ),
        ),
        (
            "training",
            lambda r: _joined(
                r,
                "training",
                epochs="{} epochs",
                batch_size="batches of {}",
                lr="learning rate {}",
                momentum="momentum {}",
                weight_decay="weight decay {}",
            ),
        ),
        ("seed", lambda r: _text(r.setting("schedule", "seed"))),
        ("machine", _machine),
        ("versions", _versions),
    ]
    rows = []
    for name, tell in wanted:
        told = [value for value in dict.fromkeys(tell(run) for run in runs) if value]
        if told:
            values = "".join(f"<dd>{escape(value)}</dd>" for value in told)
            rows.append(f"<dt>{escape(name)}</dt>{values}")
    methods = []
    for run in {run.label: run for run in runs}.values():
        fields = [f for f in run.config["methods"].values() if isinstance(f, dict)]
        settings = ", ".join(f"{n} {_text(v)}" for f in fields for n, v in f.items())
        methods.append(f"<dt>{escape(run.label)}</dt><dd>{escape(settings) or 'none'}</dd>")
    return (
        f'<dl class="settings">{"".join(rows)}</dl><details><summary>Hyper-parameters of the '
        f'methods</summary><dl class="settings">{"".join(methods)}</dl></details>'
    )


def _joined(run: Run, table: str, **texts: str) -> str:
    told = [(text, run.setting(table, name)) for name, text in texts.items()]
    return ", ".join(text.format(_text(value)) for text, value in told if value not in (None, 0.0))


def _federation(run: Run) -> str:
    partition = run.setting("federation", "partition")
    told = _joined(run, "federation", source="{}", partition="partition {}")
    if partition in (None, "auto", "dirichlet", "client-dirichlet", "group-dirichlet"):
        told += _after(run, alpha="α {}")
    told += _after(
        run,
        train_fraction="fraction of the training samples {}",
        validation_share="share of them held out for validation {}",
    )
    shift = run.setting("federation", "shift")
    told += f", shift {_text(shift)}" if shift not in (None, "none") else ""
    return told + _after(run, shift_table="shift table {}", partition_seed="partition seed {}")


def _after(run: Run, **texts: str) -> str:
    told = _joined(run, "federation", **texts)
    return f", {told}" if told else ""


def _machine(run: Run) -> str:
    told = [run.machine[name] for name in ("system", "processor") if name in run.machine]
    told += [f"{run.machine['cores']} cores"] if "cores" in run.machine else []
    device = run.setting("engine", "device")
    return ", ".join(told + ([f"device {_text(device)}"] if device else []))


def _versions(run: Run) -> str:
    known = ("pfedfda", "torch", "python")
    return ", ".join(f"{name} {run.machine[name]}" for name in known if name in run.machine)


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "" if value is None else str(value)


def _files(groups: Sequence[Group], folder: Path, figures: Sequence[Path]) -> str:
    items = []
    for group in groups:
        for run in group.runs:
            links = [_link(run.folder / name, folder, name) for name in RUN_FILES]
            place = escape(_relative(run.folder, folder))
            items.append(
                f"<dt>{escape(run.label)}</dt><dd><code>{place}</code> "
                f"{' '.join(link for link in links if link)}</dd>"
            )
    links = [_link(path, folder, path.name) for path in figures]
    if links:
        items.append(f"<dt>figures</dt><dd>{' '.join(links)}</dd>")
    return f'<dl class="settings files">{"".join(items)}</dl>'


def _relative(path: Path, folder: Path) -> str:
    try:
        return os.path.relpath(path, folder).replace(os.sep, "/")
    except ValueError:  # another drive
        return path.as_posix()


def _link(path: Path, folder: Path, name: str) -> str:
    if not path.exists():
        return ""
    return f'<a href="{escape(quote(_relative(path, folder)))}">{escape(name)}</a>'
