"""The nearest positive-definite covariance with the same variances."""

import math

import torch
from torch import Tensor

from pfedfda.gaussian._checks import checked_covariance

#: Smallest eigenvalue that the correlation matrix of a repaired covariance is given.
EIGENVALUE_FLOOR = 1e-6


def is_safely_positive_definite(covariance: Tensor, floor: float = EIGENVALUE_FLOOR) -> bool:
    """Tell whether every eigenvalue of the correlation matrix is above half of `floor`.

    One Cholesky factorisation, of the covariance less `floor / 2` times its own diagonal. The
    margin matters: a singular matrix may pass a bare factorisation by rounding alone. The half
    keeps a matrix that has just been repaired to `floor` from being repaired again.
    """
    variances = covariance.diagonal()
    if not bool((variances > 0).all()):
        return False
    lowered = covariance.clone()
    lowered.diagonal().mul_(1 - floor / 2)
    _, info = torch.linalg.cholesky_ex(lowered)
    return int(info) == 0


def is_positive_semidefinite(covariance: Tensor) -> bool:
    """Tell whether a matrix can be a covariance that has been rounded to single precision.

    Rounding moves no entry of the correlation matrix by more than 2⁻²⁴, hence no eigenvalue by more
    than d times that; sixteen times as much is allowed, for sums of rounded matrices. A feature
    without variance must not vary with others.

    Parameters
    ----------
    covariance : Tensor of shape (d, d)
        A symmetric matrix of finite numbers.
    """
    raised = covariance.to(torch.float64, copy=True)
    if not bool((raised.diagonal() >= 0).all()):
        return False
    # The summand is nothing beside any variance that matters; it lets a feature without pass.
    raised.diagonal().mul_(1 + len(raised) * 2**-20).add_(2**-100)
    _, info = torch.linalg.cholesky_ex(raised)
    return int(info) == 0


def nearest_positive_definite(covariance: Tensor, floor: float = EIGENVALUE_FLOOR) -> Tensor:
    """Replace a covariance by the nearest positive-definite one with identical variances.

    As the paper has it (Section 'Local Distribution Adaptation'): the eigenvalues of the
    correlation matrix are clipped, at 0, and the result is scaled back to the variances it had.
    All correlations are then shortened by the factor 1 - `floor`, so that no eigenvalue of the
    correlation matrix is below `floor`. A matrix that already is positive definite is returned
    unchanged after one Cholesky factorisation.

    Parameters
    ----------
    covariance : Tensor of shape (d, d)
        A symmetric matrix with a diagonal of at least 0.
    floor : float, default=1e-6
        Smallest eigenvalue of the correlation matrix of the result.

    Returns
    -------
    Tensor of shape (d, d)
        A positive-definite float64 matrix on the CPU. Its diagonal is that of the input to the
        bit, but for features without any variance: no positive-definite matrix has a zero on
        its diagonal, so they get `floor` times the mean of the positive variances (`floor`
        itself if there is none) and are uncorrelated with all others.
    """
    if not 0 < floor < 1:
        raise ValueError(f"floor is {floor}, but only numbers between 0 and 1 are allowed.")
    return _repair(checked_covariance(covariance), floor)


def _repair(covariance: Tensor, floor: float = EIGENVALUE_FLOOR) -> Tensor:
    """Repair a covariance that has been checked."""
    if is_safely_positive_definite(covariance, floor):
        return covariance
    variances = covariance.diagonal().clone()
    if bool((variances < 0).any()):
        raise ValueError(
            f"covariance has the variance {float(variances.min()):g} on its diagonal, but only "
            "numbers of at least 0 are allowed."
        )
    # Below this share of the largest variance a feature is constant up to rounding.
    rounding = torch.finfo(torch.float64).eps ** 2
    constant = variances <= rounding * variances.max()
    variances[constant] = floor * (variances[~constant].mean() if bool((~constant).any()) else 1.0)
    deviations = variances.sqrt()
    correlation = covariance / deviations[:, None] / deviations
    correlation[constant] = 0.0
    correlation[:, constant] = 0.0
    correlation.diagonal().fill_(1.0)

    eigenvalues, eigenvectors = torch.linalg.eigh(correlation)
    clipped = (eigenvectors * eigenvalues.clamp(min=0)) @ eigenvectors.T
    # Clipping lengthens the diagonal; dividing by it makes a correlation matrix again. Less of
    # every correlation then lifts all eigenvalues to the floor, and leaves the diagonal alone.
    scale = deviations / clipped.diagonal().sqrt() * math.sqrt(1 - floor)
    scaled = clipped * scale[:, None] * scale
    repaired: Tensor = (scaled + scaled.T) / 2
    repaired.diagonal().copy_(variances)
    return repaired


def _whitened(covariance: Tensor) -> tuple[Tensor, Tensor]:
    """Return a covariance, repaired if need be, and the inverse of its lower Cholesky factor."""
    factor, info = torch.linalg.cholesky_ex(covariance)
    whitening = _inverse_of_lower(factor)
    # The trace of the inverse of the correlation matrix, which no eigenvalue of it exceeds.
    trace = torch.dot(whitening.square().sum(0), covariance.diagonal()).item()
    if int(info) == 0 and trace * EIGENVALUE_FLOOR <= 1:
        return covariance, whitening
    repaired = _repair(covariance)
    return repaired, _inverse_of_lower(torch.linalg.cholesky(repaired))


def _inverse_of_lower(factor: Tensor) -> Tensor:
    identity = torch.eye(len(factor), dtype=factor.dtype)
    inverse: Tensor = torch.linalg.solve_triangular(factor, identity, upper=False)
    return inverse
