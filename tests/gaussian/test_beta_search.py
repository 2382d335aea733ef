import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar

from pfedfda.gaussian import (
    Betas,
    GaussianStatistics,
    adapt,
    assign_folds,
    bayes_classifier,
    class_priors,
    estimate_statistics,
    nearest_positive_definite,
    search_beta,
)
from pfedfda.gaussian.adaptation import _checked_samples, _problem
from pfedfda.gaussian.estimate import _class_moments
from pfedfda.gaussian.nearest_pd import _whitened
from pfedfda.gaussian.problem import MULTIPLE, SINGLE
from pfedfda.gaussian.reference_solver import validation_loss
from pfedfda.gaussian.spectral_loss import SpectralLoss
from tests.gaussian.brute_force import KINDS as NASTY_KINDS
from tests.gaussian.brute_force import BruteForce, nasty_client
from tests.gaussian.gaussian_clients import Client, make_client, oracle_loss


def random_settings(rng, kind):
    """Draw a client and search options of a kind that is hard in its own way."""
    size = {
        "dimension": int(rng.integers(2, 25)),
        "classes": int(rng.integers(2, 8)),
        "samples": int(rng.integers(6, 100)),
        "copies": int(rng.integers(1, 4)),
        "shift": float(rng.choice([0, 0.5, 2, 5])),
        "separation": float(rng.choice([0.5, 2, 4])),
        "local_scale": float(rng.choice([0.3, 1, 3])),
    }
    ridge = float(rng.choice([0, 1e-6, 1e-3, 0.1, 1]))
    if kind == "few samples":
        size |= {"dimension": 50, "samples": int(rng.integers(6, 25))}
    elif kind == "many samples":
        size |= {"dimension": 5, "samples": 300}
    elif kind == "missing classes":
        size |= {"classes": 10, "present": int(rng.integers(2, 5))}
    elif kind == "one class":
        size |= {"classes": 6, "present": 1}
    elif kind == "near singular":
        size |= {"smallest_scale": float(rng.choice([1e-2, 1e-3]))}
    client = make_client(int(rng.integers(1 << 30)), **size)
    options = {
        "sample_ids": client.sample_ids,
        "ridge": ridge,
        "n_folds": int(rng.choice([2, 3, 5])),
    }
    return client, options


KINDS = ["ordinary", "few samples", "many samples", "missing classes", "one class", "near singular"]


def assert_same_optimum(first, second):
    if first.loss is None or second.loss is None:
        assert first == second
        return
    same_place = (
        abs(first.means - second.means) <= 1e-4
        and abs(first.covariance - second.covariance) <= 1e-4
    )
    assert same_place or abs(first.loss - second.loss) <= 1e-6, (first, second)


@pytest.mark.parametrize("kind", KINDS)
def test_both_solvers_find_the_same_single_beta(kind):
    rng = np.random.default_rng(KINDS.index(kind))
    for _ in range(35):
        client, options = random_settings(rng, kind)
        arguments = (client.features, client.labels, client.shared)
        spectral = search_beta(*arguments, **options)
        reference = search_beta(*arguments, solver="reference", **options)
        assert_same_optimum(spectral, reference)


@pytest.mark.parametrize("kind", KINDS)
def test_both_solvers_find_the_same_two_betas(kind):
    rng = np.random.default_rng(100 + KINDS.index(kind))
    for _ in range(4):
        client, options = random_settings(rng, kind)
        arguments = (client.features, client.labels, client.shared)
        spectral = search_beta(*arguments, betas="multiple", **options)
        reference = search_beta(*arguments, betas="multiple", solver="reference", **options)
        assert_same_optimum(spectral, reference)
        single = search_beta(*arguments, **options)
        if single.loss is not None:
            assert spectral.loss <= single.loss + 1e-8


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_both_solvers_agree_on_large_features(seed):
    client = make_client(seed, dimension=512, classes=8, samples=60, shift=2.0 * seed)
    arguments = (client.features, client.labels, client.shared)
    spectral = search_beta(*arguments, ridge=0.01)
    reference = search_beta(*arguments, ridge=0.01, solver="reference")
    assert_same_optimum(spectral, reference)


