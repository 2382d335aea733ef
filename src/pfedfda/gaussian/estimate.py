"""Estimates of class means and tied covariance from features (equations 6 to 8 of the paper)."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pfedfda.gaussian._checks import check_ridge, checked_features, checked_labels, checked_means
from pfedfda.gaussian.nearest_pd import EIGENVALUE_FLOOR, _repair
from pfedfda.gaussian.statistics import GaussianStatistics


@dataclass(frozen=True, eq=False)
class ClassMoments:
    """What a set of labelled features contributes to means and covariance.

    The moments of two sets can be merged into those of their union (`merge_moments`), so folds
    and clients are summed without a second look at their features.

    Parameters
    ----------
    counts : Tensor of shape (C,)
        Samples of each class, int64.
    means : Tensor of shape (C, d)
        Mean of each class, zero for a class without samples.
    scatter : Tensor of shape (d, d)
        Sum over all samples of the outer product of their deviation from their class mean.
    """

    counts: Tensor
    means: Tensor
    scatter: Tensor

    @property
    def samples(self) -> int:
        """The number of samples in all classes."""
        return int(self.counts.sum())


def class_moments(features: Tensor, labels: Tensor, num_classes: int) -> ClassMoments:
    """Collect counts, class means (eq. 6) and the scatter about them (eqs. 7 and 8).

    Parameters
    ----------
    features : Tensor of shape (n, d)
        The features z_j, of any floating type and on any device.
    labels : Tensor of shape (n,)
        Their classes, integers from 0 to `num_classes` - 1.
    num_classes : int
        The number of classes C.

    Returns
    -------
    ClassMoments
        Float64 tensors on the CPU.
    """
    matrix = checked_features(features)
    classes = checked_labels(labels, matrix.shape[0], num_classes)
    # About one of the samples a large common offset costs no digits, and a feature that is the
    # same in all samples has exactly no variance.
    origin = matrix[0]
    return _moved(_class_moments(matrix - origin, classes, num_classes), origin)


def _class_moments(features: Tensor, labels: Tensor, num_classes: int) -> ClassMoments:
    """Collect the moments of features and labels that have been checked."""
    counts = torch.bincount(labels, minlength=num_classes)
    sums = features.new_zeros(num_classes, features.shape[1]).index_add_(0, labels, features)
    means = sums / counts.clamp(min=1)[:, None]
    # The sign does not matter to the scatter.
    centered = means.index_select(0, labels).sub_(features)
    return ClassMoments(counts, means, centered.T @ centered)


def _moved(moments: ClassMoments, offset: Tensor) -> ClassMoments:
    """Return the moments of the same samples after an offset has been added to all of them."""
    means = torch.where(moments.counts[:, None] > 0, moments.means + offset, 0.0)
    return ClassMoments(moments.counts, means, moments.scatter)


def merge_moments(parts: Sequence[ClassMoments]) -> ClassMoments:
    """Return the moments of the union of several disjoint sets of features.

    Only sums of positive-semidefinite matrices occur, so nothing cancels: the scatter of the
    union is the scatter of the parts plus that of the parts' class means about the merged ones.

    Parameters
    ----------
    parts : sequence of ClassMoments
        At least one, all with the same number of classes and features.
    """
    if not parts:
        raise ValueError("parts holds 0 sets of moments, but at least 1 is needed.")
    merged = parts[0]
    for part in parts[1:]:
        counts = merged.counts + part.counts
        share = part.counts / counts.clamp(min=1).to(torch.float64)
        difference = part.means - merged.means
        between = (merged.counts * share).sqrt()[:, None] * difference
        means = torch.addcmul(merged.means, share[:, None], difference)
        scatter = torch.addmm(merged.scatter + part.scatter, between.T, between)
        merged = ClassMoments(counts, means, scatter)
    return merged


def statistics_from_moments(
    moments: ClassMoments,
    *,
    prior_means: Tensor | None = None,
    ridge: float = 0.0,
    repair: bool = False,
) -> GaussianStatistics:
    """Turn moments into estimates of class means (eq. 6) and tied covariance (eq. 7).

    Parameters
    ----------
    moments : ClassMoments
        Of at least one sample.
    prior_means : Tensor of shape (C, d), optional
        Means for the classes without samples, for example the global ones. Without it they get
        the mean of all samples.
    ridge : float, default=0.0
        The ε of the diagonal εI that is added to the covariance.
    repair : bool, default=False
        Replace a covariance that is not positive definite by the nearest one that is, see
        `nearest_positive_definite`.

    Returns
    -------
    GaussianStatistics
        The covariance is the scatter over n - 1, as in eq. 7; of a single sample it is zero.
    """
    check_ridge(ridge)
    counts, means = moments.counts, moments.means
    samples = moments.samples
    if samples == 0:
        raise ValueError("moments hold 0 samples, but at least 1 is needed.")
    if prior_means is None:
        fallback = (counts[:, None] * means).sum(0) / samples
    else:
        fallback = checked_means(prior_means, means.shape[0], means.shape[1], "prior_means")
    means = torch.where(counts[:, None] > 0, means, fallback)
    covariance = moments.scatter / max(samples - 1, 1)
    covariance.diagonal().add_(ridge)
    # A ridge bounds the eigenvalues of the correlation matrix from below by its share of the
    # largest variance; where that is enough no further test is needed.
    if repair and ridge <= EIGENVALUE_FLOOR * float(covariance.diagonal().max()):
        covariance = _repair(covariance)
    return GaussianStatistics(means, covariance, counts)


def estimate_statistics(
    features: Tensor,
    labels: Tensor,
    num_classes: int,
    *,
    prior_means: Tensor | None = None,
    ridge: float = 0.0,
    repair: bool = False,
) -> GaussianStatistics:
    """Estimate class means (eq. 6) and tied covariance (eqs. 7 and 8) from features.

    Parameters
    ----------
    features : Tensor of shape (n, d)
        The features z_j, of any floating type and on any device.
    labels : Tensor of shape (n,)
        Their classes, integers from 0 to `num_classes` - 1.
    num_classes : int
        The number of classes C.
    prior_means : Tensor of shape (C, d), optional
        Means for the classes without samples. Without it they get the mean of all samples.
    ridge : float, default=0.0
        The ε of the diagonal εI that is added to the covariance.
    repair : bool, default=False
        Replace a covariance that is not positive definite by the nearest one that is.

    Returns
    -------
    GaussianStatistics
        Float64 tensors on the CPU, with the class counts.

    Examples
    --------
    >>> features = torch.tensor([[0.0, 0.0], [2.0, 0.0], [5.0, 1.0]])
    >>> estimate = estimate_statistics(features, torch.tensor([0, 0, 1]), num_classes=2)
    >>> estimate.means.tolist()
    [[1.0, 0.0], [5.0, 1.0]]
    >>> estimate.covariance.tolist()
    [[1.0, 0.0], [0.0, 0.0]]
    """
    return statistics_from_moments(
        class_moments(features, labels, num_classes),
        prior_means=prior_means,
        ridge=ridge,
        repair=repair,
    )


def class_priors(counts: Tensor, smoothing: float = 0.0) -> Tensor:
    """Return the class priors π^c = n^c / n that the paper takes from local counts.

    Parameters
    ----------
    counts : Tensor of shape (C,)
        Samples of each class.
    smoothing : float, default=0.0
        Pseudo-count that is added to each class, so that absent classes stay possible.
    """
    if not smoothing >= 0:
        raise ValueError(f"smoothing is {smoothing}, but only numbers of at least 0 are allowed.")
    weights = counts.detach().cpu().to(torch.float64) + smoothing
    total = float(weights.sum())
    if not total > 0 or float(weights.min()) < 0:
        raise ValueError(
            f"counts range from {float(counts.min()):g} and sum to {float(counts.sum()):g}, but "
            "only numbers of at least 0 with a positive sum are allowed."
        )
    return weights / total
