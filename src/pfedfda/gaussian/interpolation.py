"""Interpolation between local and global statistics (Algorithm 1, after the β search)."""

from pfedfda.gaussian._checks import as_float64
from pfedfda.gaussian.statistics import GaussianStatistics


def interpolate(
    local_statistics: GaussianStatistics,
    global_statistics: GaussianStatistics,
    beta: float,
    beta_covariance: float | None = None,
) -> GaussianStatistics:
    """Return β·local + (1 - β)·global for means and covariance.

    Parameters
    ----------
    local_statistics, global_statistics : GaussianStatistics
        Of the same shapes.
    beta : float
        The interpolation weight β in [0, 1]: 0 is global, 1 is local.
    beta_covariance : float, optional
        A weight of its own for the covariance, as in the paper's ablation MB. Without it
        `beta` serves both (SB).

    Returns
    -------
    GaussianStatistics
        Float64 tensors on the CPU, with the local counts.
    """
    if beta_covariance is None:
        beta_covariance = beta
    check_weights(beta, beta_covariance)
    if local_statistics.means.shape != global_statistics.means.shape:
        raise ValueError(
            f"local means have shape {tuple(local_statistics.means.shape)}, but the shape of the "
            f"global ones, {tuple(global_statistics.means.shape)}, is needed."
        )
    if local_statistics.covariance.shape != global_statistics.covariance.shape:
        raise ValueError(
            f"local covariance has shape {tuple(local_statistics.covariance.shape)}, but the shape "
            f"of the global one, {tuple(global_statistics.covariance.shape)}, is needed."
        )
    means = beta * as_float64(local_statistics.means)
    means += (1 - beta) * as_float64(global_statistics.means)
    covariance = beta_covariance * as_float64(local_statistics.covariance)
    covariance += (1 - beta_covariance) * as_float64(global_statistics.covariance)
    return GaussianStatistics(means, covariance, local_statistics.counts)


def check_weights(beta: float, beta_covariance: float) -> None:
    """Refuse interpolation weights outside of [0, 1]."""
    for name, value in (("beta", beta), ("beta_covariance", beta_covariance)):
        if not 0 <= value <= 1:
            raise ValueError(f"{name} is {value}, but only numbers from 0 to 1 are allowed.")
