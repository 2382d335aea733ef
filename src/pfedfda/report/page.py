"""The report of runs: one HTML file that needs nothing else, and figures for papers."""

import base64
import hashlib
import os
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from urllib.parse import quote

from pfedfda.errors import InputError, printable
from pfedfda.files import inside, write_text
from pfedfda.report import words
from pfedfda.report.groups import Group, read_groups
from pfedfda.report.paper_table import PaperTable
from pfedfda.report.ranks import ranks_over
from pfedfda.report.sections import group_sections, ranks_section, suite_section
from pfedfda.report.svg import Drawing
from pfedfda.report.text import number, shorten, time_unit
from pfedfda.runs import RunResult
from pfedfda.runs.layout import CLIENTS, CONFIG, METRICS, NEW_CLIENTS, SUMMARY


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
    from pfedfda.report.figures import draw_group, draw_ranks  # Matplotlib takes long to import

    groups = read_groups(runs)
    page, figures = inside(folder, "report.html"), inside(folder, "figures")
    try:
        figures.mkdir(parents=True, exist_ok=True)
        drawn: list[Path] = []
        for place, group in enumerate(groups):
            drawn += draw_group(group, figures, f"{place + 1}-" if len(groups) > 1 else "")
        ranks = ranks_over(groups)
        drawn += draw_ranks(ranks, figures) if ranks else []
        write_text(page, render(groups, folder, title or words.title(groups, suite), suite, drawn))
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
    environment.globals.update(
        Drawing=Drawing, number=number, shorten=shorten, time_unit=time_unit, picture=_picture
    )
    big, what, facts = words.headline(groups, suite)
    ranks = ranks_over(groups)
    return environment.get_template("page.html").render(
        title=title,
        style=Markup(resources.joinpath("page.css").read_text(encoding="utf-8")),
        script=Markup(script),
        # The policy lets nothing in from outside, and runs no script but the page's own.
        policy=(
            "default-src 'none'; img-src data:; style-src 'unsafe-inline'; "
            f"script-src 'sha256-{digest}'"
        ),
        about=" · ".join(words.about(groups)),
        big=big,
        what=what,
        facts=facts,
        warnings=words.warnings(groups),
        legend={entry.index: entry for group in groups for entry in group.entries}.values(),
        suite=suite_section(suite) if suite else None,
        across=ranks_section(ranks) if ranks else None,
        groups=[
            (group.heading, group_sections(group, f"g{place}"))
            for place, group in enumerate(groups)
        ],
        settings=words.settings([run for group in groups for run in group.runs]),
        hyperparameters={
            entry.label: words.hyperparameters(entry.first)
            for group in groups
            for entry in group.entries
        },
        files=[
            (words.run_label(entry, run), _relative(run.folder, folder), _links(run, folder))
            for group in groups
            for entry in group.entries
            for run in entry.runs
        ],
        figures=[(path.name, quote(_relative(path, folder))) for path in figures],
    )


def _links(run: RunResult, folder: Path) -> list[tuple[str, str]]:
    paths = [run.folder / name for name in (CONFIG, METRICS, CLIENTS, NEW_CLIENTS, SUMMARY)]
    return [(path.name, quote(_relative(path, folder))) for path in paths if path.exists()]


def _relative(path: Path, folder: Path) -> str:
    try:
        return os.path.relpath(path, folder).replace(os.sep, "/")
    except ValueError:  # another drive
        return path.as_posix()


def _picture(png: bytes) -> str:
    """Return a picture as an address that holds it."""
    return f"data:image/png;base64,{base64.b64encode(png).decode()}"
