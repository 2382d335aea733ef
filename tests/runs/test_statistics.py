"""Intervals and tests keep what they promise, on accuracies whose truth is known."""

import math
from itertools import combinations

import numpy as np
import pytest
from scipy import stats

from pfedfda.runs.statistics import (
    cliques,
    critical_difference,
    friedman,
    holm,
    mean_interval,
    mean_ranks,
    paired_difference,
)

DRAWS = 2000
TEST_SAMPLES = 20


def accuracies(
    generator: np.random.Generator, truth: float, seed: float, client: float, shape: tuple[int, int]
) -> np.ndarray:
    """Return accuracies by seed and client: counts of correct samples, with random effects."""
    effects = generator.normal(0, seed, (shape[0], 1)) + generator.normal(0, client, (1, shape[1]))
    chance = truth + effects + generator.normal(0, 0.02, shape)
    return generator.binomial(TEST_SAMPLES, np.clip(chance, 0, 1)) / TEST_SAMPLES


@pytest.mark.parametrize("seed", [0.0, 0.005, 0.05])
def test_the_interval_of_a_mean_covers_the_mean_of_these_clients(seed: float) -> None:
    """The clients are fixed: each has its own accuracy, and only the seeds are drawn anew."""
    generator = np.random.default_rng(1)
    clients = 0.7 + generator.uniform(-0.15, 0.15, 40)
    covered = 0
    for _ in range(DRAWS):
        chance = clients + generator.normal(0, seed, (3, 1))
        counts = generator.binomial(TEST_SAMPLES, np.clip(chance, 0, 1))
        found = mean_interval((counts / TEST_SAMPLES).mean(axis=1).tolist())
        assert found.low is not None
        assert found.high is not None
        covered += found.low <= clients.mean() <= found.high
    assert 0.93 <= covered / DRAWS <= 0.97


@pytest.mark.parametrize("seed", [0.0, 0.01, 0.03, 0.1])
@pytest.mark.parametrize("client", [0.0, 0.05, 0.1])
def test_the_interval_of_a_difference_covers_it(seed: float, client: float) -> None:
    """Of other clients and other seeds, where all clients were measured with all of three seeds."""
    generator = np.random.default_rng(2)
    truth, covered = 0.03, 0
    for _ in range(DRAWS):
        effects = generator.normal(0, seed, (3, 1)) + generator.normal(0, client, (1, 40))
        first = truth + effects + generator.normal(0, 0.1, (3, 40))
        found = paired_difference(first, np.zeros((3, 40)))
        assert found.low is not None
        assert found.high is not None
        covered += found.low <= truth <= found.high
    assert 0.93 <= covered / DRAWS <= 0.97


def test_the_interval_of_a_difference_covers_it_where_every_seed_has_its_own_clients() -> None:
    generator = np.random.default_rng(3)
    truth, covered = 0.02, 0
    for _ in range(DRAWS):
        matrix = truth + generator.normal(0, 0.02, (3, 1)) + generator.normal(0, 0.1, (3, 40))
        found = paired_difference(matrix, np.zeros((3, 40)), same_clients=False)
        assert found.low is not None
        assert found.high is not None
        covered += found.low <= truth <= found.high
    assert 0.93 <= covered / DRAWS <= 0.97


@pytest.mark.parametrize("same_clients", [True, False])
@pytest.mark.parametrize(("seed", "client"), [(0.0, 0.0), (0.02, 0.05), (0.05, 0.02)])
def test_the_corrected_test_keeps_its_level(seed: float, client: float, same_clients: bool) -> None:
    """Four equal methods, six pairs: any difference that is found is wrong."""
    generator = np.random.default_rng(4)
    wrong = 0
    for _ in range(1000):
        shared = generator.uniform(-0.1, 0.1, (1, 40))  # clients agree on what is hard
        methods = [accuracies(generator, 0.7 + shared, seed, client, (3, 40)) for _ in range(4)]
        if not same_clients:
            methods = [0.7 + generator.normal(0, seed, (3, 1))
                       + generator.normal(0, 0.1, (3, 40)) for _ in range(4)]  # fmt: skip
        found = [paired_difference(*pair, same_clients) for pair in combinations(methods, 2)]
        wrong += min(holm([pair.p for pair in found if pair.p is not None])) <= 0.05
    assert wrong / 1000 <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 1000)


