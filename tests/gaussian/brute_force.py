"""Nasty β problems, and their lowest losses by brute force in NumPy and SciPy alone."""

from dataclasses import dataclass

import numpy as np
import torch
from scipy.linalg import eigh
from scipy.optimize import minimize_scalar
from scipy.special import logsumexp

from pfedfda.gaussian import GaussianStatistics, assign_folds, nearest_positive_definite
from tests.gaussian.gaussian_clients import Client, make_client

KINDS = (
    "constant features",
    "class in one fold",
    "singletons",
    "separable",
    "copies",
    "tiny ridge",
    "outliers",
    "far means",
    "opposed",
    "two samples a class",
)


def nasty_client(
    kind: str,
    rng: np.random.Generator,
    wide: int = 0,
    ridges: tuple[float, ...] = (1e-9, 1e-6, 1e-4, 1e-2),
) -> tuple[Client, float, int]:
    """Return a client whose search is hard in its own way, with ridge and number of folds.

    Features are few against samples, or at least `wide`.
    """
    dimension, classes = wide + int(rng.integers(1, 16)), int(rng.integers(2, 7))
    samples, folds = int(rng.integers(8, 60)), int(rng.integers(2, 5))
    ridge = float(rng.choice(ridges))
    size = {
        "shift": float(rng.choice([0.0, 1.0, 4.0, 10.0])),
        "separation": float(rng.choice([0.5, 2.0, 6.0])),
        "local_scale": float(rng.choice([0.05, 0.3, 1.0, 5.0])),
        "smallest_scale": float(rng.choice([1e-3, 1e-2, 0.3, 1.0])),
    }
    seed = int(rng.integers(1 << 30))
    client = make_client(seed, dimension=dimension, classes=classes, samples=samples, **size)
    z, y = client.features.clone(), client.labels.clone()
    ids, shared = client.sample_ids, client.shared
    normal = torch.from_numpy(rng.normal(size=tuple(z.shape)))
    if kind == "constant features":
        z[:, rng.random(dimension) < 0.6] = float(rng.normal())
    elif kind == "class in one fold":
        y[:] = torch.from_numpy(rng.integers(0, max(classes - 1, 1), samples))
        y[int(rng.integers(samples))] = classes - 1
    elif kind == "singletons":
        y = torch.arange(samples) % classes
        y[classes:] = 0
    elif kind == "separable":
        z += 20.0 * torch.nn.functional.one_hot(y % dimension, dimension)
    elif kind == "copies":
        z = z[torch.arange(samples) // 3]
        y = y[torch.arange(samples) // 3]
    elif kind == "tiny ridge":
        ridge = 0.0
    elif kind == "outliers":
        z[rng.random(samples) < 0.1] *= 100.0
    elif kind == "far means":
        shared = GaussianStatistics(shared.means + 30.0, shared.covariance)
    elif kind == "opposed":
        shared = GaussianStatistics(-shared.means, shared.covariance)
    elif kind == "two samples a class":
        y = (torch.arange(samples) // 2) % classes
        z = normal * 0.1 + shared.means[y]
    return Client(z, y, ids, shared), ridge, folds


@dataclass(frozen=True)
class BruteForce:
    """The validation loss of one client (eq. 9 as a mean over rows) at any β."""

    folds: list[tuple[np.ndarray, ...]]
    log_priors: np.ndarray

    @classmethod
    def of(cls, client: Client, ridge: float, n_folds: int) -> "BruteForce":
        z, y = client.features.numpy(), client.labels.numpy()
        targets = client.shared.means.numpy()
        shared = nearest_positive_definite(client.shared.covariance).numpy()
        fold_of = assign_folds(client.labels, n_folds).numpy()
        counts = np.bincount(y, minlength=len(targets))
        present = np.flatnonzero(counts)
        folds = []
        for k in range(n_folds):
            train, valid = fold_of != k, fold_of == k
            means, deviations = targets.copy(), []
            for c in np.unique(y[train]):
                rows = z[train & (y == c)]
                means[c] = rows[0] + (rows - rows[0]).mean(0)
                deviations.append(rows - means[c])
            scattered = np.concatenate(deviations)
            covariance = scattered.T @ scattered / max(train.sum() - 1, 1)
            covariance = covariance + ridge * np.eye(len(covariance))
            covariance = nearest_positive_definite(torch.from_numpy(covariance)).numpy()
            # Generalised eigenvectors V with VᵀΣ_gV = I and VᵀΣ_lV = Λ.
            values, vectors = eigh(covariance, shared)
            origin = z[valid].mean(0)
            folds.append(
                (
                    values,
                    (z[valid] - origin) @ vectors,
                    (means[present] - origin) @ vectors,
                    (targets[present] - origin) @ vectors,
                    np.searchsorted(present, y[valid]),
                )
            )
        return cls(folds, np.log(counts[present] / counts.sum()))

    def loss(self, means: np.ndarray, covariances: np.ndarray) -> np.ndarray:
        """Return the losses at many pairs of β."""
        total, rows = np.zeros(len(means)), 0
        for values, features, local, target, labels in self.folds:
            mu = means[:, None, None] * local + (1 - means[:, None, None]) * target
            variance = covariances[:, None] * values + (1 - covariances[:, None])
            distances = (features[None, :, None] - mu[:, None]) ** 2
            logits = self.log_priors - 0.5 * (distances / variance[:, None, None]).sum(-1)
            true = np.take_along_axis(logits, labels[None, :, None], axis=2)
            total += logsumexp(logits - true, axis=2).sum(1)
            rows += len(labels)
        return total / rows

    def lowest(self, points: int = 1500) -> tuple[np.ndarray, np.ndarray]:
        """Return many single β, the bottoms of all visible basins included, and their losses."""
        odds = 1 / (1 + np.exp(-np.linspace(-22, 22, points)))
        betas = np.unique(np.concatenate([[0.0, 1.0], odds, np.linspace(0, 1, points)]))
        losses = np.concatenate([self.loss(b, b) for b in np.array_split(betas, 20)])
        inner = np.flatnonzero((losses[1:-1] <= losses[:-2]) & (losses[1:-1] <= losses[2:])) + 1
        bottoms = [
            minimize_scalar(
                lambda beta: float(self.loss(np.array([beta]), np.array([beta]))[0]),
                bounds=(betas[i - 1], betas[i + 1]),
                method="bounded",
                options={"xatol": 1e-12},
            ).x
            for i in inner[np.argsort(losses[inner])[:6]]
        ]
        extra = np.array(bottoms)
        if len(extra):
            betas = np.concatenate([betas, extra])
            losses = np.concatenate([losses, self.loss(extra, extra)])
        order = np.argsort(betas)
        return betas[order], losses[order]
