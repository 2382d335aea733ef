"""Adaptation at three levels against Bayes' rule in NumPy, limit cases and planted offsets."""

import math

import numpy as np
import pytest
import torch
from scipy.special import log_softmax
from scipy.stats import invwishart
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

from pfedfda.gaussian import (
    GRID,
    GaussianStatistics,
    Strengths,
    adapt_levels,
    assign_folds,
    bayes_classifier,
    level_losses,
    lowest,
    with_relative_ridge,
)
from tests.gaussian.gaussian_clients import Client, make_client

INF = math.inf
GLOBAL = Strengths(INF, INF, INF)
SIZES = [(6, 60), (40, 15)]  # features and samples: dense scatter, and scatter of low rank


def client_of(seed=0, *, dimension=6, samples=60, present=4, **options) -> Client:
    return make_client(
        seed, dimension=dimension, classes=5, samples=samples, present=present, **options
    )


def posterior_means(client: Client, strengths: Strengths) -> np.ndarray:
    """Condition the joint Gaussian of offset, deviations and samples, coordinate by coordinate.

    With Σ as the covariance of everything, all coordinates have the same weights, so that one
    linear model over samples gives them.
    """
    z, y = client.features.numpy(), client.labels.numpy()
    means = client.shared.means.numpy()
    classes = len(means)
    prior = np.diag([1 / strengths.offset] + [1 / strengths.classes] * classes)
    design = np.zeros((len(y), 1 + classes))
    design[:, 0] = 1
    design[np.arange(len(y)), 1 + y] = 1
    noise = design @ prior @ design.T + np.eye(len(y))
    found = prior @ design.T @ np.linalg.solve(noise, z - means[y])
    return means + found[0] + found[1:]


@pytest.mark.parametrize(("dimension", "samples"), SIZES)
@pytest.mark.parametrize("strengths", [(8.0, 16.0, INF), (64.0, 4.0, 32.0), (0.5, 256.0, 1.0)])
def test_means_are_posterior_means(dimension, samples, strengths):
    client = client_of(1, dimension=dimension, samples=samples)
    fit = adapt_levels(client.features, client.labels, client.shared, Strengths(*strengths))
    expected = posterior_means(client, Strengths(*strengths))
    np.testing.assert_allclose(fit.means.numpy(), expected, atol=1e-9)


def test_the_covariance_is_the_mean_of_an_inverse_wishart_posterior():
    """Prior of mean Σ_g that weighs as much as ν samples: scale νΣ_g with ν + d + 1 degrees."""
    client = client_of(2)
    z, y = client.features.numpy(), client.labels.numpy()
    fit = adapt_levels(client.features, client.labels, client.shared, Strengths(INF, INF, 20.0))
    own = np.stack([z[y == c].mean(0) if (y == c).any() else np.zeros(6) for c in range(5)])
    scatter = (z - own[y]).T @ (z - own[y])
    posterior = invwishart(20 + 6 + 1 + 60, 20 * client.shared.covariance.numpy() + scatter)
    np.testing.assert_allclose(fit.covariance.numpy(), posterior.mean(), atol=1e-10)


@pytest.mark.parametrize(("dimension", "samples"), SIZES)
@pytest.mark.parametrize("strengths", [(8.0, 16.0, 64.0), (INF, 4.0, 2.0), (0.0, INF, 64.0)])
def test_the_classifier_is_bayes_rule_of_the_posterior_gaussians(dimension, samples, strengths):
    client = client_of(3, dimension=dimension, samples=samples)
    priors = torch.tensor([0.3, 0.2, 0.1, 0.2, 0.2], dtype=torch.float64)
    fit = adapt_levels(
        client.features, client.labels, client.shared, Strengths(*strengths), priors=priors
    )
    expected = bayes_classifier(GaussianStatistics(fit.means, fit.covariance), priors=priors)
    torch.testing.assert_close(fit.classifier.weight, expected.weight, atol=1e-8, rtol=1e-8)
    torch.testing.assert_close(fit.classifier.bias, expected.bias, atol=1e-8, rtol=1e-8)


def test_infinite_strengths_give_the_global_classifier():
    client = client_of(4)
    fit = adapt_levels(client.features, client.labels, client.shared, GLOBAL)
    expected = bayes_classifier(client.shared, priors=fit.priors)
    torch.testing.assert_close(fit.classifier.weight, expected.weight)
    torch.testing.assert_close(fit.classifier.bias, expected.bias)
    assert not fit.offset.any()
    weights = {"offset_weight": 0.0, "means_weight": 0.0, "covariance_weight": 0.0}
    assert fit.weights() == weights


