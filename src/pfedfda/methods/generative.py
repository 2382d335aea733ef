"""What methods with Gaussian classifiers share: statistics as tensors, and heads."""

import torch

from pfedfda.gaussian import (
    GaussianStatistics,
    LinearClassifier,
    pack_symmetric,
    unpack_symmetric,
)
from pfedfda.methods.base import Tensors
from pfedfda.models import Model


def pack_statistics(statistics: GaussianStatistics) -> Tensors:
    """Return statistics as they travel: the covariance as its upper triangle."""
    return {
        "means": statistics.means.float().contiguous(),
        "covariance": pack_symmetric(statistics.covariance).float(),
    }


def unpack_statistics(tensors: Tensors) -> GaussianStatistics:
    """Return the statistics in a message or a state."""
    return GaussianStatistics(tensors["means"], unpack_symmetric(tensors["covariance"]))


def put_head(model: Model, classifier: LinearClassifier) -> None:
    """Make a classifier the head of a model."""
    with torch.no_grad():
        # Single precision first: not every device has double.
        model.head.weight.copy_(classifier.weight.float())
        model.head.bias.copy_(classifier.bias.float())
