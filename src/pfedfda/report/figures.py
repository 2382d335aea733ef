"""The same plots as files for papers: PNG and SVG, drawn by Matplotlib."""

import math
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pfedfda.files import replacing
from pfedfda.report.plots import Shown, accuracy_axis, bytes_unit, mean_betas, time_unit
from pfedfda.report.runs import Group

MARKERS = {
    "circle": "o",
    "square": "s",
    "triangle": "^",
    "down": "v",
    "diamond": "D",
    "cross": "x",
    "plus": "+",
}
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
MOST_CLIENTS = 60
MOST_CLASSES = 100


def draw_group(shown: Sequence[Shown], group: Group, folder: Path, prefix: str = "") -> list[Path]:
    """Draw every figure that the runs of a federation have numbers for, and return the files.

    Parameters
    ----------
    shown
        The runs with their looks.
    group
        The same runs with what is known about the federation.
    folder
        Where the files go; it exists.
    prefix
        What their names begin with.
    """
    evaluated = [s for s in shown if s.run.metrics]
    with_clients = [s for s in shown if s.run.clients]
    drawings: dict[str, Callable[[Any], None]] = {}
    if evaluated:
        drawings["accuracy-by-round"] = lambda axes: _by_round(axes, evaluated)
        drawings["bytes-by-round"] = lambda axes: _traffic(axes, evaluated)
    if with_clients:
        drawings["accuracy-by-client"] = lambda axes: _by_client(axes, with_clients)
    drawings |= _beta_drawings(with_clients)
    if any(s.run.seconds for s in shown):
        drawings["time"] = lambda axes: _time(axes, shown)
    if (counts := group.counts) is not None:
        table = np.array(counts.counts)
        drawings["classes"] = lambda axes: draw_bubbles(axes, table, counts.class_names)
    paths = []
    for name, draw in drawings.items():
        size = (8.0, 4.5) if name == "classes" else (6.4, 4.0)
        paths += save(draw, folder / f"{prefix}{name}", size)
    return paths


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


