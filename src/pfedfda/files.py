"""Files and folders that may come from anybody."""

import os
import re
import stat
import tomllib
from pathlib import Path
from typing import Any

from pfedfda.errors import InputError

SMALL = 2**24  # what a description in JSON, TOML or CSV may have; real ones have a thousandth
MOST_TOML, LONGEST_LINE = 2**17, 5000  # of settings
LARGEST_SIDE = 1024  # of an image, in pixels
LARGE = 2**28  # what a table or a log of a long run with many clients may have
FORMULA = re.compile(r"'*[=+\-@\t\r]")


def read_text(path: Path, largest: int = SMALL) -> str:
    """Return the text of a file; raise OSError or UnicodeDecodeError if that cannot be.

    Parameters
    ----------
    path
        An ordinary file: a device or a pipe might never end.
    largest
        The most bytes that the file may have.
    """
    try:
        status = path.stat()
    except ValueError as error:  # a path with a null character
        raise OSError(str(error)) from error
    if not stat.S_ISREG(status.st_mode):
        raise OSError(f"{path} is not an ordinary file")
    if status.st_size > largest:
        raise OSError(f"it has {status.st_size:,} bytes, and {largest:,} are allowed")
    return path.read_text(encoding="utf-8")


def read_toml(path: Path) -> dict[str, Any]:
    """Return the tables of a small TOML file; raise OSError, ValueError or RecursionError."""
    text = read_text(path, MOST_TOML)
    # The parser takes time with the square of the number of dots in a key.
    if any(len(line) > LONGEST_LINE for line in text.splitlines()):
        raise ValueError(f"it has a line of more than {LONGEST_LINE:,} characters")
    return tomllib.loads(text)


def csv_cell(value: Any) -> Any:
    """Return a value for a cell of a CSV file, with an apostrophe before what may be a formula.

    A spreadsheet runs text that begins with one of ``= + - @``, a tab or a carriage return.
    Numbers stay as they are; `csv_text` takes the apostrophe away again.
    """
    return f"'{value}" if isinstance(value, str) and FORMULA.match(value) else value


def csv_text(cell: str) -> str:
    """Return the text that `csv_cell` made a cell of."""
    return cell[1:] if cell.startswith("'") and FORMULA.match(cell) else cell


def expand_user(path: Path) -> Path:
    """Return the path with ``~`` replaced by the home of the user that it means."""
    try:
        return path.expanduser()
    except RuntimeError:
        raise InputError(f"The path {path} begins with a user whom this machine lacks.") from None


def refuse_links(folder: Path) -> None:
    """Refuse a folder with symbolic links in it: writing to it could change files elsewhere."""
    for place, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = Path(place, name)
            if path.is_symlink():
                raise InputError(
                    f"{path} is a symbolic link; a run that goes on must have all its files in "
                    f"its own folder."
                )
