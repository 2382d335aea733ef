"""The mathematics of adaptation where a client has few samples and features are many.

A client's covariance is a multiple of the identity plus the scatter of its n rows, of rank n at
most. In the basis U of the eigenvectors of the global covariance Σ_g = U diag(g) Uᵀ, which is the
same for all clients, the interpolated covariance is then a diagonal plus that scatter:

    (1-β)Σ_g + β(εI + AᵀA) = U (diag((1-β)g + βε) + β BᵀB) Uᵀ    with    B = AU.

Its inverse between any rows of the client follows from matrices of size n (Woodbury). After one
decomposition of Σ_g for all clients, a client costs O(n²d) and not O(d³).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from pfedfda.gaussian._checks import checked_covariance
from pfedfda.gaussian.classifier import LOG_OF_ZERO, LinearClassifier
from pfedfda.gaussian.nearest_pd import EIGENVALUE_FLOOR, _repair
from pfedfda.gaussian.statistics import GaussianStatistics

# The least ridge, against the largest global eigenvalue: with less of it, too many digits cancel.
_LEAST_RIDGE = 1e-5
# Below this dimension the decomposition for each client costs little.
SMALLEST_DIMENSION = 256


def is_low_rank(rows: int, classes: int, dimension: int) -> bool:
    """Tell whether so many rows and classes are few against the dimension."""
    return dimension >= SMALLEST_DIMENSION and rows + classes <= dimension / 2


class Spectrum(NamedTuple):
    """A global covariance, and its eigenvalues and eigenvectors (in columns)."""

    covariance: Tensor
    eigenvalues: Tensor
    axes: Tensor


_last: list[tuple[Tensor, Spectrum]] = []


def spectrum_of(covariance: Tensor) -> Spectrum:
    """Return the spectrum of a covariance, repaired if it is not positive definite.

    The last one is kept, because the clients of a round share it. It is found by its content.
    """
    given = covariance.detach().cpu()
    for known, spectrum in _last:
        if known.dtype == given.dtype and torch.equal(known, given):
            return spectrum
    checked = checked_covariance(given, "global covariance")
    eigenvalues, axes = torch.linalg.eigh(checked)
    if not _is_safe(checked, eigenvalues, axes):
        checked = _repair(checked)
        eigenvalues, axes = torch.linalg.eigh(checked)
        eigenvalues = eigenvalues.clamp(min=float(eigenvalues[-1]) * torch.finfo(torch.float64).eps)
    spectrum = Spectrum(checked, eigenvalues, axes)
    _last[:] = [(given.clone(), spectrum)]
    return spectrum


def _is_safe(covariance: Tensor, eigenvalues: Tensor, axes: Tensor) -> bool:
    """Tell whether no eigenvalue of the correlation matrix is too small, as `_whitened` does."""
    if not float(eigenvalues[0]) > 0:
        return False
    of_inverse = axes.square() @ (1 / eigenvalues)
    return float(of_inverse @ covariance.diagonal()) * EIGENVALUE_FLOOR <= 1


@dataclass(frozen=True, eq=False)
class Rows:
    """A client's rows in the basis of the global covariance, by class.

    Parameters
    ----------
    values : Tensor of shape (n, d)
        The rows times U.
    labels : Tensor of shape (n,)
        Their classes.
    prior_means : Tensor of shape (C, d)
        The global means times U.
    """

    values: Tensor
    labels: Tensor
    prior_means: Tensor

    def means(self) -> tuple[Tensor, Tensor]:
        """Return counts, and class means, the global one for a class without rows."""
        counts = torch.bincount(self.labels, minlength=len(self.prior_means))
        sums = torch.zeros_like(self.prior_means).index_add_(0, self.labels, self.values)
        means = sums / counts.clamp(min=1)[:, None]
        return counts, torch.where(counts[:, None] > 0, means, self.prior_means)

    def deviations(self, means: Tensor) -> Tensor:
        """Return B: BᵀB is the covariance without ridge."""
        scale: float = max(len(self.labels) - 1, 1) ** -0.5
        return (self.values - means[self.labels]) * scale


@dataclass(frozen=True, eq=False)
class LowRankStatistics:
    """Interpolated means and covariance that is never written out unless somebody asks.

    In the basis of the spectrum the covariance is diag(diagonal) + weight · BᵀB.

    Parameters
    ----------
    spectrum : Spectrum
        Of the global covariance.
    means : Tensor of shape (C, d)
        Class means, not in the basis.
    diagonal : Tensor of shape (d,)
        The diagonal.
    deviations : Tensor of shape (n, d)
        B.
    weight : float
        Of the client's own scatter.
    counts : Tensor of shape (C,)
        Samples of each class.
    """

    spectrum: Spectrum
    means: Tensor
    diagonal: Tensor
    deviations: Tensor
    weight: float
    counts: Tensor

    def dense(self) -> GaussianStatistics:
        """Return the covariance as a matrix."""
        axes = self.spectrum.axes
        scatter = self.deviations @ axes.T
        covariance = (axes * self.diagonal) @ axes.T + self.weight * (scatter.T @ scatter)
        return GaussianStatistics(self.means, (covariance + covariance.T) / 2, self.counts)

    def classifier(
        self, priors: Tensor, means: Tensor | None = None, shrinkage: float = 0.0
    ) -> LinearClassifier:
        """Return the Bayes classifier (eqs. 3 and 4).

        Parameters
        ----------
        priors : Tensor of shape (C,)
            Class priors that sum to one.
        means : Tensor of shape (C, d), optional
            Other class means.
        shrinkage : float, default=0.0
            This share of the covariance is replaced by a multiple of the identity.
        """
        means = self.means if means is None else means
        rows, weight = self.deviations, (1 - shrinkage) * self.weight
        trace = float(self.diagonal.sum() + self.weight * rows.square().sum())
        diagonal = (1 - shrinkage) * self.diagonal + shrinkage * trace / len(self.diagonal)
        solved = (means @ self.spectrum.axes) / diagonal
        scaled = rows / diagonal
        inner = weight * (scaled @ rows.T)
        inner.diagonal().add_(1.0)
        correction = torch.cholesky_solve(rows @ solved.T, torch.linalg.cholesky(inner))
        solved = solved - weight * (correction.T @ scaled)
        weights = solved @ self.spectrum.axes.T
        bias = priors.log().clamp(min=LOG_OF_ZERO) - 0.5 * (weights * means).sum(1)
        return LinearClassifier(weights, bias)


@dataclass(frozen=True, eq=False)
class LowRankFold:
    """One fold of a validation problem, as combinations of the client's rows and global means.

    There are r = n + P of these: n rows in the order of `LowRankProblem.base`, then P means of the
    classes that are possible.

    Parameters
    ----------
    rows : Tensor of shape (m,)
        Which of the n rows are validated.
    labels : Tensor of shape (m,)
        Their classes.
    deviations : Tensor of shape (t, r)
        B of the training part.
    target_means, local_means : Tensor of shape (P, r)
        The means at β = 0 and at β = 1.
    """

    rows: Tensor
    labels: Tensor
    deviations: Tensor
    target_means: Tensor
    local_means: Tensor


@dataclass(frozen=True, eq=False)
class LowRankProblem:
    """All folds of a client, in the basis of the global covariance.

    Parameters
    ----------
    spectrum : Spectrum
        Of the global covariance.
    ridge : float
        The ε of local covariances.
    base : Tensor of shape (r, d)
        The client's rows and the global means, times U.
    folds : tuple of LowRankFold
        The folds.
    log_priors : Tensor of shape (P,)
        Log priors of the classes that are possible.
    """

    spectrum: Spectrum
    ridge: float
    base: Tensor
    folds: tuple[LowRankFold, ...]
    log_priors: Tensor

    def range_of_eigenvalues(self) -> tuple[float, float]:
        """Return bounds of all eigenvalues of local covariances after whitening."""
        eigenvalues = self.spectrum.eigenvalues
        whitened = self.base / eigenvalues.sqrt()
        highest = 0.0
        for fold in self.folds:
            rows = fold.deviations @ whitened
            highest = max(highest, _largest_eigenvalue(rows @ rows.T))
        highest += self.ridge / float(eigenvalues[0])
        return self.ridge / float(eigenvalues[-1]), highest


def low_rank_problem(
    spectrum: Spectrum,
    rows: Rows,
    fold_of: Tensor,
    priors: Tensor,
    ridge: float,
) -> LowRankProblem | None:
    """Set up the validation problem, or return None where a covariance needs its matrix."""
    possible = priors > 0
    position = torch.cumsum(possible, 0) - 1
    labels = position[rows.labels]
    samples, classes = len(labels), int(possible.sum())
    base = torch.cat([rows.values, rows.prior_means[possible]])
    identity = torch.eye(samples + classes, dtype=base.dtype)
    prior_means = identity[samples:]
    folds = []
    for k in range(int(fold_of.max()) + 1):
        trains = fold_of != k
        part = Rows(identity[:samples][trains], labels[trains], prior_means)
        _, means = part.means()
        deviations = part.deviations(means)
        if needs_matrix(spectrum, deviations @ base, ridge):
            return None
        validated = torch.nonzero(~trains).flatten()
        folds.append(LowRankFold(validated, labels[validated], deviations, prior_means, means))
    return LowRankProblem(spectrum, ridge, base, tuple(folds), priors[possible].log())


def needs_matrix(spectrum: Spectrum, deviations: Tensor, ridge: float) -> bool:
    """Tell whether the ridge is too small for a local covariance to be used without its matrix.

    `statistics_from_moments` compares the ridge with the largest variance; here with a bound of it,
    the largest eigenvalue.
    """
    largest = _largest_eigenvalue(deviations @ deviations.T) + ridge
    return ridge <= max(EIGENVALUE_FLOOR * largest, _LEAST_RIDGE * float(spectrum.eigenvalues[-1]))


def _largest_eigenvalue(gram: Tensor) -> float:
    return float(torch.linalg.eigvalsh(gram)[-1])


def inverse_between(problem: LowRankProblem, betas: Sequence[float]) -> list[tuple[Tensor, Tensor]]:
    """Return for each fold the inverse of the interpolated covariance between rows and means.

    Returns
    -------
    list of pairs of Tensors
        For each fold, of shapes (Q, m, 2P) between validated rows and the target and
        local means, and (Q, 2P, 2P) among the latter, for each of Q values of β.
    """
    eigenvalues, base = problem.spectrum.eigenvalues, problem.base
    products = base.new_empty(len(betas), len(base), len(base))
    for product, beta in zip(products, betas, strict=True):
        diagonal = (1 - beta) * eigenvalues + beta * problem.ridge
        torch.mm(base / diagonal, base.T, out=product)
    weights = torch.tensor(betas, dtype=torch.float64)[:, None, None]
    found = []
    for fold in problem.folds:
        means = torch.cat([fold.target_means, fold.local_means])
        of_means = products @ means.T
        of_deviations = fold.deviations @ products
        inner = weights * (of_deviations @ fold.deviations.T)
        inner.diagonal(dim1=1, dim2=2).add_(1.0)
        right = fold.deviations @ of_means
        solved = weights * torch.cholesky_solve(right, torch.linalg.cholesky(inner))
        with_rows = of_deviations[:, :, fold.rows].mT @ solved
        found.append((of_means[:, fold.rows] - with_rows, means @ of_means - right.mT @ solved))
    return found
