"""The β search without linear systems, by diagonalising both covariances at once.

Let Σ_g = LLᵀ and L⁻¹Σ_lL⁻ᵀ = QΛQᵀ. In the basis V = L⁻ᵀQ both covariances are diagonal, VᵀΣ_gV = I
and VᵀΣ_lV = Λ, so that for *every* β

    (βΣ_l + (1-β)Σ_g)⁻¹ = V D(β) Vᵀ    with    D_j(β) = 1 / (1 + β(λ_j - 1)).

After one decomposition for each fold, a β costs one product of features with (C, d) weights, and
the derivatives of the loss in β follow from those of D, in closed form.

The weights are rational in β, with poles at β/(1-β) = -1/λ_j. Hence the loss is smooth on the scale
of log-odds, log(β/(1-β)), and may change fast near 0 and 1 where λ_j are extreme. A coarse grid,
evenly spaced on such a scale and with both end points on it, finds the basins; Newton's method
finds the bottom of each that could hold the lowest.
"""

import math
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pfedfda.gaussian.problem import SINGLE, BetaProblem, Directions, Minimum

Vector = npt.NDArray[np.float64]
Point = tuple[float, float]  # a position on `_Scale`, and the loss there

# Distance of the grid points on the scale of `_Scale`. The loss varies on a scale of about 1.
_SPACING_SINGLE = 0.9
_SPACING_MULTIPLE = 1.0
# How close to 0 and 1 the scale is logarithmic: at least to the first, at most to the second.
_MARGIN = 0.02
_LEAST_MARGIN = 1e-9
# Logits held at a time while the grid is evaluated: they should stay in the cache.
_CHUNK = 1 << 19
_MAX_CANDIDATES = 4
# How often the loss is looked at once more to refine a start, and how far from points known before.
_MAX_PROBES = 2
_PROBE_DISTANCE = 0.15
_MAX_NEWTON_STEPS = 60
# Newton's last step, in log-odds; the error left after it is at most about the square of this.
_LAST_STEP = 1.5e-2
# Losses that differ by less, in nats a row, count as equal: on the grid, whose precision is single,
# and after Newton's method.
_GRID_TIE = 2e-7
_TIE = 1e-10
# Log posteriors below this are raised to it. That changes no digit of the loss, and keeps subnormal
# numbers away, which slow the processor down a hundredfold.
_LOWEST_LOG = -60.0


class _Scale(NamedTuple):
    """The scale log((β + left) / (1 - β + right)): log-odds, but finite at the end points."""

    left: float
    right: float

    def beta(self, position: float) -> float:
        odds = math.exp(position)
        beta = (odds * (1 + self.right) - self.left) / (1 + odds)
        return min(max(beta, 0.0), 1.0)

    def grid(self, spacing: float) -> tuple[Vector, list[float]]:
        """Return an odd number of even positions, and their β from exactly 0 to exactly 1."""
        first = math.log(self.left / (1 + self.right))
        last = math.log((1 + self.left) / self.right)
        positions = np.linspace(first, last, 2 * math.ceil((last - first) / spacing / 2) + 1)
        inner = [self.beta(position) for position in positions[1:-1].tolist()]
        return positions, [0.0, *inner, 1.0]


