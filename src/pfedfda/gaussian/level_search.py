"""How strongly the global statistics should pull, by cross-validation over a whole federation.

Which strengths are right is a matter of the federation as much as of a client. `level_losses` gives
the validation loss of a client at every point of a grid; losses add up over clients, and the lowest
sum tells the strengths that are best for all of them. One client's own losses are too noisy to
choose by.
"""

import itertools
import math

import torch
from torch import Tensor

from pfedfda.gaussian.folds import deal, labels_of_samples
from pfedfda.gaussian.levels import (
    Part,
    Strengths,
    check_strengths,
    level_weights,
    part_of,
    priors_of,
    whitened,
)
from pfedfda.gaussian.statistics import GaussianStatistics

OFFSETS = (math.inf, 64.0, 8.0, 0.0)
CLASSES = (math.inf, 256.0, 64.0, 16.0, 4.0)
COVARIANCES = (math.inf, 1024.0, 256.0, 64.0)
#: The strengths among which is chosen, from the global classifier to the client's own.
GRID = tuple(Strengths(*point) for point in itertools.product(OFFSETS, CLASSES, COVARIANCES))
GLOBAL = GRID[0]


def level_losses(
    features: Tensor,
    labels: Tensor,
    global_statistics: GaussianStatistics,
    *,
    priors: Tensor | None = None,
    sample_ids: Tensor | None = None,
    n_folds: int = 2,
    every_fold: bool = True,
    generator: torch.Generator | None = None,
    grid: tuple[Strengths, ...] = GRID,
) -> Tensor:
    """Return the cross-validated loss at every point of a grid of strengths.

    Parameters
    ----------
    features, labels, global_statistics, priors
        As for `adapt_levels`.
    sample_ids : Tensor of shape (n,), optional
        Equal for rows that are copies of one sample, which never stand on both sides of a split.
    n_folds : int, default=2
        The number of folds.
    every_fold : bool, default=True
        With False only the rows of one fold are validated, and their loss stands for all: enough
        where the losses of many clients are added up, at a fraction of the time.
    generator : torch.Generator, optional
        Shuffles samples before they are dealt to folds.
    grid : tuple of Strengths
        Where the loss is wanted.

    Returns
    -------
    Tensor of shape (len(grid),)
        The sum over all rows of -log p(class | features), each with a classifier that has not seen
        it. Zeros with fewer than 2·`n_folds` samples, where nothing can be validated.
    """
    for strengths in grid:
        check_strengths(strengths)
    if n_folds < 2:
        raise ValueError(f"n_folds is {n_folds}, but at least 2 folds are needed.")
    losses = torch.zeros(len(grid), dtype=torch.float64)
    with torch.no_grad():
        reference, rows, classes = whitened(features, labels, global_statistics)
        given = priors_of(priors, classes, len(reference.means))
        ids = None if sample_ids is None else sample_ids.detach().cpu()
        of_samples, sample_of_row = labels_of_samples(classes, ids)
        if len(of_samples) < 2 * n_folds:
            return losses
        fold_of = deal(of_samples, n_folds, generator)[sample_of_row]
        possible = given > 0
        prior_means = reference.means[possible]
        classes = (torch.cumsum(possible, 0) - 1)[classes]
        log_priors = given[possible].log()
        validated = 0
        for fold in range(n_folds if every_fold else 1):
            held = fold_of == fold
            part = part_of(rows[~held], classes[~held], prior_means)
            losses += _grid_losses(part, prior_means, rows[held], classes[held], log_priors, grid)
            validated += int(held.sum())
    return losses * (len(rows) / validated)


def lowest(losses: Tensor) -> int:
    """Return the position of the lowest loss on a grid; of equal ones, the first."""
    return int(torch.nonzero(losses <= losses.min())[0])


def _grid_losses(
    part: Part,
    prior_means: Tensor,
    rows: Tensor,
    labels: Tensor,
    log_priors: Tensor,
    grid: tuple[Strengths, ...],
) -> Tensor:
    """Return the summed loss of validation rows at all points of a grid.

    Every mean is a combination of its global mean, its residual and an offset. So their products
    with the rows and with each other, made once for each ν, give the logits of all κ₀ and κ.
    """
    count = len(prior_means)
    kappas = sorted({point.classes for point in grid})
    directions = [
        level_weights(part.counts, math.inf, kappa)[0] @ part.residuals for kappa in kappas
    ]
    vectors = torch.cat([prior_means, part.residuals, torch.stack(directions)])
    along, of_rows = vectors @ part.axes, rows @ part.axes
    plain, crossed = rows @ vectors.T, vectors @ vectors.T
    losses = torch.empty(len(grid), dtype=torch.float64)
    for nu in {point.covariance for point in grid}:
        kept, scale = part.kept(nu), part.scale(nu)
        with_rows = scale * (plain - (of_rows * kept) @ along.T)
        among = scale * (crossed - (along * kept) @ along.T)
        squares = among.diagonal()
        with_residuals = among[:count, count : 2 * count].diagonal()
        positions = [i for i, point in enumerate(grid) if point.covariance == nu]
        own, moved, column = [], [], []
        for i in positions:
            _, weight, share = level_weights(part.counts, grid[i].offset, grid[i].classes)
            own.append(weight)
            moved.append((1 - weight) * share)
            column.append(2 * count + kappas.index(grid[i].classes))
        t, s = torch.stack(own), torch.stack(moved)
        columns = torch.tensor(column)
        norms = squares[:count] + s.square() * squares[columns, None]
        norms = norms + t.square() * squares[count : 2 * count] + 2 * t * with_residuals
        norms = norms + 2 * s * among[columns, :count]
        norms = norms + 2 * s * t * among[columns, count : 2 * count]
        constant = (log_priors - 0.5 * norms).float()
        logits = with_rows[:, :count].T.float() + constant[:, :, None]
        logits += t.float()[:, :, None] * with_rows[:, count : 2 * count].T.float()
        logits += s.float()[:, :, None] * with_rows[:, columns].T.float()[:, None, :]
        # Rows come last: sums over few classes are quick along many rows.
        of_truth = logits.gather(1, labels.expand(len(positions), 1, -1))
        totals = torch.logsumexp(logits, dim=1, keepdim=True)
        losses[positions] = (totals - of_truth).sum((1, 2), dtype=torch.float64)
    return losses
