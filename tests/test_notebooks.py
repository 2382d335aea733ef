"""The notebooks of the examples run from top to bottom, with fewer rounds and seeds."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

NOTEBOOKS = sorted((Path(__file__).parents[1] / "examples" / "notebooks").glob("*.py"))
# What a notebook prints at its end: a table of two seeds, an accuracy, probabilities of a class.
SHOWN = {
    "compare_methods": r"means over seeds 0, 1",
    "own_data": r"^0\.\d+$",
    "new_client": r"\['[358]'",
    # Of classes with one sample all are identified; of those that were not sent, few by chance: the
    # global mean may lie next to an image of the client.
    "what_an_update_reveals": r"^ +1 sample +(\d+) +\1 +\1 [\s\S]*^ +1 sample +\1 +0 +[0-2] ",
}


def test_there_is_one_of_each() -> None:
    assert {path.stem for path in NOTEBOOKS} == set(SHOWN)


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path: Path, tmp_path: Path) -> None:
    text = path.read_text()
    shorter = re.sub(r"rounds=10\b", "rounds=2", text).replace("seeds=(0, 1, 2)", "seeds=(0, 1)")
    assert shorter != text
    (tmp_path / path.name).write_text(shorter)
    done = subprocess.run(
        [sys.executable, path.name],
        cwd=tmp_path,
        env={**os.environ, "MPLBACKEND": "agg"},
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert done.returncode == 0, done.stderr
    assert re.search(SHOWN[path.stem], done.stdout, re.MULTILINE), done.stdout
