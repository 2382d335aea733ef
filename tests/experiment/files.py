"""Comparing runs byte by byte."""

import json
from pathlib import Path

from torch import Tensor

from pfedfda.runs.checkpoint import read_checkpoint

# What a run may differ in although its results are the same: how long it took, and where.
OF_THE_MACHINE = ("seconds", "machine", "log_sizes")


def comparable_files(folder: Path) -> dict[str, bytes]:
    """Return every file of a run but config.toml, with seconds and the machine taken out."""
    files = {}
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        name = str(path.relative_to(folder))
        if path.name in ("config.toml", "lock"):
            continue
        content = path.read_bytes()
        if path.suffix == ".jsonl":
            lines = [json.loads(line) for line in content.splitlines()]
            content = json.dumps([_without_seconds(line) for line in lines]).encode()
        elif path.suffix == ".json":
            content = json.dumps(_without_seconds(json.loads(content))).encode()
        files[name] = content
    return files


def final_state(folder: Path) -> dict[str, Tensor]:
    """Return the server's state at the end of a run."""
    return read_checkpoint(folder / "checkpoint").state


def _without_seconds(record: object) -> object:
    if isinstance(record, dict):
        kept = {k: v for k, v in record.items() if k not in OF_THE_MACHINE}
        return {key: _without_seconds(value) for key, value in kept.items()}
    return record
