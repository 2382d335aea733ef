"""Folders of the cache that are either complete or not there.

Each has the hashes of its files in ``SHA256SUMS``, as ``sha256sum`` writes and checks them, so that
a file that has changed since is noticed before it is used.
"""

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from pfedfda.errors import InputError
from pfedfda.files import (
    FolderLock,
    expand_user,
    flush,
    make_folders,
    read_text,
    remove_abandoned,
    write_text,
)

TEMPORARY = ".preparing-"
ABANDONED_SECONDS = 3600.0
SUMS = "SHA256SUMS"
VERIFIED = "verified.json"
# Larger files are hashed when they have changed: 64 MiB take 40 ms, a hundred gigabytes a minute.
ALWAYS_HASHED = 2**26
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


def file_hash(path: Path) -> str:
    """Return the SHA-256 of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_hashes(folder: Path) -> None:
    """Write the hashes of all files of a folder into it."""
    paths = sorted(path for path in folder.iterdir() if path.name not in (SUMS, VERIFIED))
    (folder / SUMS).write_text("".join(f"{file_hash(path)}  {path.name}\n" for path in paths))


def read_hashes(folder: Path) -> dict[str, str]:
    """Return the hashes by file name that `write_hashes` has written; raise OSError, ValueError."""
    lines = read_text(folder / SUMS).splitlines()
    return {name: value for value, name in (line.split("  ", 1) for line in lines)}


def is_intact(folder: Path) -> bool:
    """Tell whether a folder of the cache is there and all its files have their hashes.

    A large file that has been found intact before is not hashed again as long as it is the same
    file, with the same size and the same times of change. These include the time that only the
    system sets (``ctime``), so a program that changes the content cannot hide it by accident.
    """
    try:
        hashes = read_hashes(folder)
        before = _read_verified(folder)
        now: dict[str, list[str | int]] = {}  # as it is before it is read
        for name, expected in hashes.items():
            status = (folder / name).stat()
            times = (status.st_mtime_ns, status.st_ctime_ns)
            state: list[str | int] = [expected, status.st_ino, status.st_size, *times]
            large = status.st_size > ALWAYS_HASHED
            if not (large and before.get(name) == state) and file_hash(folder / name) != expected:
                return False
            if large:
                now[name] = state
        if now != before:
            with suppress(OSError):  # of another user, or on a read-only disk: hashed every time
                write_text(folder / VERIFIED, json.dumps(now), durable=False)
        return bool(hashes)
    except DAMAGED:
        return False


def _read_verified(folder: Path) -> dict[str, list[str | int]]:
    try:
        verified: dict[str, list[str | int]] = json.loads(read_text(folder / VERIFIED))
        return verified if isinstance(verified, dict) else {}
    except (OSError, ValueError, RecursionError):
        return {}


def store(target: Path, write: Callable[[Path], None]) -> None:
    """Fill a folder of the cache in one step.

    Everything is written into a temporary folder beside its place, hashed, flushed, and then
    renamed. That is atomic, also if the power is cut: of two processes that store the same, one
    wins and both find the same bytes. A damaged folder in its place is replaced. What killed
    processes have left half made is removed.

    Parameters
    ----------
    target
        The folder.
    write
        Writes the content, plain files, into the folder it is given.
    """
    temporary: Path | None = None
    lock: FolderLock | None = None
    try:
        make_folders(target.parent)
        remove_abandoned(target.parent, TEMPORARY, ABANDONED_SECONDS)
        temporary = Path(tempfile.mkdtemp(prefix=TEMPORARY, dir=target.parent))
        lock = FolderLock(temporary)
        write(temporary)
        write_hashes(temporary)
        for path in (*temporary.iterdir(), temporary):
            flush(path)
        try:
            temporary.rename(target)
        except OSError:  # another process was faster, or a damaged folder is in the way
            if not is_intact(target):
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
