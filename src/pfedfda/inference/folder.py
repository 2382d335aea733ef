"""A model as a folder of ordinary files: safetensors for the numbers, JSON for how to use them."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn

from pfedfda.data import Preprocessing
from pfedfda.errors import InputError, quote
from pfedfda.files import MOST_CLASSES, json_text, read_text, replacing, write_text
from pfedfda.inference.classifier import PersonalClassifier
from pfedfda.inputs import read_inputs
from pfedfda.models import Body, Model, ModelConfig, build_model, gaussian_model, model_tensors
from pfedfda.models.build import chosen_model
from pfedfda.models.factories import allow, is_allowed, is_program, name_callable
from pfedfda.models.networks import BODIES, VECTOR_BODIES
from pfedfda.models.weights import UNREADABLE

FORMAT = 1
DESCRIPTION = "model.json"
TENSORS = "model.safetensors"
INPUT = {
    "uint8": "float32 (n, channels, height, width): pixels 0..255 times 2/255, minus 1",
    "float32": "float32 (n, *input_shape)",
    "int64": "int64 (n, *input_shape)",
}
LOAD = "import pfedfda; model = pfedfda.load_model(FOLDER); model.predict(SAMPLES)"
PRECISIONS = ("float32", "bfloat16")
Program = str | Callable[..., Any]


def save_model(folder: Path, model: PersonalClassifier) -> None:
    """Write a model to a folder that exists: two files, and those of its preprocessing."""
    body = model.network.body
    precision = body.precision if isinstance(body, Body) else torch.float32
    with replacing(folder / TENSORS) as new:
        save_file(model_tensors(model.network), new)
    description = {
        "format": FORMAT,
        "model": chosen_model(model.config, model.input_shape, model.input_type),
        "precision": str(precision).removeprefix("torch."),
        "gaussian_features": model.network.is_gaussian,
        "input_shape": list(model.input_shape),
        "input_type": model.input_type,
        "class_names": list(model.class_names),
        "input": INPUT[model.input_type],
        "output": "logits (n, classes), in the order of class_names",
        "load": LOAD,
        "about": dict(model.about),
    }
    model.preprocessing.save(folder)
    write_text(folder / DESCRIPTION, json_text(description, indent=2) + "\n")


def load_model(
    folder: Path | str, model: Program | None = None, backbone: Program | None = None
) -> PersonalClassifier:
    """Read a model that ``pfedfda export``, ``personalize`` or a site has written.

    Parameters
    ----------
    folder
        Where ``model.json`` is.
    model, backbone
        The function that makes the body, or the backbone, if that is a program of a user:
        ``file.py:name``, ``package.module:name`` or the function itself. A file of a model must
        not run a program by itself, so it is named here again.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError(f"There is no folder {folder} with a model.")
    if not (folder / DESCRIPTION).exists() and (folder / "checkpoint").is_dir():
        raise InputError(
            f"{folder} is a run and not a model: take one out with 'pfedfda export {folder} "
            f"--client NAME'."
        )
    if not (folder / DESCRIPTION).exists():
        raise InputError(f"{folder} does not hold a model: it has no {DESCRIPTION}.")
    preprocessing = Preprocessing.read(folder)
    if backbone is not None and preprocessing is not None and preprocessing.backbone is not None:
        preprocessing = replace(preprocessing, backbone=_named(backbone))
    try:
        description = json.loads(read_text(folder / DESCRIPTION))
        if description["format"] != FORMAT:
            raise ValueError(
                f"its format is {quote(description['format'])}, and this version of pfedfda reads "
                f"{FORMAT}"
            )
        config = _config(description["model"], model)
        shape, input_type = read_inputs(description)
        class_names = _class_names(description["class_names"])
        about = description.get("about", {})
        if not isinstance(about, dict):
            raise ValueError(f"about is {quote(about)}")
        preprocessing = preprocessing or Preprocessing(input_type, shape)
        _refuse_other_inputs(preprocessing, shape, input_type)
        arguments = (config, shape, len(class_names), 0, input_type)
        if config.model in (*BODIES, *VECTOR_BODIES):
            with torch.device("meta"):  # takes no memory
                _refuse_other_shapes(folder / TENSORS, build_model(*arguments))
        network = build_model(*arguments)
        _refuse_other_shapes(folder / TENSORS, network)
        network.load_state_dict(load_file(folder / TENSORS))
        if description.get("gaussian_features", False) is not False:
            network = _with_gaussian_features(network)
        if isinstance(network.body, Body):
            network.body.precision = _precision(description.get("precision", "float32"))
    except UNREADABLE as error:
        if isinstance(error, UnnamedProgramError):
            raise
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(f"{folder} does not hold a model ({reason.rstrip('.')}).") from error
    return PersonalClassifier(network, class_names, config, shape, input_type, preprocessing, about)


class UnnamedProgramError(InputError):
    """A model needs a program that the user has not named."""


def _named(program: Program) -> str:
    """Return the name of a user's function, which may be run from now on."""
    if callable(program):
        return name_callable(program)
    allow(program)
    return program


def _config(name: Any, given: Program | None) -> ModelConfig:
    """Return which network it is; a program is one only if the user has named it."""
    if not isinstance(name, str):
        raise ValueError(f"its model is {quote(name)}")
    if name in (*BODIES, *VECTOR_BODIES):
        return ModelConfig(name)
    if not is_program(name):
        raise ValueError(f"the model {quote(name)} is unknown")
    if given is None and not is_allowed(name):
        raise UnnamedProgramError(
            f"The body of the model is the program {quote(name)}, and is run only if you name it "
            f"with --model."
        )
    return ModelConfig(name if given is None else _named(given))


def _class_names(names: Any) -> tuple[str, ...]:
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError(f"its class names are {quote(names)}")
    if not 1 <= len(names) <= MOST_CLASSES:
        raise ValueError(f"it has {len(names):,} classes")
    return tuple(names)


def _precision(name: Any) -> torch.dtype:
    if name not in PRECISIONS:
        raise ValueError(f"its precision is {quote(name)}")
    precision: torch.dtype = getattr(torch, name)
    return precision


def _with_gaussian_features(network: Model) -> Model:
    """Return the network as it was saved: with features before its last activation."""
    changed = gaussian_model(network)
    if not changed.is_gaussian:
        raise ValueError("its body does not say where its features are nearest to Gaussian")
    return changed


def _refuse_other_inputs(
    preprocessing: Preprocessing, shape: tuple[int, ...], input_type: str
) -> None:
    """Refuse a preprocessing that does not give what goes into the network."""
    given: tuple[object, object] = (preprocessing.shape, preprocessing.type)
    mapping = preprocessing.map
    if mapping is not None:
        if preprocessing.backbone is None and preprocessing.shape != mapping.mean.shape:
            raise ValueError("its preprocessing does not fit its samples")
        dims = len(mapping.mean) if mapping.directions is None else mapping.directions.shape[1]
        given = ((dims,), "float32")
    elif preprocessing.backbone is not None:
        given = (shape, "float32")  # its features will tell
    if given != (shape, input_type):
        raise ValueError("its preprocessing does not give what its network takes")


def _refuse_other_shapes(path: Path, model: nn.Module) -> None:
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
