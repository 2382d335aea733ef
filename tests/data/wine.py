"""The same labelled numbers in every form that a source may have."""

import csv
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_wine

NAMES = tuple(name.replace("/", "_") for name in load_wine().feature_names)
X: NDArray[np.float64] = load_wine().data
Y: NDArray[np.int64] = load_wine().target
CLASSES = ("barolo", "grignolino", "barbera")
CLIENTS = np.arange(len(Y)) * 7 % 5


def columns(**more: Any) -> dict[str, list[Any]]:
    """Return the features by name, then the label as a number, and further columns."""
    table = {name: X[:, k].tolist() for k, name in enumerate(NAMES)}
    return {**table, "label": Y.tolist(), **{name: list(v) for name, v in more.items()}}


def write_csv(path: Path, table: dict[str, list[Any]], delimiter: str = ",") -> Path:
    """Write a table as the standard library does."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, delimiter=delimiter)
        writer.writerow(table)
        writer.writerows(zip(*table.values(), strict=True))
    return path
