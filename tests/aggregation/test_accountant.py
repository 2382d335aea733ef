"""What noise costs, against closed forms, an integral and a second accountant."""

import math
import sys

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.optimize import brentq
from scipy.stats import norm

from pfedfda.aggregation.accountant import Rounds, noise_for, require, rounds_of, spent
from pfedfda.errors import InputError

ERROR = 0.015  # the accountant returns an upper bound, at most about 0.01 above


def gaussian_delta(epsilon: float, noise: float, rounds: int) -> float:
    """Return the δ of rounds of the Gaussian mechanism (Balle and Wang, ICML 2018, Theorem 8)."""
    mu = math.sqrt(rounds) / noise  # of independent Gaussians only the sum of squares matters
    return float(
        norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu)
    )


def sampled_delta(epsilon: float, noise: float, rate: float) -> float:
    """Return the δ of one round at this rate, by integration, for the worse of both directions."""

    def without(x: float) -> float:
        return float(norm.pdf(x, 0, noise))

    def having(x: float) -> float:
        return (1 - rate) * without(x) + rate * float(norm.pdf(x, 1, noise))

    def excess(first, second) -> float:
        def density(x: float) -> float:
            return max(first(x) - math.exp(epsilon) * second(x), 0.0)

        return quad(density, -12 * noise, 12 * noise + 1, limit=500, points=[0, 1])[0]

    return max(excess(having, without), excess(without, having))


@pytest.mark.parametrize("delta", [1e-2, 1e-5])
@pytest.mark.parametrize(("noise", "rounds"), [(0.5, 1), (1.0, 1), (4.0, 1), (3.0, 10), (8.0, 50)])
def test_epsilon_of_full_rounds_is_that_of_the_closed_form(
    noise: float, rounds: int, delta: float
) -> None:
    exact = brentq(lambda e: gaussian_delta(e, noise, rounds) - delta, -1, 200)
    found = spent(noise, (Rounds(1.0, rounds),), delta)
    assert max(exact, 0) <= found <= max(exact, 0) + ERROR


@pytest.mark.parametrize(("noise", "rate"), [(0.7, 0.1), (1.0, 0.3), (2.0, 0.9)])
def test_epsilon_of_a_sampled_round_is_that_of_the_integral(noise: float, rate: float) -> None:
    delta = 1e-3
    exact = brentq(lambda e: sampled_delta(e, noise, rate) - delta, 0.01, 50)
    assert exact <= spent(noise, (Rounds(rate, 1),), delta) <= exact + ERROR


def test_a_second_accountant_agrees_on_sampled_rounds() -> None:
    """Moments of the privacy loss give an upper bound that is known to be somewhat loose."""
    from opacus.accountants import RDPAccountant

    for noise, rounds in ((1.0, rounds_of(50, 0.3)), (2.0, rounds_of(200, 0.1))):
        other = RDPAccountant()
        other.history = [(noise, part.rate, part.number) for part in rounds]
        bound = other.get_epsilon(1e-3)
        assert 0.75 * bound <= spent(noise, rounds, 1e-3) <= bound


def test_in_the_last_round_all_clients_take_part() -> None:
    assert rounds_of(50, 0.3) == (Rounds(0.3, 49), Rounds(1.0, 1))
    assert rounds_of(50, 0.3, so_far=20) == (Rounds(0.3, 20),)
    assert rounds_of(50, 0.3, so_far=0) == ()
    assert rounds_of(1, 0.3) == (Rounds(1.0, 1),)
    assert rounds_of(7, 1.0, so_far=3) == (Rounds(1.0, 3),)
    assert rounds_of(7, 1.0) == (Rounds(1.0, 7),)


@pytest.mark.parametrize("epsilon", [0.5, 2.0, 8.0])
@pytest.mark.parametrize("rounds", [rounds_of(1, 1.0), rounds_of(10, 0.3)])
def test_noise_spends_the_budget_and_no_more(epsilon: float, rounds: tuple[Rounds, ...]) -> None:
    noise = noise_for(epsilon, 1e-3, rounds)
    assert 0.98 * epsilon - ERROR < spent(noise, rounds, 1e-3) <= epsilon
    assert spent(0.98 * noise, rounds, 1e-3) > epsilon


def test_more_rounds_and_more_clients_per_round_need_more_noise() -> None:
    noises = [noise_for(2.0, 1e-3, rounds_of(n, q)) for n, q in ((5, 0.1), (20, 0.1), (20, 0.5))]
    assert noises == sorted(noises)
    assert len(set(noises)) == 3


def test_amplification_is_worth_something() -> None:
    rounds = rounds_of(30, 0.1)
    assert noise_for(2.0, 1e-3, rounds) < 0.8 * noise_for(2.0, 1e-3, (Rounds(1.0, 30),))


def test_nothing_costs_nothing() -> None:
    assert spent(1.0, (), 1e-3) == 0


def test_without_the_extra_one_sentence_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "opacus.accountants", None)
    with pytest.raises(InputError, match=r"pip install 'pfedfda\[privacy\]'"):
        require()


def test_the_accountant_leaves_numpy_as_it_was() -> None:
    before = np.geterr()
    spent(1.1, (Rounds(1.0, 2),), 1e-3)
    assert np.geterr() == before
