"""Backbones of a user, small enough for tests."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn


def images() -> tuple[nn.Module, Callable[[Any], Any]]:
    """A convolution with batch norm; the weights are drawn anew in every call."""
    network = nn.Sequential(
        nn.Conv2d(1, 6, 5, stride=2), nn.BatchNorm2d(6), nn.ReLU(), nn.AdaptiveAvgPool2d(2),
        nn.Flatten(), nn.Dropout(0.5),
    )  # fmt: skip
    return network, lambda pixels: pixels.float()[:, :1] / 255


def numbers() -> nn.Module:
    """A layer for the 13 numbers of the wines; nothing has to be prepared."""
    return nn.Sequential(nn.Linear(13, 7), nn.LeakyReLU())


class Letters(nn.Module):
    """How often each letter occurs."""

    def forward(self, codes: Tensor) -> Tensor:
        return torch.nn.functional.one_hot(codes, 128).float().sum(dim=1)[:, 97:123]


def texts() -> tuple[nn.Module, Callable[[Any], Any]]:
    def prepare(batch: list[str]) -> Tensor:
        longest = max(len(text) for text in batch)
        return torch.tensor([[min(ord(c), 127) for c in text.ljust(longest)] for text in batch])

    return Letters(), prepare


def wrong_axes() -> nn.Module:
    return nn.Identity()


def flat() -> tuple[nn.Module, Callable[[Any], Any]]:
    """The same features for everything."""
    return nn.Identity(), lambda inputs: torch.full((len(inputs), 3), 0.1)


def not_finite() -> tuple[nn.Module, Callable[[Any], Any]]:
    return nn.Identity(), lambda inputs: torch.full((len(inputs), 3), float("nan"))


def no_module() -> int:
    return 3


def broken() -> nn.Module:
    raise RuntimeError("no weights here")


def flattened() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(12, 3))
