"""The clients' own tensors between rounds, on disk.

A client has a folder with a file for each round whose state still matters: that of the last
checkpoint, that of the last complete round, and that of the current one. No state is written over
another, so a process may be killed at any moment, and a run that goes back to its last checkpoint
finds every client as it was then. Memory does not grow with the number of clients; keeping files at
hand that are read again is left to the system's page cache.
"""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from pfedfda.errors import RunStoppedError
from pfedfda.files import flush
from pfedfda.models.weights import UNREADABLE

CLIENTS_PER_FOLDER = 1000
SUFFIX = ".safetensors"


@dataclass(frozen=True)
class ClientStates:
    """What the clients keep, by client and round.

    Parameters
    ----------
    folder
        Where the files are.
    checkpoint
        The round of the last checkpoint, to which the run may have to go back.
    """

    folder: Path
    checkpoint: int = 0

    def load(self, client_id: int, before: int) -> dict[str, Tensor]:
        """Return what a client kept in its last round before this one; empty if nothing."""
        earlier = [r for r in self._rounds(client_id) if r < before]
        if not earlier:
            return {}
        path = self._path(client_id, max(earlier))
        try:
            return load_file(path)
        except UNREADABLE as error:
            raise RunStoppedError(
                f"The state of client {client_id} in {path} cannot be read ({error})."
            ) from error

    def save(self, client_id: int, round_number: int, tensors: dict[str, Tensor]) -> None:
        """Write what a client keeps after a round."""
        path = self._path(client_id, round_number)
        # Another process may still write the same state for a run that was killed.
        unfinished = path.with_name(f"{path.name}.{os.getpid()}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            save_file(tensors, unfinished)
            unfinished.replace(path)
        except (OSError, SafetensorError) as error:
            raise RunStoppedError(
                f"The state of client {client_id} cannot be written to {path.parent} ({error})."
            ) from error

    def forget(self, client_id: int, round_number: int) -> None:
        """Remove what a client kept in a round, as if it had not taken part in it."""
        self._path(client_id, round_number).unlink(missing_ok=True)

    def flush(self, client_ids: Iterable[int]) -> None:
        """Wait until what these clients kept since the checkpoint is on the disk itself."""
        parents = set()
        for client_id in client_ids:
            folder = self._folder(client_id)
            if folder.exists():
                for r in self._rounds(client_id):
                    if r > self.checkpoint:
                        flush(self._path(client_id, r))
                flush(folder)
                parents |= {folder.parent, self.folder}
        for folder in sorted(parents):
            flush(folder)

    def prune(self, client_ids: Iterable[int], round_number: int) -> None:
        """Remove what no longer matters of these clients after a complete round.

        What matters is their state at the checkpoint and that after this round.
        """
        for client_id in client_ids:
            rounds = self._rounds(client_id)
            saved = max((r for r in rounds if r <= self.checkpoint), default=0)
            last = max((r for r in rounds if r <= round_number), default=0)
            for r in rounds:
                if r < last and r != saved:
                    self._path(client_id, r).unlink(missing_ok=True)

    def rewind(self) -> set[int]:
        """Remove everything that is newer than the checkpoint, and files that were never finished.

        Also removes what a kill between a checkpoint and its pruning has left. Returns the clients
        that have a state.
        """
        holders = set()
        for folder in self.folder.glob("*/*"):
            if not folder.is_dir() or folder.is_symlink():
                continue
            for file in folder.iterdir():
                number = _round_of(file)
                # Safetensors has a temporary file of its own.
                unfinished = number is None and (SUFFIX in file.name or file.name[:4] == ".tmp")
                if unfinished or (number is not None and number > self.checkpoint):
                    file.unlink(missing_ok=True)
            if folder.name.isdecimal():
                self.prune([int(folder.name)], self.checkpoint)
                holders |= self.holders([int(folder.name)], self.checkpoint)
        return holders

    def holders(self, client_ids: Iterable[int], round_number: int) -> set[int]:
        """Return those of the clients that have a state of this round or an earlier one."""
        return {
            client_id
            for client_id in client_ids
            if any(r <= round_number for r in self._rounds(client_id))
        }

    def _rounds(self, client_id: int) -> list[int]:
        """Return the rounds of which there is a state, in order."""
        try:
            names = list(self._folder(client_id).iterdir())
        except FileNotFoundError:
            return []
        return sorted(number for file in names if (number := _round_of(file)) is not None)

    def _folder(self, client_id: int) -> Path:
        return self.folder / f"{client_id // CLIENTS_PER_FOLDER:03d}" / f"{client_id:06d}"

    def _path(self, client_id: int, round_number: int) -> Path:
        return self._folder(client_id) / f"{round_number:06d}{SUFFIX}"


def _round_of(file: Path) -> int | None:
    """Return the round of a state's file, None for any other file."""
    stem = file.name.removesuffix(SUFFIX)
    return int(stem) if file.name.endswith(SUFFIX) and stem.isdecimal() else None
