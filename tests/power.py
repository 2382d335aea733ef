"""A disk whose power can be cut at any moment.

`Disk` watches a folder while a run writes to it and keeps a log of what the disk was told: which
name in which folder stands for which file, what each file holds, and what was flushed. Python's
audit events say when to look, and what is new is found by looking, so it does not matter who
wrote: the tensors come from Rust. Afterwards `Disk.cut` writes down what a cut at any point of the
log may have left. The model is that of POSIX at its worst: only what was flushed is sure to be
there. A file that was not may have lost all or a part of its new content, or have zeros or garbage
in its place; a name in a folder that was not flushed may stand for what it did at any time since,
whatever has become of other names. A rename is atomic, and what is flushed and then left alone does
not change.
"""

import os
import random
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

CHANGES = ("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate")
CUTS = ("lost", "kept", "renamed", "journal", "anything", "anything")
RECENT = 50_000_000  # nanoseconds: younger changes may have the same time stamp as the next one

_watching: list["Disk"] = []


def _hear(event: str, arguments: tuple[Any, ...]) -> None:
    if _watching and event in CHANGES:
        _watching[-1].look(arguments[0])


sys.addaudithook(_hear)  # for good: a hook cannot be taken away, but it costs nothing


@dataclass
class File:
    """A file or a folder as the disk has it: what is flushed, and all that came after."""

    flushed: Any
    later: list[Any] = field(default_factory=list)

    @property
    def latest(self) -> Any:
        return self.later[-1] if self.later else self.flushed

    def flush(self) -> None:
        self.flushed, self.later = self.latest, []


