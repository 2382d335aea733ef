"""``pfedfda federate``: begin a federation on Flower, and check who can reach it."""

import shutil
from pathlib import Path

from pfedfda.errors import InputError, unknown
from pfedfda.flower.control import check

TEMPLATE = Path(__file__).parent / "template"
USAGE = """\
usage: pfedfda federate init DIR
       pfedfda federate check HOST:PORT [--root-certificates FILE]

init writes a Flower app to DIR that runs any method over real sites: its settings, the server's and
the sites' programs, and a README with every command from certificates to results.

check tells whether whoever is on this machine can control the SuperLink at HOST:PORT, and so run
code on the server and at every site. Exit code 0: no; 1: yes; 2: that could not be determined. With
--root-certificates the server's certificate must be of this authority; without, it is not checked.
"""


def federate(words: list[str]) -> int:
    """Run ``pfedfda federate``; return the exit code."""
    if not words or words[0] in ("-h", "--help") or words[1:2] in (["-h"], ["--help"]):
        print(USAGE, end="")
        return 0
    if words[0] == "check":
        return _check(words[1:])
    if words[0] != "init":
        raise unknown("command", f"federate {words[0]}", ["federate init", "federate check"])
    if len(words) != 2 or words[1].startswith("-"):
        raise InputError("'pfedfda federate init' takes one argument: the folder to make.")
    init(Path(words[1]))
    print(f"Wrote {words[1]}; {Path(words[1]) / 'README.md'} says how to go on.")
    return 0


def _check(words: list[str]) -> int:
    root = None
    if "--root-certificates" in words[:-1]:
        place = words.index("--root-certificates")
        root = Path(words[place + 1])
        words = words[:place] + words[place + 2 :]
    if len(words) != 1 or words[0].startswith("-"):
        raise InputError(
            "'pfedfda federate check' takes one argument, HOST:PORT, and --root-certificates FILE."
        )
    finding = check(words[0], root)
    print(finding.sentence)
    return finding.exit_code


def init(folder: Path) -> None:
    """Write the app's project to a folder that is new or empty."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"{folder} is there already: name a new or empty folder.")
    try:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(TEMPLATE, folder, ignore=ignored, dirs_exist_ok=True)
    except OSError as error:
        raise InputError(f"The project cannot be written to {folder} ({error}).") from error
