"""The β search of the program released with the paper, for comparisons with it.

It takes at most ten steps of L-BFGS without bounds, from β = 0.5, and clips β to [0, 1] inside the
loss. Beyond an end the loss is flat, so a step that overshoots ends the search at that end, even if
the optimum lies inside.
"""

import numpy as np
import numpy.typing as npt
import torch
from scipy.optimize import minimize

from pfedfda.gaussian.problem import BetaProblem, Directions, Minimum
from pfedfda.gaussian.reference_solver import validation_loss


def minimize_clipped(problem: BetaProblem, directions: Directions) -> Minimum:
    """Minimise the validation loss as the released program does."""
    basis = torch.tensor(directions, dtype=torch.float64)
    folds = len(problem.folds)  # the released loss is the sum over folds of their mean losses

    def loss_and_gradient(x: npt.NDArray[np.float64]) -> tuple[float, npt.NDArray[np.float64]]:
        with torch.enable_grad():
            point = torch.tensor(x, dtype=torch.float64, requires_grad=True)
            beta_means, beta_covariance = point.clip(0, 1) @ basis
            loss = folds * validation_loss(problem, beta_means, beta_covariance)
            (gradient,) = torch.autograd.grad(loss, point)
        return loss.item(), gradient.numpy()

    found = minimize(
        loss_and_gradient,
        np.full(len(directions), 0.5),
        jac=True,
        method="L-BFGS-B",
        options={"maxiter": 10, "gtol": 1e-3},
    )
    beta_means, beta_covariance = (torch.from_numpy(found.x.clip(0, 1)) @ basis).tolist()
    return Minimum(beta_means, beta_covariance, float(found.fun) / folds, int(found.nfev))
