"""Choosing and building a model."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn

from pfedfda.errors import InputError, unknown
from pfedfda.files import LARGEST_SIDE, MOST_CLASSES
from pfedfda.inputs import InputType, describe_inputs
from pfedfda.models.factories import describe_error, load_factory
from pfedfda.models.networks import BODIES, VECTOR_BODIES, Model
from pfedfda.models.weights import load_weights
from pfedfda.seeding import derive_seed

MOST_VALUES = 2**24  # of an input of a built-in model for numbers


@dataclass(frozen=True)
class ModelConfig:
    """The network.

    Parameters
    ----------
    model
        emnist-cnn, cifar-cnn or resnet18 for images, mlp or linear (no body, only a head) for
        numbers, or a function of your own as file.py:name or package.module:name that takes the
        shape of one input and returns a module. auto chooses by the size of the images (up to 28
        pixels, up to 48, larger; up to 96 for fewer than 10,000 of your own), mlp for vectors, and
        linear for the features of a backbone.
    init
        How weights start: torch (its defaults, as in the code the paper builds on) or he (Gaussian
        weights of K. He et al., ICCV 2015, and zero biases, as the paper's text has it).
    weights
        A .safetensors file to start from: tensors go to those of the same name and shape.
    """

    model: str = "auto"
    init: Literal["torch", "he"] = "torch"
    weights: Path | None = None


def default_model(height: int, width: int) -> str:
    """Return the name of the model for images of this size."""
    side = max(height, width)
    return "emnist-cnn" if side <= 28 else "cifar-cnn" if side <= 48 else "resnet18"


def build_model(
    config: ModelConfig,
    input_shape: tuple[int, ...],
    num_classes: int,
    seed: int,
    input_type: InputType = "uint8",
) -> Model:
    """Return a model with fresh weights; the same arguments give the same weights.

    Parameters
    ----------
    config
        Which network and how its weights start.
    input_shape
        The shape of one input; height, width and channels for images.
    num_classes
        The number of outputs.
    seed
        Determines the weights. The global random state of torch is left as it was.
    input_type
        What inputs are.
    """
    if not 1 <= num_classes <= MOST_CLASSES:
        raise InputError(
            f"A model for {num_classes:,} classes was asked for; 1 to {MOST_CLASSES:,} are allowed."
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed("model", seed))
        body, feature_dim = _build_body(config, input_shape, input_type)
        model = Model(body, feature_dim, num_classes)
        if config.init == "he":
            model.apply(_he_init)
    for parameter in model.parameters():
        parameter.frozen = not parameter.requires_grad  # type: ignore[attr-defined]
    if config.weights is not None:
        load_weights(model, config.weights)
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return model


def chosen_model(config: ModelConfig, input_shape: tuple[int, ...], input_type: InputType) -> str:
    """Return the name of the model, chosen by the inputs if it is auto."""
    if config.model != "auto":
        return config.model
    if input_type == "uint8" and len(input_shape) == 3:
        return default_model(*input_shape[:2])
    if input_type == "float32" and len(input_shape) == 1:
        return "mlp"
    raise InputError(
        f"There is no built-in model for {describe_inputs(input_shape, input_type)}: give one of "
        f"your own with --model file.py:name."
    )


def _build_body(
    config: ModelConfig, input_shape: tuple[int, ...], input_type: InputType
) -> tuple[nn.Module, int]:
    """Return a body with fresh weights, and the dimension of its features."""
    name = chosen_model(config, input_shape, input_type)
    if name in BODIES:
        if input_type != "uint8" or len(input_shape) != 3:
            raise InputError(
                f"The model {name} takes images, and the inputs are "
                f"{describe_inputs(input_shape, input_type)}."
            )
        height, width, channels = input_shape
        if not 1 <= min(height, width) <= max(height, width) <= LARGEST_SIDE or channels not in (
            1,
            3,
        ):
            raise InputError(
                f"A model for images of {height}×{width} with {channels} channels was asked for; "
                f"sides of up to {LARGEST_SIDE} pixels and 1 or 3 channels are allowed."
            )
        body = BODIES[name](height, width, channels)
        return body, body.feature_dim
    if name in VECTOR_BODIES:
        if input_type == "int64":
            raise InputError(
                f"The model {name} takes numbers, and integers are taken for indices such as "
                f"tokens: give floats, or a model of your own with --model file.py:name."
            )
        if math.prod(input_shape) > MOST_VALUES:
            raise InputError(
                f"The model {name} takes up to {MOST_VALUES:,} numbers per sample, and there are "
                f"{math.prod(input_shape):,}."
            )
        module = VECTOR_BODIES[name](*input_shape)
        return module, _feature_dim(module, name, input_shape, input_type)
    if ":" not in name:
        raise unknown("model", name, [*BODIES, *VECTOR_BODIES, "file.py:name"])
    factory, _ = load_factory(name)
    shape = input_shape
    if input_type == "uint8":
        shape = (input_shape[2], *input_shape[:2])  # as the module gets it
    try:
        module = factory(shape)
    except Exception as error:  # there is no saying what a user's function raises
        raise InputError(
            f"The model {name} cannot be made for inputs of shape {shape} "
            f"({describe_error(error)})."
        ) from error
    if not isinstance(module, nn.Module):
        raise InputError(
            f"The function {name} returns a {type(module).__name__}; expected a torch.nn.Module."
        )
    return module, _feature_dim(module, name, input_shape, input_type)


def _feature_dim(
    body: nn.Module, name: str, input_shape: tuple[int, ...], input_type: InputType
) -> int:
    """Return the dimension of a body's features, from a dry run with two samples."""
    if input_type == "uint8":
        input_shape = (input_shape[2], *input_shape[:2])
    dtype = torch.int64 if input_type == "int64" else torch.float32
    training = body.training
    try:
        with torch.no_grad():
            features = body.eval()(torch.zeros((2, *input_shape), dtype=dtype))
    except Exception as error:
        raise InputError(
            f"The model {name} fails on inputs of shape {input_shape} ({describe_error(error)})."
        ) from error
    body.train(training)
    if not isinstance(features, Tensor) or features.ndim != 2 or len(features) != 2:
        shape = tuple(features.shape) if isinstance(features, Tensor) else type(features).__name__
        raise InputError(
            f"The model {name} returns {shape} for two inputs; expected features (2, d)."
        )
    return features.shape[1]


def model_tensors(module: nn.Module) -> dict[str, Tensor]:
    """Return copies of a module's tensors on the CPU, by name, each in plain contiguous layout."""
    return {
        name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
        for name, tensor in module.state_dict().items()
    }


def _he_init(module: nn.Module) -> None:
    if isinstance(module, nn.Conv2d | nn.Linear):
        nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
        if module.bias is not None:
            nn.init.zeros_(module.bias)
