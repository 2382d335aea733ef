"""The validation loss of eq. 9 where the client's covariance has low rank.

With λ the eigenvalues of the local covariance after whitening, logits are sums over j of
polynomials in the β of the means over 1 + β(λ_j - 1), β that of the covariance: functions of β
whose poles all lie outside of [0, 1]. On the scale x = log((β + 1/λ_max) / (1 - β + λ_min)) they
are analytic up to a distance of π from the real line. So their Chebyshev series in x converges as
fast as a geometric one, at a rate that depends on λ_max / λ_min alone, and some dozens of β, at
which the covariance is inverted, give the logits at all others to rounding errors.

Derivatives, and the bounds from below, are those of `pfedfda.gaussian.spectral_loss`, with the
polynomials of Chebyshev in place of the D_j(β).
"""

import math

import numpy as np
import torch
from numpy.polynomial import chebyshev

from pfedfda.gaussian.low_rank import LowRankProblem, inverse_between
from pfedfda.gaussian.problem import Directions
from pfedfda.gaussian.spectral_loss import (
    _LEAST_MARGIN,
    _LOWEST_LOG,
    MARGIN,
    Bounds,
    LogOddsScale,
    Vector,
)

# What the series may be wrong by, relative to its largest value.
_ACCURACY = 1e-14
# Logits held at a time.
_CHUNK = 1 << 20