class Disk:
    """What a folder's disk was told.

    Parameters
    ----------
    root
        The folder, which exists; what is in it at the beginning is flushed.
    """

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()
        self.log: list[tuple[str, int, Any]] = []
        self._looking = False
        self._numbers: dict[int, int] = {}  # of a file that is there, by its inode
        self._stamps: dict[int, tuple[int, int] | None] = {}  # by which a change is noticed
        self._content: dict[int, Any] = {}
        self._next = 0
        self.root_number = 0
        self._scan()
        self.log += [("flush", number, None) for number in self._numbers.values()]
        self.begin = len(self.log)

    @contextmanager
    def watched(self) -> Iterator["Disk"]:
        """Watch what this process does to the folder."""
        real = os.fsync

        def fsync(file: Any) -> None:
            number = file if isinstance(file, int) else file.fileno()
            self._scan()
            node = self._numbers.get(os.fstat(number).st_ino)
            if node is not None:
                self.log.append(("flush", node, None))
            else:
                real(number)

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(os, "fsync", fsync)
            _watching.append(self)
            try:
                yield self
            finally:
                _watching.remove(self)
        self._scan()

    def note(self, value: Any) -> None:
        """Write something into the log that holds from here on."""
        self._scan()
        self.log.append(("note", 0, value))

    def look(self, path: Any) -> None:
        """See what is new, if something happens in the folder."""
        if self._looking or not isinstance(path, str | Path):
            return
        if str(path).startswith(str(self.root)):
            self._scan()

    def _scan(self) -> None:
        self._looking = True
        try:
            seen: set[int] = set()
            self.root_number = self._scan_folder(self.root, self.root.stat().st_ino, seen)
            self._numbers = {inode: n for inode, n in self._numbers.items() if inode in seen}
        finally:
            self._looking = False

    def _scan_folder(self, folder: Path, inode: int, seen: set[int]) -> int:
        seen.add(inode)
        entries = {}
        with os.scandir(folder) as found:
            for entry in sorted(found, key=lambda entry: entry.name):
                number = entry.inode()
                if entry.is_dir(follow_symlinks=False):
                    entries[entry.name] = self._scan_folder(Path(entry), number, seen)
                else:
                    entries[entry.name] = self._scan_file(entry, seen)
        fresh = inode not in self._numbers
        node = self._node(inode)
        if fresh:
            self.log.append(("folder", node, None))
        before = {} if fresh else self._content[node]
        self._content[node] = entries
        new = {n: entries.get(n) for n in {*before, *entries} if before.get(n) != entries.get(n)}
        if new:  # a rename is two names, a new file one
            self.log.append(("names", node, new))
        return node

    def _scan_file(self, entry: "os.DirEntry[str]", seen: set[int]) -> int:
        status = entry.stat(follow_symlinks=False)
        seen.add(status.st_ino)
        fresh = status.st_ino not in self._numbers
        node = self._node(status.st_ino)
        stamp = (status.st_size, status.st_mtime_ns)
        if fresh or self._stamps[node] != stamp:
            content = Path(entry).read_bytes()
            if fresh or self._content[node] != content:
                self.log.append(("data", node, content))
            self._content[node] = content
        self._stamps[node] = stamp if status.st_mtime_ns + RECENT < time.time_ns() else None
        return node

    def _node(self, inode: int) -> int:
        if inode not in self._numbers:
            self._numbers[inode] = self._next
            self._next += 1
        return self._numbers[inode]

    def noted(self, at: int) -> Any:
        """Return the last note before a point of the log."""
        notes = [value for kind, _, value in self.log[:at] if kind == "note"]
        return notes[-1] if notes else None

    def cut(self, at: int, how: str, seed: object, target: Path) -> None:
        """Write what may be left in a folder if the power goes at a point of the log.

        Parameters
        ----------
        at
            The point; only what was told before it has happened.
        how
            lost: nothing but what was flushed is there; kept: everything is there, as after a
            kill; renamed: all names are there, but of files only what was flushed; journal: names
            up to a point after the last flush, and any content of files that were not flushed;
            anything: each name and each file has a fate of its own.
        seed
            Determines what is left to chance.
        target
            The folder to make.
        """
        chance = random.Random(repr((at, how, seed)))
        files, folders = self._replay(at)
        if how == "journal":
            last = max(i for i, event in enumerate(self.log[:at], 1) if event[0] == "flush")
            folders = self._replay(chance.randint(last, at))[1]
        content_of: Callable[[File], bytes] = lambda file: _damaged(file, chance)  # noqa: E731
        if how in ("lost", "renamed"):
            content_of = lambda file: file.flushed  # noqa: E731
        elif how == "kept":
            content_of = lambda file: file.latest  # noqa: E731
        shutil.rmtree(target, ignore_errors=True)

        def write(node: int, path: Path) -> None:
            if node in folders:
                path.mkdir()
                for name, value in sorted(_names(folders[node], how, chance).items()):
                    if value is not None:
                        write(value, path / name)
            else:
                path.write_bytes(content_of(files[node]))

        write(self.root_number, target)

    def _replay(self, at: int) -> tuple[dict[int, File], dict[int, File]]:
        """Return files and folders; of a folder the names, and then what changed in them."""
        files: dict[int, File] = {}
        folders: dict[int, File] = {}
        for kind, node, value in self.log[:at]:
            if kind == "folder":
                folders[node] = File({})
            elif kind == "names":
                folders[node].later.append(value)
            elif kind == "data":
                files.setdefault(node, File(b"")).later.append(value)
            elif kind == "flush" and node in folders:
                folder = folders[node]
                folder.flushed = folder.flushed | _names(folder, "kept")
                folder.later = []
            elif kind == "flush":
                files[node].flush()
        return files, folders


def _names(folder: File, how: str, chance: random.Random | None = None) -> dict[str, int | None]:
    """Return what the names in a folder may stand for after a cut."""
    names = dict(folder.flushed)
    if how == "lost":
        return names
    joined: list[set[str]] = []  # names that were renamed to each other
    for change in folder.later:
        together = set(change).union(*(group for group in joined if group & set(change)))
        joined = [group for group in joined if not group & together] + [together]
    for group in joined:
        changes = [change for change in folder.later if group & set(change)]
        if how == "anything" and chance is not None:
            changes = changes[: chance.randint(0, len(changes))]
        for change in changes:
            names |= change
    return names


def _damaged(file: File, chance: random.Random) -> bytes:
    """Return what may be left of a file; what was flushed and stayed the same is."""
    if not file.later:
        return bytes(file.flushed)
    old, new = chance.choice([file.flushed, *file.later]), file.latest
    first, last = min(file.flushed, *file.later), max(file.flushed, *file.later)
    pairs = enumerate(zip(first, last, strict=False))
    same = next((place for place, (a, b) in pairs if a != b), len(first))
    rest = new[same:]
    part = chance.randint(0, len(rest))
    ends = [rest, b"", rest[:part], rest[:part] + bytes(len(rest) - part)]
    ends.append(rest[:part] + chance.randbytes(len(rest) - part))
    return bytes(chance.choice([old, *(new[:same] + end for end in ends)]))
