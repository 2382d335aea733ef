"""What inputs are: images, numbers or indices; the type of an array says which."""

from collections.abc import Mapping
from typing import Any, Literal, get_args

InputType = Literal["uint8", "float32", "int64"]
"""uint8 arrays (height, width, channels) are images; float32 arrays of any shape are numbers, which
go into the network as they are; int64 arrays are indices, such as tokens."""


def read_input_type(value: object) -> InputType:
    """Return what a file or message says inputs are; raise ValueError if that is unknown."""
    for known in get_args(InputType):
        if value == known:
            found: InputType = known
            return found
    raise ValueError(f"inputs of type {str(value)[:80]!r} are unknown")


def read_inputs(about: Mapping[str, Any]) -> tuple[tuple[int, ...], InputType]:
    """Return the shape of one input and what inputs are, as a file of a run or a model has them.

    Files from before there were other inputs than images have ``image_shape`` and no type.
    """
    found = about["input_shape"] if "input_shape" in about else about["image_shape"]
    shape = tuple(int(n) for n in found)
    input_type = read_input_type(about.get("input_type", "uint8"))
    axes_fit = len(shape) == 3 if input_type == "uint8" else len(shape) >= 1
    if not axes_fit or min(shape) < 1:
        raise ValueError(f"inputs of type {input_type} cannot have the shape {shape}"[:200])
    return shape, input_type


def describe_inputs(shape: tuple[int, ...], input_type: str) -> str:
    """Return what inputs are in a few words, e.g. ``32×32 colour``."""
    if input_type == "uint8":
        return f"{shape[0]}×{shape[1]} {'grey' if shape[2] == 1 else 'colour'}"
    if input_type == "text":
        return "texts"
    what = "numbers" if input_type == "float32" else "indices"
    return f"{'×'.join(str(n) for n in shape)} {what} per sample"
