"""The clients' own tensors between rounds, on disk."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from safetensors.torch import load_file, save_file
from torch import Tensor

CLIENTS_PER_FOLDER = 1000


@dataclass(frozen=True)
class ClientStates:
    """A file for each client that has state, so memory does not grow with the number of clients.

    A worker *stages* the state that training left behind; it takes effect when the round is
    complete and the server *commits* it. A round that breaks off leaves every client as it was.

    Parameters
    ----------
    folder
        Where the files are.
    """

    folder: Path

    def load(self, client_id: int) -> dict[str, Tensor]:
        """Return a client's tensors; empty if it has none yet."""
        path = self._path(client_id)
        return load_file(path) if path.exists() else {}

    def stage(self, client_id: int, tensors: dict[str, Tensor]) -> None:
        """Write what a client wants to keep."""
        path = self._path(client_id, ".staged")
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file(tensors, path)

    def commit(self, client_ids: Iterable[int]) -> None:
        """Make the staged states of these clients their current ones."""
        for client_id in client_ids:
            staged = self._path(client_id, ".staged")
            if staged.exists():
                staged.replace(self._path(client_id))

    def discard(self) -> None:
        """Remove what was staged and never committed."""
        for staged in self.folder.glob("*/*.staged"):
            staged.unlink(missing_ok=True)

    def _path(self, client_id: int, suffix: str = "") -> Path:
        shard = f"{client_id // CLIENTS_PER_FOLDER:03d}"
        return self.folder / shard / f"{client_id:06d}.safetensors{suffix}"
