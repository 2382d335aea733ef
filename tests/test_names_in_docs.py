"""Every file, command and option that the pages name is there."""

import contextlib
import io
import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest

from pfedfda.cli import COMMANDS, main
from pfedfda.methods import all_methods

ROOT = Path(__file__).parent.parent
# The changelog names what was there once.
AT_THE_ROOT = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "examples/README.md")
PAGES = [*(ROOT / name for name in AT_THE_ROOT), *sorted((ROOT / "docs").glob("*.md"))]
PAGES.append(ROOT / "src/pfedfda/flower/template/README.md")
EVERY_PAGE = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
FOLDERS = "src|tests|docs|tools|experiments|examples|benchmarks|results"
PLACE = re.compile(rf"(?<![\w/.~$-])((?:{FOLDERS})/[\w/.*@=-]*[\w*])")
BESIDES = ([], ["federate", "init"], ["federate", "check"], ["data", "show"])
# Of Flower's programs and of tyro, which the pages speak of by themselves.
OF_OTHERS = {
    "--enable-supernode-auth", "--control-api-address", "--fleet-api-address", "--superlink",
    "--host", "--port", "--trusted-entities", "--tyro-write-completion",
}  # fmt: skip


def spans(page: Path) -> Iterator[str]:
    """Yield what a page sets as code: spans, and lines of blocks, continued ones as one."""
    text = page.read_text()
    yield from re.findall(r"(?<!`)`([^`\n]+)`(?!`)", text)
    for block in re.findall(r"```(?:sh)?\n(.*?)```", text, re.DOTALL):
        yield from block.replace("\\\n", " ").splitlines()


@EVERY_PAGE
def test_places_in_the_repository(page: Path) -> None:
    text = page.read_text()
    named = PLACE.findall(text)
    named += [f"{n.replace('.', '/')}.py" for n in re.findall(r"-m (benchmarks\.\w+)", text)]
    scripts = "".join(path.read_text() for path in (ROOT / "experiments").glob("*.py"))
    for place in named:
        # A record may be one that a script has yet to write.
        assert any(ROOT.glob(place)) or f'"results" / "{Path(place).name}"' in scripts, place


@EVERY_PAGE
def test_links_say_where_they_lead(page: Path) -> None:
    """In words, and not by the name of a file."""
    assert not re.findall(r"\[[\w/-]+\.md\]\([\w/-]+\.md", page.read_text())


@EVERY_PAGE
def test_commands_and_targets(page: Path) -> None:
    makefile = (ROOT / "Makefile").read_text()
    for span in spans(page):
        command = re.match(r"(?:\.venv/bin/)?pfedfda ([a-z][\w-]*)", span)
        if command:
            assert command[1] in COMMANDS, span
        target = re.match(r"make ([a-z][\w-]*)", span)
        if target:
            assert f"\n{target[1]}:" in makefile, span


@pytest.fixture(scope="module")
def options() -> set[str]:
    """All options of all commands, of methods and their presets, and of scripts of ours."""
    found = set(OF_OTHERS)
    for name, method in all_methods().items():
        for field in fields(method):
            found.add(f"--{name}.{field.name.replace('_', '-')}")
    for folder in ("experiments", "benchmarks", "tools"):
        for script in (ROOT / folder).glob("*.py"):
            found |= set(re.findall(r'"(--[\w-]+)"', script.read_text()))
    return found


@pytest.fixture(scope="module")
def explained() -> set[str]:
    """The options that the help of the commands has."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "200")
        found = set()
        for words in (*([name] for name in COMMANDS), *BESIDES):
            found |= set(re.findall(r"--[a-z][\w.-]*\w", help_of(words)))
    return found


def help_of(words: list[str]) -> str:
    """Return what a command says of itself."""
    text = io.StringIO()
    with contextlib.redirect_stdout(text), contextlib.suppress(SystemExit):
        main([*words, "--help"])
    return text.getvalue()


@EVERY_PAGE
def test_options(page: Path, options: set[str], explained: set[str]) -> None:
    assert len(explained) > 100
    for span in spans(page):
        ours = re.match(r"--|(?:\.venv/bin/)?pfedfda ", span)
        for option in re.findall(r"(?<!\S)--[a-zA-Z][\w.-]*\w", span) if ours else ():
            assert option in explained | options, span
