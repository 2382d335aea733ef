import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from pfedfda.gaussian import (
    GaussianStatistics,
    bayes_classifier,
    class_moments,
    class_priors,
    estimate_statistics,
    interpolate,
    is_positive_semidefinite,
    merge_moments,
    nearest_positive_definite,
    pack_symmetric,
    statistics_from_moments,
    unpack_symmetric,
)

numbers = st.floats(-1e3, 1e3, allow_nan=False, width=32)


@st.composite
def labelled_features(draw):
    samples, dimension = draw(st.integers(1, 12)), draw(st.integers(1, 6))
    features = draw(arrays(np.float64, (samples, dimension), elements=numbers))
    labels = draw(st.lists(st.integers(0, 3), min_size=samples, max_size=samples))
    return torch.from_numpy(features), torch.tensor(labels)


@st.composite
def symmetric_matrices(draw):
    """Matrices with a diagonal of at least 0: indefinite, singular, or fine."""
    dimension = draw(st.integers(1, 6))
    rank = draw(st.integers(0, 6))
    factor = draw(arrays(np.float64, (dimension, rank), elements=st.floats(-10, 10, width=32)))
    noise = draw(arrays(np.float64, (dimension, dimension), elements=st.floats(-1, 1, width=32)))
    noise = noise + noise.T
    np.fill_diagonal(noise, 0.0)
    return torch.from_numpy(factor @ factor.T + draw(st.sampled_from([0.0, 1.0])) * noise)


@settings(deadline=None, max_examples=60)
@given(labelled_features())
def test_means_and_covariance_are_those_of_numpy(data):
    features, labels = data
    estimate = estimate_statistics(features, labels, 4)
    z, y = features.numpy(), labels.numpy()
    scale = max(1.0, float(np.abs(z).max()))
    deviations = np.zeros_like(z)
    for c in range(4):
        if (y == c).any():
            np.testing.assert_allclose(
                estimate.means[c], z[y == c].mean(0), rtol=0, atol=1e-12 * scale
            )
            deviations[y == c] = z[y == c] - z[y == c].mean(0)
        else:
            np.testing.assert_allclose(estimate.means[c], z.mean(0), rtol=0, atol=1e-12 * scale)
    expected = sum(np.outer(row, row) for row in deviations) / max(len(z) - 1, 1)
    np.testing.assert_allclose(estimate.covariance, expected, rtol=0, atol=1e-11 * scale**2)
    assert estimate.counts.tolist() == np.bincount(y, minlength=4).tolist()


def test_the_covariance_of_one_class_is_the_sample_covariance():
    features = torch.randn(20, 3, generator=torch.Generator().manual_seed(0))
    estimate = estimate_statistics(features, torch.zeros(20, dtype=torch.int64), 1)
    np.testing.assert_allclose(estimate.covariance, np.cov(features.double().numpy().T), rtol=1e-6)


@settings(deadline=None, max_examples=40)
@given(labelled_features(), st.integers(1, 3))
def test_moments_of_parts_merge_into_those_of_the_whole(data, parts):
    features, labels = data
    whole = class_moments(features, labels, 4)
    pieces = [
        class_moments(features[i::parts], labels[i::parts], 4)
        for i in range(parts)
        if len(labels[i::parts])
    ]
    merged = merge_moments(pieces)
    scale = max(1.0, float(features.abs().max()))
    torch.testing.assert_close(merged.counts, whole.counts)
    torch.testing.assert_close(merged.means, whole.means, rtol=0, atol=1e-12 * scale)
    torch.testing.assert_close(merged.scatter, whole.scatter, rtol=0, atol=1e-10 * scale**2)


def test_absent_classes_take_the_prior_means():
    prior_means = torch.arange(6.0).reshape(3, 2)
    features, labels = torch.ones(4, 2), torch.tensor([1, 1, 1, 1])
    means = estimate_statistics(features, labels, 3, prior_means=prior_means).means
    assert means.tolist() == [[0.0, 1.0], [1.0, 1.0], [4.0, 5.0]]


def test_a_large_offset_costs_no_digits():
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(50, 4, generator=generator, dtype=torch.float64)
    labels = torch.arange(50) % 2
    near = estimate_statistics(features, labels, 2)
    far = estimate_statistics(features + 1e6, labels, 2)
    torch.testing.assert_close(far.covariance, near.covariance, rtol=0, atol=1e-8)


