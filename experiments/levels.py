"""Try ways to personalise on the body that a run of pFedFDA ended with, without training it again.

All clients compute features under that body, and the global Gaussians are made anew from them:

    python experiments/search.py --dataset cifar10-s --rounds 200 --output runs/val
    python experiments/levels.py runs/val/run --gaussian-features 0

For each ridge (a share of the mean variance) the table has the global classifier with the client's
class shares, the paper's β, an offset of all classes, class means by their counts, and all levels
with the strengths that have the lowest sum of cross-validated losses. `--clusters` asks what could
be gained if the server kept several sets of Gaussians: offsets of clusters that are found by
k-means, and, where clients have domains or corruptions, Gaussians of the true groups.

Accuracies are on the run's test samples; with a validation share, as in the search, these are
validation samples.
"""

import argparse
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from rich.progress import track
from sklearn.cluster import KMeans
from sklearn.metrics import adjusted_rand_score
from torch import Tensor

from pfedfda.data import Federation, prepare
from pfedfda.experiment.finished import FinishedRun, load_finished
from pfedfda.gaussian import (
    GRID,
    GaussianStatistics,
    LinearClassifier,
    Strengths,
    adapt,
    adapt_levels,
    bayes_classifier,
    class_moments,
    level_losses,
    lowest,
    merge_moments,
)
from pfedfda.machine import one_thread
from pfedfda.methods import to_input
from pfedfda.methods.training import FEATURE_BATCH
from pfedfda.models import gaussian_model

SMOOTHING = 1e-4
OFFSET = Strengths(0.0, math.inf, math.inf)


class Data(NamedTuple):
    """A client's features."""

    features: Tensor
    labels: Tensor
    test_features: Tensor
    test_labels: Tensor
    priors: Tensor


class Found(NamedTuple):
    """What came out, over clients."""

    accuracy: np.ndarray
    loss: float


def extract(finished: FinishedRun, federation: Federation, gaussian: bool) -> list[Data]:
    """Return all clients' features under the body of the run."""
    model = finished.task.build_model()
    model.load_state_dict(
        {name: t for name, t in finished.state.items() if name.startswith("body")}, strict=False
    )
    model = (gaussian_model(model) if gaussian else model).eval()
    classes = finished.task.num_classes

    def features(inputs: np.ndarray) -> Tensor:
        batches = torch.split(torch.from_numpy(np.array(inputs)), FEATURE_BATCH)
        return torch.cat([model.body(to_input(batch)) for batch in batches])

    clients = []
    with torch.no_grad():
        for number in track(range(len(federation)), "features", transient=True):
            data = federation.client(number)
            labels = torch.from_numpy(np.array(data.train_labels))
            shares = torch.bincount(labels, minlength=classes) / len(labels)
            priors = (shares + SMOOTHING) / (1 + classes * SMOOTHING)
            test_labels = torch.from_numpy(np.array(data.test_labels))
            own = features(data.train_inputs), labels, features(data.test_inputs), test_labels
            clients.append(Data(*own, priors))
    return clients


def pool(clients: Sequence[Data], classes: int, total: bool = False) -> GaussianStatistics:
    """Return the means of all features, and the mean of the clients' own covariances."""
    parts = [class_moments(client.features, client.labels, classes) for client in clients]
    merged = merge_moments(parts)
    own = sum((part.scatter for part in parts), torch.zeros_like(merged.scatter))
    covariance = (merged.scatter if total else own) / merged.samples
    return GaussianStatistics(merged.means, covariance)


def with_ridge(statistics: GaussianStatistics, share: float) -> GaussianStatistics:
    """Add a share of the mean variance to every variance."""
    covariance = statistics.covariance
    ridge = share * float(covariance.diagonal().mean())
    return GaussianStatistics(statistics.means, covariance + ridge * torch.eye(len(covariance)))


def test(clients: Sequence[Data], classifiers: Sequence[LinearClassifier]) -> Found:
    """Test a classifier for each client."""
    accuracies, losses = [], []
    for client, classifier in zip(clients, classifiers, strict=True):
        logits = client.test_features.double() @ classifier.weight.double().T + classifier.bias
        accuracies.append(float((logits.argmax(1) == client.test_labels).double().mean()))
        losses.append(float(F.cross_entropy(logits, client.test_labels)))
    return Found(np.array(accuracies), float(np.mean(losses)))


def all_losses(clients: Sequence[Data], shared: Callable[[int], GaussianStatistics]) -> Tensor:
    """Return the sum of the clients' cross-validated losses at all strengths."""
    losses = torch.zeros(len(GRID), dtype=torch.float64)
    for i, (z, y, _, _, priors) in enumerate(clients):
        generator = torch.Generator().manual_seed(i)
        losses += level_losses(z, y, shared(i), priors=priors, generator=generator)
    return losses


def levels(
    clients: Sequence[Data], shared: Callable[[int], GaussianStatistics], strengths: Strengths
) -> Found:
    """Test all clients at these strengths."""
    fits = [
        adapt_levels(c.features, c.labels, shared(i), strengths, priors=c.priors).classifier
        for i, c in enumerate(clients)
    ]
    return test(clients, fits)


