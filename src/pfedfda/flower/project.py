"""``pfedfda federate``: the beginnings of a federation on Flower."""

import shutil
from pathlib import Path

from pfedfda.errors import InputError, unknown

TEMPLATE = Path(__file__).parent / "template"
USAGE = """\
usage: pfedfda federate init DIR

Writes a Flower app to DIR that runs any method over real sites: its settings, the server's and the
sites' programs, and a README with every command from certificates to results.
"""


def federate(words: list[str]) -> int:
    """Run ``pfedfda federate``; return the exit code."""
    if not words or words[0] in ("-h", "--help") or words[1:2] in (["-h"], ["--help"]):
        print(USAGE, end="")
        return 0
    if words[0] != "init":
        raise unknown("command", f"federate {words[0]}", ["federate init"])
    if len(words) != 2 or words[1].startswith("-"):
        raise InputError("'pfedfda federate init' takes one argument: the folder to make.")
    init(Path(words[1]))
    print(f"Wrote {words[1]}; {Path(words[1]) / 'README.md'} says how to go on.")
    return 0


def init(folder: Path) -> None:
    """Write the app's project to a folder that is new or empty."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"{folder} is there already: name a new or empty folder.")
    try:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(TEMPLATE, folder, ignore=ignored, dirs_exist_ok=True)
    except OSError as error:
        raise InputError(f"The project cannot be written to {folder} ({error}).") from error
