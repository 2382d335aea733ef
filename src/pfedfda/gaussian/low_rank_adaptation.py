"""Adaptation of a client with few rows against many features, without matrices of its own."""

from collections.abc import Callable
from contextlib import AbstractContextManager

import torch
from torch import Tensor

from pfedfda.gaussian.adapted import Betas, LowRankFit
from pfedfda.gaussian.interpolation import check_weights
from pfedfda.gaussian.low_rank import (
    LowRankStatistics,
    Rows,
    Spectrum,
    low_rank_problem,
    needs_matrix,
)
from pfedfda.gaussian.problem import Directions
from pfedfda.gaussian.spectral_solver import minimize_spectral


def adapt_low_rank(
    features: Tensor,
    labels: Tensor,
    spectrum: Spectrum,
    prior_means: Tensor,
    priors: Tensor,
    how: Betas | tuple[Directions, Tensor],
    ridge: float,
    timer: Callable[[str], AbstractContextManager[None]],
) -> tuple[Betas, LowRankFit] | None:
    """Find β and interpolate, or return None where the ridge is too small for this way.

    Parameters
    ----------
    features : Tensor of shape (n, d)
        The client's features.
    labels : Tensor of shape (n,)
        Their classes.
    spectrum : Spectrum
        Of the global covariance.
    prior_means : Tensor of shape (C, d)
        The global means.
    priors : Tensor of shape (C,)
        The client's class priors.
    how : Betas or pair of Directions and Tensor
        The β to use, or which β to search with which folds of the rows.
    ridge : float
        The ε of local covariances.
    timer : callable
        Times parts of the work.
    """
    # Posteriors do not change when features and means move together. About one of the samples
    # all numbers are small and keep their digits.
    origin = features[0]
    with timer("statistics"):
        plain = Rows(features - origin, labels, prior_means - origin)
        counts, means = plain.means()
        means = means + origin
        axes = spectrum.axes
        rows = Rows(plain.values @ axes, labels, plain.prior_means @ axes)
        deviations = rows.deviations(rows.means()[1])
        if needs_matrix(spectrum, deviations, ridge):
            return None
    with timer("interpolation"):
        if isinstance(how, Betas):
            betas = how
        else:
            directions, fold_of = how
            problem = low_rank_problem(spectrum, rows, fold_of, priors, ridge)
            if problem is None:
                return None
            betas = Betas(*minimize_spectral(problem, directions))
        check_weights(betas.means, betas.covariance)
        weight = betas.covariance
        mixed = LowRankStatistics(
            spectrum,
            betas.means * means + (1 - betas.means) * prior_means,
            (1 - weight) * spectrum.eigenvalues + weight * ridge,
            deviations,
            weight,
            counts,
        )
        ridges = torch.full_like(spectrum.eigenvalues, ridge)
        local = LowRankStatistics(spectrum, means, ridges, deviations, 1.0, counts)
    return betas, LowRankFit(mixed, local)
