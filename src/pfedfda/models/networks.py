"""The feature extractors of the paper's experiments, and the model they are part of.

The two small networks are those of FedPAC (J. Xu, X. Tong and S.-L. Huang, "Personalized Federated
Learning with Feature Alignment and Classifier Collaboration", ICLR 2023), which the paper uses.
They pool before the activation: for a monotone activation the result is the same, and the
activation has a quarter of the work. All convolutions run in channels-last layout.
"""

import copy
import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pfedfda.errors import InputError


class Model(nn.Module):
    """A classifier in two named parts: a body that extracts features, and a linear head.

    Its tensors are called ``body.…`` and ``head.…`` everywhere: in messages, checkpoints and files.

    Parameters
    ----------
    body
        Maps inputs to features (n, d): images (n, channels, height, width) in [-1, 1], or numbers
        and indices as they are.
    feature_dim
        The d.
    num_classes
        The number of outputs of the head.
    """

    def __init__(self, body: nn.Module, feature_dim: int, num_classes: int) -> None:
        super().__init__()
        self.body = body
        self.head = nn.Linear(feature_dim, num_classes)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the logits (n, classes)."""
        logits: Tensor = self.head(self.body(inputs))
        return logits

    @property
    def is_gaussian(self) -> bool:
        """Whether features are those that are nearest to Gaussian, see `gaussian_model`."""
        activation = getattr(self.body, "activation", None)
        return activation is not None and activation is getattr(
            self.body, "gaussian_activation", None
        )


def gaussian_model(model: Model) -> Model:
    """Return a model whose features are nearer to Gaussian, with the very same tensors.

    Features behind an activation are not Gaussian. A body that ends with a submodule called
    ``activation`` may name another one, ``gaussian_activation``, that takes its place: one that
    does nothing where the activation can be left out, or a power transform. Without that attribute
    nothing changes. The model that was given stays as it is.
    """
    other = getattr(model.body, "gaussian_activation", None)
    if not isinstance(other, nn.Module) or "activation" not in model.body._modules:
        return model
    body, changed = copy.copy(model.body), copy.copy(model)
    body._modules = {**model.body._modules, "activation": other}
    changed._modules = {**model._modules, "body": body}
    return changed


class SignedRoot(nn.Module):
    """Tukey's power transform with exponent ½, for features of either sign.

    Features that have been averaged behind an activation are skewed; their root is less so. The
    slope at zero is finite, so that networks can be trained through it.
    """

    offset = 1e-2

    def forward(self, features: Tensor) -> Tensor:
        """Return the roots with the signs of the features."""
        root: Tensor = (features.abs() + self.offset).sqrt() - math.sqrt(self.offset)
        return features.sign() * root


class Body(nn.Module):
    """The base of the feature extractors.

    `precision` is what convolutions compute in. Weights, the linear layers and the features, of
    which covariances are estimated, are float32 in any case. `activation` is what comes last, and
    `gaussian_activation` what takes its place where features should be Gaussian.
    """

    feature_dim: int
    precision = torch.float32

    def convolving(self, images: Tensor) -> AbstractContextManager[object]:
        """Return the context for the convolutions."""
        if self.precision == torch.float32:
            return nullcontext()
        return torch.autocast(images.device.type, self.precision)


class EmnistCNN(Body):
    """Two convolutions and a linear layer; 115,776 parameters for grey images of 28×28."""

    def __init__(self, height: int, width: int, channels: int) -> None:
        super().__init__()
        self.feature_dim = 128
        self.conv1 = nn.Conv2d(channels, 16, kernel_size=5)
        self.conv2 = nn.Conv2d(16, 32, kernel_size=5, padding=1)
        side = [((size - 4) // 2 - 2) // 2 for size in (height, width)]
        _refuse_too_small("emnist-cnn", height, width, side)
        _refuse_too_large("emnist-cnn", height, width)
        self.linear = nn.Linear(32 * side[0] * side[1], self.feature_dim)
        self.activation, self.gaussian_activation = nn.LeakyReLU(), nn.Identity()

    def forward(self, images: Tensor) -> Tensor:
        """Return the features (n, 128)."""
        with self.convolving(images):
            x = F.leaky_relu(F.max_pool2d(self.conv1(images), 2))
            x = F.leaky_relu(F.max_pool2d(self.conv2(x), 2))
        features: Tensor = self.activation(self.linear(x.float().flatten(1)))
        return features


class CifarCNN(Body):
    """Three convolutions and a linear layer; 106,400 parameters for colour images of 32×32."""

    def __init__(self, height: int, width: int, channels: int) -> None:
        super().__init__()
        self.feature_dim = 128
        self.conv1 = nn.Conv2d(channels, 16, kernel_size=5)
        self.conv2 = nn.Conv2d(16, 32, kernel_size=5, padding=1)
        self.conv3 = nn.Conv2d(32, 64, kernel_size=3, padding=1)
        side = [((size - 4) // 2 - 2) // 2 // 2 for size in (height, width)]
        _refuse_too_small("cifar-cnn", height, width, side)
        _refuse_too_large("cifar-cnn", height, width)
        self.linear = nn.Linear(64 * side[0] * side[1], self.feature_dim)
        self.activation, self.gaussian_activation = nn.LeakyReLU(), nn.Identity()

    def forward(self, images: Tensor) -> Tensor:
        """Return the features (n, 128)."""
        with self.convolving(images):
            x = F.leaky_relu(F.max_pool2d(self.conv1(images), 2))
            x = F.leaky_relu(F.max_pool2d(self.conv2(x), 2))
            x = F.leaky_relu(F.max_pool2d(self.conv3(x), 2))
        features: Tensor = self.activation(self.linear(x.float().flatten(1)))
        return features


class GroupScaleNorm(nn.Module):
    """Group normalisation with 32 channels a group and one scale and shift for each group.

    Ordinary group norm has a scale and shift for each channel; the paper's parameter count of
    ResNet18, 11,167,212, holds only with one pair a group.
    """

    channels_per_group = 32

    def __init__(self, channels: int) -> None:
        super().__init__()
        groups = channels // self.channels_per_group
        self.weight = nn.Parameter(torch.ones(groups))
        self.bias = nn.Parameter(torch.zeros(groups))

    def forward(self, x: Tensor) -> Tensor:
        """Normalise, scale and shift."""
        weight = self.weight.repeat_interleave(self.channels_per_group)
        bias = self.bias.repeat_interleave(self.channels_per_group)
        return F.group_norm(x, len(self.weight), weight, bias)


class ResidualBlock(nn.Module):
    """Two 3×3 convolutions around which the input is added (K. He et al., CVPR 2016)."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.norm1 = GroupScaleNorm(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm2 = GroupScaleNorm(outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), GroupScaleNorm(outputs)
            )

    def forward(self, x: Tensor) -> Tensor:
        """Return the activation of the block."""
        y = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(y)) + self.shortcut(x))


