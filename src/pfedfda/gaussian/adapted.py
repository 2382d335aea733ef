"""What a client obtains from its features: β, interpolated statistics and a classifier."""

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor

from pfedfda.gaussian._checks import checked_means, checked_priors
from pfedfda.gaussian.classifier import LinearClassifier, bayes_classifier
from pfedfda.gaussian.low_rank import LowRankStatistics
from pfedfda.gaussian.statistics import GaussianStatistics


@dataclass(frozen=True)
class Betas:
    """The interpolation weights of a client, from 0 (global) to 1 (local).

    Parameters
    ----------
    means : float
        The β of the class means.
    covariance : float
        The β of the covariance, equal to `means` but in mode "multiple".
    loss : float, optional
        Mean validation loss that they reach, in nats a row; None where nothing was searched.
    evaluations : int, default=0
        How often the search looked at the loss.
    """

    means: float
    covariance: float
    loss: float | None = None
    evaluations: int = 0


class Fit(Protocol):
    """Interpolated and local statistics, in whatever form they are held."""

    @property
    def means(self) -> Tensor:
        """The interpolated means."""

    def statistics(self) -> GaussianStatistics:
        """Return the interpolated statistics."""

    def local_statistics(self) -> GaussianStatistics:
        """Return the client's own estimates."""

    def classifier(self, priors: Tensor, means: Tensor, shrinkage: float) -> LinearClassifier:
        """Return the Bayes classifier of the interpolated covariance, shrunk, and these means."""


@dataclass(frozen=True, eq=False)
class DenseFit:
    """Statistics as matrices."""

    mixed: GaussianStatistics
    local: GaussianStatistics

    @property
    def means(self) -> Tensor:
        """The interpolated means."""
        return self.mixed.means

    def statistics(self) -> GaussianStatistics:
        """Return the interpolated statistics."""
        return self.mixed

    def local_statistics(self) -> GaussianStatistics:
        """Return the client's own estimates."""
        return self.local

    def classifier(self, priors: Tensor, means: Tensor, shrinkage: float) -> LinearClassifier:
        """Solve with a Cholesky factor."""
        covariance = shrunk(self.mixed.covariance, shrinkage)
        return bayes_classifier(GaussianStatistics(means, covariance), priors)


@dataclass(frozen=True, eq=False)
class LowRankFit:
    """Statistics as a diagonal and a few rows, in the basis of the global covariance."""

    mixed: LowRankStatistics
    local: LowRankStatistics

    @property
    def means(self) -> Tensor:
        """The interpolated means."""
        return self.mixed.means

    def statistics(self) -> GaussianStatistics:
        """Write the interpolated statistics out."""
        return self.mixed.dense()

    def local_statistics(self) -> GaussianStatistics:
        """Write the client's own estimates out."""
        return self.local.dense()

    def classifier(self, priors: Tensor, means: Tensor, shrinkage: float) -> LinearClassifier:
        """Solve by Woodbury's identity."""
        classes, dimension = self.mixed.means.shape
        given = checked_means(means, classes, dimension, "means")
        return self.mixed.classifier(checked_priors(priors, classes), given, shrinkage)


@dataclass(frozen=True, eq=False)
class Adaptation:
    """Everything that a client obtains from its features.

    Parameters
    ----------
    betas : Betas
        The interpolation weights.
    priors : Tensor of shape (C,)
        The class priors π_i.
    classifier : LinearClassifier
        The Bayes classifier (eq. 4) of `statistics` and `priors`.
    fit : Fit
        Holds the statistics.
    """

    betas: Betas
    priors: Tensor
    classifier: LinearClassifier
    fit: Fit

    @cached_property
    def statistics(self) -> GaussianStatistics:
        """The interpolated means and covariance, μ_i and Σ_i of Algorithm 1."""
        return self.fit.statistics()

    @cached_property
    def local_statistics(self) -> GaussianStatistics:
        """The client's own estimates (eqs. 6 and 7), ridge and repair included."""
        return self.fit.local_statistics()

    def solve(
        self, priors: Tensor, means: Tensor | None = None, shrinkage: float = 0.0
    ) -> LinearClassifier:
        """Return the Bayes classifier with other priors, means or covariance.

        Parameters
        ----------
        priors : Tensor of shape (C,)
            Class priors; they are normalised to sum to 1.
        means : Tensor of shape (C, d), optional
            Class means instead of the interpolated ones.
        shrinkage : float, default=0.0
            This share of the covariance is replaced by a multiple of the identity with the same
            trace.
        """
        return self.fit.classifier(priors, self.fit.means if means is None else means, shrinkage)


def shrunk(covariance: Tensor, share: float) -> Tensor:
    """Replace a share of a covariance by a multiple of the identity with the same trace."""
    covariance = covariance.double()
    if not share:
        return covariance
    spherical = covariance.trace() / len(covariance) * torch.eye(len(covariance)).double()
    return (1 - share) * covariance + share * spherical
