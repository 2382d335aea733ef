"""FedNCM: the nearest class mean, from one round of sums.

G. Legate, N. Bernier, L. Caccia, E. Oyallon and E. Belilovsky, "Guiding the Last Layer in Federated
Learning with Pre-Trained Models", NeurIPS 2023.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from pfedfda.errors import unknown
from pfedfda.gaussian import LinearClassifier
from pfedfda.methods.base import Client, Tensors
from pfedfda.methods.closed_form import (
    ClosedForm,
    class_means,
    first_moments,
    moved,
    only_held,
    without_unseen,
)
from pfedfda.methods.registry import register

CLASSES = ("own", "all")


@register
@dataclass(frozen=True)
class FedNCM(ClosedForm):
    """The nearest mean among those of all classes, without training.

    Parameters
    ----------
    classes
        What a client predicts: only classes of which it has training samples (own), or all, as in
        the paper. Class shares would be a matter of scale: distances have no unit.
    """

    name: ClassVar[str] = "fedncm"
    title: ClassVar[str] = "FedNCM"
    paper: ClassVar[str] = "Legate et al., NeurIPS 2023"
    year: ClassVar[int] = 2023
    reveals: ClassVar[str] = "class counts and class means; a class's only sample is its mean"

    classes: Literal["own", "all"] = "own"

    def __post_init__(self) -> None:
        if self.classes not in CLASSES:
            raise unknown("choice of classes:", self.classes, CLASSES)

    def moments(self, client: Client, features: Tensor) -> Tensors:
        """Send class counts and class means."""
        sent = first_moments(features, client.samples.labels, client.task)
        return {name: tensor.float() for name, tensor in sent.items()}

    def head(self, total: Tensors) -> LinearClassifier:
        """Return ‖z‖²/2 less half the squared distances to the means, which is linear in z."""
        means, mean = class_means(total)
        head = LinearClassifier(means, -0.5 * means.square().sum(1))
        return without_unseen(moved(head, mean), total["counts"])

    def personal_bias(self, counts: Tensor) -> Tensor:
        """Return what rules out the classes that the client lacks."""
        return only_held(counts) if self.classes == "own" else torch.zeros(len(counts))