@pytest.mark.parametrize("seed", range(12))
def test_no_point_of_a_fine_grid_is_lower(seed):
    rng = np.random.default_rng(seed)
    client = make_client(
        seed,
        dimension=int(rng.integers(2, 12)),
        classes=4,
        samples=int(rng.integers(12, 80)),
        copies=2,
        shift=float(rng.choice([0, 1, 3])),
        local_scale=float(rng.choice([0.5, 1, 2])),
    )
    found = search_beta(
        client.features, client.labels, client.shared, sample_ids=client.sample_ids, ridge=0.01
    )
    folds = assign_folds(client.labels, 2, sample_ids=client.sample_ids)

    def loss(beta):
        return oracle_loss(client, folds, 0.01, beta, beta)

    ends = np.geomspace(1e-6, 0.02, 20)
    grid = np.concatenate([[0.0], ends, np.linspace(0.02, 0.98, 97), 1 - ends[::-1], [1.0]])
    assert found.loss == pytest.approx(loss(found.means), abs=1e-7)
    assert found.loss <= min(loss(beta) for beta in grid) + 1e-7


# Sizes of clients whose best β is known to lie at an end, or well inside.
ENDS = {
    "at 0": (4, {"dimension": 20, "classes": 3, "samples": 30, "shift": 0.0}),
    "at 1": (1, {"dimension": 3, "classes": 3, "samples": 400, "shift": 8.0, "local_scale": 3.0}),
    "inside": (0, {"dimension": 8, "classes": 3, "samples": 60, "shift": 2.0}),
    "inside, fewer samples than features": (2, {"dimension": 20, "classes": 3, "samples": 30}),
}


@pytest.mark.parametrize("place", ENDS)
def test_the_minimum_is_found_to_many_digits_wherever_it_lies(place):
    seed, size = ENDS[place]
    client = make_client(seed, **size)
    found = search_beta(client.features, client.labels, client.shared, ridge=1e-3)
    folds = assign_folds(client.labels, 2)

    def loss(beta):
        return oracle_loss(client, folds, 1e-3, beta, beta)

    if place.startswith("at"):
        assert found.means == float(place[-1])
        beta, value = found.means, loss(found.means)
        assert value < loss(abs(beta - 1e-4))
    else:
        near = (found.means - 0.05, found.means + 0.05)
        best = minimize_scalar(loss, bounds=near, method="bounded", options={"xatol": 1e-7})
        beta, value = best.x, best.fun
    assert found.means == pytest.approx(beta, abs=1e-4)
    assert found.loss == pytest.approx(value, abs=1e-8)


def test_where_no_beta_is_better_than_another_the_global_statistics_serve():
    # Each sample comes with its mirror image, so that all classes have the mean 0, here and
    # globally, whatever the covariance: the posterior is the prior at every β.
    samples = torch.randn(40, 5, generator=torch.Generator().manual_seed(0))
    shared = GaussianStatistics(torch.zeros(3, 5), torch.eye(5))
    for mode in ("single", "multiple"):
        found = search_beta(
            torch.cat([samples, -samples]),
            (torch.arange(40) % 3).repeat(2),
            shared,
            sample_ids=torch.arange(40).repeat(2),
            betas=mode,
        )
        assert (found.means, found.covariance) == (0.0, 0.0)
        shares = np.array([14, 13, 13]) / 40
        assert found.loss == pytest.approx(-(shares * np.log(shares)).sum(), abs=1e-12)


def test_a_class_missing_from_a_training_part_does_not_disturb_the_search():
    # Class 2 has a single sample: where it is validated its mean is the global one.
    client = make_client(8, dimension=6, classes=3, samples=41, present=2, shift=1.0)
    labels = client.labels.clone()
    labels[0] = 2
    client = Client(client.features, labels, client.sample_ids, client.shared)
    arguments = (client.features, client.labels, client.shared)
    found = search_beta(*arguments, ridge=0.01)
    assert_same_optimum(found, search_beta(*arguments, ridge=0.01, solver="reference"))
    at_found = oracle_loss(client, assign_folds(labels, 2), 0.01, found.means, found.means)
    assert found.loss == pytest.approx(at_found, abs=1e-8)


