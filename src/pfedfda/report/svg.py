"""Where the parts of a chart lie in its SVG on the page.

Places are percentages of the plotting area, while text, markers and margins have a fixed size in
pixels: one drawing fits every width of the screen. The style sheet takes away what a phone has no
room for (`Tick.extra`, the labels at the ends of lines). The macro ``chart``
of ``parts.html`` writes it down.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from pfedfda.report.charts import Axis, Chart, Series
from pfedfda.report.text import shorten

WIDTH, NARROW = 800.0, 280.0  # about what a chart has on a desktop and on a phone, without margins
HEIGHT, NARROW_HEIGHT = 330.0, 250.0
LABEL_HEIGHT = 14.0
LETTER = 6.8
MARGIN = 14.0
MOST_NAMED = 40  # rows


@dataclass(frozen=True)
class Tick:
    """A tick at a place in per cent, which may be left out on a phone."""

    at: float
    text: str
    extra: bool = False


@dataclass(frozen=True)
class Point:
    """A marker or a bubble at a place in per cent, with a title and, for a bubble, its radius."""

    x: float
    y: float
    title: str
    radius: float


@dataclass(frozen=True)
class Drawn:
    """A series in its place: its line and range as paths in a square of 100, and its markers."""

    series: Series
    line: str
    range: str
    points: Sequence[Point]
    end: float = 0.0  # where the line ends
    label_at: float = 0.0  # where its label stands beside it


class Drawing:
    """A chart in its place, with everything that the template needs."""

    def __init__(self, chart: Chart) -> None:
        self.chart = chart
        series = chart.drawn
        xs = [v for s in series for v, u in zip(s.xs, s.ys, strict=True) if u is not None]
        ys = [v for s in series for v in s.ys if v is not None]
        ys += [v for s in series for pair in s.ranges if pair for v in pair]
        self.x, self.y = AxisScale(chart.x, xs), AxisScale(chart.y, ys, covers=True)
        self.labels = chart.end_labels and chart.joined and len(series) > 1
        longest = max((len(shorten(s.label)) for s in series), default=0)
        self.right = 26 + LETTER * longest if self.labels else MARGIN
        self.height, self.narrow_height = HEIGHT, NARROW_HEIGHT
        if chart.y.names:
            rows = len(chart.y.names)
            step = min(26.0, 420 / rows) if series[0].sizes else max(30.0, 7.0 * len(series))
            self.height = self.narrow_height = max(5.0, step) * rows
        self.y_ticks = [Tick(100 - tick.at, tick.text) for tick in self.y.ticks]
        if chart.y.names:
            self.y_ticks = self._rows(chart.y.names)
        self.x_ticks, self.turned = self._x_ticks()
        widest = max((len(tick.text) for tick in self.y_ticks), default=0)
        self.left = MARGIN + LETTER * widest
        longest_name = max((len(tick.text) for tick in self.x_ticks), default=0)
        # The sine of the angle by which names are turned, and room for the label of the axis.
        room = 46 + 0.65 * LETTER * longest_name - 8
        self.bottom = room if self.turned == "turned" else 46.0
        self.narrow_bottom = room if self.turned else 46.0
        self.shaded = None
        if chart.shaded:
            start, end = (min(max(self.x.place(v), 0), 100) for v in chart.shaded[:2])
            self.shaded = (start, end - start, chart.shaded[2])
        self.diagonal = None
        if chart.diagonal:
            low, high = ((self.x.place(v), 100 - self.y.place(v)) for v in (0.0, 1.0))
            self.diagonal = (*low, *high)
        self.series = [self._draw(s) for s in series]
        if self.labels:
            ends = [drawn.end * self.height / 100 for drawn in self.series]
            places = spread(ends, 0, self.height)
            self.series = [
                replace(drawn, label_at=at / self.height * 100)
                for drawn, at in zip(self.series, places, strict=True)
            ]

    def _rows(self, names: Sequence[str]) -> list[Tick]:
        """Return a tick for each category of the vertical axis, with every tenth named if many."""
        few = len(names) <= MOST_NAMED
        texts = [shorten(name) if few else str(n) * (n % 10 == 0) for n, name in enumerate(names)]
        return [Tick(self.y.place(place), text) for place, text in enumerate(texts)]

    def _x_ticks(self) -> tuple[list[Tick], str]:
        """Return the ticks, and whether their texts are turned: always, on a phone, or never."""
        names = [shorten(name) for name in self.chart.x.names]
        if not names:
            ticks = self.x.ticks
            many = len(ticks) > 5
            return [Tick(t.at, t.text, many and n % 2 == 1) for n, t in enumerate(ticks)], ""
        longest = max(len(name) for name in names)
        if longest <= 4:  # numbers, mostly: some are enough
            every, narrow, turned = math.ceil(len(names) / 25), math.ceil(len(names) / 9), ""
        else:
            wide = LETTER * (longest + 1) * len(names)
            every = math.ceil(len(names) * LABEL_HEIGHT / WIDTH)
            narrow = math.ceil(len(names) * LABEL_HEIGHT / NARROW)
            turned = "turned" if wide > WIDTH else "turned-narrow" if wide > NARROW else ""
        narrow = math.ceil(narrow / every) * every
        return [
            Tick(self.x.place(n), name, n % narrow != 0)
            for n, name in enumerate(names)
            if n % every == 0
        ], turned

    def _draw(self, s: Series) -> Drawn:
        places = [
            None if v is None else (self.x.place(u), self._down(v))
            for u, v in zip(s.xs, s.ys, strict=True)
        ]
        # A percentage of a radius is of the diagonal over the root of two.
        size = math.sqrt((WIDTH**2 + self.height**2) / 2) / 100
        columns, rows = len(self.chart.x.names), len(self.chart.y.names)
        largest = min(0.65 * WIDTH / max(columns, 1), 0.5 * self.height / max(rows, 1))
        points = []
        for n in s.markers:
            place = places[n]
            if place:
                radius = max(largest * math.sqrt(s.sizes[n]), 0.8) / size if s.sizes else 0.0
                points.append(Point(*place, s.titles[n] if s.titles else "", radius))
        line, pen_down = "", False
        for place in places if self.chart.joined else []:
            if place:
                line += f"{'L' if pen_down else 'M'}{place[0]:.2f} {place[1]:.2f}"
            pen_down = place is not None
        known = [(self.x.place(u), pair) for u, pair in zip(s.xs, s.ranges, strict=False) if pair]
        there = [f"{x:.2f} {self._down(high):.2f}" for x, (_, high) in known]
        back = [f"{x:.2f} {self._down(low):.2f}" for x, (low, _) in reversed(known)]
        area = f"M{'L'.join(there + back)}Z" if known else ""
        end = next(place[1] for place in reversed(places) if place)
        return Drawn(s, line, area, points, end)

    def _down(self, value: float) -> float:
        """Return the place of a value from the top; categories are counted from there."""
        return self.y.place(value) if self.chart.y.names else 100 - self.y.place(value)


class AxisScale:
    """The ends of an axis, its ticks, and where values lie between the ends."""

    def __init__(self, axis: Axis, values: Sequence[float], covers: bool = False) -> None:
        if axis.names:
            self.low, self.high = -0.5, len(axis.names) - 0.5
            self.ticks: list[Tick] = []
            return
        low = min(values) if axis.low is None else axis.low
        high = max(max(values) if axis.high is None else axis.high, low)
        numbers = nice_ticks(low, high, 8, axis.whole)
        if covers or not high > low:
            low, high = numbers[0], max(numbers[-1], *values, high)
        self.low, self.high = low, high
        numbers = [tick for tick in numbers if low - 1e-9 <= tick <= high + 1e-9]
        self.ticks = [
            Tick(self.place(tick), text)
            for tick, text in zip(numbers, write_ticks(numbers), strict=True)
        ]

    def place(self, value: float) -> float:
        """Return the place of a value in per cent."""
        return 100 * (value - self.low) / (self.high - self.low)


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