def test_without_strength_a_client_has_the_lda_of_its_own():
    client = client_of(5, present=5)
    fit = adapt_levels(client.features, client.labels, client.shared, Strengths(0, 0, 1e-5))
    lda = LinearDiscriminantAnalysis(solver="lsqr").fit(
        client.features.numpy(), client.labels.numpy()
    )
    ours = fit.classifier.weight @ client.features.T + fit.classifier.bias[:, None]
    probabilities = ours.softmax(0).T.numpy()
    np.testing.assert_allclose(probabilities, lda.predict_proba(client.features.numpy()), atol=1e-6)


def test_a_planted_offset_is_recovered():
    generator = torch.Generator().manual_seed(6)
    means = 3 * torch.randn(5, 8, generator=generator, dtype=torch.float64)
    planted = torch.randn(8, generator=generator, dtype=torch.float64)
    labels = torch.randint(0, 5, (4000,), generator=generator)
    noise = torch.randn(4000, 8, generator=generator, dtype=torch.float64)
    shared = GaussianStatistics(means, torch.eye(8, dtype=torch.float64))
    features = means[labels] + planted + noise
    fit = adapt_levels(features, labels, shared, Strengths(8.0, INF, INF))
    # The posterior's standard deviation is (4,000 + 8)^-½ in each coordinate.
    assert float((fit.offset - planted).abs().max()) < 4 * 4008**-0.5
    moved = adapt_levels(features, labels, shared, Strengths(8.0, 64.0, INF))
    assert float((moved.means - means - planted).abs().max()) < 0.2


def test_offset_alone_needs_one_class():
    """A class without samples moves along, and keeps its global mean without an offset."""
    client = client_of(7, present=1)
    along = adapt_levels(client.features, client.labels, client.shared, Strengths(1, INF, INF))
    torch.testing.assert_close(
        along.means - client.shared.means, along.offset.expand_as(along.means)
    )
    alone = adapt_levels(client.features, client.labels, client.shared, Strengths(INF, 1, INF))
    torch.testing.assert_close(alone.means[1:], client.shared.means[1:])
    assert float((alone.means[0] - client.shared.means[0]).norm()) > 0.1


def losses_by_definition(client, folds, strengths, priors, every):
    """Sum -log p over rows, each with a classifier from the other folds, in plain NumPy."""
    z, y = client.features.numpy(), client.labels.numpy()
    shared_means, shared = client.shared.means.numpy(), client.shared.covariance.numpy()
    present = np.flatnonzero(priors)
    total, rows = 0.0, 0
    for fold in np.unique(folds) if every else [0]:
        train, held = folds != fold, folds == fold
        counts = np.bincount(y[train], minlength=len(shared_means))
        own = np.stack(
            [z[train & (y == c)].mean(0) if n else shared_means[c] for c, n in enumerate(counts)]
        )
        residuals = own - shared_means
        kappa = strengths.classes
        share = counts / (counts + kappa) if np.isfinite(kappa) else np.zeros(len(counts))
        weights = counts if np.isinf(kappa) else kappa * share
        offset = weights @ residuals / (weights.sum() + strengths.offset)
        means = shared_means + offset + share[:, None] * (residuals - offset)
        deviations = z[train] - own[y[train]]
        nu, n = strengths.covariance, train.sum()
        covariance = (
            shared if np.isinf(nu) else (nu * shared + deviations.T @ deviations) / (nu + n)
        )
        solved = np.linalg.solve(covariance, means[present].T)
        logits = z[held] @ solved - 0.5 * np.sum(means[present].T * solved, 0)
        found = log_softmax(logits + np.log(priors[present]), axis=1)
        total -= found[np.arange(held.sum()), np.searchsorted(present, y[held])].sum()
        rows += held.sum()
    return total * len(y) / rows


