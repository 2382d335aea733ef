"""The charts of the page as files for papers: PNG and SVG, drawn by Matplotlib."""

import math
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from pfedfda.files import replacing
from pfedfda.report import charts, predictions
from pfedfda.report.charts import Bars, Chart, Heat, Series
from pfedfda.report.groups import Group
from pfedfda.report.ranks import TOP, Ranks
from pfedfda.report.styles import HUES, MARKERS
from pfedfda.report.text import shorten, time_unit

SETTINGS: dict[Any, Any] = {
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e6e6e6",
    "axes.axisbelow": True,
    "font.size": 9,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "text.parse_math": False,  # a dollar in a name is a dollar
    "svg.hashsalt": "pfedfda",  # the same runs give the same file
}
SIZE, WIDE = (6.4, 4.0), (8.0, 4.5)  # inches


def draw_group(group: Group, folder: Path, prefix: str = "") -> list[Path]:
    """Draw every figure that the runs of a federation have numbers for, and return the files.

    Parameters
    ----------
    group
        The runs.
    folder
        Where the files go; it exists.
    prefix
        What their names begin with.
    """
    evaluated = [entry for entry in group.entries if entry.rounds]
    drawings: dict[str, Chart | Bars | Heat] = {}
    if evaluated:
        drawings["accuracy-by-round"] = charts.accuracy_by_round(evaluated, "mean")
        drawings["bytes-by-round"] = charts.bytes_by_round(evaluated, "up", total=True)
    if any(entry.clients for entry in group.entries):
        drawings["accuracy-by-client"] = charts.accuracy_by_client(group.entries)
    if known := predictions.with_predictions(group.entries):
        drawings["reliability"] = predictions.reliability(known)
        drawings["recall-by-class"] = predictions.recall_by_class(known)
    betas: list[Chart | Heat] = []
    for column in charts.beta_columns(group.entries):
        chosen = charts.with_beta(group.entries, column)
        if charts.is_shifted(chosen):
            betas += [charts.beta_by_corruption(entry, column) for entry in chosen]
        else:
            betas.append(charts.beta_by_client(chosen, column))
    for number, beta in enumerate(betas, start=1):
        drawings["beta" if number == 1 else f"beta-{number}"] = beta
    drawings["time"] = charts.wall_time(group.entries)
    if group.counts is not None:
        drawings["classes"] = charts.bubbles(group.counts)
    paths = []
    for name, drawing in drawings.items():
        draw: Callable[[Any], None]
        if isinstance(drawing, Chart):
            draw = partial(draw_chart, chart=drawing)
        elif isinstance(drawing, Heat):
            draw = partial(_draw_heat, heat=drawing)
        else:
            draw = partial(_draw_bars, bars=drawing)
        paths += save(draw, folder / f"{prefix}{name}", WIDE if name == "classes" else SIZE)
    return paths


def draw_ranks(ranks: Ranks, folder: Path) -> list[Path]:
    """Draw the critical-difference diagram, and return the files.

    Parameters
    ----------
    ranks
        What to draw.
    folder
        Where the files go; it exists.
    """
    size = (SIZE[0], ranks.height / 72 + 0.2)
    return save(partial(_draw_ranks, ranks=ranks), folder / "ranks", size)


def _draw_ranks(axes: Any, ranks: Ranks) -> None:
    axes.set(xlim=(0, 100), ylim=(ranks.height, 0))
    axes.axis("off")
    grey, ink = "#666666", "black"
    start, end = ranks.place(1), ranks.place(ranks.ticks[-1])
    axes.plot([start, min(ranks.place(1 + ranks.critical), 100)], [4, 4], color=grey, linewidth=1)
    axes.text(start, 16, f"critical difference {ranks.critical:.2f}", fontsize=8, color=grey)
    axes.plot([start, end], [TOP, TOP], color=grey, linewidth=1)
    for tick in ranks.ticks:
        axes.text(ranks.place(tick), TOP - 6, str(tick), ha="center", fontsize=8, color=grey)
    for low, high, at in ranks.bars:
        ends = [ranks.place(low) - 0.8, ranks.place(high) + 0.8]
        axes.plot(ends, [at] * 2, color=ink, linewidth=3, solid_capstyle="butt")
    for entry, rank, height, left in ranks.rows:
        x, edge, color = ranks.place(rank), 0.0 if left else 100.0, entry.style.light
        axes.plot([x, x, edge], [TOP, height, height], color=color, linewidth=1)
        axes.plot([x], [TOP], color=color, marker=MARKERS[entry.style.marker], markersize=5)
        axes.text(edge, height - 3, f"{shorten(entry.label)} {rank:.2f}",
                  ha="left" if left else "right", fontsize=8)  # fmt: skip


