"""Adaptation at three levels: an offset of all classes, each class, and the covariance.

A client's class means are modelled as the global ones plus an offset that all its classes share,
plus a deviation of each class,

    μ_i^c = μ_g^c + o + δ^c,    o ~ N(0, Σ/κ₀),    δ^c ~ N(0, Σ/κ),

and its covariance has an inverse Wishart prior around the global one that weighs as much as ν
samples. With class means z̄^c of n_c features, r^c = z̄^c - μ_g^c and w_c = n_c κ/(n_c + κ), the
posterior means are

    o = Σ_c w_c r^c / (Σ_c w_c + κ₀),    δ^c = n_c/(n_c + κ) (r^c - o),    Σ_i = (νΣ_g + S)/(ν + n)

where S is the scatter about the client's own class means. All three strengths are numbers of
samples. Infinite, they give the global classifier; without κ and ν the client's own.

In coordinates in which Σ_g = I, and with the eigenvectors V and eigenvalues Λ of S in them,

    Σ_i⁻¹ = (ν + n)/ν · (I - V diag(Λ/(ν + Λ)) Vᵀ),

where V has no more columns than there are samples: one decomposition serves every ν, and its size
is the smaller of samples and features.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from pfedfda.gaussian._checks import (
    checked_covariance,
    checked_features,
    checked_labels,
    checked_means,
    checked_priors,
)
from pfedfda.gaussian.classifier import LOG_OF_ZERO, LinearClassifier
from pfedfda.gaussian.estimate import class_priors
from pfedfda.gaussian.nearest_pd import _repair
from pfedfda.gaussian.statistics import GaussianStatistics


class Strengths(NamedTuple):
    """How many of a client's own samples weigh as much as what is known from all clients."""

    offset: float
    """κ₀, of the global means against an offset of all classes."""
    classes: float
    """κ, of the global means, moved by the offset, against the client's class means."""
    covariance: float
    """ν, of the global covariance against the client's scatter."""


@dataclass(frozen=True, eq=False)
class Reference:
    """Global statistics, and the coordinates in which their covariance is the identity.

    Parameters
    ----------
    statistics : GaussianStatistics
        Global means and a covariance that is positive definite.
    whitening : Tensor of shape (d, d)
        W = L⁻ᵀ, where LLᵀ is the covariance: z → zW.
    means : Tensor of shape (C, d)
        The means times W.
    """

    statistics: GaussianStatistics
    whitening: Tensor
    means: Tensor


_last: list[tuple[GaussianStatistics, Reference]] = []


def reference_of(statistics: GaussianStatistics) -> Reference:
    """Return the reference of global statistics, repaired if they are not positive definite.

    The last one is kept, because the clients of a round share it. It is found by its content.
    """
    given = GaussianStatistics(
        *(t.detach().cpu() for t in (statistics.means, statistics.covariance))
    )
    for known, reference in _last:
        if all(
            a.dtype == b.dtype and torch.equal(a, b)
            for a, b in ((known.means, given.means), (known.covariance, given.covariance))
        ):
            return reference
    covariance = checked_covariance(given.covariance, "global covariance")
    means = checked_means(given.means, len(given.means), len(covariance), "global means")
    factor, info = torch.linalg.cholesky_ex(covariance)
    if int(info):
        covariance = _repair(covariance)
        factor = torch.linalg.cholesky(covariance)
    identity = torch.eye(len(covariance), dtype=covariance.dtype)
    whitening = torch.linalg.solve_triangular(factor, identity, upper=False).T.contiguous()
    reference = Reference(GaussianStatistics(means, covariance), whitening, means @ whitening)
    kept = GaussianStatistics(given.means.clone(), given.covariance.clone())
    _last[:] = [(kept, reference)]
    return reference


class Part(NamedTuple):
    """What is estimated from some samples, in coordinates in which Σ_g is the identity."""

    counts: Tensor
    """Samples of each class, (C,)."""
    residuals: Tensor
    """r^c = z̄^c - μ_g^c, zero for a class without samples, (C, d)."""
    axes: Tensor
    """V: eigenvectors of the scatter, (d, k)."""
    eigenvalues: Tensor
    """Λ, (k,)."""

    def kept(self, covariance: float) -> Tensor:
        """Return Λ/(ν + Λ), the share by which a direction is shortened, (k,)."""
        if math.isinf(covariance):
            return torch.zeros_like(self.eigenvalues)
        return self.eigenvalues / (covariance + self.eigenvalues)

    def scale(self, covariance: float) -> float:
        """Return (ν + n)/ν."""
        return 1.0 if math.isinf(covariance) else 1.0 + float(self.counts.sum()) / covariance


