"""Folders of the cache that are either complete or not there."""

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from pfedfda.errors import InputError
from pfedfda.files import FolderLock, expand_user, flush, make_folders, remove_abandoned

TEMPORARY = ".preparing-"
ABANDONED_SECONDS = 3600.0
DAMAGED = (
    OSError,
    EOFError,
    ValueError,
    KeyError,
    TypeError,
    AttributeError,
    OverflowError,
    MemoryError,
    RecursionError,
)
"""What reading a damaged folder of the cache may raise."""


def default_cache() -> Path:
    """Return the folder for prepared data; the variable ``PFEDFDA_CACHE`` overrides it."""
    if folder := os.environ.get("PFEDFDA_CACHE"):
        return expand_user(Path(folder))
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pfedfda"


def store(target: Path, write: Callable[[Path], None], is_complete: Callable[[], bool]) -> None:
    """Fill a folder of the cache in one step.

    Everything is written into a temporary folder beside its place, flushed, and then renamed. That
    is atomic, also if the power is cut: of two processes that store the same, one wins and both
    find the same bytes. What killed processes have left half made is removed.

    Parameters
    ----------
    target
        The folder.
    write
        Writes the content into the folder it is given.
    is_complete
        Tells whether the target is there and whole; a damaged one is replaced.
    """
    temporary: Path | None = None
    lock: FolderLock | None = None
    try:
        make_folders(target.parent)
        remove_abandoned(target.parent, TEMPORARY, ABANDONED_SECONDS)
        temporary = Path(tempfile.mkdtemp(prefix=TEMPORARY, dir=target.parent))
        lock = FolderLock(temporary)
        write(temporary)
        for path in (*temporary.rglob("*"), temporary):
            flush(path)
        try:
            temporary.rename(target)
        except OSError:  # another process was faster, or a damaged folder is in the way
            if not is_complete():
                shutil.rmtree(target, ignore_errors=True)
                temporary.rename(target)
        flush(target.parent)
    except OSError as error:
        raise InputError(
            f"The data cannot be written to the cache {target.parent} ({error}); free some space "
            f"or name another folder in the variable PFEDFDA_CACHE."
        ) from error
    finally:
        if lock is not None:
            lock.close()
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)
