"""The exact β search: visit β until bounds from below leave no room under the lowest loss.

The loss may have several minima, narrow ones among them where features separate the classes well.
Each visit gives a bound that holds everywhere (`pfedfda.gaussian.spectral_loss`). Newton's method
finds the bottom of the basin of the best β so far; then every interval between visited β in which
the bounds leave room for a lower loss is visited where there is most of it, until none is left.
"""

import math

import numpy as np
import numpy.typing as npt
import torch

from pfedfda.gaussian.low_rank import LowRankProblem
from pfedfda.gaussian.low_rank_loss import LowRankLoss
from pfedfda.gaussian.problem import MULTIPLE, SINGLE, BetaProblem, Directions, Minimum
from pfedfda.gaussian.spectral_loss import MARGIN, LogOddsScale, SpectralLoss, Vector

Loss = SpectralLoss | LowRankLoss

# The search is over when no β can have a loss lower by more than this, in nats a row: on the line
# of a single β, and on the mesh of two.
_TOLERANCE_SINGLE = 1e-6
_TOLERANCE_MULTIPLE = 1e-6
# Losses that differ by less count as equal, and the smaller β wins.
_TIE = 1e-10
# Points between two visited β at which the bounds are looked at.
_INNER = np.arange(1, 8) / 8
# Intervals that are shorter are not split: the loss changes by less than its rounding errors.
_SHORTEST = 1e-7
# How exactly the smaller end of a plateau is found.
_EDGE = 1e-2
# Nodes of the mesh of two β along each of them, and how many are visited at a time.
_NODES = 96
_VISITS = 16
# The most β that are visited; ordinary searches need a fiftieth.
_MAX_VISITS = 2000
_MAX_NEWTON_STEPS = 60
# Around the bottom of a basin, no further than this, the loss is known by its derivatives.
_LONGEST_REACH = 0.25
# Intervals that are longer are visited in single precision.
_LONG = 0.1


def _newton(loss: Loss, directions: Directions, start: Vector) -> tuple[Vector, Vector]:
    """Descend from a start to the bottom of its basin by Newton steps within the unit box.

    Returns the bottom and the Hessian there.
    """
    basis = np.array(directions)

    def evaluate(x: Vector) -> tuple[float, Vector, Vector]:
        beta_means, beta_covariance = (x @ basis).tolist()
        return loss.derivatives(beta_means, beta_covariance, directions)

    x = start
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
        for shortening in (1.0, 0.3, 0.1, 0.03, 1e-2, 1e-3, 1e-4, 1e-6):
            candidate = np.clip(x + shortening * step, 0, 1)
            new_value, new_gradient, new_hessian = evaluate(candidate)
            if new_value <= value + 1e-4 * shortening * (gradient @ step):
                x, value, gradient, hessian = candidate, new_value, new_gradient, new_hessian
                break
        else:
            break
    return x, hessian


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


def minimize_spectral(problem: BetaProblem | LowRankProblem, directions: Directions) -> Minimum:
    """Find the lowest validation loss over β in [0, 1], or over the unit square for two β."""
    if len(problem.log_priors) == 1:
        return Minimum(0.0, 0.0, 0.0, 0)  # one class is always right
    with torch.inference_mode():  # spares each small operation a microsecond
        loss: Loss
        if isinstance(problem, LowRankProblem):
            loss = LowRankLoss(problem)
        else:
            loss = SpectralLoss(problem)
        search = _LineSearch(loss) if directions == SINGLE else _PlaneSearch(loss)
        (beta_means, beta_covariance), value = search.lowest()
        return Minimum(beta_means, beta_covariance, max(value, 0.0), loss.evaluations)


