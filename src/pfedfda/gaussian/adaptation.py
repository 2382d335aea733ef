"""From labelled features and global statistics to β and a personal classifier."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from pfedfda.gaussian._checks import (
    check_ridge,
    checked_covariance,
    checked_features,
    checked_labels,
    checked_means,
    checked_priors,
)
from pfedfda.gaussian.adapted import Adaptation, Betas, DenseFit, LowRankFit
from pfedfda.gaussian.classifier import _bayes_classifier
from pfedfda.gaussian.estimate import (
    ClassMoments,
    _class_moments,
    _moved,
    class_moments,
    class_priors,
    merge_moments,
    statistics_from_moments,
)
from pfedfda.gaussian.folds import deal, labels_of_samples
from pfedfda.gaussian.interpolation import interpolate
from pfedfda.gaussian.low_rank import (
    Spectrum,
    is_low_rank,
    spectrum_of,
)
from pfedfda.gaussian.low_rank_adaptation import adapt_low_rank
from pfedfda.gaussian.nearest_pd import _whitened
from pfedfda.gaussian.problem import (
    MULTIPLE,
    SINGLE,
    BetaProblem,
    Directions,
    Minimum,
    ValidationFold,
)
from pfedfda.gaussian.spectral_solver import minimize_spectral
from pfedfda.gaussian.statistics import GaussianStatistics

BetaMode = Literal["single", "multiple", "none"]
Solver = Literal["spectral", "reference", "clipped"]
Timer = Callable[[str], AbstractContextManager[None]]

DEFAULT_RIDGE = 1e-4


def _untimed(part: str) -> AbstractContextManager[None]:
    """Stand in for a timer where nobody asks for the time."""
    return nullcontext()


@dataclass(frozen=True, eq=False)
class _Samples:
    """Checked input: what the client has, and what it interpolates towards.

    Where rows are few against features `spectrum` stands for the global covariance.
    """

    features: Tensor
    labels: Tensor
    sample_ids: Tensor | None
    target: GaussianStatistics | None
    whitening: Tensor | None
    priors: Tensor
    spectrum: Spectrum | None = None


def search_beta(
    features: Tensor,
    labels: Tensor,
    global_statistics: GaussianStatistics | None,
    *,
    priors: Tensor | None = None,
    sample_ids: Tensor | None = None,
    betas: BetaMode = "single",
    n_folds: int = 2,
    ridge: float = DEFAULT_RIDGE,
    grouped: bool = True,
    solver: Solver = "spectral",
    generator: torch.Generator | None = None,
) -> Betas:
    """Find the β of least validation loss (eq. 9).

    Parameters
    ----------
    features : Tensor of shape (n, d)
        The client's features, of any floating type and on any device.
    labels : Tensor of shape (n,)
        Their classes.
    global_statistics : GaussianStatistics or None
        Means and covariance at β = 0. A covariance that is not positive definite is replaced
        by the nearest one that is. With None the target is what each training part itself
        says when correlations are left out: its class means, and the diagonal of its
        covariance; the classes then are those from 0 to the highest label.
    priors : Tensor of shape (C,), optional
        The client's class priors π_i, used in the loss of all folds; its class shares if not
        given. Classes that `labels` holds need a positive prior.
    sample_ids : Tensor of shape (n,), optional
        Equal for rows that are copies of one sample, as are features of several epochs.
        Copies never stand on both sides of a split. Without it each row is its own sample.
    betas : {"single", "multiple", "none"}, default="single"
        One β (SB), one for means and one for covariance (MB), or β = 1 without search (NB).
    n_folds : int, default=2
        The number of folds k.
    ridge : float, default=1e-4
        The ε added to the diagonal of local covariances. They are then repaired where they
        are not positive definite, which keeps the loss finite up to β = 1.
    grouped : bool, default=True
        With False `sample_ids` is disregarded, so that copies leak from training into
        validation rows and drive β towards 1, as in the code released with the paper.
    solver : {"spectral", "reference", "clipped"}, default="spectral"
        The first two find the same optimum; "reference" is L-BFGS-B from several starts.
        "clipped" is what the code released with the paper does, and may miss it.
    generator : torch.Generator, optional
        Shuffles samples before they are dealt to folds.

    Returns
    -------
    Betas
        Where all β are equally good, as for a single class, the smallest. With fewer than
        2·`n_folds` samples nothing can be validated, and β = 0: the global statistics serve.
    """
    given = features, labels, global_statistics, priors, sample_ids
    samples = _checked_samples(*given, low_rank=solver == "spectral")
    with torch.no_grad():
        folds = _folds(samples, betas, n_folds, ridge, grouped, solver, generator)
        if isinstance(folds, Betas):
            return folds
        found = _adapt_low_rank(samples, betas, folds, ridge, _untimed)
        if found is not None:
            return found[0]
        samples = _checked_samples(*given)
        return _search(samples, betas, folds, n_folds, ridge, solver, _untimed)[0]


def adapt(
    features: Tensor,
    labels: Tensor,
    global_statistics: GaussianStatistics | None,
    *,
    priors: Tensor | None = None,
    sample_ids: Tensor | None = None,
    betas: BetaMode | Betas = "single",
    n_folds: int = 2,
    ridge: float = DEFAULT_RIDGE,
    grouped: bool = True,
    solver: Solver = "spectral",
    generator: torch.Generator | None = None,
    timer: Timer = _untimed,
) -> Adaptation:
    """Estimate, search β, interpolate, and solve for the personal classifier.

    One call for all that follows the network in Algorithm 1. It costs less than its parts
    one by one, because the estimates are sums over the folds.

    Parameters
    ----------
    features, labels, global_statistics, priors, sample_ids
        As for `search_beta`.
    betas : {"single", "multiple", "none"} or Betas, default="single"
        How to find β, or the β to use.
    n_folds, ridge, grouped, solver, generator
        As for `search_beta`.
    timer : callable, optional
        Called with "statistics" or "interpolation", it returns a context manager that is
        entered for that part of the work.

    Returns
    -------
    Adaptation
        β, interpolated and local statistics, priors and classifier.

    Examples
    --------
    >>> generator = torch.Generator().manual_seed(0)
    >>> features = torch.randn(40, 3, generator=generator)
    >>> labels = torch.arange(40) % 2
    >>> shared = GaussianStatistics(torch.zeros(2, 3), torch.eye(3))
    >>> adaptation = adapt(features, labels, shared)
    >>> adaptation.classifier.log_posteriors(features).shape
    torch.Size([40, 2])
    """
    given = features, labels, global_statistics, priors, sample_ids
    samples = _checked_samples(*given, low_rank=solver == "spectral")
    with torch.no_grad():
        folds = _folds(samples, betas, n_folds, ridge, grouped, solver, generator)
        few = _adapt_low_rank(samples, betas, folds, ridge, timer)
        if few is not None:
            classifier = few[1].mixed.classifier(samples.priors)
            return Adaptation(few[0], samples.priors, classifier, few[1])
        if samples.spectrum is not None:
            samples = _checked_samples(*given)
        found, moments = _search(samples, betas, folds, n_folds, ridge, solver, timer)
        with timer("statistics"):
            local, target = _local_and_target(moments, samples.target, ridge)
        with timer("interpolation"):
            mixed = interpolate(local, target, found.means, found.covariance)
            classifier = _bayes_classifier(mixed.means, mixed.covariance, samples.priors)
    return Adaptation(found, samples.priors, classifier, DenseFit(mixed, local))


def _adapt_low_rank(
    samples: _Samples, betas: BetaMode | Betas, folds: Tensor | Betas, ridge: float, timer: Timer
) -> tuple[Betas, LowRankFit] | None:
    """Adapt where rows are few against features; return None where they are not."""
    if samples.spectrum is None or samples.target is None:
        return None
    directions = SINGLE if betas == "single" else MULTIPLE
    how = folds if isinstance(folds, Betas) else (directions, folds)
    prior_means = samples.target.means
    given = samples.features, samples.labels, samples.spectrum, prior_means, samples.priors
    return adapt_low_rank(*given, how, ridge, timer)


def _checked_samples(
    features: Tensor,
    labels: Tensor,
    global_statistics: GaussianStatistics | None,
    priors: Tensor | None,
    sample_ids: Tensor | None,
    low_rank: bool = False,
) -> _Samples:
    """Check all input once, and repair the global covariance if need be."""
    matrix = checked_features(features)
    rows, dimension = matrix.shape
    target, whitening, spectrum = None, None, None
    if global_statistics is None:
        num_classes = max(int(labels.max()) + 1, 1) if labels.numel() else 1
    else:
        num_classes = global_statistics.means.shape[0]
        few = low_rank and is_low_rank(rows, num_classes, dimension)
        covariance = global_statistics.covariance
        if not few:
            covariance = checked_covariance(covariance, "global covariance")
        if tuple(covariance.shape) != (dimension, dimension):
            raise ValueError(
                f"global covariance has shape {tuple(covariance.shape)}, but "
                f"({dimension}, {dimension}) is needed for features of dimension {dimension}."
            )
        means = checked_means(global_statistics.means, num_classes, dimension, "global means")
        if few:
            spectrum = spectrum_of(covariance)
            covariance = spectrum.covariance
        else:
            covariance, whitening = _whitened(covariance)
        target = GaussianStatistics(means, covariance)
    classes = checked_labels(labels, rows, num_classes)
    counts = torch.bincount(classes, minlength=num_classes)
    if priors is None:
        weights = class_priors(counts)
    else:
        weights = checked_priors(priors, num_classes)
        if bool(((counts > 0) & (weights <= 0)).any()):
            impossible = int(torch.nonzero((counts > 0) & (weights <= 0))[0])
            raise ValueError(
                f"priors gives 0 to class {impossible}, but a class that labels holds needs a "
                "positive prior."
            )
    ids = None
    if sample_ids is not None:
        if tuple(sample_ids.shape) != (rows,):
            raise ValueError(
                f"sample_ids has shape {tuple(sample_ids.shape)}, but one id for each of the "
                f"{rows} rows of features is needed."
            )
        ids = sample_ids.detach().cpu()
    return _Samples(matrix, classes, ids, target, whitening, weights, spectrum)


def _folds(
    samples: _Samples,
    betas: BetaMode | Betas,
    n_folds: int,
    ridge: float,
    grouped: bool,
    solver: Solver,
    generator: torch.Generator | None,
) -> Tensor | Betas:
    """Return the fold of each row, or the β where there is nothing to search."""
    check_ridge(ridge)
    if isinstance(betas, Betas):
        return betas
    if betas not in get_args(BetaMode):
        raise ValueError(
            f"betas is {betas!r}, but only 'single', 'multiple' and 'none' are allowed."
        )
    if solver not in get_args(Solver):
        raise ValueError(
            f"solver is {solver!r}, but only 'spectral', 'reference' and 'clipped' are allowed."
        )
    if n_folds < 2:
        raise ValueError(f"n_folds is {n_folds}, but at least 2 folds are needed.")
    ids = samples.sample_ids if grouped else None
    sample_labels, sample_of_row = labels_of_samples(samples.labels, ids)
    if betas == "none" or len(sample_labels) < 2 * n_folds:
        beta = 1.0 if betas == "none" else 0.0
        return Betas(beta, beta)
    return deal(sample_labels, n_folds, generator)[sample_of_row]


def _search(
    samples: _Samples,
    betas: BetaMode | Betas,
    folds: Tensor | Betas,
    n_folds: int,
    ridge: float,
    solver: Solver,
    timer: Timer,
) -> tuple[Betas, ClassMoments]:
    """Return β and the moments of all rows."""
    num_classes = len(samples.priors)
    if isinstance(folds, Betas):
        with timer("statistics"):
            moments = class_moments(samples.features, samples.labels, num_classes)
        return folds, moments
    order = torch.argsort(folds, stable=True)
    sizes: list[int] = torch.bincount(folds, minlength=n_folds).tolist()
    # Posteriors do not change when features and means move together. About one of the samples
    # all numbers are small and keep their digits.
    origin = samples.features[0]
    fold_features = torch.split(samples.features.index_select(0, order).sub_(origin), sizes)
    fold_labels = torch.split(samples.labels[order], sizes)
    with timer("statistics"):
        parts = [
            _class_moments(features, labels, num_classes)
            for features, labels in zip(fold_features, fold_labels, strict=True)
        ]
        merged = _moved(merge_moments(parts), origin)
    with timer("interpolation"):
        target = samples.target
        if target is not None:
            target = GaussianStatistics(target.means - origin, target.covariance)
        problem = _problem(
            target, samples.whitening, samples.priors, fold_features, fold_labels, parts, ridge
        )
        found = _solve(problem, SINGLE if betas == "single" else MULTIPLE, solver)
    return Betas(*found), merged


def _problem(
    shared_target: GaussianStatistics | None,
    whitening: Tensor | None,
    priors: Tensor,
    fold_features: tuple[Tensor, ...],
    fold_labels: tuple[Tensor, ...],
    parts: list[ClassMoments],
    ridge: float,
) -> BetaProblem:
    """Set up the validation problem: each fold against the estimates from all others."""
    possible = priors > 0
    position = torch.cumsum(possible, 0) - 1
    folds = []
    for k, (features, labels) in enumerate(zip(fold_features, fold_labels, strict=True)):
        training = merge_moments(parts[:k] + parts[k + 1 :])
        local, target = _local_and_target(training, shared_target, ridge)
        folds.append(
            ValidationFold(
                local_means=local.means[possible],
                local_covariance=local.covariance,
                target_means=target.means[possible],
                target_covariance=target.covariance,
                whitening=_whitened(target.covariance)[1] if whitening is None else whitening,
                features=features,
                labels=position[labels],
            )
        )
    return BetaProblem(tuple(folds), priors[possible].log())


def _solve(problem: BetaProblem, directions: Directions, solver: Solver) -> Minimum:
    """Minimise the validation loss with the solver of that name."""
    if solver == "spectral":
        return minimize_spectral(problem, directions)
    # SciPy's optimisers take half a second to import, and few need them.
    if solver == "clipped":
        from pfedfda.gaussian.clipped_solver import minimize_clipped

        return minimize_clipped(problem, directions)
    from pfedfda.gaussian.reference_solver import minimize_reference

    return minimize_reference(problem, directions)


def _local_and_target(
    moments: ClassMoments, target: GaussianStatistics | None, ridge: float
) -> tuple[GaussianStatistics, GaussianStatistics]:
    """Return the local estimate and what it is drawn to; absent classes take the target's mean."""
    if target is not None:
        prior_means = target.means
        return statistics_from_moments(
            moments, prior_means=prior_means, ridge=ridge, repair=True
        ), target
    local = statistics_from_moments(moments, ridge=ridge, repair=True)
    return local, GaussianStatistics(local.means, torch.diag(local.covariance.diagonal()))
