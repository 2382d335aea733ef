import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pfedfda.methods import all_methods
from pfedfda.report.styles import HUES, STYLES, style_of, styles_of, title_of
from pfedfda.report.svg import LABEL_HEIGHT, nice_ticks, spread, write_ticks

# How colours look with normal vision and with the three kinds of colour blindness (linear RGB).
VISIONS = {
    "normal": np.eye(3),
    "protan": [[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]],
    "deutan": [[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]],
    "tritan": [[1.256, -0.077, -0.179], [-0.078, 0.931, 0.148], [0.005, 0.691, 0.304]],
}
TO_CONES = [[0.4122, 0.5363, 0.0514], [0.2119, 0.6807, 0.1074], [0.0883, 0.2817, 0.6300]]
TO_OKLAB = [[0.2105, 0.7936, -0.0041], [1.9780, -2.4286, 0.4506], [0.0259, 0.7828, -0.8087]]


def linear(colour: str) -> np.ndarray:
    values = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


@pytest.mark.parametrize("vision", VISIONS)
@pytest.mark.parametrize("background", [0, 1])
def test_hues_can_be_told_apart_by_everybody(vision: str, background: int) -> None:
    seen = {}
    for name, hue in HUES.items():
        cones = np.array(TO_CONES) @ np.clip(VISIONS[vision] @ linear(hue[background]), 0, 1)
        seen[name] = np.array(TO_OKLAB) @ np.cbrt(cones)
    for one, other in itertools.combinations(seen, 2):
        assert np.linalg.norm(seen[one] - seen[other]) > 0.07, (one, other)


def test_every_method_has_a_look_of_its_own_under_its_title() -> None:
    methods = {name: m for name, m in all_methods().items() if m.__module__.startswith("pfedfda.")}
    assert set(STYLES) == set(methods)
    assert len(set(STYLES.values())) == len(STYLES)
    assert title_of("fedavg-ft") == "FedAvgFT"
    assert title_of("mine") == "mine"


def test_looks_of_unknown_methods_depend_on_the_name_alone() -> None:
    assert style_of("mine") == styles_of(["pfedfda", "mine"])[1] == styles_of(["mine"])[0]
    known = {(s.hue, s.dash, s.marker) for s in STYLES.values()}
    for number in range(50):
        style = style_of(f"mine{number}")
        assert (style.hue, style.dash, style.marker) not in known


def test_runs_of_one_method_keep_its_colour_and_differ_otherwise() -> None:
    styles = styles_of(["ditto"] * 10)
    assert {style.hue for style in styles} == {STYLES["ditto"].hue}
    assert len({(style.dash, style.marker) for style in styles}) == 10


@given(
    st.floats(-1e6, 1e6), st.floats(0, 1e6), st.integers(2, 12), st.booleans()
)  # fmt: skip
def test_ticks_are_few_round_and_cover_the_range(
    low: float, width: float, most: int, whole: bool
) -> None:
    ticks = nice_ticks(low, low + width, most, whole)
    steps = np.diff(ticks)
    assert 1 <= len(steps) <= most + 2
    if width > 1e-6 * max(abs(low), 1):
        assert ticks[0] <= low + 1e-6 * width
        assert ticks[-1] >= low + width - 1e-6 * width
    if whole:
        assert all(tick == round(tick) for tick in ticks)


def test_ticks_are_written_alike() -> None:
    assert write_ticks([0.4, 0.45, 0.5]) == ["0.40", "0.45", "0.50"]
    assert write_ticks([-1.0, 0.0, 1000.0]) == ["\u22121", "0", "1\u2009000"]


@given(st.lists(st.floats(0, 300), min_size=1, max_size=30))
def test_labels_do_not_overlap_and_keep_their_order(wanted: list[float]) -> None:
    places = spread(wanted, 0, 300)
    gap = min(LABEL_HEIGHT, 300 / max(len(wanted) - 1, 1))
    ordered = sorted(places)
    assert ordered[0] >= -1e-6
    assert ordered[-1] <= 300 + 1e-6
    assert all(b - a >= gap - 1e-6 for a, b in itertools.pairwise(ordered))
    order = sorted(range(len(wanted)), key=lambda n: wanted[n])
    assert [places[n] for n in order] == ordered
    if len(wanted) == 1:
        assert places == pytest.approx(wanted)
