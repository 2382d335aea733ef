"""Adaptation with few rows against many features, which never forms a matrix of the client."""

import numpy as np
import pytest
import torch

from pfedfda.gaussian import (
    Betas,
    GaussianStatistics,
    adapt,
    adaptation,
    assign_folds,
    estimate_statistics,
    low_rank,
    search_beta,
)
from pfedfda.gaussian.adapted import DenseFit, LowRankFit
from pfedfda.gaussian.low_rank import Rows, is_low_rank, low_rank_problem, spectrum_of
from pfedfda.gaussian.low_rank_loss import LowRankLoss
from pfedfda.gaussian.problem import MULTIPLE, SINGLE
from pfedfda.gaussian.reference_solver import validation_loss
from pfedfda.gaussian.spectral_loss import SpectralLoss
from tests.gaussian.brute_force import KINDS as NASTY_KINDS
from tests.gaussian.gaussian_clients import make_client
from tests.gaussian.test_beta_search import KINDS, assert_exact, problem_of, random_settings

LARGE = (1e-4, 1e-3, 1e-2, 1.0)  # ridges with which a client's matrix is not needed


@pytest.fixture
def always(monkeypatch):
    """Take the way for few rows wherever no covariance needs repair, and count how often."""
    taken = []

    def take(*arguments):
        found = low_rank_way(*arguments)
        taken.append(found is not None)
        return found

    low_rank_way = adaptation.adapt_low_rank
    monkeypatch.setattr(adaptation, "is_low_rank", lambda *sizes: True)
    monkeypatch.setattr(adaptation, "adapt_low_rank", take)
    return taken


def densely(monkeypatch, function, *arguments, **options):
    with monkeypatch.context() as patch:
        patch.setattr(adaptation, "is_low_rank", lambda *sizes: False)
        return function(*arguments, **options)


def test_the_rule_leaves_small_features_and_many_rows_alone():
    assert is_low_rank(120, 10, 1280)
    assert is_low_rank(118, 10, 256)
    assert not is_low_rank(119, 10, 256)
    assert not is_low_rank(20, 10, 128)  # as in all networks of the paper but ResNet18
    assert not is_low_rank(440, 200, 512)


@pytest.mark.parametrize("wide", [60, 150])
@pytest.mark.parametrize("kind", NASTY_KINDS)
def test_nasty_problems_are_solved_exactly(kind, wide, always):
    assert_exact(kind, number=3, count=8, wide=wide, ridges=LARGE)
    if kind != "tiny ridge":
        assert any(always)


@pytest.mark.slow
@pytest.mark.parametrize("wide", [60, 150])
@pytest.mark.parametrize("kind", NASTY_KINDS)
def test_hundreds_of_nasty_problems_are_solved_exactly(kind, wide, always):
    assert_exact(kind, number=4, count=60, wide=wide, ridges=LARGE)


@pytest.mark.parametrize("mode", ["single", "multiple"])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "many samples"])
def test_both_ways_find_the_same(kind, mode, always, monkeypatch):
    rng = np.random.default_rng([KINDS.index(kind), mode == "single"])
    for _ in range(12):
        client, options = random_settings(rng, kind)
        arguments = (client.features, client.labels, client.shared)
        one = search_beta(*arguments, betas=mode, **options)
        other = densely(monkeypatch, search_beta, *arguments, betas=mode, **options)
        if other.loss is None:
            assert one == other
        else:
            assert one.loss == pytest.approx(other.loss, abs=1e-9)
            far = max(abs(one.means - other.means), abs(one.covariance - other.covariance))
            assert far < 1e-3 or one.loss == pytest.approx(other.loss, abs=1e-10)
    assert any(always)


