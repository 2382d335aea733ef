"""The page in a real browser, where the machine has one."""

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from pfedfda.report import PaperCell, PaperRow, PaperTable, write_report
from pfedfda.report.styles import STYLES
from tests.report.browser import Browser, find_browser
from tests.report.fake_runs import write_comparison

METHODS = [name for name in STYLES if not name.startswith("pfedfda-")]
ROWS = "[...document.querySelector('.sortable').tBodies[0].rows]"
MEANS = f"{ROWS}.map(row => Number(row.cells[1].dataset.v))"
TICKS = (
    "[...document.querySelectorAll('#g0-accuracy .view:first-of-type svg.tick text')]"
    ".filter(e => e.getClientRects().length)"
)
VISIBLE = "[...document.querySelectorAll('{}')].filter(e => e.getClientRects().length).length"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "all <b>"
    everything = {"beta": True, "shifted": True, "new_clients": True, "clients": 20}
    write_comparison(folder, [*METHODS, "<script>mine"], **everything)
    cells = [PaperCell(0.5, 0.1, 0.6, 0.1)] * 8
    suite = PaperTable(
        "Table", [f"column {n}" for n in range(8)], [PaperRow("a", cells)], ["Note."]
    )
    return write_report([folder], folder, suite=suite)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    program = find_browser()
    if program is None:
        pytest.skip("there is no Chromium on this machine")
    with Browser(program) as opened:
        yield opened


@pytest.fixture
def opened(browser: Browser, page: Path) -> Iterator[Browser]:
    browser.open(page)
    yield browser
    assert browser.errors == []
    assert set(browser.requests) == {page.as_uri()}  # nothing else was asked for


def test_headings_sort_the_table(opened: Browser) -> None:
    heading = "document.querySelectorAll('.sortable th')[1]"
    opened.run(f"{heading}.querySelector('button').click()")
    means = opened.run(MEANS)
    assert len(means) == len(METHODS) + 1
    assert means == sorted(means, reverse=True)
    assert opened.run(f"{heading}.getAttribute('aria-sort')") == "descending"
    opened.run(f"{heading}.querySelector('button').focus()")
    for kind in ("keyDown", "keyUp"):  # by keyboard, and round the other way
        enter = {"key": "Enter", "code": "Enter", "windowsVirtualKeyCode": 13, "text": "\r"}
        opened.call("Input.dispatchKeyEvent", type=kind, **enter)
    assert opened.run(MEANS) == sorted(means)
    assert opened.run(f"{heading}.getAttribute('aria-sort')") == "ascending"
    opened.run("document.querySelector('.sortable th button').click()")
    assert opened.run("document.querySelectorAll('[aria-sort]').length") == 1


def test_switches_choose_one_view(opened: Browser) -> None:
    shown = "[...document.querySelectorAll('#g0-accuracy .view')].filter(e => e.checkVisibility())"
    label = f"{shown}.map(e => e.querySelector('svg').getAttribute('aria-label')).join()"
    assert opened.run(label) == "mean accuracy by round"
    opened.run("document.querySelector('#g0-accuracy .a2').click()")
    opened.run("document.querySelector('#g0-accuracy .b1').click()")
    assert opened.run(label) == "worst tenth accuracy by time"


def test_legend_hides_and_highlights_a_method_everywhere(opened: Browser) -> None:
    lines, rows = VISIBLE.format("#g0-accuracy svg.chart g .line"), VISIBLE.format(".sortable tr")
    before = opened.run(lines), opened.run(rows)
    button = "document.querySelector('.legend button')"
    opened.run(f"{button}.click()")
    assert opened.run(f"{button}.getAttribute('aria-pressed')") == "false"
    assert opened.run(f"{button}.checkVisibility()")
    assert (opened.run(lines), opened.run(rows)) == (before[0] - 1, before[1] - 1)
    opened.run(f"{button}.click()")
    assert (opened.run(lines), opened.run(rows)) == before
    box = f"{button}.getBoundingClientRect()"
    place = opened.run(f"[{box}.x + 9, {box}.y + 9]")
    opened.call("Input.dispatchMouseEvent", type="mouseMoved", x=place[0], y=place[1])
    assert opened.run("document.body.classList.contains('focused')")
    assert opened.run("document.querySelectorAll('.hot').length") > 5
    opened.call("Input.dispatchMouseEvent", type="mouseMoved", x=1, y=1)
    assert not opened.run("document.body.classList.contains('focused')")


@pytest.mark.parametrize("width", [320, 390, 800, 1280])
def test_page_is_never_wider_than_the_screen(opened: Browser, page: Path, width: int) -> None:
    opened.open(page, width)
    opened.run("document.querySelectorAll('details').forEach(e => e.open = true)")
    assert opened.run("document.documentElement.scrollWidth") <= width
    assert opened.run(VISIBLE.format("svg.chart")) >= 3
    drawn = "[...document.querySelectorAll('svg.chart text')].filter(e => e.checkVisibility())"
    heights = opened.run(f"{drawn}.map(e => e.getBoundingClientRect().height)")
    assert min(heights) > 11  # text does not shrink with the drawing
    # Text stays on the screen, and does not lie on its neighbour.
    ends = f"{TICKS}.map(e => e.getBoundingClientRect()).map(r => [r.left, r.right])"
    places = opened.run(ends)
    assert all(left >= 0 and right <= width for left, right in places)
    assert all(one[1] < other[0] for one, other in itertools.pairwise(places))


def test_what_scrolls_on_a_phone_shows_it(opened: Browser, page: Path) -> None:
    """A shadow at the edge, which a cover that scrolls along hides at the end."""
    opened.open(page, 390)
    for selector in (".legend", ".box"):
        box = f"document.querySelector('{selector}')"
        assert opened.run(f"{box}.scrollWidth > {box}.clientWidth + 20")
        assert opened.run(f"getComputedStyle({box}).backgroundAttachment").split(", ") == [
            "local",
            "local",
            "scroll",
            "scroll",
            "scroll",
        ]


def test_colours_follow_the_scheme(opened: Browser, page: Path) -> None:
    colours = []
    for dark in (False, True):
        opened.open(page, dark=dark)
        style = "getComputedStyle(document.querySelector('{}'))"
        line = opened.run(style.format("g .line") + ".stroke")
        colours.append((line, opened.run(style.format("body") + ".backgroundColor")))
    assert colours[0][0] != colours[1][0]
    assert colours[0][1] != colours[1][1]


def test_page_tells_everything_without_its_script(opened: Browser, page: Path) -> None:
    opened.call("Emulation.setScriptExecutionDisabled", value=True)
    try:
        opened.open(page)
        assert opened.run("document.querySelectorAll('button').length") == 0
        assert opened.run(VISIBLE.format(".legend li")) == len(METHODS) + 1
        assert opened.run(VISIBLE.format("svg.chart g .line")) >= 3 * len(METHODS)
    finally:
        opened.call("Emulation.setScriptExecutionDisabled", value=False)
