"""Fed3R: ridge regression on features, from the sums of one round.

E. Fanì, R. Camoriano, B. Caputo and M. Ciccone, "Accelerating Heterogeneous Federated Learning with
Closed-form Classifiers", ICML 2024. The restriction to a client's own classes (OLL) is theirs
too: "Resource-Efficient Personalization in Federated Learning with Closed-Form Classifiers", IEEE
Access 2025.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from pfedfda.errors import InputError, unknown
from pfedfda.gaussian import LinearClassifier, assign_folds, unpack_symmetric
from pfedfda.methods.base import Client, Tensors
from pfedfda.methods.closed_form import (
    ClosedForm,
    first_moments,
    only_held,
    second_moments,
    solved,
    without_unseen,
)
from pfedfda.methods.registry import register

CLASSES = ("own", "all")
# The candidates for λ, as multiples of the mean eigenvalue. Of equals, the largest is taken.
_GRID = torch.logspace(2, -6, 33, dtype=torch.float64)


@register
@dataclass(frozen=True)
class Fed3R(ClosedForm):
    """Ridge regression from features to classes, equal to that on the pooled samples.

    Parameters
    ----------
    ridge
        The λ of the ridge on the sums over all samples (0.01 in the paper); 0 chooses it by
        cross-validation, for which sums are sent for each fold.
    folds
        Folds of the cross-validation.
    normalize
        Divide each class's weights, and the constant with them, by the length of the weights alone,
        which makes up for rare classes, as the authors' program does.
    classes
        What a client predicts: only classes of which it has training samples (own), or all.
    """

    name: ClassVar[str] = "fed3r"
    title: ClassVar[str] = "Fed3R"
    paper: ClassVar[str] = "Fanì et al., ICML 2024"
    year: ClassVar[int] = 2024
    reveals: ClassVar[str] = (
        "class counts, class means and second moments by fold; a class's only sample is its mean, "
        "of few samples it is their span"
    )

    ridge: float = 0.0
    folds: int = 2
    normalize: bool = True
    classes: Literal["own", "all"] = "own"

    def __post_init__(self) -> None:
        if not 0 <= self.ridge < float("inf"):
            raise InputError(f"The ridge is {self.ridge}; it must be finite and 0 or more.")
        if self.folds < 2:
            raise InputError(f"The number of folds is {self.folds}; it must be at least 2.")
        if self.classes not in CLASSES:
            raise unknown("choice of classes:", self.classes, CLASSES)

    def moments(self, client: Client, features: Tensor) -> Tensors:
        """Send class counts, class means and the mean of zzᵀ, for each fold.

        A class must have enough samples in the fold: what is sent is of those alone.
        """
        labels = client.samples.labels.cpu()
        fold_of = torch.zeros_like(labels)
        if not self.ridge:
            # Without randomness: a further round deals the same folds. Not all clients begin with
            # the same fold, which would get all single samples.
            fold_of = (assign_folds(labels, self.folds) + client.client_id) % self.folds
        parts = []
        for fold in range(1 if self.ridge else self.folds):
            held = fold_of == fold
            samples = features[held.to(features.device)], labels[held], client.task
            parts.append(first_moments(*samples) | {"squares": second_moments(*samples)})
        return {name: torch.stack([sent[name] for sent in parts]) for name in parts[0]}

    def head(self, total: Tensors) -> LinearClassifier:
        """Solve the ridge regression of one-hot classes on the features and a constant."""
        grams, targets = _with_constant(total)
        gram, target = grams.sum(0), targets.sum(0)
        ridge = self.ridge or cross_validated_ridge(grams, targets)
        gram.diagonal().add_(ridge)
        weights = solved(gram, target).T
        if self.normalize:
            lengths = weights[:, :-1].norm(dim=1, keepdim=True)  # without the constant's
            weights = weights / torch.where(lengths > 0, lengths, 1.0)
        head = LinearClassifier(weights[:, :-1].contiguous(), weights[:, -1].contiguous())
        return without_unseen(head, total["counts"].sum(0))

    def personal_bias(self, counts: Tensor) -> Tensor:
        """Return what rules out the classes that the client lacks."""
        return only_held(counts) if self.classes == "own" else torch.zeros(len(counts))


def _with_constant(total: Tensors) -> tuple[Tensor, Tensor]:
    """Return ZᵀZ and ZᵀY of each fold, where Z has a last column of ones."""
    grams, targets = [], []
    for counts, sums, squares in zip(
        *(total[n] for n in ("counts", "sums", "squares")), strict=True
    ):
        column = sums.sum(0)[:, None]
        rows = torch.cat([unpack_symmetric(squares), column], dim=1)
        last = torch.cat([column.T, counts.sum().reshape(1, 1)], dim=1)
        grams.append(torch.cat([rows, last]))
        targets.append(torch.cat([sums, counts[:, None]], dim=1).T)
    return torch.stack(grams), torch.stack(targets)


def cross_validated_ridge(grams: Tensor, targets: Tensor) -> float:
    """Return the λ of least squared error in validation, from sums alone.

    The squared error of weights W on a fold is tr(YᵀY) - 2 tr(WᵀZᵀY) + tr(WᵀZᵀZW): no sample is
    needed to know it, and none is on both sides of the split.

    Parameters
    ----------
    grams : Tensor of shape (k, d, d)
        ZᵀZ of each fold.
    targets : Tensor of shape (k, d, C)
        ZᵀY of each fold.
    """
    all_grams, all_targets = grams.sum(0), targets.sum(0)
    ridges = _GRID * float(all_grams.trace()) / len(all_grams)
    errors = torch.zeros_like(ridges)
    for gram, target in zip(grams, targets, strict=True):
        eigenvalues, axes = torch.linalg.eigh(all_grams - gram)
        learned = axes.T @ (all_targets - target)
        rotated, tested = axes.T @ gram @ axes, axes.T @ target
        for i, ridge in enumerate(ridges):
            weights = learned / (eigenvalues.clamp(min=0) + ridge)[:, None]
            errors[i] += (weights * (rotated @ weights - 2 * tested)).sum()
    return float(ridges[errors.argmin()])
