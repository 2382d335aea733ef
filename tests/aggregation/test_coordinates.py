"""Medians and trimmed means against numpy, scipy, Flower and definitions."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

from pfedfda.aggregation import coordinates
from pfedfda.aggregation.client_values import Values
from pfedfda.aggregation.coordinates import number_of, trimmed_mean, weighted_median


def some(clients: int, *shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(clients, *shape, generator=generator, dtype=torch.float64)


def alike(values: Tensor) -> Values:
    return Values(values, torch.ones(len(values), *[1] * (values.ndim - 1), dtype=torch.float64))


@pytest.mark.parametrize("clients", [1, 2, 3, 8, 11])
def test_with_equal_votes_the_median_is_that_of_numpy(clients: int) -> None:
    values = some(clients, 3, 4)
    expected = np.median(values.numpy(), axis=0)
    np.testing.assert_array_equal(weighted_median(alike(values)).numpy(), expected)


@pytest.mark.parametrize(("clients", "share"), [(10, 0.2), (5, 0.2), (20, 0.1), (7, 0.0), (4, 0.0)])
def test_with_equal_votes_the_trimmed_mean_is_that_of_scipy(clients: int, share: float) -> None:
    """Where the share is a whole number of clients; scipy rounds down, and liars are rounded up."""
    values = some(clients, 6)
    expected = stats.trim_mean(values.numpy(), share, axis=0)
    np.testing.assert_allclose(trimmed_mean(alike(values), share).numpy(), expected, rtol=1e-12)


def test_both_are_those_of_flower() -> None:
    aggregate = pytest.importorskip("flwr.server.strategy.aggregate")
    values = some(15, 4, 3)
    results = [([layer.numpy()], 1) for layer in values]
    (median,) = aggregate.aggregate_median(results)
    np.testing.assert_array_equal(weighted_median(alike(values)).numpy(), median)
    (trimmed,) = aggregate.aggregate_trimmed_avg(results, 0.2)
    np.testing.assert_allclose(trimmed_mean(alike(values), 0.2).numpy(), trimmed, rtol=1e-12)


@settings(max_examples=40)
@given(st.lists(st.tuples(st.integers(-9, 9), st.integers(0, 5)), min_size=1, max_size=9))
def test_a_vote_of_k_is_k_clients_of_one_vote(clients: list[tuple[int, int]]) -> None:
    values = torch.tensor([float(value) for value, _ in clients])[:, None].double()
    votes = torch.tensor([float(vote) for _, vote in clients])[:, None].double()
    repeated = [float(value) for value, vote in clients for _ in range(vote)]
    found = weighted_median(Values(values, votes))
    assert float(found) == (np.median(repeated) if repeated else 0.0)


def test_without_liars_the_trimmed_mean_is_the_weighted_mean() -> None:
    values, votes = some(9, 5), torch.arange(9.0).double()[:, None]
    expected = np.average(values.numpy(), axis=0, weights=votes[:, 0].numpy())
    np.testing.assert_allclose(trimmed_mean(Values(values, votes), 0.0), expected, rtol=1e-12)


def test_who_says_nothing_is_not_counted() -> None:
    """Two of five entries are held by some clients alone; 99 stands where nobody speaks."""
    values = torch.tensor([[1.0, 99.0], [2.0, 5.0], [6.0, 99.0]]).double()
    votes = torch.tensor([[1.0, 0.0], [1.0, 3.0], [1.0, 0.0]]).double()
    given = Values(values, votes)
    assert weighted_median(given).tolist() == [2.0, 5.0]
    assert trimmed_mean(given, 0.3).tolist() == [2.0, 5.0]
    nobody = Values(values, torch.zeros_like(votes))
    assert weighted_median(nobody).tolist() == [0.0, 0.0]
    assert trimmed_mean(nobody, 0.3).tolist() == [0.0, 0.0]


def test_no_vote_is_large_enough_to_leave_the_range_of_others() -> None:
    """Trimming counts clients, so that nobody gains by claiming more samples."""
    values, votes = some(11, 4), torch.ones(11, 1).double()
    values[3], votes[3] = 1e6, 1e9
    others = torch.cat([values[:3], values[4:]])
    found = trimmed_mean(Values(values, votes), 0.2)
    assert bool((found <= others.amax(0)).all())
    assert bool((found >= others.amin(0)).all())


def test_a_share_of_clients_is_rounded_up_but_not_by_rounding_errors() -> None:
    numbers = [int(number_of(0.1, torch.tensor(n))) for n in (0, 1, 10, 30, 31)]
    assert numbers == [0, 1, 1, 3, 4]


@pytest.mark.parametrize("rule", [weighted_median, lambda given: trimmed_mean(given, 0.2)])
def test_a_few_columns_at_a_time_give_the_same(rule, monkeypatch: pytest.MonkeyPatch) -> None:
    given = Values(some(7, 5, 3), torch.arange(1.0, 8.0).double()[:, None, None])
    whole = rule(given)
    monkeypatch.setattr(coordinates, "AT_ONCE", 21)
    assert torch.equal(rule(given), whole)
    assert rule(Values(torch.empty(7, 0), torch.ones(7, 1))).shape == (0,)
