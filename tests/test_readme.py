"""The README is short, says what a stranger needs, and is true."""

import re
import tomllib
from pathlib import Path

import pytest

from pfedfda.methods import all_methods

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
COMMANDS = (ROOT / "docs" / "command-line.md").read_text()


def test_it_is_short_and_has_a_picture() -> None:
    assert len(README.split()) < 1300
    pictures = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", README)
    assert pictures == ["docs/figures/demo.svg"]


def test_its_links_lead_to_files() -> None:
    for target in re.findall(r"\]\(([\w/.-]+)(?:#[\w-]+)?\)", README):
        assert (ROOT / target).exists(), target


def test_it_says_how_the_command_comes_onto_the_path() -> None:
    for word in (
        ".venv/bin/pfedfda",
        "source .venv/bin/activate",
        "pip install -c constraints.txt",
    ):
        assert README.index(word) < README.index("\npfedfda run ")


@pytest.mark.parametrize("text", [README, COMMANDS], ids=["README", "command-line"])
def test_it_says_how_long_long_commands_take(text: str) -> None:
    """What trains on the paper's images or with several seeds takes long; a dry run only tells."""
    commands = re.findall(r"^pfedfda .*$", text, re.MULTILINE)
    long = [c for c in commands if re.search(r"reproduce|cifar|--seeds|--trials|make ", c)]
    assert long
    for command in long:
        assert re.search(r"# .*(minute|hour|how long|longer)", command), command
    for command in re.findall(r"^make (?:demo|test) .*$", text, re.MULTILINE):
        assert re.search(r"# .*minute", command), command


def test_it_names_every_extra_and_the_version_of_torch() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    table = README[README.index("| extra | for |") :].split("\n\n")[0]
    named = [re.findall(r"`([\w-]+)`", row.split("|")[1]) for row in table.splitlines()[2:]]
    extras = sorted(name for names in named for name in names)
    assert extras == sorted(project["optional-dependencies"])
    pinned = re.search(r"^torch==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert pinned
    for text in (README, COMMANDS):
        assert set(re.findall(r"torch==([\d.]+)", text)) == {pinned[1]}


def test_it_counts_the_methods() -> None:
    methods = [name for name, method in all_methods().items() if not method.is_preset]
    assert f"Compare {len(methods)} methods" in " ".join(README.split())
    personal = len(methods) - len({"fedavg", "fedprox"})  # which give all clients one model
    assert f"| {personal} of {len(methods)} |" in README
