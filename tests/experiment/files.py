"""Comparing runs byte by byte."""

import json
from pathlib import Path


def comparable_files(folder: Path) -> dict[str, bytes]:
    """Return every file of a run but config.toml, with seconds and the machine taken out."""
    files = {}
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        name = str(path.relative_to(folder))
        if name == "config.toml":
            continue
        content = path.read_bytes()
        if path.suffix == ".jsonl":
            lines = [json.loads(line) for line in content.splitlines()]
            content = json.dumps([_without_seconds(line) for line in lines]).encode()
        elif name == "summary.json":
            content = json.dumps(_without_seconds(json.loads(content))).encode()
        files[name] = content
    return files


def _without_seconds(record: dict[str, object]) -> dict[str, object]:
    return {key: value for key, value in record.items() if key not in ("seconds", "machine")}
