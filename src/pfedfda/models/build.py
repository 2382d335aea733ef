"""Choosing and building a model."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from pfedfda.errors import InputError, unknown
from pfedfda.files import LARGEST_SIDE, MOST_CLASSES
from pfedfda.inputs import InputType, describe_inputs
from pfedfda.models.networks import BODIES, Model
from pfedfda.seeding import derive_seed

ModelName = Literal["auto", "emnist-cnn", "cifar-cnn", "resnet18"]


@dataclass(frozen=True)
class ModelConfig:
    """The network.

    Parameters
    ----------
    model
        emnist-cnn, cifar-cnn or resnet18; auto chooses by the size of the images (up to 28 pixels,
        up to 48, larger).
    init
        How weights start: torch (its defaults, as in the code the paper builds on) or he (Gaussian
        weights of K. He et al., ICCV 2015, and zero biases, as the paper's text has it).
    """

    model: ModelName = "auto"
    init: Literal["torch", "he"] = "torch"


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
    name = default_model(*input_shape[:2]) if config.model == "auto" else config.model
    if name not in BODIES:
        raise unknown("model", name, BODIES)
    if input_type != "uint8" or len(input_shape) != 3:
        raise InputError(
            f"The model {name} takes images, and the inputs are "
            f"{describe_inputs(input_shape, input_type)}."
        )
    height, width, channels = input_shape
    fits = 1 <= min(height, width) <= max(height, width) <= LARGEST_SIDE and channels in (1, 3)
    if not fits or not 1 <= num_classes <= MOST_CLASSES:
        raise InputError(
            f"A model for {num_classes:,} classes and images of {height}×{width} with {channels} "
            f"channels was asked for; 1 to {MOST_CLASSES:,} classes, sides of up to {LARGEST_SIDE} "
            f"pixels and 1 or 3 channels are allowed."
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed("model", seed))
        model = Model(BODIES[name](height, width, channels), num_classes)
        if config.init == "he":
            model.apply(_he_init)
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return model


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
