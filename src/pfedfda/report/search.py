"""The history of a search as a figure: each trial, and the best so far."""

from functools import partial
from pathlib import Path

from pfedfda.errors import printable
from pfedfda.report.charts import Axis, Chart, Series, accuracy_axis
from pfedfda.report.groups import Entry
from pfedfda.report.styles import styles_of, title_of
from pfedfda.runs.layout import TRIALS
from pfedfda.runs.reader import read_tables
from pfedfda.runs.trials import Trial, read_trials


def draw_search(folder: Path) -> list[Path]:
    """Draw ``search.png`` and ``search.svg`` from the trials of all methods; return the files.

    Parameters
    ----------
    folder
        The folder of a search.
    """
    from pfedfda.report.figures import SIZE, draw_chart, save  # Matplotlib takes long to import

    order = list(read_tables(folder / "config.toml")["methods"])
    places = sorted(
        (path.parent for path in folder.glob(f"*/{TRIALS}")),
        key=lambda path: (order.index(path.name) if path.name in order else len(order), path.name),
    )
    chart = search_history({place.name: read_trials(place) for place in places})
    return save(partial(draw_chart, chart=chart), folder / "search", SIZE)


def search_history(searches: dict[str, list[Trial]]) -> Chart:
    """Return the best validation accuracy so far by trial, with a marker where it rose.

    Parameters
    ----------
    searches
        The trials of each method.
    """
    series = []
    looks = styles_of(searches)
    for index, ((method, trials), style) in enumerate(zip(searches.items(), looks, strict=True)):
        best: float | None = None
        xs: list[float] = []
        ys: list[float | None] = []
        marked = []
        for trial in trials:
            if xs:  # a step
                xs.append(float(trial.number + 1))
                ys.append(best)
            if trial.status == "complete" and (trial.accuracy or 0.0) > (best or 0.0):
                best = trial.accuracy
                marked.append(len(xs))
            xs.append(float(trial.number + 1))
            ys.append(best)
        entry = Entry([], printable(title_of(method)), index, style)
        series.append(Series(entry, xs, ys, marked=marked))
    known = [y for s in series for y in s.ys if y]
    return Chart(
        "best validation accuracy so far, by trial",
        series,
        Axis("trial; the first has the defaults", low=1, whole=True),
        accuracy_axis("best mean validation accuracy so far", known),
    )
