"""``federation.json``: who holds how many training samples of which class."""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pfedfda.data import Federation
from pfedfda.errors import InputError, printable
from pfedfda.files import replacing
from pfedfda.runs.layout import FEDERATION
from pfedfda.runs.reader import read_object

MOST_CLIENTS_WRITTEN = 1000


@dataclass(frozen=True)
class ClassCounts:
    """Training samples by client and class.

    Parameters
    ----------
    class_names, client_names
        The names, in the order of the columns and rows of the counts.
    counts
        A list for each client with its training samples of each class.
    """

    class_names: list[str]
    client_names: list[str]
    counts: list[list[int]]


def write_class_counts(federation: Federation, folder: Path) -> Path | None:
    """Write ``federation.json``, but not for more clients than a chart can show.

    Parameters
    ----------
    federation
        The federation of the run.
    folder
        The folder of a run or a comparison.
    """
    if len(federation) > MOST_CLIENTS_WRITTEN:
        return None
    classes = len(federation.class_names)
    path = folder / FEDERATION
    # Client by client: their labels need not fit into memory together.
    with replacing(path) as new, new.open("x", encoding="utf-8") as file:
        file.write(f'{{"class_names": {json.dumps(list(federation.class_names))}, "names": ')
        file.write(json.dumps(federation.client_names))
        for client in range(len(federation)):
            counts = np.bincount(federation.client(client).train_labels, minlength=classes)
            file.write(', "counts": [' if client == 0 else ", ")
            file.write(json.dumps(counts.tolist()))
        file.write("]}\n")
    return path


def read_class_counts(folder: Path) -> ClassCounts | None:
    """Read ``federation.json`` from the folder of a run or a comparison, None if there is none."""
    path = folder / FEDERATION
    if not path.exists():
        return None
    content = read_object(path)
    lists = {name: content.get(name) for name in ("class_names", "names", "counts")}
    for name, values in lists.items():
        if not isinstance(values, list) or not values:
            raise InputError(f"{name} in {path} is not a list with something in it.")
    classes, names, counts = ([*values] for values in lists.values() if values)
    if len(names) != len(counts):
        raise InputError(f"{path} has {len(names)} names for {len(counts)} clients.")
    for row in counts:
        if not isinstance(row, list) or len(row) != len(classes):
            raise InputError(f"A row of counts in {path} does not have {len(classes)} numbers.")
        if any(type(count) is not int or not 0 <= count < 2**53 for count in row):
            raise InputError(f"A row of counts in {path} has a value that is not a count.")
    return ClassCounts(
        [printable(name) for name in classes], [printable(name) for name in names], counts
    )
