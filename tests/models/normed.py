"""A user's module in a package: batch norm with its counter, and dropout."""

import torch
from torch import Tensor, nn


class Normed(nn.Module):
    """Images to six features."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.conv = nn.Conv2d(shape[0], 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.drop = nn.Dropout(0.3)
        self.linear = nn.Linear(16, 6)

    def forward(self, images: Tensor) -> Tensor:
        """Return the features (n, 6)."""
        x = torch.relu(self.norm(self.conv(images)))
        pooled = nn.functional.adaptive_avg_pool2d(x, 2).flatten(1)
        features: Tensor = torch.relu(self.linear(self.drop(pooled)))
        return features
