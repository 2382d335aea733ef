"""The Bayes classifier of the Gaussian model as a linear layer (equations 3 and 4)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from pfedfda.gaussian._checks import checked_covariance, checked_means, checked_priors
from pfedfda.gaussian.statistics import GaussianStatistics

#: Stands for log 0 in the bias of a class with prior 0. It outweighs any logit, and unlike -inf
#: it yields no NaN when it is subtracted from itself or multiplied by 0. Fits in float32.
LOG_OF_ZERO = -1e30


@dataclass(frozen=True, eq=False)
class LinearClassifier:
    """A linear layer whose softmax is the class posterior.

    Parameters
    ----------
    weight : Tensor of shape (C, d)
        Row c is Σ⁻¹μ^c.
    bias : Tensor of shape (C,)
        Entry c is -½ (μ^c)ᵀΣ⁻¹μ^c + log π^c.
    """

    weight: Tensor
    bias: Tensor

    def logits(self, features: Tensor) -> Tensor:
        """Return the right-hand side of eq. 4 for each row of features, shape (n, C)."""
        return features.to(self.weight) @ self.weight.T + self.bias

    def log_posteriors(self, features: Tensor) -> Tensor:
        """Return log p(y = c | z) of eq. 3 for each row of features, shape (n, C)."""
        return self.logits(features).log_softmax(dim=1)


def bayes_classifier(statistics: GaussianStatistics, priors: Tensor) -> LinearClassifier:
    """Solve for the Bayes classifier of class-conditional Gaussians (eqs. 3 and 4).

    Parameters
    ----------
    statistics : GaussianStatistics
        Means (C, d) and tied covariance (d, d).
    priors : Tensor of shape (C,)
        The class priors π; they are normalised to sum to 1. A class with prior 0 gets the
        finite bias `LOG_OF_ZERO`, hence probability 0.

    Returns
    -------
    LinearClassifier
        Float64 tensors on the CPU.

    Notes
    -----
    Σ⁻¹μ is solved with the Cholesky factor of Σ. Where Σ is not positive definite it is the
    least-squares solution of least norm, as in Section 'Global Representation Learning'.
    """
    covariance = checked_covariance(statistics.covariance)
    means = checked_means(
        statistics.means, statistics.means.shape[0], covariance.shape[0], "statistics.means"
    )
    return _bayes_classifier(means, covariance, checked_priors(priors, means.shape[0]))


def _bayes_classifier(means: Tensor, covariance: Tensor, priors: Tensor) -> LinearClassifier:
    """Solve for the classifier of means, covariance and priors that have been checked."""
    factor, info = torch.linalg.cholesky_ex(covariance)
    if int(info) == 0:
        weight = torch.cholesky_solve(means.T, factor).T.contiguous()
    else:
        weight = torch.linalg.lstsq(covariance, means.T, driver="gelsd").solution.T.contiguous()
    bias = priors.log().clamp(min=LOG_OF_ZERO) - 0.5 * (weight * means).sum(1)
    return LinearClassifier(weight, bias)
