import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal

from pfedfda.gaussian import (
    GaussianStatistics,
    adapt,
    bayes_classifier,
    class_priors,
    interpolation_error_bound,
)


@pytest.fixture
def model():
    generator = torch.Generator().manual_seed(0)
    factor = torch.randn(4, 8, generator=generator, dtype=torch.float64)
    means = torch.randn(3, 4, generator=generator, dtype=torch.float64)
    features = torch.randn(25, 4, generator=generator, dtype=torch.float64)
    return GaussianStatistics(means, factor @ factor.T / 8), features


def test_posteriors_follow_from_the_densities_by_bayes_rule(model):
    statistics, features = model
    priors = torch.tensor([0.2, 0.5, 0.3])
    joint = np.column_stack(
        [
            prior * multivariate_normal(mean, statistics.covariance).pdf(features)
            for prior, mean in zip(priors.tolist(), statistics.means.numpy(), strict=True)
        ]
    )
    expected = joint / joint.sum(1, keepdims=True)
    posteriors = bayes_classifier(statistics, priors).log_posteriors(features).exp()
    np.testing.assert_allclose(posteriors, expected, rtol=1e-6)


def test_spherical_covariance_and_uniform_prior_give_the_nearest_mean(model):
    statistics, features = model
    spherical = GaussianStatistics(statistics.means, torch.eye(4))
    logits = bayes_classifier(spherical, torch.ones(3)).logits(features)
    nearest = torch.cdist(features, statistics.means).argmin(1)
    assert torch.equal(logits.argmax(1), nearest)


def test_a_class_with_prior_zero_has_probability_zero_and_no_nan(model):
    statistics, features = model
    classifier = bayes_classifier(statistics, torch.tensor([0.5, 0.0, 0.5]))
    two = bayes_classifier(
        GaussianStatistics(statistics.means[[0, 2]], statistics.covariance), torch.ones(2)
    )
    for dtype in (torch.float64, torch.float32):
        logits = features.to(dtype) @ classifier.weight.T.to(dtype) + classifier.bias.to(dtype)
        assert torch.isfinite(logits).all()
        assert (logits.softmax(1)[:, 1] == 0).all()
        assert torch.isfinite(logits.log_softmax(1)).all()
    torch.testing.assert_close(
        classifier.log_posteriors(features)[:, [0, 2]], two.log_posteriors(features)
    )


def test_a_singular_covariance_is_solved_by_least_squares():
    covariance = torch.diag(torch.tensor([2.0, 0.0, 1.0]))
    means = torch.tensor([[2.0, 0.0, 3.0], [4.0, 0.0, 1.0]])
    classifier = bayes_classifier(GaussianStatistics(means, covariance), torch.ones(2))
    expected = means.double().numpy() @ np.linalg.pinv(covariance.double().numpy())
    np.testing.assert_allclose(classifier.weight, expected, atol=1e-12)


def test_smoothed_priors_leave_no_class_impossible():
    assert class_priors(torch.tensor([1, 0, 3])).tolist() == [0.25, 0.0, 0.75]
    assert class_priors(torch.tensor([1, 0, 3]), smoothing=1.0).tolist() == [2 / 7, 1 / 7, 4 / 7]


def test_features_of_any_float_type_and_with_gradients_are_welcome(model):
    statistics, features = model
    labels = torch.arange(25) % 3
    exact = adapt(features.float(), labels, statistics).betas
    for dtype in (torch.float16, torch.bfloat16, torch.float64):
        near = adapt(features.to(dtype).requires_grad_(), labels, statistics)
        assert near.classifier.weight.dtype == torch.float64
        assert not near.classifier.weight.requires_grad
        assert abs(near.betas.means - exact.means) < 0.05


def test_wrong_shapes_are_refused():
    statistics = GaussianStatistics(torch.zeros(3, 4), torch.eye(5))
    with pytest.raises(ValueError, match=r"statistics\.means has shape \(3, 4\), but \(3, 5\)"):
        bayes_classifier(statistics, torch.ones(3))
    statistics = GaussianStatistics(torch.zeros(3, 4), torch.eye(4))
    with pytest.raises(ValueError, match=r"priors has shape \(2,\), but \(3,\) is needed"):
        bayes_classifier(statistics, torch.ones(2))
    with pytest.raises(ValueError, match="priors range from -1 and sum to 1"):
        bayes_classifier(statistics, torch.tensor([-1.0, 1.0, 1.0]))


@pytest.mark.parametrize("squared_shift", [0.0, 0.05, 1.0])
def test_theorem_1_holds_in_simulation(squared_shift):
    # A client with 10 of the 200 samples; its mean differs from the global one by the shift.
    dimension, local, total, draws, delta, c = 8, 10, 200, 2000, 0.1, 1.0
    generator = np.random.default_rng(0)
    scales = np.linspace(0.5, 1.5, dimension)
    others_scales = np.linspace(1.5, 0.5, dimension)
    global_scales = (local * scales + (total - local) * others_scales) / total
    # θ_g is 0; the others' mean balances the client's.
    client_mean = np.full(dimension, np.sqrt(squared_shift / dimension))
    others_mean = -local / (total - local) * client_mean
    own = client_mean + np.sqrt(scales / local) * generator.standard_normal((draws, dimension))
    others = others_mean + np.sqrt(others_scales / (total - local)) * generator.standard_normal(
        (draws, dimension)
    )
    shared = (local * own + (total - local) * others) / total
    betas = np.linspace(0, 1, 11)
    bounds = interpolation_error_bound(
        torch.from_numpy(betas),
        squared_shift=squared_shift,
        local_trace=float(scales.sum()),
        global_trace=float(global_scales.sum()),
        local_samples=local,
        total_samples=total,
        delta=delta,
        c=c,
    )
    for beta, bound in zip(betas, bounds.tolist(), strict=True):
        error = ((beta * own + (1 - beta) * shared - client_mean) ** 2).sum(1)
        assert (error <= bound).mean() >= 1 - delta
        assert error.mean() >= bound / 100  # it is a bound, not a number out of reach


def test_the_bound_trades_bias_for_variance():
    def best(squared_shift, local_samples):
        betas = torch.linspace(0, 1, 1001)
        bounds = interpolation_error_bound(
            betas,
            squared_shift=squared_shift,
            local_trace=1.0,
            global_trace=1.0,
            local_samples=local_samples,
            total_samples=10_000,
            delta=0.1,
            c=1.0,
        )
        return float(betas[bounds.argmin()])

    assert best(0.0, 100) == 0.0
    assert best(0.1, 1000) < best(1.0, 1000) < 1.0
    assert best(1.0, 100) < best(1.0, 1000)


def test_the_bound_refuses_what_has_no_meaning():
    known = {
        "squared_shift": 1.0,
        "local_trace": 1.0,
        "global_trace": 1.0,
        "local_samples": 10,
        "total_samples": 100,
    }
    assert isinstance(interpolation_error_bound(0.5, delta=0.1, c=1.0, **known), float)
    with pytest.raises(ValueError, match=r"delta is 1\.0, but only numbers between 0 and 1"):
        interpolation_error_bound(0.5, delta=1.0, c=1.0, **known)
    with pytest.raises(ValueError, match="c is 0, but only positive"):
        interpolation_error_bound(0.5, delta=0.1, c=0, **known)
    with pytest.raises(ValueError, match=r"beta is 1\.5"):
        interpolation_error_bound(1.5, delta=0.1, c=1.0, **known)
    with pytest.raises(ValueError, match="local_samples is 200 of total_samples 100"):
        interpolation_error_bound(0.5, delta=0.1, c=1.0, **{**known, "local_samples": 200})
