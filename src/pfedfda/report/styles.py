"""How methods look: each keeps its colour, dash and marker in every figure.

Related methods share a hue and differ in dash and marker. The hues differ in lightness too, so that
readers who see colours differently, and grey prints, can tell them apart.
"""

import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from pfedfda.methods import all_methods

# A hue for light and for dark backgrounds, found by a search for the largest least distance between
# any two, as people with normal vision and with each kind of colour blindness see them.
HUES: dict[str, tuple[str, str]] = {
    "blue": ("#246EAD", "#4890E2"),
    "grey": ("#4A4B4F", "#A69FA2"),
    "orange": ("#D17E08", "#FAA206"),
    "green": ("#3F9F80", "#65FDD5"),
    "red": ("#65060B", "#D86749"),
    "purple": ("#64197C", "#EAA3FD"),
    "olive": ("#716C1C", "#F7E674"),
}
SOLID, DASHED, DOTTED, MIXED, LONG = "", "6 3", "1.5 3", "7 3 1.5 3", "11 4"


@dataclass(frozen=True)
class Style:
    """The look of a method.

    Parameters
    ----------
    hue
        A key of `HUES`.
    dash
        Lengths of dashes and gaps in pixels; empty for a solid line.
    marker
        A key of `MARKERS`.
    """

    hue: str
    dash: str
    marker: str

    @property
    def light(self) -> str:
        """The colour on a light background."""
        return HUES[self.hue][0]

    @property
    def dark(self) -> str:
        """The colour on a dark background."""
        return HUES[self.hue][1]


STYLES: dict[str, Style] = {
    "local": Style("grey", DOTTED, "cross"),
    "fedavg": Style("orange", SOLID, "square"),
    "fedavg-ft": Style("orange", DASHED, "diamond"),
    "fedprox": Style("orange", DOTTED, "triangle"),
    "per-fedavg": Style("orange", SOLID, "down"),
    "apfl": Style("green", SOLID, "triangle"),
    "ditto": Style("green", DASHED, "down"),
    "pfedme": Style("olive", SOLID, "diamond"),
    "fedala": Style("olive", DOTTED, "plus"),
    "lg-fedavg": Style("olive", DASHED, "square"),
    "fedper": Style("red", DOTTED, "circle"),
    "fedrep": Style("red", SOLID, "plus"),
    "fedbabu": Style("red", DASHED, "triangle"),
    "fedas": Style("red", SOLID, "square"),
    "fedrod": Style("purple", SOLID, "down"),
    "fedpac": Style("purple", DASHED, "plus"),
    "fedproto": Style("purple", DOTTED, "cross"),
    "feddbe": Style("purple", SOLID, "square"),
    "fedncm": Style("grey", SOLID, "plus"),
    "fed3r": Style("grey", DASHED, "triangle"),
    "fedcof": Style("grey", SOLID, "diamond"),
    "fedcgs": Style("blue", DASHED, "down"),
    "pfedfda": Style("blue", SOLID, "circle"),
    "pfedfda-levels": Style("blue", LONG, "triangle"),
    "pfedfda-pooled": Style("blue", DASHED, "circle"),
    "pfedfda-paper": Style("blue", DOTTED, "square"),
    "pfedfda-released": Style("blue", MIXED, "diamond"),
}
MARKERS = {  # with Matplotlib's letters for them
    "circle": "o",
    "square": "s",
    "triangle": "^",
    "down": "v",
    "diamond": "D",
    "cross": "x",
    "plus": "+",
}
# What no method above has: the looks of methods that users write.
_SPARE = [
    Style(hue, dash, list(MARKERS)[(number + 3 * shift) % len(MARKERS)])
    for shift, dash in enumerate((MIXED, LONG))
    for number, hue in enumerate(hue for hue in HUES if hue != "blue")
]


def title_of(method: str) -> str:
    """Return the method as papers write it; one that is not known here goes by its name."""
    known = all_methods().get(method)
    return method if known is None else known.title


def style_of(method: str) -> Style:
    """Return the look of a method, the same in every report.

    Parameters
    ----------
    method
        The name of a method; unknown ones get a look that depends on the name alone.
    """
    if method in STYLES:
        return STYLES[method]
    return _SPARE[zlib.crc32(method.encode(errors="replace")) % len(_SPARE)]


def styles_of(methods: Iterable[str]) -> Sequence[Style]:
    """Return looks for the runs of one plot, which differ even if the methods are the same.

    Parameters
    ----------
    methods
        The method of each run.
    """
    dashes = (SOLID, DASHED, DOTTED, MIXED, LONG)
    chosen: list[Style] = []
    for method in methods:
        style = style_of(method)
        # The colour stays; another dash, then another marker tells the runs apart.
        variants = [style] + [replace(style, dash=d, marker=m) for m in MARKERS for d in dashes]
        chosen.append(next((variant for variant in variants if variant not in chosen), style))
    return chosen
