"""Table 8: what Gaussians cost to send, against a linear classifier.

Each client receives and sends a body and a classifier. For C classes and d features a linear
classifier has C (d + 1) parameters; class means and a symmetric covariance have
C d + d (d + 1) / 2. The overhead is the difference, relative to the body with the linear
classifier.
"""

from dataclasses import dataclass

import torch

from pfedfda.errors import unknown
from pfedfda.models import BODIES

MOBILENET_V3_SMALL_BODY = 927_008
"""Parameters of MobileNetV3-Small up to its 576 pooled features.

The network for a thousand classes has 2,542,856 parameters; the paper counts the last two layers,
from 576 to 1024 features and on to the classes, as its classifier.
"""
MOBILENET_V3_SMALL_HIDDEN = 576 * 1024 + 1024
"""Parameters of the first of these two layers."""


@dataclass(frozen=True)
class CommunicationLoad:
    """The parameters that a client sends in a round.

    Parameters
    ----------
    network
        The name of the network.
    classes, features
        C and d.
    backbone
        Parameters of the body.
    hidden
        Parameters of layers between body and features that the paper counts as part of the linear
        classifier, and not at all with the Gaussians.
    """

    network: str
    classes: int
    features: int
    backbone: int
    hidden: int = 0

    @property
    def linear(self) -> int:
        """Parameters of the linear classifier."""
        return self.hidden + self.classes * (self.features + 1)

    @property
    def gaussian(self) -> int:
        """Parameters of class means and one symmetric covariance."""
        return self.classes * self.features + self.features * (self.features + 1) // 2

    @property
    def overhead(self) -> float:
        """By how many per cent the parameters grow with Gaussians for the linear classifier."""
        return 100 * (self.gaussian - self.linear) / (self.backbone + self.linear)


def communication_load(
    network: str, input_shape: tuple[int, int, int], classes: int
) -> CommunicationLoad:
    """Return the load of one of this package's networks.

    Parameters
    ----------
    network
        emnist-cnn, cifar-cnn or resnet18.
    input_shape
        Height, width and channels of the images.
    classes
        The number of classes.
    """
    if network not in BODIES:
        raise unknown("model", network, BODIES)
    with torch.device("meta"):  # shapes alone, no weights
        body = BODIES[network](*input_shape)
    backbone = sum(parameter.numel() for parameter in body.parameters())
    return CommunicationLoad(network, classes, body.feature_dim, backbone)


def paper_loads() -> tuple[CommunicationLoad, ...]:
    """Return the rows of Table 8: three counted from this package's networks, and MobileNetV3.

    The row of MobileNetV3 follows the paper's count, which is kind to the Gaussians: they are of
    the 1024 features behind the layer that only the linear classifier is charged for.
    """
    return (
        communication_load("emnist-cnn", (28, 28, 1), classes=62),
        communication_load("cifar-cnn", (32, 32, 3), classes=100),
        communication_load("resnet18", (64, 64, 3), classes=200),
        CommunicationLoad(
            "mobilenetv3-small",
            classes=1000,
            features=1024,
            backbone=MOBILENET_V3_SMALL_BODY,
            hidden=MOBILENET_V3_SMALL_HIDDEN,
        ),
    )