@pytest.mark.parametrize("spread", [1e-2, 1e-6, 1e-9, 0.0])
def test_the_global_covariance_is_whitened_as_it_is_or_as_it_is_repaired(spread):
    generator = torch.Generator().manual_seed(0)
    rotation, _ = torch.linalg.qr(torch.randn(6, 6, generator=generator, dtype=torch.float64))
    scales = torch.tensor([1.0, 1.0, 1.0, 1.0, 1.0, spread], dtype=torch.float64)
    covariance = (rotation * scales) @ rotation.T
    covariance = (covariance + covariance.T) / 2
    kept, whitening = _whitened(covariance)
    assert torch.equal(kept, nearest_positive_definite(covariance))
    assert torch.equal(kept, covariance) == (spread >= 1e-6)
    identity = torch.eye(6, dtype=torch.float64)
    torch.testing.assert_close(whitening @ kept @ whitening.T, identity, rtol=0, atol=1e-8)


def test_no_pair_of_a_fine_grid_is_lower():
    client = make_client(5, dimension=6, classes=3, samples=40, shift=2.0, local_scale=2.0)
    found = search_beta(client.features, client.labels, client.shared, betas="multiple", ridge=0.01)
    folds = assign_folds(client.labels, 2)
    grid = np.linspace(0, 1, 31)
    best = min(oracle_loss(client, folds, 0.01, a, b) for a in grid for b in grid)
    at_found = oracle_loss(client, folds, 0.01, found.means, found.covariance)
    assert found.loss == pytest.approx(at_found, abs=1e-7)
    assert found.loss <= best + 1e-7


def problem_of(client: Client, n_folds=3, ridge=1e-3):
    samples = _checked_samples(client.features, client.labels, client.shared, None, None)
    folds = assign_folds(samples.labels, n_folds)
    features = tuple(samples.features[folds == k] for k in range(n_folds))
    labels = tuple(samples.labels[folds == k] for k in range(n_folds))
    parts = [
        _class_moments(z, y, len(samples.priors)) for z, y in zip(features, labels, strict=True)
    ]
    return _problem(
        samples.target, samples.whitening, samples.priors, features, labels, parts, ridge
    )