def ways(clients: Sequence[Data], shared: GaussianStatistics, ridge: float) -> dict[str, Found]:
    """Return what each way to personalise gives."""
    found = {"global": test(clients, [bayes_classifier(shared, priors=c.priors) for c in clients])}
    fits = []
    for i, (z, y, _, _, priors) in enumerate(clients):
        generator = torch.Generator().manual_seed(i)
        adapted = adapt(z, y, shared, priors=priors, ridge=ridge, generator=generator)
        fits.append(adapted.solve(priors, adapted.fit.means, 0.0))
    found["one β"] = test(clients, fits)
    losses = all_losses(clients, lambda _: shared)
    for name, allowed in (
        ("offset", lambda s: math.isinf(s.classes) and math.isinf(s.covariance)),
        ("classes", lambda s: math.isinf(s.offset) and math.isinf(s.covariance)),
        ("levels", lambda s: True),
    ):
        places = [i for i, strengths in enumerate(GRID) if allowed(strengths)]
        best = GRID[places[lowest(losses[places])]]
        label = f"{name} ({', '.join(f'{value:g}' for value in best)})"
        found[label] = levels(clients, lambda _: shared, best)
    return found


def clustered(
    clients: Sequence[Data], shared: GaussianStatistics, groups: Sequence[str]
) -> dict[str, Found]:
    """Return what offsets of clusters, and Gaussians of the true groups, give."""
    found = {"own offset": levels(clients, lambda _: shared, OFFSET)}
    residuals = torch.stack([(c.features - shared.means[c.labels]).mean(0) for c in clients])
    factor = torch.linalg.cholesky(shared.covariance)
    white = torch.linalg.solve_triangular(factor, residuals.double().T, upper=False).T
    sizes = np.array([len(c.labels) for c in clients])
    for count in (2, 5, 11, 20):
        fitted = KMeans(count, n_init=10, random_state=0).fit(white.numpy(), sample_weight=sizes)
        centres = torch.from_numpy(fitted.cluster_centers_) @ factor.T
        moved = [GaussianStatistics(shared.means + centre, shared.covariance) for centre in centres]
        of = [moved[label] for label in fitted.labels_]
        rand = adjusted_rand_score(list(groups), fitted.labels_)
        found[f"offset of {count} clusters (Rand {rand:.2f})"] = levels(
            clients, lambda i, of=of: of[i], Strengths(math.inf, math.inf, math.inf)
        )
    if len(set(groups)) > 1:
        for kappa in (20.0, 100.0, 500.0):
            of = true_groups(clients, shared, groups, kappa)
            found[f"Gaussians of true groups, κ {kappa:g}"] = levels(
                clients, lambda i, of=of: of[i], Strengths(math.inf, math.inf, math.inf)
            )
            found[f"these and own offset, κ {kappa:g}"] = levels(
                clients, lambda i, of=of: of[i], OFFSET
            )
    return found


def true_groups(
    clients: Sequence[Data], shared: GaussianStatistics, groups: Sequence[str], kappa: float
) -> list[GaussianStatistics]:
    """Return for each client the Gaussians of its group, each class by its count."""
    of_group = {}
    for group in set(groups):
        members = [c for c, g in zip(clients, groups, strict=True) if g == group]
        merged = merge_moments(
            [class_moments(c.features, c.labels, len(shared.means)) for c in members]
        )
        residuals = torch.where(merged.counts[:, None] > 0, merged.means - shared.means, 0.0)
        offset = merged.counts.double() @ residuals / merged.samples
        own = (merged.counts / (merged.counts + kappa))[:, None]
        means = shared.means + offset + own * (residuals - offset)
        of_group[group] = GaussianStatistics(means, shared.covariance)
    return [of_group[group] for group in groups]


def say(found: dict[str, Found], reference: np.ndarray, groups: Sequence[str]) -> None:
    """Print a table, with paired differences from the first row."""
    shifted = np.array([bool(group) for group in groups])
    for name, (accuracy, loss) in found.items():
        difference = accuracy - reference
        error = difference.std(ddof=1) / math.sqrt(len(difference))
        worst = np.sort(accuracy)[: max(len(accuracy) // 10, 1)].mean()
        line = f"| {name} | {accuracy.mean():.4f} | {difference.mean():+.4f} ± {error:.4f} | "
        line += f"{worst:.3f} | {loss:.3f} |"
        if 0 < shifted.sum() < len(shifted):
            line += f" {accuracy[shifted].mean():.4f} | {accuracy[~shifted].mean():.4f} |"
        print(line, flush=True)


def groups_of(federation: Federation) -> list[str]:
    """Return the corruption or the domain of each client, the first that tells clients apart."""
    for name in ("corruption", "domain"):
        values = federation.attributes.get(name)
        if values is not None and len(set(values)) > 1:
            return [str(value) for value in values]
    return [""] * len(federation)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path, help="the folder of a finished run of pFedFDA")
    parser.add_argument("--ridges", type=float, nargs="+", default=[0.1, 0.3, 1.0])
    parser.add_argument("--gaussian-features", type=int, choices=(0, 1), default=1)
    parser.add_argument("--clusters", action="store_true")
    options = parser.parse_args()
    finished = load_finished(options.run)
    federation = prepare(finished.config.federation)
    groups = groups_of(federation)
    with one_thread():
        clients = extract(finished, federation, bool(options.gaussian_features))
        body = any(name.startswith("body") for name in finished.state)
        pooled = pool(clients, finished.task.num_classes, total=not body)
        reference = None
        for share in options.ridges:
            shared = with_ridge(pooled, share)
            ridge = share * float(pooled.covariance.diagonal().mean())
            one = clustered(clients, shared, groups) if options.clusters else None
            found = one or ways(clients, shared, ridge)
            if reference is None:
                reference = next(iter(found.values())).accuracy
            print(f"\nridge {share:g}: accuracy, difference, worst tenth, loss, shifted, others")
            say(found, reference, groups)


if __name__ == "__main__":
    main()
