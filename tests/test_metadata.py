"""What the files around the package say about it is true."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

import pfedfda
from pfedfda.cli import COMMANDS
from pfedfda.methods import all_methods

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def citation() -> dict[str, Any]:
    yaml = pytest.importorskip("yaml")
    read: dict[str, Any] = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    return read


def test_the_citation_has_what_its_format_requires(citation: dict[str, Any]) -> None:
    """The keys that version 1.2.0 of the Citation File Format requires, and its kinds of people."""
    assert citation["cff-version"] == "1.2.0"
    assert {"message", "title", "authors"} <= set(citation)
    assert citation["type"] == "software"
    for reference in citation["references"]:
        assert {"authors", "title", "type"} <= set(reference)
    for author in [*citation["authors"], *citation["references"][0]["authors"]]:
        assert set(author) in ({"name"}, {"given-names", "family-names"})


def test_the_citation_names_this_version_and_the_paper(citation: dict[str, Any]) -> None:
    assert citation["version"] == pfedfda.__version__
    (paper,) = citation["references"]
    names = [author["family-names"] for author in paper["authors"]]
    assert f"{' and '.join(names)}, NeurIPS {paper['year']}" == all_methods()["pfedfda"].paper
    readme = " ".join((ROOT / "README.md").read_text().split())
    assert paper["title"] in readme


def test_the_version_is_held_once() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert "version" not in project["project"]
    assert project["tool"]["hatch"]["version"]["path"] == "src/pfedfda/version.py"


def test_authors_and_licence_agree(citation: dict[str, Any]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["authors"] == citation["authors"]
    assert project["license"] == citation["license"] == "Apache-2.0"


def test_the_changelog_says_what_is_not_released() -> None:
    headings = re.findall(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings == ["[Unreleased]"]


def test_the_changelog_and_the_guide_name_what_there_is() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text()
    presets = [name for name, method in all_methods().items() if method.is_preset]
    for name in presets:
        assert f"`{name}`" in changelog
    for name in re.findall(r"`pfedfda ([a-z][\w-]*)", changelog):
        assert name in COMMANDS
    guide = (ROOT / "CONTRIBUTING.md").read_text()
    for path in re.findall(r"`((?:src|tests|docs|benchmarks)/[\w/.]+)`", guide):
        assert (ROOT / path).exists(), path
    packages = {path.parent.name for path in (ROOT / "src/pfedfda").glob("*/__init__.py")}
    assert packages == set(re.findall(r"^\| `src/pfedfda/(\w+)`", guide, re.MULTILINE))
    security = (ROOT / "SECURITY.md").read_text()
    for target in re.findall(r"\]\(([\w/.-]+)(?:#[\w-]+)?\)", guide + changelog + security):
        assert (ROOT / target).exists(), target
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"^make ([\w-]+)", guide, re.MULTILINE):
        assert f"\n{target}:" in makefile


def test_the_page_on_python_lists_the_names_at_the_root() -> None:
    page = (ROOT / "docs" / "python.md").read_text()
    table = page[page.index("| for | names |") :].split("\n\n")[0]
    assert set(re.findall(r"`(\w+)`", table)) | {"__version__"} == set(pfedfda.__all__)