@pytest.mark.parametrize("every", [True, False])
@pytest.mark.parametrize(("dimension", "samples"), SIZES)
def test_losses_are_those_of_left_out_folds(dimension, samples, every):
    client = client_of(8, dimension=dimension, samples=samples, copies=2)
    priors = torch.bincount(client.labels, minlength=5) / len(client.labels)
    generator = torch.Generator().manual_seed(3)
    folds = assign_folds(
        client.labels, 2, sample_ids=client.sample_ids, generator=generator
    ).numpy()
    for sample in client.sample_ids.unique():  # no leak: copies stay on one side
        assert len(np.unique(folds[client.sample_ids.numpy() == int(sample)])) == 1
    grid = (GLOBAL, Strengths(8, INF, 64), Strengths(INF, 4, INF), Strengths(64, 16, 1024))
    found = level_losses(
        client.features,
        client.labels,
        client.shared,
        sample_ids=client.sample_ids,
        every_fold=every,
        generator=torch.Generator().manual_seed(3),
        grid=grid,
    )
    expected = [losses_by_definition(client, folds, s, priors.numpy(), every) for s in grid]
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-5)


def test_the_lowest_loss_has_the_offset_where_one_was_planted():
    clients = [client_of(seed, samples=200, shift=0.0, present=5) for seed in range(6)]
    losses = {}
    for planted in (0.0, 2.0):
        total = torch.zeros(len(GRID), dtype=torch.float64)
        for seed, client in enumerate(clients):
            direction = torch.randn(
                6, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
            )
            factor = torch.linalg.cholesky(client.shared.covariance)
            features = client.features + planted * factor @ (direction / direction.norm())
            total += level_losses(features, client.labels, client.shared)
        losses[planted] = GRID[lowest(total)]
    assert losses[0.0].offset == INF
    assert losses[2.0].offset <= 8.0
    assert losses[2.0].classes >= 64.0


@pytest.mark.parametrize("strengths", [GLOBAL, Strengths(0, 0, 1e-3), Strengths(8, 16, 64)])
@pytest.mark.parametrize("samples", [1, 2, 3])
def test_few_samples_yield_finite_classifiers(samples, strengths):
    client = client_of(9, samples=samples, present=1)
    fit = adapt_levels(client.features, client.labels, client.shared, strengths)
    assert bool(torch.isfinite(fit.classifier.weight).all())
    assert bool(torch.isfinite(fit.means).all())
    assert bool(torch.isfinite(fit.covariance).all())
    assert all(0 <= weight <= 1 for weight in fit.weights().values())
    losses = level_losses(client.features, client.labels, client.shared)
    assert bool(torch.isfinite(losses).all())


def test_constant_features_and_a_singular_covariance_yield_finite_classifiers():
    singular = GaussianStatistics(torch.zeros(3, 4), torch.ones(4, 4))
    features, labels = torch.ones(12, 4), torch.arange(12) % 3
    fit = adapt_levels(features, labels, singular, Strengths(8, 16, 64))
    assert bool(torch.isfinite(fit.classifier.weight).all())
    assert bool(torch.isfinite(level_losses(features, labels, singular)).all())


@pytest.mark.parametrize(
    ("strengths", "message"),
    [
        (Strengths(-1, 1, 1), "offset is -1"),
        (Strengths(1, math.nan, 1), "classes is nan"),
        (Strengths(1, 1, 0), "covariance is 0"),
    ],
)
def test_strengths_that_mean_nothing_are_refused(strengths, message):
    client = client_of(10)
    with pytest.raises(ValueError, match=message):
        adapt_levels(client.features, client.labels, client.shared, strengths)
    with pytest.raises(ValueError, match=message):
        level_losses(client.features, client.labels, client.shared, grid=(strengths,))


def test_features_of_another_size_and_impossible_priors_are_refused():
    client = client_of(11)
    with pytest.raises(ValueError, match="global covariance has shape"):
        adapt_levels(client.features[:, :3], client.labels, client.shared, GLOBAL)
    with pytest.raises(ValueError, match="needs a positive prior"):
        adapt_levels(client.features, client.labels, client.shared, GLOBAL, priors=torch.eye(5)[4])
    with pytest.raises(ValueError, match="n_folds is 1"):
        level_losses(client.features, client.labels, client.shared, n_folds=1)


def test_a_relative_ridge_takes_the_place_of_the_old_one():
    covariance = torch.diag(torch.tensor([0.5, 1.5], dtype=torch.float64)) + 0.1 * torch.eye(2)
    found = with_relative_ridge(covariance, 0.1, 0.3)
    torch.testing.assert_close(found, torch.diag(torch.tensor([0.8, 1.8])).double())
    flat = with_relative_ridge(0.1 * torch.eye(2), 0.1, 0.3)  # no variance: the ridge stays
    torch.testing.assert_close(flat, 0.1 * torch.eye(2).double())