@pytest.mark.parametrize("dimension", [256, 600])
def test_everything_that_a_client_obtains_is_the_same(dimension, monkeypatch):
    client = make_client(0, dimension=dimension, classes=7, samples=90, present=5, shift=2.0)
    arguments = (client.features, client.labels, client.shared)
    options = {"ridge": 0.05, "priors": torch.arange(1.0, 8.0)}
    one = adapt(*arguments, **options)
    other = densely(monkeypatch, adapt, *arguments, **options)
    assert isinstance(one.fit, LowRankFit)
    assert isinstance(other.fit, DenseFit)
    assert 0 < one.betas.means < 1
    assert one.betas.means == pytest.approx(other.betas.means, abs=1e-6)
    for which in ("statistics", "local_statistics"):
        for name in ("means", "covariance", "counts"):
            first, second = (getattr(getattr(a, which), name) for a in (one, other))
            torch.testing.assert_close(first, second, rtol=1e-5, atol=1e-6)
    local = estimate_statistics(*arguments[:2], 7, prior_means=client.shared.means, ridge=0.05)
    torch.testing.assert_close(one.local_statistics.covariance, local.covariance)
    for solve in (
        lambda a: a.classifier,
        lambda a: a.solve(torch.ones(7), shrinkage=0.2),
        lambda a: a.solve(torch.ones(7), means=client.shared.means),
    ):
        first, second = (solve(a).log_posteriors(client.features) for a in (one, other))
        torch.testing.assert_close(first, second, rtol=1e-4, atol=1e-4)


