"""Covariate shift: which clients' images are corrupted, and how."""

import csv
import io
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pfedfda.data.corruptions import CORRUPTIONS, SEVERITIES, load_frost_photos
from pfedfda.data.hub import data_folder
from pfedfda.errors import InputError, unknown
from pfedfda.files import read_text

ShiftName = Literal["none", "paper", "released"]

RELEASED_ORDER = (
    *("motion_blur", "defocus_blur", "gaussian_noise", "shot_noise", "impulse_noise"),
    *("frost", "fog", "jpeg_compression", "brightness", "contrast"),
)
"""The corruptions in the order in which the authors' program assigns them."""


class Shift(NamedTuple):
    """A corruption at a severity from 1 to 5."""

    corruption: str
    severity: int


def assign_shift(name: ShiftName, table: Path | None, clients: int) -> dict[int, Shift]:
    """Return which clients are corrupted.

    Parameters
    ----------
    name
        paper: the first half of the clients get corruption-severity pairs that are all different,
        as far as 50 pairs go; released: the assignment of the authors' program, corruption i mod 10
        of `RELEASED_ORDER` at severity i mod 5 + 1, which has only ten different pairs, such as
        contrast at severity 5 only; none.
    table
        A CSV file with the columns client, corruption, severity, in place of a name.
    clients
        The number of clients.
    """
    if table is not None:
        return _read_table(table, clients)
    pairs = {}
    for client in range(clients // 2 if name != "none" else 0):
        turn, place = divmod(client, len(CORRUPTIONS))
        if name == "released":
            pairs[client] = Shift(RELEASED_ORDER[place], SEVERITIES[client % len(SEVERITIES)])
        else:
            pairs[client] = Shift(CORRUPTIONS[place], SEVERITIES[turn % len(SEVERITIES)])
    return pairs


def frost_photos(data_dir: Path | None) -> list[NDArray[np.uint8]] | None:
    """Return the photographs of frost in the data folder, None if there are none."""
    folder = data_folder(data_dir)
    if folder is None or not (folder / "frost").is_dir():
        return None
    return load_frost_photos(folder / "frost") or None


def _read_table(path: Path, clients: int) -> dict[int, Shift]:
    pairs = {}
    try:
        rows = list(csv.DictReader(io.StringIO(read_text(path), newline="")))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"The shift table {path} cannot be read ({error}).") from error
    if not rows:
        raise InputError(f"The shift table {path} names no client.")
    for number, row in enumerate(rows, start=2):
        try:
            client, severity = int(row["client"]), int(row["severity"])
            corruption = str(row["corruption"])
        except (KeyError, TypeError, ValueError):
            raise InputError(
                f"Line {number} of the shift table {path} does not have a client, a corruption and "
                f"a severity."
            ) from None
        if not 0 <= client < clients:
            raise InputError(
                f"Line {number} of the shift table {path} names client {client}; they go from 0 to "
                f"{clients - 1}."
            )
        if client in pairs:
            raise InputError(
                f"Line {number} of the shift table {path} names client {client} a second time."
            )
        if severity not in SEVERITIES:
            raise InputError(
                f"Line {number} of the shift table {path} has severity {severity}; it must be 1 to "
                f"5."
            )
        if corruption not in CORRUPTIONS:
            raise unknown("corruption", corruption, CORRUPTIONS)
        pairs[client] = Shift(corruption, severity)
    return pairs