@pytest.mark.parametrize("point", [(0.0, 0.0), (1.0, 1.0), (0.3, 0.7), (0.999, 1e-3)])
@pytest.mark.parametrize("samples", [8, 61])
def test_derivatives_are_those_of_finite_differences_and_of_autograd(point, samples):
    problem = problem_of(make_client(3, dimension=12, classes=4, samples=samples, shift=1.0))
    loss = SpectralLoss(problem)
    value, gradient, hessian = loss.derivatives(*point, MULTIPLE)

    variables = torch.tensor(point, dtype=torch.float64, requires_grad=True)
    expected = validation_loss(problem, *variables)
    (slope,) = torch.autograd.grad(expected, variables)
    assert value == pytest.approx(expected.item(), rel=1e-9)
    np.testing.assert_allclose(gradient, slope, rtol=1e-6, atol=1e-9)

    step = 1e-6
    for i, shift in enumerate(np.eye(2) * step):
        # On the border the formula still holds a little outside of the square.
        above, below = np.array(point) + shift, np.array(point) - shift
        _, gradient_above, _ = loss.derivatives(*above, MULTIPLE)
        _, gradient_below, _ = loss.derivatives(*below, MULTIPLE)
        difference = (gradient_above - gradient_below) / (2 * step)
        scale = np.abs(hessian).max()
        np.testing.assert_allclose(hessian[i], difference, rtol=1e-4, atol=1e-6 * scale)

    _, single_slope, single_bend = loss.derivatives(*point, SINGLE)
    assert single_slope[0] == pytest.approx(gradient.sum(), rel=1e-9, abs=1e-12)
    assert single_bend[0, 0] == pytest.approx(hessian.sum(), rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("exactly", [True, False])
def test_visits_tell_the_loss_and_bound_it_from_below_everywhere(exactly):
    problem = problem_of(make_client(4, dimension=7, classes=5, samples=50))
    loss = SpectralLoss(problem)
    betas = np.linspace(0, 1, 9)
    means, covariances = (grid.ravel() for grid in np.meshgrid(betas, betas))
    everywhere = np.array(
        [
            validation_loss(problem, *torch.tensor(pair, dtype=torch.float64)).item()
            for pair in zip(means, covariances, strict=True)
        ]
    )
    bounds = loss.visit(betas, 1 - betas, exactly)
    at = [validation_loss(problem, torch.tensor(b), torch.tensor(1 - b)).item() for b in betas]
    np.testing.assert_allclose(bounds.values, at, rtol=1e-10 if exactly else 1e-3)
    assert (bounds.values >= np.array(at) - 1e-12).all()
    lower = loss.lower(bounds, np.tile(means, (9, 1)), np.tile(covariances, (9, 1)))
    assert (lower <= everywhere + 1e-12).all()
    on_mesh = loss.lower_on_mesh(bounds, betas, betas).swapaxes(1, 2).reshape(9, -1)
    np.testing.assert_allclose(on_mesh, lower, rtol=1e-9, atol=1e-9)
    touching = loss.lower(bounds, betas[:, None], 1 - betas[:, None])[:, 0]
    np.testing.assert_allclose(touching, at, atol=1e-10 if exactly else 1e-3)


def test_the_distance_of_loss_and_bound_is_the_divergence_of_posteriors():
    client = make_client(6, dimension=5, classes=4, samples=40)
    problem = problem_of(client, n_folds=2)
    loss = SpectralLoss(problem)

    def log_posteriors(beta):
        rows = []
        for fold in problem.folds:
            means = beta * fold.local_means + (1 - beta) * fold.target_means
            covariance = beta * fold.local_covariance + (1 - beta) * fold.target_covariance
            weight = torch.linalg.solve(covariance, means.T)
            logits = fold.features @ weight - 0.5 * (means.T * weight).sum(0) + problem.log_priors
            rows.append(torch.log_softmax(logits, dim=1))
        return torch.cat(rows)

    bound = loss.visit(np.array([0.3]), np.array([0.3]))
    here = log_posteriors(0.3)
    for beta in (0.0, 0.1, 0.31, 0.9, 1.0):
        point = torch.tensor(beta, dtype=torch.float64)
        gap = validation_loss(problem, point, point).item()
        gap -= float(loss.lower(bound, np.array([[beta]]), np.array([[beta]]))[0, 0])
        divergence = (here.exp() * (here - log_posteriors(beta))).sum(1).mean().item()
        assert gap == pytest.approx(divergence, abs=1e-10)


def log_odds(beta):
    return np.log((beta + 0.02) / (1 - beta + 0.02))


def assert_exact(kind, number, count, **sizes):
    """Compare searches of nasty problems with brute force."""
    rng = np.random.default_rng([NASTY_KINDS.index(kind), number])
    for _ in range(count):
        client, ridge, n_folds = nasty_client(kind, rng, **sizes)
        found = search_beta(
            client.features, client.labels, client.shared, ridge=ridge, n_folds=n_folds
        )
        if found.loss is None:  # fewer samples than folds need
            continue
        brute = BruteForce.of(client, ridge, n_folds)
        betas, losses = brute.lowest()
        point = np.array([found.means])
        at = float(brute.loss(point, point)[0])
        assert at - losses.min() < 1e-6
        assert found.loss == pytest.approx(at, rel=1e-7, abs=1e-9)
        assert found.loss >= 0
        # No clearly smaller β has a loss that is equal to half of the margin for ties.
        equal = betas[losses <= losses.min() + 5e-11]
        if len(equal):
            assert log_odds(equal.min()) > log_odds(found.means) - 0.05


@pytest.mark.parametrize("kind", NASTY_KINDS)
def test_nasty_problems_are_solved_exactly_and_ties_go_to_the_smaller_beta(kind):
    assert_exact(kind, number=0, count=8)


@pytest.mark.slow
@pytest.mark.parametrize("kind", NASTY_KINDS)
def test_a_thousand_nasty_problems_are_solved_exactly(kind):
    assert_exact(kind, number=1, count=110)


@pytest.mark.parametrize("kind", NASTY_KINDS)
def test_two_betas_of_nasty_problems_are_as_good_as_the_best_of_a_mesh(kind):
    rng = np.random.default_rng([NASTY_KINDS.index(kind), 2])
    nodes = np.concatenate([[0.0], 1 / (1 + np.exp(-np.linspace(-16, 16, 50))), [1.0]])
    means, covariances = (grid.ravel() for grid in np.meshgrid(nodes, nodes))
    client, ridge, n_folds = nasty_client(kind, rng)
    found = search_beta(
        *(client.features, client.labels, client.shared),
        betas="multiple",
        ridge=ridge,
        n_folds=n_folds,
    )
    brute = BruteForce.of(client, ridge, n_folds)
    losses = [
        brute.loss(a, b)
        for a, b in zip(np.array_split(means, 30), np.array_split(covariances, 30), strict=True)
    ]
    at = float(brute.loss(np.array([found.means]), np.array([found.covariance]))[0])
    assert at - np.concatenate(losses).min() < 1e-6


def test_of_separable_features_the_whole_plateau_is_equal_and_beta_is_zero():
    # Far apart, all classes are told apart at every β: no loss is above rounding errors.
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(40) % 4
    means = 100.0 * torch.eye(4)
    features = means[labels] + torch.randn(40, 4, generator=generator)
    for mode in ("single", "multiple"):
        shared = GaussianStatistics(means, torch.eye(4))
        found = search_beta(features, labels, shared, betas=mode, ridge=1e-3)
        assert (found.means, found.covariance) == (0.0, 0.0)


def test_shift_and_sample_size_raise_beta():
    def mean_beta(shift, samples):
        betas = []
        for seed in range(8):
            client = make_client(
                seed, dimension=16, classes=4, samples=samples, shift=shift, separation=3.0
            )
            betas.append(search_beta(client.features, client.labels, client.shared).means)
        return np.mean(betas)

    assert mean_beta(0.0, 80) < 0.15
    assert mean_beta(0.0, 80) < mean_beta(1.5, 80) - 0.1
    assert mean_beta(1.5, 80) < mean_beta(4.0, 80)
    assert mean_beta(1.5, 20) < mean_beta(1.5, 80) < mean_beta(1.5, 640)


def test_leaking_folds_drive_beta_up_where_grouped_ones_do_not():
    grouped, leaking = [], []
    for seed in range(5):
        client = make_client(
            seed,
            dimension=32,
            classes=4,
            samples=40,
            copies=5,
            shift=0.0,
            copy_noise=0.1,
            separation=1.5,
        )
        arguments = (client.features, client.labels, client.shared)
        generator = torch.Generator().manual_seed(seed)
        for betas, option in ((grouped, True), (leaking, False)):
            found = search_beta(
                *arguments, sample_ids=client.sample_ids, grouped=option, generator=generator
            )
            betas.append(found.means)
    assert np.mean(grouped) < 0.15
    assert np.mean(leaking) > 0.8


def test_beta_zero_is_the_global_classifier_with_local_priors():
    client = make_client(0, dimension=5, classes=3, samples=30)
    adaptation = adapt(client.features, client.labels, client.shared, betas=Betas(0.0, 0.0))
    priors = class_priors(torch.bincount(client.labels, minlength=3))
    expected = bayes_classifier(client.shared, priors)
    torch.testing.assert_close(adaptation.classifier.weight, expected.weight)
    torch.testing.assert_close(adaptation.classifier.bias, expected.bias)


def test_mode_none_is_the_local_classifier():
    client = make_client(0, dimension=5, classes=4, samples=30, present=3)
    arguments = (client.features, client.labels)
    adaptation = adapt(*arguments, client.shared, betas="none", ridge=0.1)
    local = estimate_statistics(*arguments, 4, prior_means=client.shared.means, ridge=0.1)
    assert adaptation.betas == Betas(1.0, 1.0)
    expected = bayes_classifier(local, class_priors(local.counts))
    torch.testing.assert_close(adaptation.classifier.weight, expected.weight)
    torch.testing.assert_close(adaptation.classifier.bias, expected.bias)


def test_adapt_is_the_sum_of_its_parts():
    client = make_client(2, dimension=9, classes=4, samples=40, copies=3, shift=2.0)
    arguments = (client.features, client.labels)
    options = {"sample_ids": client.sample_ids, "ridge": 0.01, "betas": "multiple"}
    adaptation = adapt(*arguments, client.shared, **options)
    assert adaptation.betas == search_beta(*arguments, client.shared, **options)
    local = estimate_statistics(*arguments, 4, prior_means=client.shared.means, ridge=0.01)
    torch.testing.assert_close(adaptation.local_statistics.means, local.means)
    torch.testing.assert_close(adaptation.local_statistics.covariance, local.covariance)
    beta = adaptation.betas.covariance
    torch.testing.assert_close(
        adaptation.statistics.covariance,
        beta * local.covariance + (1 - beta) * client.shared.covariance,
    )


def test_where_nothing_can_be_validated_the_global_statistics_serve():
    client = make_client(0, dimension=5, classes=3, samples=3, copies=4)
    arguments = (client.features, client.labels, client.shared)
    grouped = search_beta(*arguments, sample_ids=client.sample_ids)
    assert grouped == Betas(0.0, 0.0)
    assert search_beta(*arguments, sample_ids=client.sample_ids, grouped=False).loss is not None
    alone = make_client(0, dimension=5, classes=3, samples=30, present=1)
    found = search_beta(alone.features, alone.labels, alone.shared)
    assert (found.means, found.covariance) == (0.0, 0.0)


@pytest.mark.parametrize("samples", [1, 2, 4, 7])
@pytest.mark.parametrize("mode", ["single", "multiple", "none"])
def test_degenerate_features_yield_finite_classifiers(samples, mode):
    shared = GaussianStatistics(torch.zeros(3, 4), torch.eye(4))
    labels = torch.arange(samples) % 3
    for features in (torch.ones(samples, 4), torch.eye(4)[torch.arange(samples) % 2] * 1e4):
        for target in (shared, None):
            adaptation = adapt(features, labels, target, betas=mode, ridge=0.0)
            assert torch.isfinite(adaptation.classifier.weight).all()
            assert not torch.isnan(adaptation.classifier.log_posteriors(features)).any()
            assert 0 <= adaptation.betas.means <= 1


@pytest.mark.parametrize("mode", ["single", "multiple"])
@pytest.mark.parametrize("local_unit", [1e-9, 1.0, 1e9])
@pytest.mark.parametrize("unit", [1e-30, 1.0, 1e30])
def test_the_unit_of_the_features_does_not_matter(unit, local_unit, mode):
    client = make_client(6, dimension=6, classes=3, samples=40, shift=2.0)
    shared = GaussianStatistics(unit * client.shared.means, unit**2 * client.shared.covariance)
    features = unit * local_unit * client.features
    options = {"ridge": unit**2 * 1e-3, "betas": mode}
    adaptation = adapt(features, client.labels, shared, **options)
    assert not torch.isnan(adaptation.classifier.log_posteriors(features)).any()
    assert 0 <= adaptation.betas.means <= 1
    if local_unit == 1.0:
        plain = search_beta(client.features, client.labels, client.shared, ridge=1e-3, betas=mode)
        assert adaptation.betas.means == pytest.approx(plain.means, abs=1e-4)
        assert adaptation.betas.loss == pytest.approx(plain.loss, abs=1e-9)


def test_a_single_class_in_the_whole_model_is_certain():
    shared = GaussianStatistics(torch.zeros(1, 2), torch.eye(2))
    features = torch.randn(9, 2, generator=torch.Generator().manual_seed(0))
    adaptation = adapt(features, torch.zeros(9, dtype=torch.int64), shared)
    assert (adaptation.classifier.log_posteriors(features) == 0).all()


def test_a_broken_global_covariance_is_repaired():
    client = make_client(0, dimension=4, classes=2, samples=30)
    broken = client.shared.covariance.clone()
    broken[0] = broken[:, 0] = 0.0
    shared = GaussianStatistics(client.shared.means, broken)
    for solver in ("spectral", "reference"):
        found = search_beta(client.features, client.labels, shared, solver=solver)
        assert np.isfinite(found.loss)


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.integers(0, 3), min_size=2, max_size=40),
    st.integers(1, 4),
    st.integers(2, 5),
    st.one_of(st.none(), st.integers(0, 9)),
)
def test_folds_are_stratified_and_keep_copies_together(labels, copies, n_folds, seed):
    sample_labels = torch.tensor(labels)
    ids = torch.arange(len(labels)).repeat(copies) * 7 - 5
    generator = None if seed is None else torch.Generator().manual_seed(seed)
    folds = assign_folds(sample_labels.repeat(copies), n_folds, sample_ids=ids, generator=generator)
    by_copy = folds.view(copies, len(labels))
    assert (by_copy == by_copy[0]).all()
    for group in [None, *range(4)]:
        chosen = by_copy[0] if group is None else by_copy[0][sample_labels == group]
        counts = torch.bincount(chosen, minlength=n_folds)
        assert counts.max() - counts.min() <= 1


