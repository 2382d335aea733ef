"""The β search as the paper describes it: L-BFGS-B, with a linear system for each evaluation.

Slow and plain. It serves as the yardstick of the spectral solver.
"""

from itertools import product

import numpy as np
import numpy.typing as npt
import torch
from scipy.ndimage import minimum_filter
from scipy.optimize import minimize
from torch import Tensor

from pfedfda.gaussian.problem import SINGLE, BetaProblem, Directions, Minimum

# The loss need not be convex, and may change fast near 0 and 1. A scan of these values finds the
# places from which the search starts; it is even on the scale of log-odds.
_SCAN_SINGLE = (0.0, *(1 / (1 + np.exp(-np.arange(-18.0, 19.0)))).tolist(), 1.0)
_SCAN_MULTIPLE = (0.0, 1e-6, 1e-3, 0.05, 0.25, 0.5, 0.75, 0.95, 1 - 1e-3, 1 - 1e-6, 1.0)


def validation_loss(problem: BetaProblem, beta_means: Tensor, beta_covariance: Tensor) -> Tensor:
    """Return the loss of eq. 9 at one pair of β, differentiable by autograd."""
    total = torch.zeros((), dtype=torch.float64)
    for fold in problem.folds:
        means = beta_means * fold.local_means + (1 - beta_means) * fold.target_means
        covariance = beta_covariance * fold.local_covariance
        covariance = covariance + (1 - beta_covariance) * fold.target_covariance
        weight = torch.cholesky_solve(means.T, torch.linalg.cholesky(covariance))
        bias = problem.log_priors - 0.5 * (means.T * weight).sum(0)
        logits = fold.features @ weight + bias
        total = total + torch.nn.functional.cross_entropy(logits, fold.labels, reduction="sum")
    return total / problem.rows


def minimize_reference(problem: BetaProblem, directions: Directions) -> Minimum:
    """Minimise the validation loss by L-BFGS-B from several starts, end points included."""
    basis = torch.tensor(directions, dtype=torch.float64)
    evaluations = 0

    def loss_and_gradient(x: npt.NDArray[np.float64]) -> tuple[float, npt.NDArray[np.float64]]:
        nonlocal evaluations
        evaluations += 1
        with torch.enable_grad():
            point = torch.tensor(x, dtype=torch.float64, requires_grad=True)
            beta_means, beta_covariance = point @ basis
            loss = validation_loss(problem, beta_means, beta_covariance)
            (gradient,) = torch.autograd.grad(loss, point)
        return loss.item(), gradient.numpy()

    dimension = len(directions)
    best_x, best_loss = np.zeros(dimension), np.inf
    for start in _starts(problem, directions):
        found = minimize(
            loss_and_gradient,
            start,
            jac=True,
            method="L-BFGS-B",
            bounds=[(0.0, 1.0)] * dimension,
            options={"ftol": 1e-13, "gtol": 1e-8, "maxiter": 200},
        )
        # Ties go to the smaller β, because the starts are in ascending order.
        if found.fun < best_loss - 1e-12:
            best_x, best_loss = found.x, float(found.fun)
    beta_means, beta_covariance = (torch.from_numpy(best_x) @ basis).tolist()
    return Minimum(beta_means, beta_covariance, best_loss, evaluations)


def _starts(problem: BetaProblem, directions: Directions) -> npt.NDArray[np.float64]:
    """Return the points of the scan with no lower neighbour, and the corners, in order."""
    scan = _SCAN_SINGLE if directions == SINGLE else _SCAN_MULTIPLE
    dimension = len(directions)
    points = torch.tensor(list(product(scan, repeat=dimension)), dtype=torch.float64)
    pairs = points @ torch.tensor(directions, dtype=torch.float64)
    losses = np.array([validation_loss(problem, *pair).item() for pair in pairs])
    losses = losses.reshape([len(scan)] * dimension)
    chosen = losses <= minimum_filter(losses, size=3, mode="nearest")
    chosen[np.ix_(*[[0, -1]] * dimension)] = True
    starts: npt.NDArray[np.float64] = points.numpy()[chosen.ravel()]
    return starts
