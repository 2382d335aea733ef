"""The validation problem whose minimum is β (equation 9 of the paper)."""

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

#: Directions in the plane of (β of the means, β of the covariance): a solver varies one number in
#: [0, 1] for each of them.
Directions = tuple[tuple[float, float], ...]
SINGLE: Directions = ((1.0, 1.0),)
MULTIPLE: Directions = ((1.0, 0.0), (0.0, 1.0))


@dataclass(frozen=True, eq=False)
class ValidationFold:
    """One fold: estimates of its training part, what they are drawn to, and its validation rows.

    Only classes with a positive prior are kept; there are P of them.

    Parameters
    ----------
    local_means : Tensor of shape (P, d)
        Class means of the training part; for classes absent from it those of the target.
    local_covariance : Tensor of shape (d, d)
        Its tied covariance, positive definite.
    target_means : Tensor of shape (P, d)
        The means at β = 0, as a rule the global ones.
    target_covariance : Tensor of shape (d, d)
        The covariance at β = 0, positive definite.
    whitening : Tensor of shape (d, d)
        L⁻¹, where LLᵀ is its Cholesky factorisation.
    features : Tensor of shape (m, d)
        The validation rows.
    labels : Tensor of shape (m,)
        Their classes, from 0 to P - 1.
    """

    local_means: Tensor
    local_covariance: Tensor
    target_means: Tensor
    target_covariance: Tensor
    whitening: Tensor
    features: Tensor
    labels: Tensor


@dataclass(frozen=True, eq=False)
class BetaProblem:
    """All folds, and the log priors (P,) of the client that its loss uses throughout.

    The loss is the negative log posterior of the true class, averaged over the validation rows
    of all folds. Each row is validated once, so this is eq. 9 times the constant k/n.
    """

    folds: tuple[ValidationFold, ...]
    log_priors: Tensor

    @property
    def rows(self) -> int:
        """The number of validation rows in all folds."""
        return sum(fold.features.shape[0] for fold in self.folds)


class Minimum(NamedTuple):
    """Where a solver found the lowest loss."""

    beta_means: float
    beta_covariance: float
    loss: float
    evaluations: int