def test_folds_depend_on_the_generator_alone():
    labels = torch.arange(30) % 3

    def draw(seed):
        generator = torch.Generator().manual_seed(seed)
        return assign_folds(labels, 3, generator=generator).tolist()

    torch.manual_seed(0)
    state = torch.get_rng_state()
    assert draw(1) == draw(1)
    assert draw(1) != draw(2)
    assert torch.equal(torch.get_rng_state(), state)


def test_bad_input_is_refused_in_one_sentence():
    client = make_client(0, dimension=3, classes=2, samples=20)
    z, y, shared = client.features, client.labels, client.shared

    def refused(match, features=z, labels=y, target=shared, **options):
        with pytest.raises(ValueError, match=match) as caught:
            adapt(features, labels, target, **options)
        assert str(caught.value).endswith(".")
        assert ". " not in str(caught.value)

    with_nan = z.clone()
    with_nan[2, 1] = torch.inf
    refused("features holds 1 NaN or infinite values, but all must be finite", features=with_nan)
    refused("labels range from 0 to 2, but only 0 to 1 are allowed", labels=torch.arange(20) % 3)
    wide = GaussianStatistics(shared.means, torch.eye(4))
    refused(r"global covariance has shape \(4, 4\), but \(3, 3\) is needed", target=wide)
    wide = GaussianStatistics(torch.zeros(2, 5), torch.eye(3))
    refused(r"global means has shape \(2, 5\), but \(2, 3\) is needed", target=wide)
    refused(r"priors has shape \(3,\), but \(2,\) is needed", priors=torch.ones(3))
    refused("priors gives 0 to class 0", priors=torch.tensor([0.0, 1.0]))
    refused("betas is 'two', but only 'single', 'multiple' and 'none'", betas="two")
    refused("solver is 'fast', but only 'spectral', 'reference'", solver="fast")
    refused("n_folds is 1, but at least 2", n_folds=1)
    refused("ridge is nan", ridge=float("nan"))
    refused(r"beta is 2\.0", betas=Betas(2.0, 0.0))
    refused(r"sample_ids has shape \(3,\)", sample_ids=torch.arange(3))
    refused("to rows of different labels", sample_ids=torch.arange(20) // 4)


def test_clipped_solver_never_beats_the_exact_one() -> None:
    """The released search is a local one: it may stop early, but finds nothing lower."""
    for seed in range(20):
        generator = torch.Generator().manual_seed(seed)
        features = torch.randn(60, 8, generator=generator, dtype=torch.float64)
        labels = torch.arange(60) % 3
        features[labels == 1] += 1.5
        shared = GaussianStatistics(
            torch.randn(3, 8, generator=generator), torch.eye(8) * (0.2 + seed / 10)
        )
        for mode in ("single", "multiple"):
            exact, clipped = (
                search_beta(features, labels, shared, betas=mode, solver=solver)
                for solver in ("spectral", "clipped")
            )
            assert 0 <= clipped.means <= 1
            assert 0 <= clipped.covariance <= 1
            assert clipped.loss >= exact.loss - 1e-7


def test_adapt_reports_its_time_by_part() -> None:
    from contextlib import contextmanager

    parts = []

    @contextmanager
    def timer(part: str):
        parts.append(part)
        yield

    labels = torch.arange(30) % 2
    shared = GaussianStatistics(torch.zeros(2, 4), torch.eye(4))
    adapt(torch.randn(30, 4), labels, shared, timer=timer)
    assert set(parts) == {"statistics", "interpolation"}
