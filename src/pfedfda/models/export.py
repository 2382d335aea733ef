"""A trained model as an ordinary file: safetensors for the weights, JSON for how to use them."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file

from pfedfda.errors import InputError, quote
from pfedfda.files import json_text, read_text, replacing, write_text
from pfedfda.inputs import InputType, read_inputs
from pfedfda.models.build import ModelConfig, build_model, chosen_model, model_tensors
from pfedfda.models.networks import BODIES, VECTOR_BODIES, Model

FORMAT = 1
INPUT = {
    "uint8": "float32 (n, channels, height, width): pixels 0..255 times 2/255, minus 1",
    "float32": "float32 (n, *input_shape)",
    "int64": "int64 (n, *input_shape)",
}
UNREADABLE = (
    OSError,
    SafetensorError,
    ValueError,
    KeyError,
    TypeError,
    AttributeError,
    OverflowError,
    MemoryError,
    RuntimeError,  # RecursionError is one
)
"""What reading tensors and descriptions that somebody else has written may raise."""


def save_model(
    folder: Path,
    model: Model,
    config: ModelConfig,
    input_shape: tuple[int, ...],
    class_names: Sequence[str],
    about: dict[str, Any],
    input_type: InputType = "uint8",
) -> None:
    """Write a model to a folder that exists.

    Parameters
    ----------
    folder
        Gets ``model.safetensors`` and ``model.json``.
    model
        The body and the linear head.
    config
        Which network it is.
    input_shape
        The shape of one input; height, width and channels for images.
    class_names
        The names of its outputs.
    about
        Anything else worth knowing, for ``model.json``.
    input_type
        What inputs are.
    """
    with replacing(folder / "model.safetensors") as new:
        save_file(model_tensors(model), new)
    name = chosen_model(config, input_shape, input_type)
    description = {
        "format": FORMAT,
        "model": name,
        "input_shape": list(input_shape),
        "input_type": input_type,
        "class_names": list(class_names),
        "input": INPUT[input_type],
        "output": "logits (n, classes), in the order of class_names",
        "load": "import pfedfda; model = pfedfda.load_model(FOLDER); model(images).argmax(1)",
        "about": about,
    }
    write_text(folder / "model.json", json_text(description, indent=2) + "\n")


def load_model(folder: Path | str) -> Model:
    """Read a model that `save_model` or ``pfedfda personalize`` has written, ready to predict."""
    folder = Path(folder)
    try:
        description = json.loads(read_text(folder / "model.json"))
        if description["format"] != FORMAT or description["model"] not in {
            **BODIES,
            **VECTOR_BODIES,
        }:
            raise ValueError("it is of an unknown format")
        shape, input_type = read_inputs(description)
        classes = len(description["class_names"])
        config = ModelConfig(description["model"])
        with torch.device("meta"):  # takes no memory
            expected = build_model(config, shape, classes, 0, input_type)
        _refuse_other_shapes(folder / "model.safetensors", expected)
        model = build_model(config, shape, classes, 0, input_type)
        model.load_state_dict(load_file(folder / "model.safetensors"))
    except UNREADABLE as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(f"{folder} does not hold a model ({reason.rstrip('.')}).") from error
    model.requires_grad_(False)
    return model.eval()


def _refuse_other_shapes(path: Path, model: Model) -> None:
    """Refuse a file of tensors, by its header, that is not for this model."""
    with safe_open(path, "pt") as file:
        found = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    wanted = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    for name in {**wanted, **found}:
        if found.get(name) != wanted.get(name):
            there = quote(found[name]) if name in found else "missing"
            raise ValueError(
                f"the tensor {quote(name)} is {there} in {path.name}, and "
                f"{wanted.get(name, 'missing')} by model.json"
            )