class LowRankLoss:
    """The loss, its bounds and derivatives, for `minimize_spectral`.

    Parameters
    ----------
    problem : LowRankProblem
        Folds and priors.
    """

    def __init__(self, problem: LowRankProblem):
        self._lowest, self._highest = problem.range_of_eigenvalues()
        self._log_priors = problem.log_priors
        self._stretched = LogOddsScale(1 / self._highest, self._lowest)
        self._ends = self._stretched.position(0.0), self._stretched.position(1.0)
        half = (self._ends[1] - self._ends[0]) / 2
        self._order = math.ceil(-math.log(_ACCURACY) / math.asinh(0.97 * math.pi / half)) + 4
        self._first = chebyshev.chebder(np.eye(self._order))
        self._second = chebyshev.chebder(np.eye(self._order), 2)
        self._labels = torch.cat([fold.labels for fold in problem.folds])[None, :]
        self._rows = self._labels.shape[1]
        self._coefficients = self._series(problem)
        self.evaluations = 0

    def _series(self, problem: LowRankProblem) -> torch.Tensor:
        """Return the coefficients of all logits but for the priors, of shape (3, K, P, rows).

        The first axis counts polynomials in the β of the means, the second those of Chebyshev.
        """
        angles = (np.arange(self._order) + 0.5) * math.pi / self._order
        positions = np.cos(angles)
        start, end = self._ends
        betas = self._stretched.beta(start + (end - start) * (positions + 1) / 2)
        classes = len(self._log_priors)
        values = []
        for with_rows, among in inverse_between(problem, betas.tolist()):
            of_targets, of_locals = torch.split(with_rows.mT, classes, dim=1)
            squares = among.diagonal(dim1=1, dim2=2)
            mixed = among[:, :classes, classes:].diagonal(dim1=1, dim2=2)
            biases = [
                bias[:, :, None] for bias in (squares[:, :classes], mixed, squares[:, classes:])
            ]
            values.append(
                torch.stack(
                    [
                        of_targets - 0.5 * biases[0],
                        of_targets + of_locals - biases[1],
                        of_locals - 0.5 * biases[2],
                    ]
                )
            )
        joined = torch.cat(values, dim=-1)
        transform = np.cos(np.arange(self._order)[:, None] * angles) * (2 / self._order)
        transform[0] /= 2
        transform *= 1 - betas + betas * self._lowest
        return torch.einsum("kq,pqcr->pkcr", torch.from_numpy(transform), joined)

    def _basis(self, betas: Vector) -> tuple[Vector, Vector, Vector]:
        """Return the functions of which logits are sums, and their two derivatives, in rows."""
        left, right = self._stretched
        start, end = self._ends
        ratio = (betas + left) / (1 - betas + right)
        positions = np.clip((2 * np.log(ratio) - start - end) / (end - start), -1, 1)
        below, above = 1 / (betas + left)[..., None], 1 / (1 - betas + right)[..., None]
        rate = 2 / (end - start) * (below + above)
        change = 2 / (end - start) * (above**2 - below**2)
        values = chebyshev.chebvander(positions, self._order - 1)
        first = values[..., :-1] @ self._first
        second = values[..., :-2] @ self._second
        # The series are those of logits times this, which stays of one size.
        scale = (1 - betas + betas * self._lowest)[..., None]
        slope = self._lowest - 1
        values = values / scale
        slopes = (first * rate - values * slope) / scale
        bends = (second * rate**2 + first * change - 2 * slopes * slope) / scale
        return values, slopes, bends

    def _sum(self, design: Vector) -> torch.Tensor:
        """Return sums (N, P, rows) of coefficients with weights of shape (N, 3, K)."""
        coefficients = self._coefficients.flatten(2).flatten(0, 1)
        sums = torch.from_numpy(design).flatten(1) @ coefficients
        return sums.view(len(design), *self._coefficients.shape[2:])

    def scale(self) -> LogOddsScale:
        """Return the scale on which the covariance's part of the loss is smooth."""
        left, right = min(MARGIN, 1 / self._highest), min(MARGIN, self._lowest)
        return LogOddsScale(max(left, _LEAST_MARGIN), max(right, _LEAST_MARGIN))

    def visit(self, beta_means: Vector, beta_covariance: Vector, exactly: bool = True) -> Bounds:
        """Return the losses at N pairs of β and the bounds that touch them; always exactly."""
        chunk = max(1, _CHUNK // (self._rows * len(self._log_priors)))
        parts = [
            self._visit(beta_means[start : start + chunk], beta_covariance[start : start + chunk])
            for start in range(0, len(beta_means), chunk)
        ]
        values, polynomials = (np.concatenate(part) for part in zip(*parts, strict=True))
        self.evaluations += len(values)
        untouched = Bounds(values, np.zeros(len(values)), polynomials)
        points = beta_means[:, None], beta_covariance[:, None]
        return Bounds(values, values - self.lower(untouched, *points)[:, 0], polynomials)

    def _visit(self, beta_means: Vector, beta_covariance: Vector) -> tuple[Vector, Vector]:
        """Return losses and polynomials at N pairs of β."""
        basis, _, _ = self._basis(beta_covariance)
        logits = self._sum(_powers(beta_means)[:, :, None] * basis[:, None])
        losses, residual = self._losses(logits)
        polynomials = residual.flatten(1) @ self._coefficients.flatten(2).flatten(0, 1).T
        polynomials = polynomials.view(len(basis), 3, -1).mT
        return losses.sum(1).numpy() / self._rows, polynomials.numpy() / self._rows

    def _losses(self, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the losses of rows, and posteriors less one for the true class, in place."""
        # About the logit of the true class: what is left is the loss of a row.
        logits = self._about_true(logits.add_(self._log_priors[:, None]))
        labels = self._labels.expand(len(logits), 1, -1)
        highest = logits.amax(1, keepdim=True)
        posteriors = logits.sub_(highest).clamp_(min=_LOWEST_LOG).exp_()
        totals = posteriors.sum(1, keepdim=True)
        posteriors.div_(totals)
        losses = totals.log_().add_(highest)[:, 0]
        return losses, posteriors.scatter_add_(1, labels, -torch.ones_like(losses)[:, None])

    def _about_true(self, values: torch.Tensor) -> torch.Tensor:
        """Subtract the values of each row's true class, in place."""
        return values.sub_(values.gather(1, self._labels.expand(len(values), 1, -1)))

    def lower(self, bounds: Bounds, beta_means: Vector, beta_covariance: Vector) -> Vector:
        """Return the values of N bounds, each at Q pairs of β of its own: all of shape (N, Q)."""
        basis, _, _ = self._basis(beta_covariance)
        powers = _powers(beta_means)
        values: Vector = (basis @ bounds.polynomials * powers).sum(-1)
        return bounds.offsets[:, None] + values

    def lower_on_mesh(self, bounds: Bounds, means: Vector, covariances: Vector) -> Vector:
        """Return the values of N bounds at all pairs of two lists of β: (N, means, covariances)."""
        basis, _, _ = self._basis(covariances)
        values: Vector = _powers(means) @ (basis @ bounds.polynomials).swapaxes(1, 2)
        return bounds.offsets[:, None, None] + values

    def slopes(self, bounds: Bounds, betas: Vector) -> Vector:
        """Return the derivatives of the losses where N bounds touch them, for a single β."""
        basis, rates, _ = self._basis(betas)
        design = self._along_single(betas, basis, rates)
        slopes: Vector = (design.swapaxes(1, 2) * bounds.polynomials).sum((1, 2))
        return slopes

    @staticmethod
    def _along_single(betas: Vector, basis: Vector, rates: Vector) -> Vector:
        """Return the weights (N, 3, K) that give the slopes of logits in a single β."""
        powers, changes = _powers(betas), _powers(betas, 1)
        return powers[:, :, None] * rates[:, None] + changes[:, :, None] * basis[:, None]

    def reach(self, beta: float, curvature: float) -> float:
        """Return how far from the bottom of a basin the loss of a single β still bends upwards."""
        point = np.array([beta])
        basis, rates, _ = self._basis(point)
        logits = self._sum(_powers(point)[:, :, None] * basis[:, None])
        slopes = self._about_true(self._sum(self._along_single(point, basis, rates)))
        logs = torch.log_softmax(logits + self._log_priors[:, None], dim=1)
        posteriors = logs.exp()
        deviations = slopes.sub_((posteriors * slopes).sum(1, keepdim=True)).abs_()
        change = float((posteriors * deviations**3).sum()) / self._rows
        unlikely = float((logs.mul_(-0.5).clamp_(min=1) / deviations).min())
        return min(0.2 * curvature / max(change, 1e-300), unlikely)

    def derivatives(
        self, beta_means: float, beta_covariance: float, directions: Directions
    ) -> tuple[float, Vector, Vector]:
        """Return the loss with gradient and Hessian along directions in the plane of the two β.

        Parameters and results are those of `SpectralLoss.derivatives`.
        """
        self.evaluations += 1
        means = np.array([beta_means])
        basis = self._basis(np.array([beta_covariance]))
        powers = [_powers(means, order) for order in range(3)]

        def weights(order_of_means: int, order_of_covariance: int) -> Vector:
            product: Vector = (
                powers[order_of_means][:, :, None] * basis[order_of_covariance][:, None]
            )
            return product

        first = [u * weights(1, 0) + v * weights(0, 1) for u, v in directions]
        losses, residual = self._losses(self._sum(weights(0, 0)))
        posteriors = residual.scatter_add(
            1, self._labels[None], torch.ones(1, 1, self._rows, dtype=residual.dtype)
        )
        pull = (self._coefficients.flatten(2).flatten(0, 1) @ residual.flatten()).numpy()
        # About the slope of the true class, for the same reason as the logits.
        slopes = [self._about_true(self._sum(design)) for design in first]
        gradient = np.array([design.ravel() @ pull for design in first])
        hessian = np.empty((len(directions), len(directions)))
        for i, (u, v) in enumerate(directions):
            expected = (posteriors * slopes[i]).sum(1)
            for j, (other_u, other_v) in enumerate(directions[: i + 1]):
                both = posteriors * slopes[i]
                covariance = float((both * slopes[j]).sum())
                covariance -= float((expected * (posteriors * slopes[j]).sum(1)).sum())
                bend = u * other_u * weights(2, 0) + v * other_v * weights(0, 2)
                bend = bend + (u * other_v + v * other_u) * weights(1, 1)
                hessian[i, j] = hessian[j, i] = covariance + float(bend.ravel() @ pull)
        return float(losses.sum()) / self._rows, gradient / self._rows, hessian / self._rows


def _powers(betas: Vector, derivative: int = 0) -> Vector:
    """Return (1-β)², β(1-β) and β² as a last axis, or their first or second derivatives.

    At both ends a single one is left, so that nothing cancels there.
    """
    one = np.ones_like(betas)
    columns = (
        ((1 - betas) ** 2, betas * (1 - betas), betas**2),
        (2 * betas - 2, 1 - 2 * betas, 2 * betas),
        (2 * one, -2 * one, 2 * one),
    )[derivative]
    return np.stack(columns, axis=-1)
