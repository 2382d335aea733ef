"""From a sample as its user has it to an input of the network, for a federation, a run or a model.

A run and a model keep this beside their tensors (``preprocessing.json`` and
``preprocessing.safetensors``), so that a new sample is treated as those of the training were.
"""

import hashlib
import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from pfedfda.data.features import FeatureMap, extract_features
from pfedfda.data.store import default_cache
from pfedfda.errors import InputError, quote
from pfedfda.files import LARGE, LARGEST_SIDE, json_text, read_text, replacing, write_text
from pfedfda.inputs import read_inputs
from pfedfda.models.backbones import Backbone, open_backbone
from pfedfda.models.build import MOST_VALUES
from pfedfda.models.factories import is_allowed, is_program

ABOUT = "preprocessing.json"
NUMBERS = "preprocessing.safetensors"
UNREADABLE = (
    *(OSError, ValueError, KeyError, TypeError, AttributeError, IndexError),
    *(OverflowError, RecursionError, SafetensorError),
)


@dataclass(frozen=True)
class Preprocessing:
    """What is done to samples before the network sees them.

    Parameters
    ----------
    type
        What samples are at first: uint8 images, float32 or int64 numbers, or text.
    shape
        The shape of one sample; empty for texts.
    columns
        The names of the features where they come from a table.
    backbone, backbone_size
        The backbone that turns samples into features, and the size of images for it.
    backbone_key
        What determined the backbone's features, to refuse another one of the same name.
    map
        What is done to numbers or features afterwards; None for nothing.
    text_column
        The column of a table that the texts came from.
    """

    type: str
    shape: tuple[int, ...]
    columns: tuple[str, ...] = ()
    backbone: str | None = None
    backbone_size: int | None = None
    backbone_key: dict[str, Any] = field(default_factory=dict)
    map: FeatureMap | None = None
    text_column: str | None = None

    def __call__(self, samples: NDArray[Any]) -> NDArray[Any]:
        """Return inputs of the network, for samples of the type and shape above."""
        backbone = self.open_backbone()
        inputs = samples
        if backbone is not None:
            fingerprint = _fingerprint(samples)
            inputs = extract_features(backbone, samples, fingerprint, default_cache())
        return inputs if self.map is None else self.map(inputs)

    def open_backbone(self) -> Backbone | None:
        """Return the backbone, None if there is none; refuse another one of the same name."""
        if self.backbone is None:
            return None
        if is_program(self.backbone) and not is_allowed(self.backbone):
            raise InputError(
                f"The backbone {quote(self.backbone)} is a program, and is run only if you "
                f"name it with --backbone."
            )
        side = max(self.shape[:2]) if self.type == "uint8" else None
        backbone = open_backbone(self.backbone, self.backbone_size, side)
        if json.loads(json.dumps(backbone.key())) != self.backbone_key:
            raise InputError(
                f"The backbone {self.backbone} is not the one that the model was trained with: "
                f"its weights or its preprocessing differ."
            )
        return backbone

    @property
    def does_something(self) -> bool:
        """Whether samples are not simply the inputs."""
        return self.backbone is not None or self.map is not None or bool(self.columns)

    def save(self, folder: Path) -> None:
        """Write it beside a run or a model."""
        about = {
            "type": self.type,
            "shape": list(self.shape),
            "columns": list(self.columns),
            "text_column": self.text_column,
            "backbone": self.backbone,
            "backbone_size": self.backbone_size,
            "backbone_key": self.backbone_key,
            "transform": None if self.map is None else self.map.transform,
        }
        write_text(folder / ABOUT, json_text(about))
        if self.map is not None:
            with replacing(folder / NUMBERS) as new:
                save_file(self.map.arrays(), new)

    @classmethod
    def read(cls, folder: Path) -> "Preprocessing | None":
        """Return what `save` wrote, None if there is nothing."""
        if not (folder / ABOUT).exists():
            return None
        try:
            about = json.loads(read_text(folder / ABOUT))
            transform = about["transform"]
            kind, shape = _samples_of(about)
            size, column = about["backbone_size"], about.get("text_column")
            if size is not None and not (type(size) is int and 8 <= size <= LARGEST_SIDE):
                raise ValueError(f"backbone_size is {quote(size)}")
            return cls(
                type=kind,
                shape=shape,
                columns=tuple(str(name) for name in about["columns"]),
                backbone=None if about["backbone"] is None else str(about["backbone"]),
                backbone_size=size,
                backbone_key=dict(about["backbone_key"]),
                map=None
                if transform is None
                else FeatureMap.of(transform, _read_numbers(folder / NUMBERS)),
                text_column=None if column is None else str(column),
            )
        except UNREADABLE as error:
            raise InputError(
                f"The preprocessing in {folder} cannot be read ({str(error)[:200]})."
            ) from error


def _samples_of(about: dict[str, Any]) -> tuple[str, tuple[int, ...]]:
    """Return the type and the shape of samples; raise ValueError for what no sample can be."""
    if about["type"] == "text":
        return "text", ()
    shape, kind = read_inputs({"input_shape": about["shape"], "input_type": about["type"]})
    too_large = kind == "uint8" and max(shape[:2]) > LARGEST_SIDE
    if too_large or math.prod(shape) > MOST_VALUES:
        raise ValueError(f"samples of shape {shape} are too large")
    return kind, shape


def _read_numbers(path: Path) -> dict[str, NDArray[Any]]:
    size = path.stat().st_size
    if size > LARGE:
        raise ValueError(f"{path.name} has {size:,} bytes, and {LARGE:,} are allowed")
    return load_file(path)


def _fingerprint(samples: NDArray[Any]) -> str:
    if samples.dtype.kind == "T":
        content = "\0".join(samples.tolist()).encode(errors="replace")
    else:
        content = np.ascontiguousarray(samples).tobytes()
    return hashlib.sha256(f"{samples.dtype} {samples.shape}".encode() + content).hexdigest()