def test_other_priors_and_means_are_checked_as_with_a_matrix(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client = make_client(0, dimension=256, classes=3, samples=30)
    arguments = (client.features, client.labels, client.shared)
    one, other = adapt(*arguments), densely(monkeypatch, adapt, *arguments)
    assert isinstance(one.fit, LowRankFit)
    for adapted in (one, other):
        for priors in (torch.tensor([1.0, -1.0, 3.0]), torch.zeros(3)):
            with pytest.raises(ValueError, match="priors range from"):
                adapted.solve(priors)
        with pytest.raises(ValueError, match="priors has shape"):
            adapted.solve(torch.ones(2))
    single = client.shared.means.float()
    first, second = (a.solve(torch.ones(3), means=single).weight for a in (one, other))
    torch.testing.assert_close(first, second, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("how", ["none", Betas(0.3, 0.7), Betas(0.0, 0.0), Betas(1.0, 1.0)])
@pytest.mark.parametrize("samples", [1, 3, 40])
def test_a_given_beta_is_used(how, samples, monkeypatch):
    client = make_client(2, dimension=300, classes=4, samples=samples)
    arguments = (client.features, client.labels, client.shared)
    one = adapt(*arguments, betas=how, ridge=0.1)
    other = densely(monkeypatch, adapt, *arguments, betas=how, ridge=0.1)
    assert isinstance(one.fit, LowRankFit)
    assert one.betas == other.betas
    torch.testing.assert_close(one.classifier.weight, other.classifier.weight)
    torch.testing.assert_close(one.classifier.bias, other.classifier.bias)


def test_where_a_covariance_needs_repair_it_is_repaired(monkeypatch):
    client = make_client(0, dimension=256, classes=3, samples=30)
    arguments = (client.features, client.labels, client.shared)
    one = adapt(*arguments, ridge=0.0)
    other = densely(monkeypatch, adapt, *arguments, ridge=0.0)
    assert isinstance(one.fit, DenseFit)
    assert one.betas == other.betas
    assert torch.equal(one.classifier.weight, other.classifier.weight)
    broken = client.shared.covariance.clone()
    broken[0] = broken[:, 0] = 0.0
    shared = GaussianStatistics(client.shared.means, broken)
    one = adapt(*arguments[:2], shared, ridge=0.1)
    other = densely(monkeypatch, adapt, *arguments[:2], shared, ridge=0.1)
    assert isinstance(one.fit, LowRankFit)
    assert one.betas.loss == pytest.approx(other.betas.loss, abs=1e-9)


def test_the_global_covariance_is_decomposed_once_for_all_clients(monkeypatch):
    calls = []
    decompose = torch.linalg.eigh

    def counted(matrix):
        calls.append(matrix.shape)
        return decompose(matrix)

    monkeypatch.setattr(torch.linalg, "eigh", counted)
    low_rank._last.clear()
    clients = [make_client(0, dimension=256, classes=3, samples=30) for _ in range(3)]
    found = [adapt(c.features, c.labels, c.shared, ridge=0.1).betas for c in clients]
    assert calls == [(256, 256)]
    assert found[0] == found[1] == found[2]
    other = GaussianStatistics(clients[0].shared.means, 2 * clients[0].shared.covariance)
    adapt(clients[0].features, clients[0].labels, other, ridge=0.1)
    assert len(calls) == 2
    again = adapt(clients[0].features, clients[0].labels, clients[0].shared, ridge=0.1)
    assert len(calls) == 3
    assert again.betas == found[0]


def both_losses(client, n_folds=3, ridge=1e-2):
    spectrum = spectrum_of(client.shared.covariance)
    origin = client.features[0]
    rows = Rows(
        (client.features - origin) @ spectrum.axes,
        client.labels,
        (client.shared.means - origin) @ spectrum.axes,
    )
    folds = assign_folds(client.labels, n_folds)
    dense = problem_of(client, n_folds, ridge)
    problem = low_rank_problem(spectrum, rows, folds, dense.log_priors.exp(), ridge)
    return LowRankLoss(problem), SpectralLoss(dense), dense


@pytest.mark.parametrize("point", [(0.0, 0.0), (1.0, 1.0), (0.3, 0.7), (0.999, 1e-3), (0.5, 1.0)])
def test_losses_derivatives_and_bounds_are_those_of_the_other_way(point):
    client = make_client(3, dimension=40, classes=4, samples=31, shift=1.0, smallest_scale=0.05)
    few, many, problem = both_losses(client)
    value, gradient, hessian = few.derivatives(*point, MULTIPLE)
    expected, expected_gradient, expected_hessian = many.derivatives(*point, MULTIPLE)
    assert value == pytest.approx(expected, rel=1e-10)
    np.testing.assert_allclose(gradient, expected_gradient, rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(hessian, expected_hessian, rtol=1e-6, atol=1e-7)
    exact = validation_loss(problem, *torch.tensor(point, dtype=torch.float64)).item()
    assert value == pytest.approx(exact, rel=1e-9)
    _, slope, _ = few.derivatives(*point, SINGLE)
    assert slope[0] == pytest.approx(gradient.sum(), rel=1e-9)

    betas = np.linspace(0, 1, 7)
    pairs = [grid.ravel() for grid in np.meshgrid(betas, betas)]
    at = [np.array([number]) for number in point]
    bounds, others = few.visit(*at), many.visit(*at)
    lower = few.lower(bounds, *(grid[None] for grid in pairs))
    np.testing.assert_allclose(
        lower, many.lower(others, *(grid[None] for grid in pairs)), rtol=1e-7, atol=1e-8
    )
    mesh = few.lower_on_mesh(bounds, betas, betas).swapaxes(1, 2).reshape(1, -1)
    np.testing.assert_allclose(mesh, lower, rtol=1e-9, atol=1e-9)
    single = few.visit(betas, betas), many.visit(betas, betas)
    np.testing.assert_allclose(
        few.slopes(single[0], betas), many.slopes(single[1], betas), rtol=1e-7, atol=1e-9
    )
    assert few.reach(0.4, 1.0) == pytest.approx(many.reach(0.4, 1.0), rel=1e-6)


@pytest.mark.parametrize("spread", [1.0, 1e-2, 1e-4])
@pytest.mark.parametrize("ridge", [1.0, 1e-2, 1e-4])
def test_the_series_is_exact_however_far_eigenvalues_lie_apart(spread, ridge):
    client = make_client(
        1, dimension=60, classes=3, samples=24, smallest_scale=spread, local_scale=3.0
    )
    few, many, _ = both_losses(client, ridge=ridge)
    betas = np.concatenate([[0.0, 1.0], 1 / (1 + np.exp(-np.linspace(-14, 14, 57)))])
    np.testing.assert_allclose(
        few.visit(betas, betas).values, many.visit(betas, betas).values, rtol=1e-7, atol=1e-9
    )