def draw_bubbles(
    axes: Any,
    counts: NDArray[np.int64],
    class_names: Sequence[str],
    client_names: Sequence[str] | None = None,
) -> None:
    """Draw the bubble chart of the paper's appendix: samples by client and class.

    Parameters
    ----------
    axes
        Where to draw.
    counts
        A row for each client, a column for each class; of many, evenly spaced ones are drawn.
    class_names
        The names of the classes.
    client_names
        The names of the clients; by default their numbers.
    """
    clients, classes = spaced(len(counts), MOST_CLIENTS), spaced(counts.shape[1], MOST_CLASSES)
    some = counts[np.ix_(clients, classes)]
    rows, columns = np.nonzero(some)
    largest = max(int(some.max(initial=0)), 1)
    room = min(min(900 / len(clients), 500 / len(classes)) ** 2, 350)
    sizes = some[rows, columns] / largest * room
    axes.scatter(rows, columns, s=sizes, color="#246EAD", alpha=0.75, linewidth=0)
    sampled = f" ({len(clients)} of {len(counts)})" if len(clients) < len(counts) else ""
    axes.set_xlabel("client" + sampled)
    axes.set_ylabel("class")
    step = max(1, len(clients) // 20)
    ticks = [str(c) if client_names is None else client_names[c][:14] for c in clients[::step]]
    axes.set_xticks(range(0, len(clients), step), ticks)
    if sum(map(len, ticks)) > 80:  # side by side they would overlap
        axes.tick_params(axis="x", labelrotation=90, labelsize=8)
    if len(classes) <= 40:
        names = [class_names[c][:14] for c in classes]
        axes.set_yticks(range(len(classes)), names, fontsize=8)
    axes.set_title(f"Samples by client and class (largest: {largest})", loc="left", fontsize=10)
    # Half a step and a little more on each side: no bubble is cut off or lies on an axis.
    for count, set_ends in ((len(clients), axes.set_xlim), (len(classes), axes.set_ylim)):
        set_ends(-0.5 - 0.02 * count, count - 0.5 + 0.02 * count)


def spaced(count: int, most: int) -> NDArray[np.int64]:
    """Return at most `most` evenly spaced numbers below `count`."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(np.int64))


def _look(s: Shown) -> dict[str, Any]:
    dash = tuple(float(length) / 1.6 for length in s.style.dash.split())
    return {
        "color": s.style.light,
        "linestyle": (0, dash) if dash else "-",
        "linewidth": 1.5,
        "marker": MARKERS[s.style.marker],
        "markersize": 4.5,
        "label": s.run.label,
    }


def _legend(axes: Any, count: int) -> None:
    if count > 6:
        axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    else:
        axes.legend()


def _plot(axes: Any, s: Shown, xs: Sequence[float], ys: Sequence[float]) -> None:
    axes.plot(xs, ys, markevery=max(1, math.ceil(len(xs) / 12)), **_look(s))


def _by_round(axes: Any, shown: Sequence[Shown]) -> None:
    for s in shown:
        ys = [_known(line["mean_accuracy"]) for line in s.run.metrics]
        _plot(axes, s, [line["round"] or 0 for line in s.run.metrics], ys)
    known = [line["mean_accuracy"] for s in shown for line in s.run.metrics]
    y = accuracy_axis("mean accuracy over clients", known)
    assert y.low is not None
    assert y.high is not None
    room = 0.05 * (y.high - y.low)
    axes.set_ylim(y.low - room, y.high + room)
    axes.set_ylabel(y.label)
    _label_rounds(axes)
    _legend(axes, len(shown))


def _label_rounds(axes: Any) -> None:
    axes.set_xlabel("round")
    axes.set_xlim(left=0)
    axes.xaxis.get_major_locator().set_params(integer=True)


def _known(value: float | None) -> float:
    return math.nan if value is None else value


def _by_client(axes: Any, shown: Sequence[Shown]) -> None:
    most = 1
    for s in shown:
        ys = sorted(c.accuracy for c in s.run.clients if c.accuracy is not None)
        _plot(axes, s, range(1, len(ys) + 1), ys)
        most = max(most, len(ys))
    axes.axvspan(0.5, math.ceil(most / 10) + 0.5, color="#00000010", linewidth=0)
    axes.text(0.6, 1.03, "worst tenth", va="bottom", fontsize=8, color="#666666")
    axes.set_xlim(0.5, most + 0.5)
    axes.set_ylim(-0.02, 1.02)
    axes.set_xlabel("clients, from the lowest accuracy to the highest")
    axes.set_ylabel("accuracy")
    _legend(axes, len(shown))


def _beta_drawings(shown: Sequence[Shown]) -> dict[str, Callable[[Any], None]]:
    """Return a map of β for each run where there are corruptions, otherwise one plot for all."""
    telling = [s for s in shown if any(c.betas for c in s.run.clients)]
    pairs = [
        (s, n) for s in telling for n in dict.fromkeys(n for c in s.run.clients for n in c.betas)
    ]
    if not any(c.corruption and c.severity for s in telling for c in s.run.clients):
        return {"beta": lambda axes: _beta_by_client(axes, pairs)} if pairs else {}
    return {
        "beta" if place == 0 else f"beta-{place + 1}": partial(
            _beta_by_corruption, s=s, column=column
        )
        for place, (s, column) in enumerate(pairs)
    }


def _beta_name(s: Shown, column: str) -> str:
    return s.run.label + column.removeprefix("beta").replace("_", ", ")


def _beta_by_client(axes: Any, pairs: Sequence[tuple[Shown, str]]) -> None:
    for s, column in pairs:
        clients = [c for c in s.run.clients if column in c.betas]
        strokes = s.style.marker in ("cross", "plus")  # these have no face to leave empty
        axes.scatter(
            [c.train_samples or 0 for c in clients],
            [c.betas[column] for c in clients],
            s=18,
            marker=MARKERS[s.style.marker],
            facecolor=s.style.light if strokes or column == "beta" else "none",
            edgecolor=None if strokes else s.style.light,
            alpha=0.75,
            label=_beta_name(s, column),
        )
    axes.set_ylim(-0.03, 1.03)
    axes.set_xlabel("training samples of the client")
    axes.set_ylabel("β: 0 global, 1 local")
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1.0), ncols=3)


def _beta_by_corruption(axes: Any, s: Shown, column: str) -> None:
    cells = mean_betas(s.run, column)
    corruptions = sorted({corruption for corruption, _ in cells})
    severities = sorted({severity for _, severity in cells})
    table = np.full((len(corruptions), len(severities)), math.nan)
    for (corruption, severity), (mean, _) in cells.items():
        row, place = corruptions.index(corruption), severities.index(severity)
        table[row, place] = mean
        axes.text(place, row, f"{mean:.2f}", ha="center", va="center", fontsize=8)
    axes.imshow(table, cmap="Oranges", vmin=0, vmax=1.6, aspect="auto")
    axes.grid(visible=False)
    names = [name.replace("_", " ") or "not corrupted" for name in corruptions]
    axes.set_yticks(range(len(corruptions)), names)
    axes.set_xticks(range(len(severities)), [str(severity) for severity in severities])
    axes.set_xlabel("severity of the corruption")
    axes.set_title(f"β of {_beta_name(s, column)}: 0 global, 1 local", loc="left", fontsize=10)


def _time(axes: Any, shown: Sequence[Shown]) -> None:
    phases = [{n: v for n, v in s.run.seconds.items() if n != "total"} for s in shown]
    names = list(dict.fromkeys(name for parts in phases for name in parts))
    unit = time_unit(max((sum(parts.values()) for parts in phases), default=0.0))
    places, left = np.arange(len(shown)), np.zeros(len(shown))
    for depth, name in enumerate(names):
        widths = np.array([parts.get(name, 0.0) for parts in phases]) / unit.size
        colours = [s.style.light for s in shown]
        axes.barh(places, widths, left=left, color=colours, alpha=max(0.2, 1 - 0.5 * depth))
        axes.barh(0, 0, color="#666666", alpha=max(0.2, 1 - 0.5 * depth), label=name)
        left += widths
    axes.set_yticks(places, [s.run.label for s in shown])
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    axes.set_xlabel(f"time on the clock, {unit.name}")
    if names:
        axes.legend()


def _traffic(axes: Any, shown: Sequence[Shown]) -> None:
    def so_far(s: Shown) -> list[float]:
        return [(line["bytes_up"] or 0) + (line["bytes_down"] or 0) for line in s.run.metrics]

    unit = bytes_unit(max((v for s in shown for v in so_far(s)), default=0.0))
    for s in shown:
        rounds = [line["round"] or 0 for line in s.run.metrics]
        _plot(axes, s, rounds, [value / unit.size for value in so_far(s)])
    _label_rounds(axes)
    axes.set_ylabel(f"{unit.name} up and down so far")
    axes.set_ylim(bottom=0)
    _legend(axes, len(shown))