class _LineSearch:
    """The search for a single β: visits β until the bounds leave no room below the lowest loss."""

    def __init__(self, loss: Loss):
        self.loss = loss
        self.scale = loss.scale()
        self.positions, self.betas = self.scale.grid()
        self.bounds = loss.visit(self.betas, self.betas, exactly=False)
        self.exact = np.zeros(len(self.betas), dtype=bool)
        self.closed: set[tuple[int, int]] = set()
        self.basins: list[tuple[float, float]] = []

    def lowest(self) -> tuple[tuple[float, float], float]:
        """Return the best β and its loss; of equals, the smaller β."""
        self._descend(self._best())
        while len(self.betas) < _MAX_VISITS and len(places := self._open()):
            before = float(self.bounds.values.min())
            self._visit(places)
            if self.bounds.values.min() < before - _TOLERANCE_SINGLE:
                self._descend(self._best())
        self._descend_into_ties()
        self._widen_tie()
        best = self._smallest_tied()
        beta = float(self.betas[best])
        return (beta, beta), float(self.bounds.values[best])

    def _best(self) -> int:
        return int(self.bounds.values.argmin())

    def _visit(self, positions: Vector) -> None:
        """Visit new positions, those in long intervals in single precision."""
        distances = np.abs(positions[:, None] - self.positions).min(axis=1)
        for far in (True, False):
            some = positions[(distances > _LONG) == far]
            if len(some):
                self._add(some, self.scale.beta(some), exactly=not far)

    def _add(self, positions: Vector, betas: Vector, exactly: bool = True) -> None:
        bounds = self.loss.visit(betas, betas, exactly)
        self.positions = np.concatenate([self.positions, positions])
        self.betas = np.concatenate([self.betas, betas])
        self.bounds = self.bounds.joined(bounds)
        self.exact = np.concatenate([self.exact, np.full(len(betas), exactly)])

    def _look_again(self, which: npt.NDArray[np.int64]) -> None:
        """Visit exactly what has been visited in single precision."""
        which = which[~self.exact[which]]
        if len(which):
            self.bounds.replace(which, self.loss.visit(self.betas[which], self.betas[which]))
            self.exact[which] = True

    def _descend(self, start: int) -> None:
        """Visit the bottom of the basin in which a visited point lies."""
        beta, hessian = _newton(self.loss, SINGLE, np.array([self._downhill(start)]))
        known = np.flatnonzero(self.betas == beta[0])
        if len(known):
            self._look_again(known)
            return
        position = self.scale.position(beta[0])
        self._add(np.array([position]), beta)
        rate = self.scale.rate(float(beta[0]))
        curvature = float(hessian[0, 0])
        if 0.5 * curvature * (rate * _EDGE) ** 2 > 10 * _TIE:  # else it may be a plateau
            reach = min(self.loss.reach(float(beta[0]), curvature) / rate, _LONGEST_REACH)
            self.basins.append((position - reach, position + reach))

    def _downhill(self, start: int) -> float:
        """Return the β where the cubic through a point and its lower neighbour has its bottom."""
        scale = self.scale
        order = np.argsort(self.positions)
        place = int(np.flatnonzero(order == start)[0])
        slopes = scale.rate(self.betas) * self.loss.slopes(self.bounds, self.betas)
        first = place if slopes[start] < 0 else place - 1
        if not 0 <= first < len(order) - 1:
            return float(self.betas[start])
        left, right = order[first : first + 2].tolist()
        width = self.positions[right] - self.positions[left]
        rise = (self.bounds.values[right] - self.bounds.values[left]) / width
        bend = slopes[left] + slopes[right] - 3 * rise
        root = bend**2 - slopes[left] * slopes[right]
        if not (slopes[left] < 0 < slopes[right] and root >= 0):
            return float(self.betas[start])
        share = (slopes[right] + math.sqrt(root) - bend) / (
            slopes[right] - slopes[left] + 2 * math.sqrt(root)
        )
        return float(scale.beta(self.positions[right] - share * width))

    def _open(self) -> Vector:
        """Return, for each interval with room below the lowest loss, where there is most."""
        order = np.argsort(self.positions)
        neighbors = [
            pair
            for pair in zip(order[:-1].tolist(), order[1:].tolist(), strict=True)
            if pair not in self.closed
        ]
        if not neighbors:
            return np.empty(0)
        places, floors = self._floors(np.array(neighbors))
        widths = np.diff(self.positions[np.array(neighbors)])[:, 0]
        room = (floors < self.bounds.values.min() - _TOLERANCE_SINGLE) & (widths > _SHORTEST)
        self.closed.update(
            pair for pair, has_room in zip(neighbors, room, strict=True) if not has_room
        )
        most_room: Vector = places[room]
        return most_room

    def _floors(self, pairs: npt.NDArray[np.int64]) -> tuple[Vector, Vector]:
        """Return where between neighbours the higher of their two bounds is lowest, and its value.

        The bounds are followed from point to point; where they cross between two points, they are
        taken for straight.
        """
        left, right = self.positions[pairs].T
        positions = left[:, None] + (right - left)[:, None] * _INNER
        betas = self.scale.beta(positions)
        both = [self.loss.lower(self.bounds.chosen(side), betas, betas) for side in pairs.T]
        highest = np.maximum(*both)
        gap = both[0] - both[1]
        before, after = gap[:, :-1], gap[:, 1:]
        with np.errstate(divide="ignore", invalid="ignore"):
            share = np.where(before * after < 0, before / (before - after), 0.0)
        crossing = both[0][:, :-1] + share * np.diff(both[0], axis=1)
        step = positions[:, 1:] - positions[:, :-1]
        values = np.concatenate([highest, np.where(share > 0, crossing, np.inf)], axis=1)
        places = np.concatenate([positions, positions[:, :-1] + share * step], axis=1)
        values = np.nan_to_num(values, nan=-np.inf, posinf=np.inf)
        for low, high in self.basins:
            values[(places > low) & (places < high)] = np.inf
        lowest = values.argmin(axis=1)
        rows = np.arange(len(pairs))
        return places[rows, lowest], values[rows, lowest]

    def _smallest_tied(self) -> int:
        values = np.where(self.exact, self.bounds.values, np.inf)
        tied = np.flatnonzero(values <= values.min() + _TIE)
        return int(tied[self.betas[tied].argmin()])

    def _descend_into_ties(self) -> None:
        """Visit the bottoms of basins at smaller β that may be as low as the lowest."""
        limit = self.bounds.values.min() + _TIE
        smaller = np.flatnonzero(self.betas < self.betas[self._smallest_tied()])
        touching = self.loss.lower(
            self.bounds.chosen(smaller), self.betas[smaller, None], self.betas[smaller, None]
        )
        self._look_again(smaller[touching[:, 0] <= limit])
        order = smaller[np.argsort(self.positions[smaller])]
        values = self.bounds.values
        for before, here, after in zip(order, order[1:], order[2:], strict=False):
            if limit < values[here] <= min(values[before], values[after]):
                _, floors = self._floors(np.array([[before, here], [here, after]]))
                if floors.min() <= limit:
                    self._descend(int(here))

    def _widen_tie(self) -> None:
        """Visit the smaller end of the plateau on which the lowest loss lies, if it is on one."""
        step = _EDGE
        while True:
            smallest = self.positions[self._smallest_tied()]
            below = self.positions[self.positions < smallest]
            if not len(below) or any(low < smallest < high for low, high in self.basins):
                return
            room = smallest - below.max()
            if room <= _EDGE:
                return
            # The first look is close by, because most minima are no plateaus.
            position = np.array([smallest - min(step, room / 2)])
            self._add(position, self.scale.beta(position))
            step = room


