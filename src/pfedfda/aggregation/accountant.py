"""What rounds of a Gaussian mechanism cost, by opacus's accountant.

A round in which every client takes part with probability q, by its own coin, and the clipped sum
gets noise of σ clips, is the Poisson-subsampled Gaussian mechanism. The accountant composes rounds
of several q by the distribution of their privacy loss (Gopi, Lee and Wutschitz, NeurIPS 2021). What
it returns is an upper bound, by about 0.01 above the exact ε.
"""

import warnings
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from pfedfda.errors import InputError

ACCOUNTANT = "privacy loss distributions (opacus PRVAccountant)"
SMALLEST, LARGEST = 0.05, 1e5  # noise multipliers
TOLERANCE = 1e-3  # relative, of the noise multiplier


class Rounds(NamedTuple):
    """Rounds in which every client takes part with the same probability."""

    rate: float
    number: int


def rounds_of(total: int, participation: float, so_far: int | None = None) -> tuple[Rounds, ...]:
    """Return the rounds of a run by their rates: in the last one all clients take part.

    Parameters
    ----------
    total
        How many rounds the run has.
    participation
        The rate of all rounds but the last.
    so_far
        How many of them count; all by default.
    """
    so_far = total if so_far is None else so_far
    sampled, full = min(so_far, total - 1), int(so_far >= total)
    if participation == 1:
        sampled, full = 0, sampled + full
    return tuple(part for part in (Rounds(participation, sampled), Rounds(1.0, full)) if part[1])


def require() -> None:
    """Refuse to go on without the accountant."""
    try:
        import opacus.accountants  # noqa: F401
    except ImportError:
        raise InputError(
            "dp-epsilon needs an accountant, which is not installed: pip install 'pfedfda[privacy]'"
        ) from None


@lru_cache(maxsize=64)
def spent(noise: float, rounds: Sequence[Rounds], delta: float) -> float:
    """Return the ε that rounds with noise of so many clips cost at δ."""
    if not rounds:
        return 0.0
    from opacus.accountants import PRVAccountant

    accountant = PRVAccountant()
    accountant.history = [(noise, part.rate, part.number) for part in rounds]
    # At rate 1 the chance to be left out is 0; its logarithm is -inf, as it should be. A rough
    # bound, from which the accountant takes the size of its grid, may warn that it is rough.
    with np.errstate(divide="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return float(accountant.get_epsilon(delta))


@lru_cache(maxsize=64)
def noise_for(epsilon: float, delta: float, rounds: Sequence[Rounds]) -> float:
    """Return the least noise, in clips, with which rounds cost at most ε at δ."""
    low, high = SMALLEST, 1.0
    while not affordable(high, epsilon, delta, rounds):
        low, high = high, 2 * high
        if high > LARGEST:
            raise InputError(
                f"dp-epsilon is {epsilon:g}; no noise is enough for that in "
                f"{sum(part.number for part in rounds)} rounds."
            )
    while high > low * (1 + TOLERANCE):
        middle = (low * high) ** 0.5
        low, high = (low, middle) if affordable(middle, epsilon, delta, rounds) else (middle, high)
    # Four digits, always rounded up.
    return float(np.ceil(high * 1e4) / 1e4)


def affordable(noise: float, epsilon: float, delta: float, rounds: Sequence[Rounds]) -> bool:
    """Tell whether rounds with this noise cost at most ε."""
    return spent(noise, rounds, delta) <= epsilon