class SpectralLoss:
    """The validation loss of eq. 9 and its derivatives in the two β.

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
        self._features = rotations.new_empty(len(folds), max(sizes), dimension + 1)
        self._class_sums = rotations.new_zeros(len(folds), classes, dimension + 1)
        self._target_means = rotations.new_empty(len(folds), classes, dimension)
        self._differences = torch.empty_like(self._target_means)
        for k, fold in enumerate(folds):
            basis = fold.whitening.T @ rotations[k]
            rows = self._features[k, : sizes[k]]
            torch.mm(fold.features, basis, out=rows[:, :-1])
            rows[:, -1] = 1.0
            self._features[k, sizes[k] :] = 0.0
            self._class_sums[k].index_add_(0, fold.labels, rows)
            torch.mm(fold.target_means, basis, out=self._target_means[k])
            torch.mm(fold.local_means - fold.target_means, basis, out=self._differences[k])
        sums = self._class_sums[:, :, :-1]
        self._sums_of_targets = (sums * self._target_means).sum(1, keepdim=True)
        self._sums_of_differences = (sums * self._differences).sum(1, keepdim=True)
        self._double = (self._features, self._target_means, self._differences)
        features, target_means, differences = (tensor.float() for tensor in self._double)
        self._single = (features, target_means, differences)
        self.evaluations = 0

    def scale(self) -> _Scale:
        """Return the scale on which the covariance's part of the loss is smooth."""
        lowest, highest = (float(bound) + 1 for bound in torch.aminmax(self._excess))
        left, right = min(_MARGIN, 1 / highest), min(_MARGIN, lowest)
        return _Scale(max(left, _LEAST_MARGIN), max(right, _LEAST_MARGIN))

    def values(self, beta_means: Tensor, beta_covariance: Tensor) -> Tensor:
        """Return the loss at G pairs of β, in single precision: good to find basins."""
        total = self._values(*self._single, beta_means, beta_covariance)
        if not math.isfinite(total.sum().item()):
            overflown = ~torch.isfinite(total)
            total[overflown] = self._values(
                *self._double, beta_means[overflown], beta_covariance[overflown]
            ).nan_to_num(nan=math.inf)
        self.evaluations += len(total)
        return total

    def _values(
        self,
        features: Tensor,
        target_means: Tensor,
        differences: Tensor,
        beta_means: Tensor,
        beta_covariance: Tensor,
    ) -> Tensor:
        """Return the loss at G pairs of β, with the precision that features and means have."""
        folds, rows, columns = features.shape
        classes = len(self._log_priors)
        losses = []
        chunk = max(1, _CHUNK // (folds * rows * classes))
        for start in range(0, len(beta_means), chunk):
            of_means, of_covariance = (
                beta[start : start + chunk, None] for beta in (beta_means, beta_covariance)
            )
            precisions = 1 / (1 + of_covariance * self._excess[:, None])
            means = of_means[:, :, None].to(features) * differences[:, None]
            means += target_means[:, None]
            weights = features.new_empty(*means.shape[:-1], columns)
            torch.mul(precisions[:, :, None].to(features), means, out=weights[..., :-1])
            bias = self._log_priors - 0.5 * torch.linalg.vecdot(weights[..., :-1], means)
            weights[..., -1] = bias
            # Rows come last: sums over few classes are quick along many rows.
            logits = weights.flatten(1, 2) @ features.mT
            logits = logits.view(folds, -1, classes, rows)
            highest = logits.amax(2)
            logits.sub_(highest[:, :, None]).clamp_(min=_LOWEST_LOG).exp_()
            normalizers = logits.sum(2).log_().add_(highest)
            # The logits of the true classes, which are linear in the weights, need no product.
            products = precisions * (self._sums_of_targets + of_means * self._sums_of_differences)
            of_labels = products.sum((0, 2)) + (bias @ self._class_sums[:, :, -1:]).sum((0, 2))
            losses.append(normalizers.sum((0, 2), dtype=torch.float64) - of_labels)
        return (torch.cat(losses) - self._loss_of_filling) / self._rows

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
        # Rows come last: sums over few classes are quick along many rows.
        posteriors, *slopes = (layer @ features.mT for layer in layers)
        highest = posteriors.amax(1, keepdim=True)
        posteriors.sub_(highest).clamp_(min=_LOWEST_LOG).exp_()
        totals = posteriors.sum(1, keepdim=True)
        posteriors.div_(totals)
        loss = totals.log_().add_(highest).sum() - _inner(layers[0], self._class_sums)

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


def _starts_on_line(loss: SpectralLoss) -> list[list[float]]:
    """Return a start for each basin of a single β that may hold the lowest point, best first."""
    scale = loss.scale()
    points = _screen(loss, scale)
    values = [value for _, value in points]
    last = len(points) - 1
    lowest = min(values)
    found = []
    for i, value in enumerate(values):
        if i and max(value, values[i - 1]) <= lowest + _GRID_TIE:
            continue  # a plateau is visited at its smallest β only
        before, after = values[max(i - 1, 0)], values[min(i + 1, last)]
        if not (value <= min(before, after) + _GRID_TIE and math.isfinite(value)):
            continue
        # Between grid points a parabola sinks by an eighth of its rise at most; four times
        # that, and a basin is still worth a visit.
        if value - 0.5 * max(before - value, after - value) > lowest + _GRID_TIE:
            continue
        found.append((value, i))
    starts = []
    for _, i in sorted(found)[:_MAX_CANDIDATES]:
        inside = 0 < i < last
        position = _bottom_near(loss, scale, points, i) if inside else points[i][0]
        starts.append([scale.beta(position) if inside else float(i == last)])
    return starts


def _screen(loss: SpectralLoss, scale: _Scale) -> list[Point]:
    """Evaluate the loss of a single β on a grid, but only where the lowest may be.

    Every other point comes first. One between them is evaluated only if the lower of its neighbours
    is not far above the lowest of all.
    """
    positions, betas = scale.grid(_SPACING_SINGLE)
    coarse = _values_on_line(loss, betas[::2])
    lowest = min(coarse)
    promising = [
        2 * i + 1
        for i, (before, after) in enumerate(pairwise(coarse))
        if not min(before, after) - 0.25 * abs(before - after) > lowest
    ]
    fine = _values_on_line(loss, [betas[i] for i in promising])
    points = zip([*positions[::2], *positions[promising]], [*coarse, *fine], strict=True)
    return sorted(points)


def _values_on_line(loss: SpectralLoss, betas: list[float]) -> list[float]:
    """Return the loss at several single β."""
    both = torch.tensor(betas, dtype=torch.float64)
    values: list[float] = loss.values(both, both).tolist()
    return values


def _bottom_near(loss: SpectralLoss, scale: _Scale, points: list[Point], best: int) -> float:
    """Return the lowest position near the best of some points, by polynomials through them.

    Looking at the loss once or twice more, where a polynomial has its bottom, costs less than the
    step of Newton's method that it saves.
    """
    bottom = _bottom_of_polynomial(points, best)
    (before, _), (after, _) = points[best - 1], points[best + 1]
    for _ in range(_MAX_PROBES):
        # A probe too close to a known point would say nothing new.
        known = [position for position, _ in points]
        nearest = min(known, key=lambda position: abs(position - bottom))
        probe = bottom
        if abs(bottom - nearest) < _PROBE_DISTANCE:
            probe = nearest + math.copysign(_PROBE_DISTANCE, bottom - nearest)
        crowded = min(abs(probe - position) for position in known) < 0.5 * _PROBE_DISTANCE
        if crowded or not before < probe < after:
            break
        points = sorted([*points, (probe, _values_on_line(loss, [scale.beta(probe)])[0])])
        inside = [i for i, (position, _) in enumerate(points) if before < position < after]
        expected = bottom
        bottom = _bottom_of_polynomial(points, min(inside, key=lambda i: points[i][1]))
        if abs(bottom - expected) < _PROBE_DISTANCE:
            break
    return bottom


def _bottom_of_polynomial(points: list[Point], best: int) -> float:
    """Return the bottom, between the neighbours of the best point, of a polynomial through five.

    Beside these three it meets the lower of the next on both sides, twice, because far from its
    bottom the loss may soar.
    """
    first, last = best - 1, best + 1
    while last - first < min(4, len(points) - 1):
        at_end = last == len(points) - 1
        if at_end or (first > 0 and points[first - 1][1] < points[last + 1][1]):
            first -= 1
        else:
            last += 1
    position, lowest = points[best]
    offsets, rises = (np.array(points[first : last + 1]) - (position, lowest)).T
    if not np.isfinite(rises).all():
        return position
    coefficients = np.linalg.solve(offsets[:, None] ** np.arange(len(offsets)), rises).tolist()
    terms = list(enumerate(coefficients))
    before, after = points[best - 1][0] - position, points[best + 1][0] - position
    offset = 0.0
    for _ in range(8):
        slope = sum(n * c * offset ** (n - 1) for n, c in terms[1:])
        bend = sum(n * (n - 1) * c * offset ** (n - 2) for n, c in terms[2:])
        if not bend > 0:
            return position
        step = -slope / bend
        offset = min(max(offset + step, before), after)
        if abs(step) < 1e-3:
            break
    return position + offset


def _starts_in_plane(loss: SpectralLoss) -> list[list[float]]:
    """Return grid points of the plane of two β that lie lower than their neighbours, best first."""
    _, means_betas = _Scale(_MARGIN, _MARGIN).grid(_SPACING_MULTIPLE)
    _, covariance_betas = loss.scale().grid(_SPACING_MULTIPLE)
    pairs = torch.cartesian_prod(
        torch.tensor(means_betas, dtype=torch.float64),
        torch.tensor(covariance_betas, dtype=torch.float64),
    )
    values = loss.values(pairs[:, 0], pairs[:, 1])
    if float(values[0]) <= float(values.min()) + _GRID_TIE:
        return [[0.0, 0.0]]  # a plateau is visited at its smallest β only
    plane = values.view(1, len(means_betas), len(covariance_betas))
    pooled = -torch.nn.functional.max_pool2d(-plane, 3, stride=1, padding=1)
    minima = torch.nonzero(((plane <= pooled) & torch.isfinite(plane)).flatten()).flatten()
    best = minima[torch.argsort(values[minima])[:_MAX_CANDIDATES]]
    starts: list[list[float]] = pairs[best].tolist()
    return starts


def _newton(
    loss: SpectralLoss, directions: Directions, start: list[float]
) -> tuple[float, list[float]]:
    """Descend from a start to the bottom of its basin by Newton steps within the unit box.

    The last step is so short that its effect is taken from the quadratic model.
    """
    basis = np.array(directions)

    def evaluate(x: Vector) -> tuple[float, Vector, Vector]:
        beta_means, beta_covariance = (x @ basis).tolist()
        return loss.derivatives(beta_means, beta_covariance, directions)

    x = np.array(start)
    value, gradient, hessian = evaluate(x)
    for _ in range(_MAX_NEWTON_STEPS):
        if not (math.isfinite(value) and np.isfinite(hessian).all()):
            break
        # A number that rests at its bound and is pushed outwards stays there.
        free = ~(((x <= 0) & (gradient >= 0)) | ((x >= 1) & (gradient <= 0)))
        if not free.any():
            break
        curvatures, axes = np.linalg.eigh(hessian[np.ix_(free, free)])
        # Where the loss bends down, its model bends up as much: the step still goes downhill.
        model = (axes * np.maximum(np.abs(curvatures), 1e-12)) @ axes.T
        step = np.zeros_like(x)
        step[free] = _step_in_box(gradient[free], model, x[free])
        if abs(gradient @ step) <= 0.1 * _TIE:
            break
        bend = float(step @ hessian @ step)
        room = np.maximum(x * (1 - x), 1e-12)
        if bend >= 0 and (np.abs(step) <= _LAST_STEP * room).all():
            return value + float(gradient @ step) + 0.5 * bend, (x + step).tolist()
        for shortening in (1.0, 0.3, 0.1, 0.03, 1e-2, 1e-3, 1e-4, 1e-6):
            candidate = np.clip(x + shortening * step, 0, 1)
            new_value, new_gradient, new_hessian = evaluate(candidate)
            if new_value <= value + 1e-4 * shortening * (gradient @ step):
                x, value, gradient, hessian = candidate, new_value, new_gradient, new_hessian
                break
        else:
            break
    return value, x.tolist()


def _step_in_box(gradient: Vector, model: Vector, x: Vector) -> Vector:
    """Return the step to the lowest point of a convex quadratic model within the unit box.

    If that is not inside of the box it is on its border, where one number is 0 or 1 and the other,
    if there are two, has a quadratic model of its own.
    """
    lowest, highest = -x, 1 - x
    newton = -np.linalg.solve(model, gradient).astype(np.float64, copy=False)
    if ((newton >= lowest) & (newton <= highest)).all():
        return newton
    if len(x) == 1:
        return np.clip(newton, lowest, highest)
    steps = []
    for i, j in ((0, 1), (1, 0)):
        for fixed in (lowest[i], highest[i]):
            step = np.empty(2)
            step[i] = fixed
            bottom = -(gradient[j] + model[j, i] * fixed) / model[j, j]
            step[j] = min(max(bottom, lowest[j]), highest[j])
            steps.append(step)
    return min(steps, key=lambda step: float(gradient @ step + 0.5 * step @ model @ step))


def minimize_spectral(problem: BetaProblem, directions: Directions) -> Minimum:
    """Find the lowest validation loss over β in [0, 1], or over the unit square for two β."""
    if len(problem.log_priors) == 1:
        return Minimum(0.0, 0.0, 0.0, 0)  # one class is always right
    with torch.inference_mode():  # spares each small operation a microsecond
        return _minimize(SpectralLoss(problem), directions)


def _minimize(loss: SpectralLoss, directions: Directions) -> Minimum:
    """Screen on a grid, then descend from each start."""
    starts = _starts_on_line(loss) if directions == SINGLE else _starts_in_plane(loss)
    bottoms = [_newton(loss, directions, start) for start in starts]
    # Ties go to the smaller β: where the data do not say, the global statistics serve.
    lowest = min((value for value, _ in bottoms if math.isfinite(value)), default=math.inf)
    tied = [bottom for bottom in bottoms if bottom[0] <= lowest + _TIE]
    value, x = min(
        tied, key=lambda bottom: sum(bottom[1]), default=(math.inf, [0.0] * len(directions))
    )
    beta_means, beta_covariance = (np.array(x) @ np.array(directions)).tolist()
    return Minimum(beta_means, beta_covariance, value, loss.evaluations)
