"""The validation loss of eq. 9 for any β at once, by diagonalising both covariances.

Let Σ_g = LLᵀ and L⁻¹Σ_lL⁻ᵀ = QΛQᵀ. In the basis V = L⁻ᵀQ both covariances are diagonal, VᵀΣ_gV = I
and VᵀΣ_lV = Λ, so that for *every* β

    (βΣ_l + (1-β)Σ_g)⁻¹ = V D(β) Vᵀ    with    D_j(β) = 1 / (1 + β(λ_j - 1)).

After one decomposition for each fold, a β costs one product of features with (C, d) weights, and
the derivatives of the loss in β follow from those of D, in closed form.

A visit to one β also bounds the loss from below at every other. By Gibbs' inequality
log Σ_c exp s_c is at least Σ_c p_c s_c plus the entropy of p, whatever the probabilities p, and
equal to it where they are the posteriors. So the posteriors at one β, kept fixed, give a function
of β that touches the loss there and is nowhere above it; the distance is the Kullback-Leibler
divergence between the posteriors at both β. Logits are sums of D_j(β) times a polynomial in β, so
this function is too, and once its polynomials have been summed over rows and classes it costs d
operations a β, not those of all rows.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pfedfda.gaussian.problem import BetaProblem, Directions

Vector = npt.NDArray[np.float64]
Number = TypeVar("Number", float, Vector)

# Distance of the first β on the scale of `LogOddsScale`. The bounds vary on a scale of about 1.
_SPACING = 1.0
# Rounding errors of single precision, with room to spare.
_ROUNDING = 4 * float(torch.finfo(torch.float32).eps)
# How close to 0 and 1 the scale is logarithmic: at least to the first, at most to the second.
MARGIN = 0.02
_LEAST_MARGIN = 1e-9
# Logits held at a time: they should stay in the cache.
_CHUNK = 1 << 18
# Log posteriors below this are raised to it. That changes no digit of the loss, and keeps subnormal
# numbers away, which slow the processor down a hundredfold.
_LOWEST_LOG = -60.0


class LogOddsScale(NamedTuple):
    """The scale log((β + left) / (1 - β + right)): log-odds, but finite at the end points."""

    left: float
    right: float

    def beta(self, positions: Vector) -> Vector:
        """Return the β at some positions."""
        odds = np.exp(positions)
        betas: Vector = np.clip((odds * (1 + self.right) - self.left) / (1 + odds), 0.0, 1.0)
        return betas

    def position(self, beta: float) -> float:
        """Return the position of a β."""
        return math.log((beta + self.left) / (1 - beta + self.right))

    def rate(self, beta: Number) -> Number:
        """Return the derivative of β by the position."""
        return (beta + self.left) * (1 - beta + self.right) / (1 + self.left + self.right)

    def grid(self, count: int | None = None) -> tuple[Vector, Vector]:
        """Return even positions, and their β from exactly 0 to exactly 1."""
        first, last = self.position(0.0), self.position(1.0)
        positions = np.linspace(first, last, count or math.ceil((last - first) / _SPACING) + 1)
        betas = self.beta(positions)
        betas[0], betas[-1] = 0.0, 1.0
        return positions, betas


@dataclass(frozen=True, eq=False)
class Bounds:
    """Losses at N pairs of β, and for each the function that bounds the loss from below.

    Parameters
    ----------
    values : ndarray of shape (N,)
        The losses, in nats a row.
    offsets : ndarray of shape (N,)
        The constants of the bounds.
    polynomials : ndarray of shape (N, K, 3)
        For each of the K directions of all folds, what is multiplied by D(β of the covariance): the
        coefficients of a polynomial in the β of the means.
    """

    values: Vector
    offsets: Vector
    polynomials: Vector

    def chosen(self, which: npt.NDArray[np.int64]) -> "Bounds":
        """Return some of them."""
        return Bounds(*(array[which] for array in vars(self).values()))

    def replace(self, which: npt.NDArray[np.int64], others: "Bounds") -> None:
        """Put others in the place of some of them."""
        for array, new in zip(vars(self).values(), vars(others).values(), strict=True):
            array[which] = new

    def joined(self, other: "Bounds") -> "Bounds":
        """Return all of two sets."""
        pairs = zip(vars(self).values(), vars(other).values(), strict=True)
        return Bounds(*(np.concatenate(pair) for pair in pairs))


class SpectralLoss:
    """The validation loss of eq. 9, bounds from below, and its derivatives in the two β.

    Folds are stacked, to be worked on at once: there are k of them, with m validation rows at most
    and P classes of d features. A column of ones is appended to the features, and the bias to the
    weights. Shorter folds are filled up with rows of zeros; the logits of such a row are all zero
    whatever β is, so it adds nothing to a derivative and a constant to the loss.

    Parameters
    ----------
    problem : BetaProblem
        Folds and priors.
    """

    def __init__(self, problem: BetaProblem):
        folds = problem.folds
        # Only the lower triangle is read: no need to make the products exactly symmetric.
        whitened = [fold.whitening @ fold.local_covariance @ fold.whitening.T for fold in folds]
        eigenvalues, rotations = torch.linalg.eigh(torch.stack(whitened))
        # The local covariances are positive definite; rounding must not say otherwise.
        self._excess = eigenvalues.clamp_(min=torch.finfo(torch.float64).eps) - 1
        self._log_priors = problem.log_priors

        classes, dimension = folds[0].local_means.shape
        sizes = [len(fold.features) for fold in folds]
        self._rows = sum(sizes)
        self._loss_of_filling = (len(sizes) * max(sizes) - self._rows) * math.log(classes)
        self._features = rotations.new_zeros(len(folds), max(sizes), dimension + 1)
        self._labels = torch.zeros(len(folds), 1, max(sizes), dtype=torch.int64)
        self._class_sums = rotations.new_zeros(len(folds), classes, dimension + 1)
        self._target_means = rotations.new_empty(len(folds), classes, dimension)
        self._differences = torch.empty_like(self._target_means)
        for k, fold in enumerate(folds):
            basis = fold.whitening.T @ rotations[k]
            rows = self._features[k, : sizes[k]]
            torch.mm(fold.features, basis, out=rows[:, :-1])
            rows[:, -1] = 1.0
            self._labels[k, 0, : sizes[k]] = fold.labels
            self._class_sums[k].index_add_(0, fold.labels, rows)
            torch.mm(fold.target_means, basis, out=self._target_means[k])
            torch.mm(fold.local_means - fold.target_means, basis, out=self._differences[k])
        self.evaluations = 0
        self._rounded_features = self._features.float()
        # A logit is a sum over j of D_j times mean times feature, less half the mean squared: what
        # the rounding of its terms comes to, of rows on average, as coefficients of D.
        longest = torch.maximum(
            self._target_means.abs(), (self._target_means + self._differences).abs()
        ).amax(1)
        length = self._features[..., :-1].abs().sum(1) / self._rows
        rounding = _ROUNDING * longest * (length + longest / len(folds))
        self._rounding = rounding.ravel().numpy()

    def scale(self) -> LogOddsScale:
        """Return the scale on which the covariance's part of the loss is smooth."""
        lowest, highest = (float(bound) + 1 for bound in torch.aminmax(self._excess))
        left, right = min(MARGIN, 1 / highest), min(MARGIN, lowest)
        return LogOddsScale(max(left, _LEAST_MARGIN), max(right, _LEAST_MARGIN))

    def visit(self, beta_means: Vector, beta_covariance: Vector, exactly: bool = True) -> Bounds:
        """Return the losses at N pairs of β and the bounds that touch them there.

        Parameters
        ----------
        beta_means, beta_covariance : ndarray of shape (N,)
            The pairs.
        exactly : bool, default=True
            Without, rows and classes are summed in single precision, which takes half the time: the
            losses are raised, and the bounds lowered, by what rounding errors may come to.
        """
        folds, rows, _ = self._features.shape
        chunk = max(1, _CHUNK // (folds * rows * len(self._log_priors)))
        dtype = torch.float64 if exactly else torch.float32
        parts = [
            self._visit(
                beta_means[start : start + chunk], beta_covariance[start : start + chunk], dtype
            )
            for start in range(0, len(beta_means), chunk)
        ]
        values, polynomials = (np.concatenate(part) for part in zip(*parts, strict=True))
        self.evaluations += len(values)
        points = beta_means[:, None], beta_covariance[:, None]
        untouched = Bounds(values, np.zeros(len(values)), polynomials)
        offsets = values - self.lower(untouched, *points)[:, 0]
        if exactly:
            return Bounds(values, offsets, polynomials)
        errors = np.zeros_like(polynomials)
        errors[..., 0] = self._rounding
        of_values = self.lower(Bounds(values, np.zeros(len(values)), errors), *points)[:, 0]
        return Bounds(values + of_values, offsets - 2 * of_values, polynomials - errors)

    def _visit(
        self, beta_means: Vector, beta_covariance: Vector, dtype: torch.dtype
    ) -> tuple[Vector, Vector]:
        """Return losses and polynomials at N pairs of β."""
        differences, targets = self._differences, self._target_means
        features = self._features if dtype == torch.float64 else self._rounded_features
        folds, rows, columns = features.shape
        classes = len(self._log_priors)
        of_means, of_covariance = (
            torch.from_numpy(beta)[:, None, None] for beta in (beta_means, beta_covariance)
        )
        precisions = 1 / (1 + of_covariance * self._excess[:, None, None])
        means = torch.addcmul(targets[:, None], of_means, differences[:, None])
        weights = precisions * means
        bias = self._log_priors - 0.5 * torch.linalg.vecdot(weights, means)
        weights = torch.cat([weights, bias[..., None]], dim=-1).to(dtype)
        # Rows come last: sums over few classes are quick along many rows.
        logits = (weights.flatten(1, 2) @ features.mT).view(folds, -1, classes, rows)
        # About the logit of the true class: what is left is the loss of a row, and nothing cancels.
        labels = self._labels[:, None].expand(-1, len(beta_means), -1, -1)
        logits.sub_(logits.gather(2, labels))
        highest = logits.amax(2, keepdim=True)
        posteriors = logits.sub_(highest).clamp_(min=_LOWEST_LOG).exp_()
        totals = posteriors.sum(2, keepdim=True)
        posteriors.div_(totals)
        losses = totals.log_().add_(highest).sum((0, 2, 3), dtype=torch.float64)

        residual = (posteriors.flatten(1, 2) @ features).view(folds, -1, classes, columns).double()
        residual -= self._class_sums[:, None]
        of_weights, of_bias = residual[..., :-1], residual[..., -1:].mT
        constant = (targets[:, None] * of_weights).sum(2, keepdim=True)
        linear = (differences[:, None] * of_weights).sum(2, keepdim=True)
        products = (targets.square(), targets * differences, differences.square())
        squares = [of_bias @ product[:, None] for product in products]
        polynomials = torch.stack(
            [constant - 0.5 * squares[0], linear - squares[1], -0.5 * squares[2]], dim=-1
        )
        polynomials = polynomials.permute(1, 0, 2, 3, 4).reshape(len(beta_means), -1, 3)
        losses -= self._loss_of_filling
        return losses.numpy() / self._rows, polynomials.numpy() / self._rows

    def lower(self, bounds: Bounds, beta_means: Vector, beta_covariance: Vector) -> Vector:
        """Return the values of N bounds, each at Q pairs of β of its own: all of shape (N, Q)."""
        precisions = 1 / (1 + beta_covariance[..., None] * self._excess.numpy().ravel())
        powers = beta_means[..., None] ** np.arange(3)
        values: Vector = (precisions @ bounds.polynomials * powers).sum(-1)
        return bounds.offsets[:, None] + values

    def reach(self, beta: float, curvature: float) -> float:
        """Return how far from the bottom of a basin the loss of a single β still bends upwards.

        The second derivative of the loss changes with the third moments of the slopes of the logits
        under the posteriors; and posteriors themselves change with these slopes, so no step may be
        so long that an unlikely class becomes likely.
        """
        precision = 1 / (1 + beta * self._excess[:, None])
        means = self._target_means + beta * self._differences
        weights = precision * means
        source = self._differences - self._excess[:, None] * weights
        bias = self._log_priors - 0.5 * torch.linalg.vecdot(means, weights)
        of_bias = -0.5 * torch.linalg.vecdot(source + self._differences, weights)
        layers = (
            torch.cat([weights, bias[:, :, None]], dim=2),
            torch.cat([precision * source, of_bias[:, :, None]], dim=2),
        )
        logits, slopes = (layer @ self._features.mT for layer in layers)
        logs = torch.log_softmax(logits, dim=1)
        posteriors = logs.exp()
        deviations = slopes.sub_((posteriors * slopes).sum(1, keepdim=True)).abs_()
        change = float((posteriors * deviations**3).sum()) / self._rows
        unlikely = float((logs.mul_(-0.5).clamp_(min=1) / deviations).min())
        return min(0.2 * curvature / max(change, 1e-300), unlikely)

    def slopes(self, bounds: Bounds, betas: Vector) -> Vector:
        """Return the derivatives of the losses where N bounds touch them, for a single β."""
        excess = self._excess.numpy().ravel()
        precisions = 1 / (1 + betas[:, None] * excess)
        constant, linear, square = np.moveaxis(bounds.polynomials, -1, 0)
        values = constant + betas[:, None] * (linear + betas[:, None] * square)
        changes = linear + 2 * betas[:, None] * square
        slopes: Vector = (precisions * (changes - excess * precisions * values)).sum(1)
        return slopes

    def lower_on_mesh(self, bounds: Bounds, means: Vector, covariances: Vector) -> Vector:
        """Return the values of N bounds at all pairs of two lists of β: (N, means, covariances)."""
        precisions = 1 / (1 + covariances[:, None] * self._excess.numpy().ravel())
        powers = means[:, None] ** np.arange(3)
        values: Vector = powers @ (precisions @ bounds.polynomials).swapaxes(1, 2)
        return bounds.offsets[:, None, None] + values

    def derivatives(
        self, beta_means: float, beta_covariance: float, directions: Directions
    ) -> tuple[float, Vector, Vector]:
        """Return the loss with gradient and Hessian along directions in the plane of the two β.

        Parameters
        ----------
        beta_means, beta_covariance : float
            The point.
        directions : tuple of K pairs
            Directions (u, v) of (β of the means, β of the covariance); (1, 1) is a single β.

        Returns
        -------
        loss : float
        gradient : ndarray of shape (K,)
        hessian : ndarray of shape (K, K)

        Notes
        -----
        With logits s, posteriors P and weights W, bias b included, the loss is the sum of
        log Σ_c exp s_c - s_y. Its derivative along i is ⟨W_i, R⟩ with R = PᵀZ - YᵀZ, and its
        second derivative along i and j is Σ Cov_P(s_i, s_j) + ⟨W_ij, R⟩.

        Let M be the means, Δ their derivative by their β, and E = Λ - I, so that W = DM and
        D' = -DED. Along (u, v) the weights then change by W_i = D A_i with A_i = uΔ - vEW, and the
        bias, which is -½⟨M, W⟩ up to a constant, by -½⟨A_i + uΔ, W⟩; a second time, along j, by
        W_ij = -DE(v_i W_j + v_j W_i) and b_ij = -⟨A_i, W_j⟩.
        """
        self.evaluations += 1
        features, differences = self._features, self._differences
        excess = self._excess[:, None]
        precision = 1 / (1 + beta_covariance * excess)
        means = self._target_means + beta_means * differences
        weights = precision * means
        bias = self._log_priors - 0.5 * torch.linalg.vecdot(means, weights)
        stretched = excess * weights
        sources = [u * differences - v * stretched for u, v in directions]
        changes = [precision * source for source in sources]
        layers = [torch.cat([weights, bias[:, :, None]], dim=2)]
        for (u, _), source, change in zip(directions, sources, changes, strict=True):
            bias = -0.5 * torch.linalg.vecdot(source + u * differences, weights)
            layers.append(torch.cat([change, bias[:, :, None]], dim=2))
        posteriors, *slopes = (layer @ features.mT for layer in layers)
        posteriors.sub_(posteriors.gather(1, self._labels))
        highest = posteriors.amax(1, keepdim=True)
        posteriors.sub_(highest).clamp_(min=_LOWEST_LOG).exp_()
        totals = posteriors.sum(1, keepdim=True)
        posteriors.div_(totals)
        loss = totals.log_().add_(highest).sum()

        residual = posteriors @ features - self._class_sums
        of_bias = residual[:, :, -1:]
        of_weights = precision * excess * residual[:, :, :-1]
        gradient = [_inner(layer, residual).item() for layer in layers[1:]]
        pulls = [_inner(change, of_weights) for change in changes]
        weighted = [posteriors * slope for slope in slopes]
        expected = [product.sum(1) for product in weighted]
        hessian = np.empty((len(directions), len(directions)))
        for i, (_, v) in enumerate(directions):
            by_bias = sources[i] * of_bias
            for j, (_, other_v) in enumerate(directions[: i + 1]):
                covariance = _inner(weighted[i], slopes[j]) - _inner(expected[i], expected[j])
                bend = v * pulls[j] + other_v * pulls[i] + _inner(by_bias, changes[j])
                hessian[i, j] = hessian[j, i] = (covariance - bend).item()
        value = (loss.item() - self._loss_of_filling) / self._rows
        return value, np.array(gradient) / self._rows, hessian / self._rows


def _inner(first: Tensor, second: Tensor) -> Tensor:
    """Return the sum of the products of all entries."""
    return torch.dot(first.reshape(-1), second.reshape(-1))
