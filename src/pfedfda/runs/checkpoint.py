"""Checkpoints: what a run needs to go on after it was stopped at any moment.

A checkpoint is two files in the folder ``checkpoint``: the server's state in a file named after the
round, and ``manifest.json`` with the round, the costs so far and the sizes that the logs had. The
state is written beside the old one; once it and its name are flushed to the disk, one rename of the
manifest makes the new checkpoint count. The clients' own tensors are in files by round too
(`pfedfda.runs.ClientStates`), so those of the old checkpoint stay as they are until then. Random
generators need no place here: each is made from the seed, the round and the client.
"""

import hashlib
import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from pfedfda.errors import InputError, quote
from pfedfda.files import json_text, read_text, refuse_link, replacing, write_text
from pfedfda.models.weights import UNREADABLE
from pfedfda.runs.layout import MANIFEST

FORMAT = 1


@dataclass(frozen=True)
class Checkpoint:
    """A run after a complete round.

    Parameters
    ----------
    round
        The round; 0 before the first.
    state
        The server's state.
    log_sizes
        The lengths in bytes of the files that grow by lines, such as ``metrics.jsonl``.
    tally
        What the run has cost so far.
    final
        The results of the last evaluation.
    about
        What the run is: method, task, class names, the federation's fingerprint.
    client_states
        How many clients have a state of their own.
    """

    round: int
    state: dict[str, Tensor]
    log_sizes: Mapping[str, int] = field(default_factory=dict)
    tally: Mapping[str, Any] = field(default_factory=dict)
    final: Mapping[str, Any] = field(default_factory=dict)
    about: Mapping[str, Any] = field(default_factory=dict)
    client_states: int = 0


def write_checkpoint(folder: Path, checkpoint: Checkpoint) -> None:
    """Put a checkpoint in the place of the one before, or leave that as it is.

    Everything else that it depends on (settings, logs, clients' states) must be flushed before.
    """
    manifest = {
        "format": FORMAT,
        "digest": _digest(checkpoint.state),
        **{name: value for name, value in vars(checkpoint).items() if name != "state"},
    }
    with replacing(state_path(folder, checkpoint.round)) as new:
        save_file(checkpoint.state, new)
    write_text(folder / MANIFEST, json_text(manifest, indent=2) + "\n")
    tidy(folder, checkpoint.round)


def tidy(folder: Path, round_number: int) -> None:
    """Remove older states, and what was never finished because its process was killed."""
    kept = (MANIFEST, "lock", state_path(folder, round_number).name)
    for file in folder.iterdir():
        if file.name not in kept and file.is_file():
            file.unlink(missing_ok=True)


def read_checkpoint(folder: Path) -> Checkpoint:
    """Read a checkpoint; refuse one that is damaged or is none."""
    try:
        manifest = _mapping(json.loads(read_text(folder / MANIFEST)))
        if manifest["format"] != FORMAT:
            raise ValueError(f"its format is {quote(manifest['format'])}, not {FORMAT}")
        round_number = _natural(manifest["round"])
        state = load_file(state_path(folder, round_number))
        if manifest["digest"] != _digest(state):
            raise ValueError("its tensors are not those that were written")
        return Checkpoint(
            round=round_number,
            state=state,
            log_sizes={k: _natural(v) for k, v in _mapping(manifest["log_sizes"]).items()},
            tally=_mapping(manifest["tally"]),
            final=_mapping(manifest["final"]),
            about=_mapping(manifest["about"]),
            client_states=_natural(manifest.get("client_states", 0)),
        )
    except FileNotFoundError as error:
        raise InputError(f"{folder.parent} is not a run that can be read ({error}).") from error
    except UNREADABLE as error:
        reason = f"it has no {error}" if isinstance(error, KeyError) else str(error)
        raise InputError(f"The checkpoint in {folder} cannot be read ({reason}).") from error


def state_path(folder: Path, round_number: int) -> Path:
    """Return where the server's state after a round is."""
    return folder / f"server-{round_number:06d}.safetensors"


def _natural(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{quote(value)} is not a number of rounds or bytes")
    return value


def _mapping(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise TypeError(f"{quote(value)} is not a table")
    return value


def _digest(state: Mapping[str, Tensor]) -> str:
    """Return a fingerprint of tensors, by which damage is noticed."""
    digest = hashlib.blake2b(digest_size=16)
    for name, tensor in sorted(state.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data if tensor.numel() else b"")
    return digest.hexdigest()


@contextmanager
def sole_use(folder: Path) -> Iterator[None]:
    """Refuse a second process that would write to the same run."""
    if sys.platform == "win32":
        yield
        return
    import fcntl

    path = folder / "lock"
    refuse_link(path)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
    try:
        try:
            # A record lock is not inherited by the workers: it ends with this process.
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise InputError(f"Another process is at work on the run {folder.parent}.") from None
        yield
    finally:
        os.close(descriptor)