def test_a_feature_that_never_changes_has_exactly_no_variance():
    features = torch.tensor([[0.1, 1.0], [0.1, 2.0], [0.1, 4.0]]) * 1e6
    estimate = estimate_statistics(features, torch.tensor([0, 0, 1]), 2)
    assert estimate.covariance[0].tolist() == [0.0, 0.0]


def test_the_ridge_is_added_to_the_diagonal_only():
    features = torch.randn(6, 3, generator=torch.Generator().manual_seed(1))
    labels = torch.zeros(6, dtype=torch.int64)
    plain = estimate_statistics(features, labels, 1).covariance
    ridged = estimate_statistics(features, labels, 1, ridge=0.5).covariance
    torch.testing.assert_close(ridged - plain, 0.5 * torch.eye(3, dtype=torch.float64))


@pytest.mark.parametrize(
    "features",
    [
        torch.zeros(1, 3),
        torch.ones(5, 3),
        torch.tensor([[1.0, 2.0, 3.0]]).repeat(6, 1),
        torch.tensor([[1.0, 5.0, 0.0], [2.0, 5.0, 0.0], [3.0, 5.0, 0.0]]),
    ],
    ids=["one sample", "constant", "duplicates", "two constant features"],
)
def test_degenerate_samples_give_finite_classifiers(features):
    labels = torch.arange(len(features)) % 2
    estimate = estimate_statistics(features, labels, 3, repair=True)
    classifier = bayes_classifier(estimate, class_priors(estimate.counts))
    posteriors = classifier.log_posteriors(features).exp()
    assert torch.isfinite(estimate.covariance).all()
    assert torch.isfinite(classifier.weight).all()
    assert torch.isfinite(classifier.bias).all()
    torch.testing.assert_close(posteriors.sum(1), torch.ones(len(features), dtype=torch.float64))


@settings(deadline=None, max_examples=150)
@given(symmetric_matrices())
def test_a_repaired_covariance_is_positive_definite_with_the_same_variances(matrix):
    repaired = nearest_positive_definite(matrix)
    variances = matrix.diagonal()
    varying = variances > 1e-31 * variances.max()
    assert torch.equal(repaired.diagonal()[varying], variances[varying])
    assert (repaired.diagonal() > 0).all()
    assert torch.equal(repaired, repaired.T)
    deviations = repaired.diagonal().sqrt()
    correlation = repaired / deviations[:, None] / deviations
    assert torch.linalg.eigvalsh(correlation)[0] > 0.99e-6


