"""``mistakes.json``: the most confident mistakes of a run on this machine, with their images."""

import base64
import binascii
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from pfedfda.data import Federation
from pfedfda.errors import InputError, printable
from pfedfda.files import json_text
from pfedfda.runs.clients import Mistake
from pfedfda.runs.layout import MISTAKES
from pfedfda.runs.reader import read_object

LARGEST_SIDE = 64  # of a picture, in pixels; larger images are made smaller
MOST_BYTES = 2**15  # of a picture; one of random colours has 12 kB
MOST_READ = 200
PNG = b"\x89PNG\r\n\x1a\n"


@dataclass(frozen=True)
class PicturedMistake:
    """A mistake with its image.

    Parameters
    ----------
    client
        The name of the client.
    true, predicted
        The names of the classes.
    confidence
        The probability that the model gave to the predicted class.
    png
        The image as a PNG file of at most 64 by 64 pixels.
    """

    client: str
    true: str
    predicted: str
    confidence: float
    png: bytes


def mistakes_text(federation: Federation, mistakes: Sequence[tuple[int, Mistake]]) -> str:
    """Return the content of ``mistakes.json``.

    Parameters
    ----------
    federation
        Whose images they are.
    mistakes
        Clients and mistakes, the most confident first.
    """
    names = federation.class_names
    content = [
        {
            "client": federation.client_names[client],
            "true": names[mistake.true],
            "predicted": names[mistake.predicted],
            "confidence": mistake.confidence,
            "png": _picture(np.array(federation.client(client).test_inputs[mistake.sample])),
        }
        for client, mistake in mistakes
    ]
    return json_text({"mistakes": content}, indent=1) + "\n"


def _picture(image: Any) -> str:
    picture = Image.fromarray(image[..., 0] if image.shape[2] == 1 else image)
    picture.thumbnail((LARGEST_SIDE, LARGEST_SIDE))
    buffer = io.BytesIO()
    picture.save(buffer, "PNG")
    return base64.b64encode(buffer.getvalue()).decode()


def read_mistakes(folder: Path) -> list[PicturedMistake]:
    """Read ``mistakes.json`` from the folder of a run, nothing if there is none."""
    path = folder / MISTAKES
    if not path.exists():
        return []
    content = read_object(path)
    try:
        rows = content["mistakes"]
        if not isinstance(rows, list) or len(rows) > MOST_READ:
            raise ValueError(f"it is no list of at most {MOST_READ} mistakes")
        return [_read(row) for row in rows]
    except (KeyError, TypeError, ValueError, binascii.Error) as error:
        raise InputError(f"The file {path} cannot be read ({error}).") from error


def _read(row: Any) -> PicturedMistake:
    confidence = row["confidence"]
    if type(confidence) not in (int, float) or not 0 <= confidence <= 1.001:
        raise ValueError("a confidence does not lie in [0, 1]")
    if not isinstance(row["png"], str) or len(row["png"]) > 2 * MOST_BYTES:
        raise ValueError("an image is too large")
    png = base64.b64decode(row["png"], validate=True)
    # The header of a PNG has its width and height; a browser makes room for what it says.
    width, height = (int.from_bytes(png[place : place + 4]) for place in (16, 20))
    if not png.startswith(PNG + b"\0\0\0\rIHDR") or not (0 < max(width, height) <= LARGEST_SIDE):
        raise ValueError(
            f"an image is not a PNG of at most {LARGEST_SIDE} by {LARGEST_SIDE} pixels"
        )
    client, true, predicted = (printable(row[name]) for name in ("client", "true", "predicted"))
    return PicturedMistake(client, true, predicted, float(confidence), png)
