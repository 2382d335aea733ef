"""FedCOF: covariances from the spread of the clients' class means.

D. Goswami, S. Magistri, K. Wang, B. Twardowski, A. D. Bagdanov and J. van de Weijer, "Covariances
for Free: Exploiting Mean Distributions for Training-free Federated Learning", NeurIPS 2025.

The mean of n samples of a class varies with a covariance of 1/n times that of the class. So the
class means of several clients, each weighted by its count, tell the covariance within the class.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from pfedfda.errors import InputError, unknown
from pfedfda.gaussian import LinearClassifier
from pfedfda.methods.base import Client, Tensors, Update
from pfedfda.methods.closed_form import (
    ClosedForm,
    first_moments,
    only_held,
    solved,
    without_unseen,
)
from pfedfda.methods.registry import register

CLASSES = ("own", "all")


@register
@dataclass(frozen=True)
class FedCOF(ClosedForm):
    """Ridge regression whose second moments are estimated from the clients' class means.

    It sends what FedNCM sends. The weight of a class's outer products in the result depends on how
    many clients hold it, so that a sum over clients would need a matrix for each class: more than
    the second moments that it saves. The server therefore looks at single updates.

    Parameters
    ----------
    shrinkage
        The γ whose multiple of the identity is added to each class's covariance (γ in the paper: 1
        for most networks, 0.1 for MobileNetV2, whose features are smaller).
    normalize
        Divide each class's weights by their length, as the paper does.
    classes
        What a client predicts: only classes of which it has training samples (own), or all.
    """

    name: ClassVar[str] = "fedcof"
    title: ClassVar[str] = "FedCOF"
    paper: ClassVar[str] = "Goswami et al., NeurIPS 2025"
    year: ClassVar[int] = 2025
    additive: ClassVar[bool] = False
    reveals: ClassVar[str] = "class counts and class means; a class's only sample is its mean"

    shrinkage: float = 1.0
    normalize: bool = True
    classes: Literal["own", "all"] = "own"

    def __post_init__(self) -> None:
        if not 0 < self.shrinkage < float("inf"):
            raise InputError(f"shrinkage is {self.shrinkage}; it must be finite and above 0.")
        if self.classes not in CLASSES:
            raise unknown("choice of classes:", self.classes, CLASSES)

    def moments(self, client: Client, features: Tensor) -> Tensors:
        """Send class counts and class means."""
        sent = first_moments(features, client.samples.labels, client.task)
        return {name: tensor.float() for name, tensor in sent.items()}

    def aggregate(self, state: Tensors, updates: Iterable[Update]) -> Tensors:
        """Form the head from sums, and from the class means one by one.

        Memory grows with the participants: by d numbers for each class that one holds.
        """
        total: Tensors = {}
        counts: dict[int, list[Tensor]] = {}
        means: dict[int, list[Tensor]] = {}
        for update in updates:
            total = self.contribution(update, total)
            for c in update.tensors["counts"].nonzero().flatten().tolist():
                counts.setdefault(c, []).append(update.tensors["counts"][c])
                means.setdefault(c, []).append(update.tensors["means"][c])
        dimension = total["sums"].shape[1]
        scatter = torch.zeros(dimension, dimension, dtype=torch.float64)
        for c in sorted(means):
            covariance = covariance_of_means(torch.stack(counts[c]), torch.stack(means[c]))
            scatter += (total["counts"][c] - 1) * covariance
        return self.finish(state, total | {"squares": self._gram(total, scatter)})

    def _gram(self, total: Tensors, scatter: Tensor) -> Tensor:
        """Return the estimate of ZᵀZ without the scatter between classes, as in the paper."""
        counts = total["counts"]
        samples = float(counts.sum())
        mean = total["sums"].sum(0) / samples
        ridge = self.shrinkage * float((counts - 1).clamp(min=0).sum())
        gram = scatter + samples * torch.outer(mean, mean)
        gram.diagonal().add_(ridge or self.shrinkage)
        return gram

    def head(self, total: Tensors) -> LinearClassifier:
        """Solve the ridge regression of one-hot classes on the features."""
        weights = solved(total["squares"], total["sums"].T).T.contiguous()
        if self.normalize:
            lengths = weights.norm(dim=1, keepdim=True)
            weights = weights / torch.where(lengths > 0, lengths, 1.0)
        head = LinearClassifier(weights, weights.new_zeros(len(weights)))
        return without_unseen(head, total["counts"])

    def personal_bias(self, counts: Tensor) -> Tensor:
        """Return what rules out the classes that the client lacks."""
        return only_held(counts) if self.classes == "own" else torch.zeros(len(counts))


def covariance_of_means(counts: Tensor, means: Tensor) -> Tensor:
    """Estimate the covariance within a class from means of some of its samples.

    It is unbiased if all samples are drawn alike; of a single mean it is zero.

    Parameters
    ----------
    counts : Tensor of shape (K,)
        The number of samples behind each mean.
    means : Tensor of shape (K, d)
        The means.
    """
    counts, means = counts.double(), means.double()
    mean = (counts[:, None] * means).sum(0) / counts.sum()
    deviations = counts.sqrt()[:, None] * (means - mean)
    return deviations.T @ deviations / max(len(means) - 1, 1)