def part_of(rows: Tensor, labels: Tensor, prior_means: Tensor) -> Part:
    """Estimate from whitened rows."""
    counts = torch.bincount(labels, minlength=len(prior_means)).double()
    sums = torch.zeros_like(prior_means).index_add_(0, labels, rows)
    means = sums / counts.clamp(min=1)[:, None]
    residuals = torch.where(counts[:, None] > 0, means - prior_means, 0.0)
    deviations = rows - means.index_select(0, labels)
    samples, dimension = rows.shape
    if samples < dimension:
        eigenvalues, vectors = torch.linalg.eigh(deviations @ deviations.T)
        # Directions without scatter have no axis that rounding would not spoil.
        present = eigenvalues > 1e-10 * eigenvalues[-1].clamp(min=1e-300)
        eigenvalues, vectors = eigenvalues[present], vectors[:, present]
        axes = deviations.T @ (vectors / eigenvalues.sqrt())
    else:
        eigenvalues, axes = torch.linalg.eigh(deviations.T @ deviations)
        eigenvalues = eigenvalues.clamp(min=0)
    return Part(counts, residuals, axes, eigenvalues)


def level_weights(counts: Tensor, offset: float, classes: float) -> tuple[Tensor, Tensor, float]:
    """Return w_c normalised to sum to 1, n_c/(n_c + κ), and the weight of the offset."""
    if math.isinf(classes):
        weights, own = counts, torch.zeros_like(counts)
    else:
        own = counts / (counts + classes).clamp(min=1e-300)
        # As κ goes to 0 all classes count the same.
        weights = classes * own if classes else (counts > 0).double()
    total = float(weights.sum())
    if math.isinf(offset) or not total:
        share = 0.0
    elif classes:
        share = total / (total + offset)
    else:
        share = 0.0 if offset else 1.0
    return weights / max(total, 1e-300), own, share


def _means(part: Part, prior_means: Tensor, strengths: Strengths) -> Tensor:
    """Return the posterior class means."""
    weights, own, share = level_weights(part.counts, strengths.offset, strengths.classes)
    offset = share * (weights @ part.residuals)
    return prior_means + (1 - own)[:, None] * offset + own[:, None] * part.residuals


@dataclass(frozen=True, eq=False)
class LevelFit:
    """What a client obtains at three levels.

    Parameters
    ----------
    strengths : Strengths
        The strengths that were used.
    priors : Tensor of shape (C,)
        The client's class priors.
    means : Tensor of shape (C, d)
        Its class means μ_i.
    offset : Tensor of shape (d,)
        The offset of all classes.
    classifier : LinearClassifier
        The Bayes classifier of means, covariance and priors.
    """

    strengths: Strengths
    priors: Tensor
    means: Tensor
    offset: Tensor
    classifier: LinearClassifier
    _reference: Reference
    _part: Part

    def weights(self) -> dict[str, float]:
        """Return how much is the client's own, from 0 to 1: of offset, means and covariance."""
        counts, nu = self._part.counts, self.strengths.covariance
        samples = float(counts.sum())
        _, own, share = level_weights(counts, self.strengths.offset, self.strengths.classes)
        return {
            "offset_weight": share,
            "means_weight": float(counts @ own) / samples,
            "covariance_weight": 0.0 if math.isinf(nu) else samples / (samples + nu),
        }

    @cached_property
    def covariance(self) -> Tensor:
        """The covariance Σ_i, (d, d)."""
        shared = self._reference.statistics.covariance
        nu, samples = self.strengths.covariance, float(self._part.counts.sum())
        if math.isinf(nu):
            return shared
        # L VΛVᵀ Lᵀ, with L = Σ_g W: no inverse is needed.
        axes = shared @ (self._reference.whitening @ self._part.axes)
        scatter = (axes * self._part.eigenvalues) @ axes.T
        covariance: Tensor = (nu * shared + (scatter + scatter.T) / 2) / (nu + samples)
        return covariance