class ResNet18(Body):
    """ResNet18 with `GroupScaleNorm`; 11,167,212 parameters for colour images."""

    def __init__(self, height: int, width: int, channels: int) -> None:
        super().__init__()
        self.feature_dim = 512
        _refuse_too_small("resnet18", height, width, [height // 8, width // 8])
        self.conv = nn.Conv2d(channels, 64, 7, 2, padding=3, bias=False)
        self.norm = GroupScaleNorm(64)
        widths = [(64, 64, 1), (64, 128, 2), (128, 256, 2), (256, 512, 2)]
        self.blocks = nn.Sequential(
            *(
                block
                for inputs, outputs, stride in widths
                for block in (
                    ResidualBlock(inputs, outputs, stride),
                    ResidualBlock(outputs, outputs, 1),
                )
            )
        )
        self.activation, self.gaussian_activation = nn.Identity(), SignedRoot()

    def forward(self, images: Tensor) -> Tensor:
        """Return the features (n, 512)."""
        with self.convolving(images):
            x = F.relu(self.norm(self.conv(images)))
            x = self.blocks(F.max_pool2d(x, 3, stride=2, padding=1))
        features: Tensor = self.activation(x.float().mean(dim=(2, 3)))
        return features


class MLP(nn.Sequential):
    """Two hidden layers of 128 units, for vectors."""

    width = 128

    def __init__(self, *shape: int) -> None:
        super().__init__(
            nn.Flatten(),
            nn.Linear(math.prod(shape), self.width),
            nn.LeakyReLU(),
            nn.Linear(self.width, self.width),
        )
        self.add_module("activation", nn.LeakyReLU())
        # Not a submodule, which would be applied as well.
        object.__setattr__(self, "gaussian_activation", nn.Identity())


class Linear(nn.Flatten):
    """No body at all: the inputs are the features, and the model is its linear head."""

    def __init__(self, *shape: int) -> None:
        super().__init__()


LARGEST_SMALL_SIDE = 256
VECTOR_BODIES: dict[str, Callable[..., nn.Module]] = {"mlp": MLP, "linear": Linear}
BODIES: dict[str, Callable[[int, int, int], Body]] = {
    "emnist-cnn": EmnistCNN,
    "cifar-cnn": CifarCNN,
    "resnet18": ResNet18,
}


def _refuse_too_small(name: str, height: int, width: int, last: list[int]) -> None:
    if min(last) < 1:
        raise InputError(
            f"Images of {height}×{width} are too small for the model {name}: scale them up with "
            f"--image-size 28 or more."
        )


def _refuse_too_large(name: str, height: int, width: int) -> None:
    """Refuse images for which the linear layer of a small network would be a giant."""
    if max(height, width) > LARGEST_SMALL_SIDE:
        raise InputError(
            f"Images of {height}×{width} are too large for the model {name}: use --model resnet18 "
            f"or an --image-size of at most {LARGEST_SMALL_SIDE}."
        )