def test_a_clear_lead_is_found() -> None:
    generator = np.random.default_rng(5)
    found = 0
    for _ in range(200):
        better = accuracies(generator, 0.8, 0.005, 0.05, (3, 40))
        worse = accuracies(generator, 0.7, 0.005, 0.05, (3, 40))
        p = paired_difference(better, worse).p
        assert p is not None
        found += p <= 0.05
    assert found / 200 > 0.9


def test_one_seed_is_the_paired_t_test_over_clients() -> None:
    first, second = np.random.default_rng(6).random((2, 1, 25))
    found = paired_difference(first, second)
    oracle = stats.ttest_rel(first[0], second[0])
    assert found.p == pytest.approx(oracle.pvalue)
    ends = oracle.confidence_interval(0.95)
    assert (found.low, found.high) == (pytest.approx(ends.low), pytest.approx(ends.high))


def test_own_clients_in_every_seed_are_the_paired_t_test_over_seeds() -> None:
    first, second = np.random.default_rng(7).random((2, 4, 25))
    found = paired_difference(first, second, same_clients=False)
    oracle = stats.ttest_rel(first.mean(axis=1), second.mean(axis=1))
    assert found.p == pytest.approx(oracle.pvalue)


def test_clients_that_differ_by_nothing_but_noise_leave_the_t_test_over_seeds() -> None:
    """Where the estimate of their variance is not positive, the seeds are all there is."""
    matrix = np.array([[0.0, 0.2, 0.1, 0.3], [0.3, 0.1, 0.2, 0.0], [0.25, 0.25, 0.25, 0.25]])
    found = paired_difference(matrix, np.zeros_like(matrix))
    oracle = stats.ttest_1samp(matrix.mean(axis=1), 0.0)
    assert found.p == pytest.approx(oracle.pvalue)


def test_the_interval_and_the_test_agree() -> None:
    generator = np.random.default_rng(8)
    for _ in range(100):
        matrix = generator.normal(0.02, 0.05, (3, 12)) + generator.normal(0, 0.05, (1, 12))
        found = paired_difference(matrix, np.zeros_like(matrix))
        assert found.p is not None
        assert found.low is not None
        assert found.high is not None
        assert (found.p <= 0.05) == (not found.low <= 0 <= found.high)
        back = paired_difference(np.zeros_like(matrix), matrix)
        assert back.reversed() == found


def test_one_value_has_no_interval() -> None:
    assert mean_interval([0.5]).low is None
    assert paired_difference([[0.5]], [[0.4]]).p is None
    assert paired_difference([[0.5, 0.6]] * 3, [[0.5, 0.6]] * 3).p == 1.0


def test_holm_is_as_in_his_paper() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([]) == []


def test_critical_differences_are_those_of_the_published_table() -> None:
    """Table 5 of Demšar, JMLR 2006: q for α = 0.05."""
    for methods, q in {2: 1.960, 3: 2.343, 4: 2.569, 5: 2.728, 8: 3.031, 10: 3.164}.items():
        scale = math.sqrt(methods * (methods + 1) / (6 * 14))
        assert critical_difference(methods, 14) / scale == pytest.approx(q, abs=0.001)


def test_friedman_is_that_of_an_independent_implementation() -> None:
    scores = np.random.default_rng(9).random((8, 4))
    square = stats.friedmanchisquare(*scores.T).statistic
    ratio = 7 * square / (8 * 3 - square)
    assert friedman(scores) == pytest.approx(stats.f.sf(ratio, 3, 21))
    assert friedman([[3.0, 2.0, 1.0]] * 3) == 0.0


def test_ranks_and_cliques() -> None:
    assert mean_ranks([[0.9, 0.8, 0.8], [0.7, 0.9, 0.1]]) == [1.5, 1.75, 2.75]
    assert cliques([1.0, 1.5, 2.6, 4.0], 1.2) == [(1.0, 1.5), (1.5, 2.6)]
    assert cliques([1.0, 3.0], 1.0) == []