def adapt_levels(
    features: Tensor,
    labels: Tensor,
    global_statistics: GaussianStatistics,
    strengths: Strengths,
    *,
    priors: Tensor | None = None,
) -> LevelFit:
    """Return a client's posterior means, covariance and classifier at given strengths.

    Parameters
    ----------
    features : Tensor of shape (n, d)
        The client's features, of any floating type and on any device.
    labels : Tensor of shape (n,)
        Their classes.
    global_statistics : GaussianStatistics
        Global means and covariance, the ridge included.
    strengths : Strengths
        κ₀, κ and ν; ν must be above 0.
    priors : Tensor of shape (C,), optional
        The client's class priors; its class shares if not given.

    Examples
    --------
    >>> shared = GaussianStatistics(torch.tensor([[-1.0, 0.0], [1.0, 0.0]]), torch.eye(2))
    >>> features = torch.tensor([[-1.0, 2.0], [1.0, 2.0]])
    >>> fit = adapt_levels(features, torch.tensor([0, 1]), shared, Strengths(2, math.inf, math.inf))
    >>> fit.offset.tolist()
    [0.0, 1.0]
    """
    check_strengths(strengths)
    with torch.no_grad():
        reference, rows, classes = whitened(features, labels, global_statistics)
        given = priors_of(priors, classes, len(reference.means))
        part = part_of(rows, classes, reference.means)
        means = _means(part, reference.means, strengths)
        weights, _, share = level_weights(part.counts, strengths.offset, strengths.classes)
        kept = part.kept(strengths.covariance)
        solved = means - (means @ part.axes * kept) @ part.axes.T
        solved *= part.scale(strengths.covariance)
        bias = given.log().clamp(min=LOG_OF_ZERO) - 0.5 * torch.linalg.vecdot(solved, means)
        classifier = LinearClassifier(solved @ reference.whitening.T, bias)
        back = reference.statistics.covariance @ reference.whitening  # L
        offset = share * (weights @ part.residuals) @ back.T
        moved = reference.statistics.means + (means - reference.means) @ back.T
    return LevelFit(strengths, given, moved, offset, classifier, reference, part)


def with_relative_ridge(covariance: Tensor, ridge: float, share: float) -> Tensor:
    """Replace a ridge on the diagonal by a share of the mean variance without it."""
    covariance = covariance.double()
    variance = float(covariance.diagonal().mean()) - ridge
    # Features without any variance leave nothing to be relative to.
    new = share * variance if variance > 1e-6 * ridge else ridge
    return covariance + (new - ridge) * torch.eye(len(covariance), dtype=torch.float64)


def whitened(
    features: Tensor, labels: Tensor, statistics: GaussianStatistics
) -> tuple[Reference, Tensor, Tensor]:
    """Check all input; return the reference, whitened rows and labels."""
    matrix = checked_features(features)
    reference = reference_of(statistics)
    dimension = len(reference.whitening)
    if matrix.shape[1] != dimension:
        raise ValueError(
            f"global covariance has shape ({dimension}, {dimension}), but "
            f"({matrix.shape[1]}, {matrix.shape[1]}) is needed for features of dimension "
            f"{matrix.shape[1]}."
        )
    classes = checked_labels(labels, len(matrix), len(reference.means))
    return reference, matrix @ reference.whitening, classes


def priors_of(priors: Tensor | None, labels: Tensor, classes: int) -> Tensor:
    """Return class priors that sum to 1, and give something to every class that is there."""
    counts = torch.bincount(labels, minlength=classes)
    if priors is None:
        return class_priors(counts)
    checked = checked_priors(priors, classes)
    missing = torch.nonzero((counts > 0) & (checked <= 0))
    if len(missing):
        raise ValueError(
            f"priors gives 0 to class {int(missing[0])}, but a class that labels holds needs a "
            "positive prior."
        )
    return checked


def check_strengths(strengths: Strengths) -> None:
    """Refuse strengths that mean nothing."""
    for name, value in zip(strengths._fields, strengths, strict=True):
        if not value >= 0:
            raise ValueError(f"{name} is {value}, but only numbers of at least 0 are allowed.")
    if not strengths.covariance > 0:
        raise ValueError("covariance is 0, but only numbers above 0 are allowed.")
