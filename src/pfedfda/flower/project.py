"""The beginnings of a federation on Flower: a project to fill in."""

import shutil
from pathlib import Path

from pfedfda.errors import InputError

TEMPLATE = Path(__file__).parent / "template"


def init(folder: Path) -> None:
    """Write the app's project to a folder that is new or empty."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"{folder} is there already: name a new or empty folder.")
    try:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(TEMPLATE, folder, ignore=ignored, dirs_exist_ok=True)
    except OSError as error:
        raise InputError(f"The project cannot be written to {folder} ({error}).") from error
