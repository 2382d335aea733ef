"""Synthetic clients, and the validation loss written down a second time, in plain NumPy."""

from dataclasses import dataclass

import numpy as np
import torch
from scipy.special import log_softmax
from torch import Tensor

from pfedfda.gaussian import GaussianStatistics


@dataclass(frozen=True)
class Client:
    features: Tensor
    labels: Tensor
    sample_ids: Tensor
    shared: GaussianStatistics


def make_client(
    seed: int,
    *,
    dimension: int,
    classes: int,
    samples: int,
    copies: int = 1,
    shift: float = 0.5,
    separation: float = 2.0,
    copy_noise: float = 0.3,
    present: int | None = None,
    smallest_scale: float = 0.3,
    local_scale: float = 1.0,
) -> Client:
    """Draw a client whose class means are shifted against the global ones.

    Lengths are in Mahalanobis units. `smallest_scale` is the smallest singular value of the factor
    of the global covariance; tiny values make it nearly singular.
    """
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    rotation, _ = torch.linalg.qr(normal(dimension, dimension))
    scales = torch.logspace(0, np.log10(smallest_scale), dimension, dtype=torch.float64)
    factor = rotation * scales
    unit = factor.T / dimension**0.5
    global_means = separation * normal(classes, dimension) @ unit
    local_means = global_means + shift * normal(classes, dimension) @ unit
    labels = torch.randint(0, present or classes, (samples,), generator=generator)
    clean = local_means[labels] + local_scale * normal(samples, dimension) @ factor.T
    features = clean.repeat(copies, 1)
    if copies > 1:
        features += copy_noise * normal(*features.shape) @ factor.T
    return Client(
        features,
        labels.repeat(copies),
        torch.arange(samples).repeat(copies),
        GaussianStatistics(global_means, factor @ factor.T),
    )


def oracle_loss(
    client: Client, folds: Tensor, ridge: float, beta_means: float, beta_covariance: float
) -> float:
    """Evaluate eq. 9, as a mean over rows, straight from its definition."""
    z, y, fold = (t.numpy() for t in (client.features, client.labels, folds))
    global_means, global_covariance = (
        client.shared.means.numpy(),
        client.shared.covariance.numpy(),
    )
    counts = np.bincount(y, minlength=len(global_means))
    present = np.flatnonzero(counts)
    log_priors = np.log(counts[present] / counts.sum())
    total = 0.0
    for k in np.unique(fold):
        train, valid = fold != k, fold == k
        means = global_means.copy()
        centered = []
        for c in np.unique(y[train]):
            rows = z[train & (y == c)]
            means[c] = rows.mean(0)
            centered.append(rows - means[c])
        deviations = np.concatenate(centered)
        local_covariance = deviations.T @ deviations / (train.sum() - 1)
        local_covariance += ridge * np.eye(z.shape[1])
        mu = (beta_means * means + (1 - beta_means) * global_means)[present]
        sigma = beta_covariance * local_covariance + (1 - beta_covariance) * global_covariance
        weight = np.linalg.solve(sigma, mu.T)
        logits = z[valid] @ weight - 0.5 * np.sum(mu.T * weight, axis=0) + log_priors
        position = np.searchsorted(present, y[valid])
        total -= log_softmax(logits, axis=1)[np.arange(valid.sum()), position].sum()
    return float(total / len(y))