def save(
    draw: Callable[[Any], None],
    path: Path,
    size: tuple[float, float],
    kinds: Sequence[str] = ("png", "svg"),
) -> list[Path]:
    """Draw a figure and save it.

    Parameters
    ----------
    draw
        Draws into the axes that it is given.
    path
        The file without its ending.
    size
        Width and height in inches.
    kinds
        The endings.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    paths = []
    with mpl.rc_context(SETTINGS), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")  # names in any script
        figure = Figure(figsize=size, layout="constrained")
        draw(figure.subplots())
        for kind in kinds:
            paths.append(path.with_name(f"{path.name}.{kind}"))
            metadata = {"Date": None} if kind == "svg" else None
            with replacing(paths[-1], durable=False) as new:
                figure.savefig(new, format=kind, dpi=150, metadata=metadata)
            figure.set_layout_engine("none")  # once is enough
    return paths


def draw_chart(axes: Any, chart: Chart) -> None:
    """Draw a chart.

    Parameters
    ----------
    axes
        Where to draw.
    chart
        What to draw.
    """
    for series in chart.drawn:
        if series.sizes:
            _draw_bubbles(axes, chart, series)
        else:
            _draw_series(axes, chart, series)
    if chart.diagonal:
        axes.plot([0, 1], [0, 1], color="#888888", linestyle=(0, (4, 3)), linewidth=1)
    if chart.shaded:
        start, end, name = chart.shaded
        axes.axvspan(start, end, color="#00000010", linewidth=0)
        axes.text(start, 1.0, f" {name}", va="bottom", fontsize=8, color="#666666",
                  transform=axes.get_xaxis_transform())  # fmt: skip
    _set_axis(axes, chart, "x")
    _set_axis(axes, chart, "y")
    labels = len(chart.drawn)
    if any(series.label for series in chart.drawn):
        outside = {"loc": "center left", "bbox_to_anchor": (1.0, 0.5)} if labels > 6 else {}
        axes.legend(**outside)


def _draw_series(axes: Any, chart: Chart, series: Series) -> None:
    assert series.entry is not None
    style = series.entry.style
    dash = tuple(float(length) / 1.6 for length in style.dash.split())
    line = ((0, dash) if dash else "-") if chart.joined else "none"
    ys = [math.nan if value is None else value for value in series.ys]
    axes.plot(
        series.xs, ys, color=style.light, linestyle=line, linewidth=1.5, label=series.label,
        marker=MARKERS[style.marker], markersize=4.5, markevery=list(series.markers),
    )  # fmt: skip
    if series.ranges:
        ends = [(math.nan, math.nan) if pair is None else pair for pair in series.ranges]
        lows, highs = zip(*ends, strict=True)
        axes.fill_between(series.xs, lows, highs, color=style.light, alpha=0.15, linewidth=0)


def _draw_bubbles(axes: Any, chart: Chart, series: Series) -> None:
    width, height = axes.figure.get_size_inches() * 72  # points; margins take less than a quarter
    # As on the page, circles of neighbouring clients may overlap a little.
    steps = 0.95 * width / len(chart.x.names), 0.75 * height / len(chart.y.names)
    areas = [min(*steps, 20) ** 2 * size for size in series.sizes]
    axes.scatter(series.xs, series.ys, s=areas, color=HUES["blue"][0], alpha=0.75, linewidth=0)


def _set_axis(axes: Any, chart: Chart, letter: str) -> None:
    axis = chart.x if letter == "x" else chart.y
    axes.set(**{f"{letter}label": axis.label})
    if axis.names:
        step = max(1, len(axis.names) // (20 if letter == "x" else 40))
        names = [shorten(name) for name in axis.names[::step]]
        turned = letter == "x" and sum(len(name) + 1 for name in names) > 90
        axes.set(**{f"{letter}ticks": range(0, len(axis.names), step)})
        axes.set(**{f"{letter}ticklabels": names})
        axes.tick_params(letter, rotation=40 if turned else 0, labelsize=8)
        # Half a step and a little more on each side: no bubble is cut off or lies on an axis.
        room = 0.5 + 0.02 * len(axis.names)
        ends = (-room, len(axis.names) - 1 + room)
        axes.set(**{f"{letter}lim": ends if letter == "x" else ends[::-1]})
        return
    if axis.whole:
        (axes.xaxis if letter == "x" else axes.yaxis).get_major_locator().set_params(integer=True)
    low, high = axis.low, axis.high
    room = 0.0 if axis.whole or low is None or high is None else 0.03 * (high - low)
    axes.set(**{f"{letter}lim": (low if low is None else low - room, high and high + room)})


def _draw_heat(axes: Any, heat: Heat) -> None:
    """Draw a map of β; clients that are not corrupted have a row and a column of their own."""
    rows = [*([""] if ("", 0) in heat.cells else []), *heat.rows]
    columns = [*([0] if ("", 0) in heat.cells else []), *heat.columns]
    table = np.full((len(rows), len(columns)), math.nan)
    for (name, column), (mean, _) in heat.cells.items():
        row, place = rows.index(name), columns.index(column)
        table[row, place] = mean
        axes.text(place, row, f"{mean:.2f}", ha="center", va="center", fontsize=8)
    axes.imshow(table, cmap="Oranges", vmin=0, vmax=1.6, aspect="auto")
    axes.grid(visible=False)
    names = [name.replace("_", " ") or "not corrupted" for name in rows]
    axes.set_yticks(range(len(rows)), names)
    axes.set_xticks(range(len(columns)), [str(column) for column in columns])
    axes.set_xlabel("severity of the corruption")
    title = f"{heat.name} of {heat.entry.label}: 0 global, 1 local"
    axes.set_title(title, loc="left", fontsize=10)


def _draw_bars(axes: Any, bars: Bars) -> None:
    unit = time_unit(bars.longest)
    places, left = np.arange(len(bars.entries)), np.zeros(len(bars.entries))
    for depth, name in enumerate(bars.names):
        widths = np.array([parts.get(name, 0.0) for parts in bars.components]) / unit.size
        colours = [entry.style.light for entry in bars.entries]
        opacity = max(0.2, 1 - 0.5 * depth)
        axes.barh(places, widths, left=left, color=colours, alpha=opacity)
        axes.barh(0, 0, color="#666666", alpha=opacity, label=name)
        left += widths
    axes.set_yticks(places, [entry.label for entry in bars.entries])
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    axes.set_xlabel(f"time on the clock, {unit.name}")
    if bars.names:
        axes.legend()
