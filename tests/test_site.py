"""The documentation as a site."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest

import pfedfda
from tests.report.browser import Browser

ROOT = Path(__file__).parent.parent
CHROMIUM = shutil.which("chromium")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built so that every warning is an error."""
    for name in ("material", "mkdocstrings_handlers"):
        pytest.importorskip(name, reason="not installed: pip install 'pfedfda[docs]'")
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    return folder


class Addresses(HTMLParser):
    """What a page loads by itself, what it links to, and the places in it."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.linked: list[str] = []
        self.places: set[str] = set()
        self.feed(page.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.places.add(values.get("id", ""))
        if tag == "a" and "href" in values:
            self.linked.append(values["href"])
        elif tag != "a":
            self.loaded += [values[name] for name in ("src", "href") if name in values]


def pages(site: Path) -> Iterator[tuple[Path, Addresses]]:
    for path in sorted(site.glob("*.html")):
        if path.name != "404.html":  # its addresses are those of a server
            yield path, Addresses(path)


def test_pages_load_nothing_from_elsewhere(site: Path) -> None:
    for path, addresses in pages(site):
        assert addresses.loaded
        for address in addresses.loaded:
            if not address.startswith("data:"):
                assert "//" not in address, (path.name, address)
                assert (site / address.split("?")[0]).exists(), (path.name, address)
    for style in site.glob("assets/**/*.css"):
        assert not re.search(r"url\([\"']?(https?:)?//", style.read_text()), style


def test_links_lead_somewhere(site: Path) -> None:
    places = {path.name: addresses.places for path, addresses in pages(site)}
    for path, addresses in pages(site):
        for link in addresses.linked:
            name, _, place = link.partition("#")
            if "://" not in link and name not in ("", "."):
                assert name in places, (path.name, link)
                assert not place or place in places[name], (path.name, link)


def test_every_page_of_docs_can_be_reached(site: Path) -> None:
    linked = {link.partition("#")[0] for link in Addresses(site / "index.html").linked}
    for page in (ROOT / "docs").glob("*.md"):
        assert page.stem == "index" or f"{page.stem}.html" in linked


def test_the_reference_has_every_name_at_the_root(site: Path) -> None:
    places = Addresses(site / "api.html").places
    for name in set(pfedfda.__all__) - {"__version__"}:
        assert f"pfedfda.{name}" in places


@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
def test_pages_fit_a_desk_and_a_phone_and_ask_for_nothing(site: Path) -> None:
    """No page complains, asks for anything but files, or is wider than the screen."""
    with Browser(str(CHROMIUM)) as browser:
        for path in sorted(site.glob("*.html")):
            if path.name == "404.html":
                continue
            for width, dark in ((1280, False), (390, True)):
                browser.open(path, width, dark)
                browser.run("localStorage.clear()")  # where the theme keeps a choice of colours
                wide = browser.run("document.documentElement.scrollWidth")
                assert wide <= width, (path.name, wide)
            assert not browser.errors, (path.name, browser.errors)
        asked = {url for url in browser.requests if not url.startswith(("file:", "data:", "blob:"))}
        assert asked <= {"about:blank"}


@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
def test_the_search_works_from_disk(site: Path) -> None:
    done = subprocess.run(
        [
            str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu",
            "--virtual-time-budget=10000", "--dump-dom",
            f"{(site / 'index.html').as_uri()}?q=shrinkage",
        ],
        capture_output=True,
        text=True,
        timeout=120,
    )  # fmt: skip
    found = re.search(r'class="md-search-result__meta">([^<]*)<', done.stdout)
    assert found
    assert re.fullmatch(r"\s*\d+ matching documents?\s*", found[1])
