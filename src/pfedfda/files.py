"""Files and folders: reading what may come from anybody, and writing what must not be lost.

A file that counts is written beside its place, flushed and renamed, and then its folder is flushed:
after a power cut there is the old file or the new one, never a part of either.
"""

import errno
import json
import os
import re
import shutil
import stat
import sys
import time
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

from pfedfda.errors import InputError, PfedfdaError

SMALL = 2**24  # what a description in JSON, TOML or CSV may have; real ones have a thousandth
MOST_TOML, LONGEST_LINE = 2**17, 5000  # of settings
LARGEST_SIDE = 1024  # of an image, in pixels
MOST_CLASSES = 100_000  # ImageNet-21k has 21,841; a head for more would have 200 MB and beyond
LARGE = 2**28  # what a table or a log of a long run with many clients may have
NUMBERS = re.compile(r"\[\n(?:\s|[\d.,eE+-]|null)+\]")
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
        raise InputError(
            f"The path {path} begins with a user who is unknown on this machine."
        ) from None


def refuse_link(path: Path) -> None:
    """Refuse to write to a symbolic link."""
    if path.is_symlink():
        raise InputError(
            f"{path} is a symbolic link, and writing to it could change files elsewhere; put an "
            f"ordinary file or folder in its place."
        )


def refuse_links(folder: Path) -> None:
    """Refuse a folder with symbolic links anywhere in it."""
    for place, folders, files in os.walk(folder):
        for name in (*folders, *files):
            refuse_link(Path(place, name))


def inside(folder: Path, *names: str) -> Path:
    """Return a path in a folder that is about to be written to; refuse links on the way there."""
    path = folder
    for name in names:
        path /= name
        refuse_link(path)
    return path


def flush(path: Path) -> None:
    """Wait until a file's content, or the names in a folder, are on the disk itself."""
    windows, folder = sys.platform == "win32", path.is_dir()
    if windows and folder:
        return  # names need no flushing there
    try:
        descriptor = os.open(path, os.O_RDWR if windows else os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        # A folder above ours may be closed to us, and some file systems cannot flush folders.
        if not folder or error.errno not in (errno.EACCES, errno.EINVAL, errno.EBADF):
            raise


def reserve(file: BinaryIO, size: int) -> None:
    """Take the space for a file before it is filled, so that a full disk is noticed at once.

    Raise OSError if the space is not there. Where the system cannot reserve any, writing notices.
    """
    if hasattr(os, "posix_fallocate"):
        try:
            os.posix_fallocate(file.fileno(), 0, size)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS):
                raise


def make_folders(path: Path) -> None:
    """Make a folder and those above it, if they are not there; they outlast a power cut."""
    if not path.is_dir():
        make_folders(path.parent)
        path.mkdir(exist_ok=True)
        flush(path.parent)


@contextmanager
def replacing(path: Path, durable: bool = True) -> Iterator[Path]:
    """Give the path of a new file, which then takes the place of another in one step.

    Parameters
    ----------
    path
        The file; not a symbolic link. There is always a whole one, the old or the new.
    durable
        Whether that holds for a power cut too. Otherwise whoever relies on the file must `flush`
        it and its folder.
    """
    refuse_link(path)
    new = path.with_name(path.name + ".new")
    new.unlink(missing_ok=True)  # of a process that was killed, or a link that waits for us
    try:
        yield new
        if durable:
            flush(new)
        new.replace(path)
    except BaseException:
        new.unlink(missing_ok=True)
        raise
    if durable:
        flush(path.parent)


def write_text(path: Path, text: str, durable: bool = True) -> None:
    """Write a text file in one step, as `replacing` does."""
    with replacing(path, durable) as new, new.open("x", encoding="utf-8", newline="") as file:
        file.write(text)


def json_text(content: Any, indent: int | None = None) -> str:
    """Return JSON by the standard, which has no infinite or undefined numbers: they are refused."""
    try:
        text = json.dumps(content, indent=indent, allow_nan=False)
    except ValueError as error:
        raise PfedfdaError(f"The results cannot be written as JSON ({error}).") from error
    if indent is None:
        return text
    # A list of numbers takes a line, not one for each number; no text has a line break in JSON.
    return NUMBERS.sub(lambda match: f"[{' '.join(match[0][1:-1].split())}]", text)


class FolderLock:
    """Says that a folder is in use, as long as this process or a forked child of it lives.

    The system lets go of the lock when the last of them ends, however it ends. On Windows, and on
    file systems without such locks, nothing is locked and nothing counts as abandoned.

    Parameters
    ----------
    folder
        The folder, which exists.
    """

    def __init__(self, folder: Path) -> None:
        self._descriptor: int | None = None
        self.held = False
        """Whether the lock is ours."""
        if sys.platform == "win32":
            return
        import fcntl

        self._descriptor = os.open(folder, os.O_RDONLY | os.O_NOFOLLOW | os.O_DIRECTORY)
        try:
            # Unlike a record lock it belongs to the open folder, which forked workers share.
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.held = True
        except OSError:
            self.close()

    def close(self) -> None:
        """Let go of the lock, unless a child still has it."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def __enter__(self) -> "FolderLock":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def remove_abandoned(parent: Path, prefix: str, seconds: float) -> None:
    """Remove folders of this user that processes have left behind which are gone.

    Parameters
    ----------
    parent
        Where they are.
    prefix
        How their names begin; whoever makes such a folder holds a `FolderLock` on it.
    seconds
        For how long nothing may have been made in them: one that is being made has no lock yet.
    """
    for folder in parent.glob(f"{prefix}*"):
        try:
            status = folder.lstat()
            old = time.time() - status.st_mtime > seconds
            if old and stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid():
                with FolderLock(folder) as lock:
                    if lock.held:
                        shutil.rmtree(folder, ignore_errors=True)
        except (OSError, AttributeError):  # removed by somebody else; Windows has no user numbers
            continue