def test_a_positive_definite_covariance_is_left_alone():
    factor = torch.randn(5, 9, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    covariance = factor @ factor.T
    covariance = (covariance + covariance.T) / 2
    assert torch.equal(nearest_positive_definite(covariance), covariance)


def test_repairing_twice_is_repairing_once():
    factor = torch.randn(6, 2, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    once = nearest_positive_definite(factor @ factor.T)
    assert torch.equal(nearest_positive_definite(once), once)


def test_a_singular_covariance_moves_hardly_at_all():
    factor = torch.randn(6, 2, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    singular = factor @ factor.T
    assert (nearest_positive_definite(singular) - singular).abs().max() < 1e-4


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 9), st.sampled_from([torch.float32, torch.float64]), st.integers(0, 99))
def test_packing_loses_no_bit(dimension, dtype, seed):
    matrix = torch.randn(dimension, dimension, generator=torch.Generator().manual_seed(seed))
    matrix = (matrix + matrix.T).to(dtype)
    packed = pack_symmetric(matrix)
    assert packed.shape == (dimension * (dimension + 1) // 2,)
    assert packed.dtype == dtype
    assert torch.equal(unpack_symmetric(packed), matrix)


def test_interpolation_is_linear_and_meets_its_ends():
    local = GaussianStatistics(torch.ones(2, 3), 2 * torch.eye(3), torch.tensor([3, 4]))
    shared = GaussianStatistics(torch.zeros(2, 3), torch.eye(3))
    assert torch.equal(interpolate(local, shared, 1.0).means, local.means.double())
    assert torch.equal(interpolate(local, shared, 0.0).covariance, shared.covariance.double())
    mixed = interpolate(local, shared, 0.25, 0.5)
    torch.testing.assert_close(mixed.means, torch.full((2, 3), 0.25, dtype=torch.float64))
    torch.testing.assert_close(mixed.covariance, 1.5 * torch.eye(3, dtype=torch.float64))
    assert mixed.counts.tolist() == [3, 4]


def refused(call, *parts):
    """The call raises a ValueError of one sentence that has all the parts in it."""
    with pytest.raises(ValueError, match=r"\.$") as caught:
        call()
    message = str(caught.value)
    assert ". " not in message
    for part in parts:
        assert part in message


def test_bad_input_is_refused_in_one_sentence():
    features, labels = torch.zeros(3, 2), torch.tensor([0, 1, 0])
    with_nan = features.clone()
    with_nan[1, 1] = torch.nan
    refused(lambda: estimate_statistics(with_nan, labels, 2), "features", "1 NaN or infinite")
    refused(lambda: estimate_statistics(features, labels, 1), "0 to 1", "only 0 to 0 are allowed")
    refused(lambda: estimate_statistics(features, labels - 1, 2), "-1 to 0", "only 0 to 1")
    refused(lambda: estimate_statistics(features, labels[:2], 2), "labels has shape (2,)", "3 rows")
    refused(lambda: estimate_statistics(features, labels.float(), 2), "torch.float32", "integer")
    refused(lambda: estimate_statistics(features[0], labels, 2), "features has shape (2,)")
    refused(lambda: estimate_statistics(features[:0], labels[:0], 2), "features has shape (0, 2)")
    refused(
        lambda: estimate_statistics(features, labels, 2, prior_means=torch.zeros(3, 2)),
        "prior_means has shape (3, 2)",
        "(2, 2) is needed",
    )
    refused(lambda: estimate_statistics(features, labels, 2, ridge=-1.0), "ridge is -1.0")
    refused(lambda: nearest_positive_definite(torch.zeros(2, 3)), "shape (2, 3)", "square")
    refused(lambda: nearest_positive_definite(torch.eye(2), floor=2.0), "floor is 2.0")
    refused(lambda: nearest_positive_definite(-torch.eye(2)), "variance -1")
    refused(lambda: unpack_symmetric(torch.zeros(4)), "shape (4,)", "d(d+1)/2")
    refused(lambda: pack_symmetric(torch.zeros(4)), "shape (4,)", "square")
    refused(lambda: class_priors(torch.zeros(3)), "sum to 0")
    refused(lambda: class_priors(torch.ones(3), -1.0), "smoothing is -1.0")
    refused(lambda: merge_moments([]), "0 sets")
    nothing = class_moments(features, labels, 2)
    nothing = type(nothing)(0 * nothing.counts, nothing.means, nothing.scatter)
    refused(lambda: statistics_from_moments(nothing), "0 samples")
    shared = GaussianStatistics(torch.zeros(2, 3), torch.eye(3))
    refused(lambda: interpolate(shared, shared, 1.5), "beta is 1.5", "from 0 to 1")
    other = GaussianStatistics(torch.zeros(4, 3), torch.eye(3))
    refused(lambda: interpolate(other, shared, 0.5), "shape (4, 3)", "(2, 3)")
    other = GaussianStatistics(torch.zeros(2, 3), torch.eye(2))
    refused(lambda: interpolate(other, shared, 0.5), "shape (2, 2)", "(3, 3)")


@pytest.mark.parametrize("dimension", [1, 2, 50, 512])
@pytest.mark.parametrize("samples", [1, 2, 30, 2000])
def test_what_is_a_covariance_is_seen_from_its_rounded_entries(
    dimension: int, samples: int
) -> None:
    """Of low rank, of features of very different scales, some constant: rounding is forgiven."""
    generator = torch.Generator().manual_seed(dimension + samples)
    features = torch.randn(samples, dimension, generator=generator, dtype=torch.float64)
    features *= 10.0 ** torch.linspace(-20, 3, dimension).double()
    features[:, ::3] = features[:, :1].clone() if samples == 30 else 7.0
    covariance = features.T.cov().reshape(dimension, dimension) if samples > 1 else None
    covariance = torch.zeros(dimension, dimension) if covariance is None else covariance
    rounded = covariance.float()
    assert is_positive_semidefinite(rounded)
    # A correlation above 1 between any two features, constant or not, is none.
    for first, second in [(0, 1), (1, 2), (2, 4)]:
        if second < dimension:
            wrong = rounded.double()
            product = wrong[first, first] * wrong[second, second]
            wrong[first, second] = wrong[second, first] = 1.01 * product.sqrt() + 1e-6
            assert not is_positive_semidefinite(wrong)
    wrong = rounded.double()
    wrong[-1, -1] = -1e-20
    assert not is_positive_semidefinite(wrong)
