"""Charts as inline SVG that takes its colours from the page's style sheet.

Every chart is drawn twice, for wide screens and for phones, because text inside an SVG shrinks with
it; the style sheet shows one of the two.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

WIDE, NARROW = 860, 350
LABEL_HEIGHT = 14.0
MOST_MARKERS = 12


@dataclass(frozen=True)
class Series:
    """A line, or a cloud of points.

    Parameters
    ----------
    index
        The number of the run on the page, which decides about its colour.
    label
        What to write at the end of the line.
    xs, ys
        The points; a y of None breaks the line.
    dash, marker
        As in `pfedfda.report.styles.Style`.
    titles
        A text for each point, shown while the pointer rests on it; empty for points without.
    marked
        Which points get a marker; by default some, evenly spaced.
    """

    index: int
    label: str
    xs: Sequence[float]
    ys: Sequence[float | None]
    dash: str = ""
    marker: str = "circle"
    titles: Sequence[str] = field(default_factory=list)
    marked: Sequence[int] | None = None


@dataclass(frozen=True)
class Axis:
    """An axis.

    Parameters
    ----------
    label
        What is on it, with the unit.
    low, high
        Its ends, if they are fixed; otherwise they follow the data.
    whole
        Whether only whole numbers make sense as ticks.
    """

    label: str
    low: float | None = None
    high: float | None = None
    whole: bool = False


def nice_ticks(low: float, high: float, most: int = 6, whole: bool = False) -> list[float]:
    """Return round numbers from about `low` to about `high`, at most `most` steps apart.

    Parameters
    ----------
    low, high
        The range to cover; the ticks may go beyond it by less than a step.
    most
        The largest number of steps.
    whole
        Whether only whole numbers are allowed.
    """
    if high - low <= 1e-9 * max(abs(low), abs(high), 1.0):
        half = max(abs(low), 1.0) / 2
        low, high = low - half, low + half
    step = 10 ** math.floor(math.log10((high - low) / most))
    sizes = [step * factor for factor in (1, 2, 5, 10, 20)]
    step = next(size for size in sizes if (high - low) / size <= most)
    if whole:
        step = max(1.0, step)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(number * step, 12) for number in range(first, max(last, first + 1) + 1)]


def write_ticks(ticks: Sequence[float]) -> list[str]:
    """Return ticks as people write them: no exponent, as many decimals as needed, all the same."""
    decimals = next(d for d in range(13) if all(abs(t - round(t, d)) < 1e-12 for t in ticks))
    return [f"{tick:,.{decimals}f}".replace(",", "\u2009").replace("-", "\u2212") for tick in ticks]


def chart(
    series: Sequence[Series],
    x: Axis,
    y: Axis,
    *,
    name: str,
    band: tuple[float, float, str] | None = None,
    lines: bool = True,
    labels: bool = True,
) -> str:
    """Return a line chart or a scatter plot, in both widths.

    Parameters
    ----------
    series
        What to draw.
    x, y
        The axes.
    name
        A sentence for people who cannot see it.
    band
        A range of x to shade, with its name.
    lines
        Whether points are joined.
    labels
        Whether to name the lines at their ends, where there is room.
    """
    drawn = [s for s in series if any(value is not None for value in s.ys)]
    if not drawn:
        return '<p class="empty">There is nothing to draw yet.</p>'
    return "".join(
        _chart(drawn, x, y, name, band, lines, labels, width, kind)
        for width, kind in ((WIDE, "wide"), (NARROW, "narrow"))
    )


def _chart(
    series: Sequence[Series],
    x: Axis,
    y: Axis,
    name: str,
    band: tuple[float, float, str] | None,
    lines: bool,
    labels: bool,
    width: float,
    kind: str,
) -> str:
    wide = kind == "wide"
    height = 400.0 if wide else 290.0
    labels = labels and lines and wide and len(series) > 1
    room = min(170.0, 26 + 7.0 * max(len(s.label) for s in series)) if labels else 14.0
    right, top, bottom = room, 14.0, 46.0

    xs = [v for s in series for v, u in zip(s.xs, s.ys, strict=True) if u is not None]
    ys = [v for s in series for v in s.ys if v is not None]
    x_low, x_high = _ends(x, xs)
    x_ticks = nice_ticks(x_low, x_high, 8 if wide else 4, x.whole)
    y_ticks = nice_ticks(*_ends(y, ys), 8 if wide else 5, y.whole)
    y_texts = write_ticks(y_ticks)
    left = 30.0 + 7.0 * max(len(text) for text in y_texts)
    if not x_high > x_low:
        x_low, x_high = x_ticks[0], x_ticks[-1]
    x_ticks = [tick for tick in x_ticks if x_low - 1e-9 <= tick <= x_high + 1e-9]
    y_low, y_high = y_ticks[0], max(y_ticks[-1], max(ys))
    if not y_high > y_low:
        y_high = y_low + 1.0

    def place_x(value: float) -> float:
        return left + (value - x_low) / (x_high - x_low) * (width - left - right)

    def place_y(value: float) -> float:
        return height - bottom - (value - y_low) / (y_high - y_low) * (height - top - bottom)

    parts = [
        f'<svg class="chart {kind}" viewBox="0 0 {width:g} {height:g}" role="img" '
        f'aria-label="{escape(name)}">'
    ]
    if band:
        start, end = (min(max(place_x(v), left), width - right) for v in band[:2])
        parts.append(
            f'<rect class="band" x="{start:.1f}" y="{top:g}" width="{max(end - start, 1):.1f}" '
            f'height="{height - top - bottom:g}"/><text class="band-name" x="{start + 5:.1f}" '
            f'y="{top + 13:g}">{escape(band[2])}</text>'
        )
    for tick, text in zip(y_ticks, y_texts, strict=True):
        at = place_y(tick)
        parts.append(
            f'<path class="grid" d="M{left:g} {at:.1f}H{width - right:g}"/>'
            f'<text class="tick" x="{left - 8:g}" y="{at + 4:.1f}" text-anchor="end">'
            f"{text}</text>"
        )
    for tick, text in zip(x_ticks, write_ticks(x_ticks), strict=True):
        at = place_x(tick)
        parts.append(
            f'<path class="grid tickmark" d="M{at:.1f} {height - bottom:g}v5"/>'
            f'<text class="tick" x="{at:.1f}" y="{height - bottom + 19:g}" '
            f'text-anchor="middle">{text}</text>'
        )
    middle = left + (width - left - right) / 2
    parts.append(
        f'<text class="axis" x="{middle:.1f}" y="{height - 6:g}" text-anchor="middle">'
        f'{escape(x.label)}</text><text class="axis" text-anchor="middle" '
        f'transform="translate(12 {top + (height - top - bottom) / 2:.1f}) rotate(-90)">'
        f"{escape(y.label)}</text>"
    )
    ends = []
    for s in series:
        places = [
            None if v is None else (place_x(u), place_y(v)) for u, v in zip(s.xs, s.ys, strict=True)
        ]
        parts.append(_draw_series(s, places, lines))
        ends.append(next(place[1] for place in reversed(places) if place))
    if labels:
        for s, wanted, at in zip(series, ends, spread(ends, top, height - bottom), strict=True):
            edge = width - right
            parts.append(
                f'<g data-m="{s.index}"><path class="leader" d="M{edge + 3:g} {wanted:.1f}'
                f'L{edge + 16:g} {at:.1f}"/><text class="end" x="{edge + 19:g}" '
                f'y="{at + 4:.1f}">{escape(_shorten(s.label))}</text></g>'
            )
    parts.append("</svg>")
    return "".join(parts)


def _draw_series(s: Series, places: Sequence[tuple[float, float] | None], lines: bool) -> str:
    parts = [f'<g data-m="{s.index}">']
    if lines:
        path, pen_down = "", False
        for place in places:
            if place:
                path += f"{'L' if pen_down else 'M'}{place[0]:.1f} {place[1]:.1f}"
            pen_down = place is not None
        dash = f' stroke-dasharray="{s.dash}"' if s.dash else ""
        parts.append(f'<path class="line" d="{path}"{dash}/>')
    marked = s.marked if s.marked is not None else _spaced(len(places), MOST_MARKERS)
    for number in marked:
        place = places[number]
        if place:
            title = f"<title>{escape(s.titles[number])}</title>" if s.titles else ""
            parts.append(marker(s.marker, *place, 3.6, title))
    parts.append("</g>")
    return "".join(parts)


def marker(kind: str, x: float, y: float, size: float, title: str = "") -> str:
    """Return a marker.

    Parameters
    ----------
    kind
        The name of its shape.
    x, y, size
        Its centre and about half its width.
    title
        A ``<title>`` element to put inside.
    """
    r, m = size, size * 1.2
    paths = {
        "square": f"M{x - r:.1f} {y - r:.1f}h{2 * r:.1f}v{2 * r:.1f}h{-2 * r:.1f}z",
        "triangle": f"M{x:.1f} {y - m:.1f}l{m:.1f} {2 * r:.1f}h{-2 * m:.1f}z",
        "down": f"M{x:.1f} {y + m:.1f}l{m:.1f} {-2 * r:.1f}h{-2 * m:.1f}z",
        "diamond": f"M{x:.1f} {y - m:.1f}l{m:.1f} {m:.1f}l{-m:.1f} {m:.1f}l{-m:.1f} {-m:.1f}z",
    }
    strokes = {
        "cross": f"M{x - r:.1f} {y - r:.1f}l{2 * r:.1f} {2 * r:.1f}m0 {-2 * r:.1f}"
        f"l{-2 * r:.1f} {2 * r:.1f}",
        "plus": f"M{x - m:.1f} {y:.1f}h{2 * m:.1f}M{x:.1f} {y - m:.1f}v{2 * m:.1f}",
    }
    if kind in paths:
        return f'<path class="mark" d="{paths[kind]}">{title}</path>'
    if kind in strokes:
        return f'<path class="mark stroke" d="{strokes[kind]}">{title}</path>'
    return f'<circle class="mark" cx="{x:.1f}" cy="{y:.1f}" r="{r:g}">{title}</circle>'


def bubbles(counts: Sequence[Sequence[int]], clients: Sequence[str], classes: Sequence[str]) -> str:
    """Return the bubble chart of training samples by client and class, in both widths.

    Parameters
    ----------
    counts
        A row for each client, a column for each class.
    clients, classes
        Their names.
    """
    return _bubbles(counts, clients, classes, WIDE, 60) + _bubbles(
        counts, clients, classes, NARROW, 24
    )


def _bubbles(
    counts: Sequence[Sequence[int]],
    clients: Sequence[str],
    classes: Sequence[str],
    width: float,
    most_clients: int,
) -> str:
    kind = "wide" if width == WIDE else "narrow"
    columns, rows = _spaced(len(clients), most_clients), _spaced(len(classes), 100)
    named = len(rows) <= 40
    longest = max(len(_shorten(classes[row])) for row in rows) if named else 3
    left, top, bottom = 30.0 + 7.0 * longest, 8.0, 46.0
    step_x = (width - left - 14) / max(len(columns), 1)
    step_y = max(5.0, min(26.0, 420 / len(rows)))
    height = top + bottom + step_y * len(rows)
    largest = max((counts[c][r] for c in columns for r in rows), default=0) or 1
    radius = max(min(max(step_x, 7.0), step_y) * 0.7, 2.0)
    parts = [
        f'<svg class="chart {kind}" viewBox="0 0 {width:g} {height:g}" role="img" '
        f'aria-label="Training samples by client and class">'
    ]
    for number, row in enumerate(rows):
        y = top + step_y * (number + 0.5)
        parts.append(f'<path class="grid" d="M{left:g} {y:.1f}H{width - 14:g}"/>')
        if named or number % 10 == 0:
            text = _shorten(classes[row]) if named else str(row)
            parts.append(
                f'<text class="tick" x="{left - 8:g}" y="{y + 4:.1f}" text-anchor="end">'
                f"{escape(text)}</text>"
            )
    every = max(1, len(columns) // (20 if kind == "wide" else 8))
    for number, column in enumerate(columns):
        x = left + step_x * (number + 0.5)
        if number % every == 0:
            parts.append(
                f'<text class="tick" x="{x:.1f}" y="{height - bottom + 18:.1f}" '
                f'text-anchor="middle">{column}</text>'
            )
        for place, row in enumerate(rows):
            if count := counts[column][row]:
                parts.append(
                    f'<circle class="bubble" cx="{x:.1f}" cy="{top + step_y * (place + 0.5):.1f}" '
                    f'r="{max(radius * math.sqrt(count / largest), 0.6):.1f}"><title>'
                    f"client {escape(clients[column])}, class {escape(classes[row])}: "
                    f"{count}</title></circle>"
                )
    shown = "" if len(columns) == len(clients) else f", {len(columns)} of {len(clients)}"
    parts.append(
        f'<text class="axis" x="{(left + width) / 2:.1f}" y="{height - 6:.1f}" '
        f'text-anchor="middle">client{shown}</text><text class="axis" text-anchor="middle" '
        f'transform="translate(12 {top + step_y * len(rows) / 2:.1f}) rotate(-90)">class</text>'
        "</svg>"
    )
    return "".join(parts)


def spread(wanted: Sequence[float], low: float, high: float) -> list[float]:
    """Return places for labels near where they are wanted, but not on top of each other.

    Parameters
    ----------
    wanted
        Where the labels would best be.
    low, high
        The room for them; it is shared evenly if it is too small.
    """
    gap = min(LABEL_HEIGHT, (high - low) / max(len(wanted) - 1, 1))
    order = sorted(range(len(wanted)), key=lambda number: wanted[number])
    # Labels that touch form a block, whose middle is where its labels want to be on average.
    blocks: list[list[int]] = []
    starts: list[float] = []
    for number in order:
        blocks.append([number])
        starts.append(0.0)
        while True:
            block = blocks[-1]
            length = gap * (len(block) - 1)
            middle = sum(wanted[n] for n in block) / len(block)
            starts[-1] = min(max(middle - length / 2, low), high - length)
            if len(blocks) < 2 or starts[-2] + gap * len(blocks[-2]) <= starts[-1] + 1e-9:
                break
            blocks[-2:] = [blocks[-2] + blocks[-1]]
            starts.pop()
    places = [0.0] * len(wanted)
    for block, start in zip(blocks, starts, strict=True):
        for position, number in enumerate(block):
            places[number] = start + gap * position
    return places


def _ends(axis: Axis, values: Sequence[float]) -> tuple[float, float]:
    low = min(values) if axis.low is None else axis.low
    high = max(values) if axis.high is None else axis.high
    return low, max(high, low)


def _spaced(count: int, most: int) -> list[int]:
    """Return evenly spaced numbers below `count`, the first and the last among them."""
    if count <= most:
        return list(range(count))
    return sorted({round(number * (count - 1) / (most - 1)) for number in range(most)})


def _shorten(text: str, most: int = 20) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"