class _PlaneSearch:
    """The search for two β: the same on a mesh of the unit square."""

    def __init__(self, loss: Loss):
        self.loss = loss
        scales = (LogOddsScale(MARGIN, MARGIN), loss.scale())
        self.mesh = [scale.grid(_NODES)[1] for scale in scales]
        self.floor = np.full((_NODES, _NODES), -np.inf)
        first = np.meshgrid(*(scale.grid()[1] for scale in scales), indexing="ij")
        self.pairs = np.empty((0, 2))
        self.values = np.empty(0)
        self._visit(np.stack(first, axis=-1).reshape(-1, 2))

    def lowest(self) -> tuple[tuple[float, float], float]:
        """Return the best pair of β and its loss; of equals, the smaller."""
        self._descend(self.pairs[self.values.argmin()])
        while len(self.values) < _MAX_VISITS and len(nodes := self._open()):
            before = float(self.values.min())
            self._visit(nodes)
            if self.values.min() < before - _TOLERANCE_MULTIPLE:
                self._descend(self.pairs[self.values.argmin()])
        best = self.pairs[self.values.argmin()]
        self._visit(np.array([[0.0, 0.0], [0.0, best[1]], [best[0], 0.0]]))
        tied = np.flatnonzero(self.values <= self.values.min() + _TIE)
        choice = int(tied[self.pairs[tied].sum(axis=1).argmin()])
        beta_means, beta_covariance = self.pairs[choice].tolist()
        return (beta_means, beta_covariance), float(self.values[choice])

    def _visit(self, pairs: Vector) -> None:
        """Visit pairs of β, and raise the floor to their bounds."""
        for start in range(0, len(pairs), _VISITS):
            some = np.ascontiguousarray(pairs[start : start + _VISITS].T)
            bounds = self.loss.visit(*some)
            heights = self.loss.lower_on_mesh(bounds, *self.mesh)
            self.floor = np.maximum(self.floor, np.nan_to_num(heights, nan=-np.inf).max(axis=0))
            self.pairs = np.concatenate([self.pairs, some.T])
            self.values = np.concatenate([self.values, bounds.values])

    def _descend(self, start: Vector) -> None:
        self._visit(_newton(self.loss, MULTIPLE, start)[0][None])

    def _open(self) -> Vector:
        """Return nodes with room below the lowest loss, at most a few at a time."""
        room = self.floor < self.values.min() - _TOLERANCE_MULTIPLE
        plane = torch.from_numpy(self.floor)[None]
        around = -torch.nn.functional.max_pool2d(-plane, 3, stride=1, padding=1)
        bottoms = np.argwhere(room & (plane <= around)[0].numpy())
        order = np.argsort(self.floor[tuple(bottoms.T)])[:_VISITS]
        return np.stack([self.mesh[i][bottoms[order, i]] for i in range(2)], axis=-1)
