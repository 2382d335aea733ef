"""Theorem 1 in simulation: the error of an interpolated mean, measured, and the bound on it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pfedfda.errors import InputError
from pfedfda.gaussian import interpolation_error_bound
from pfedfda.seeding import numpy_generator

HANSON_WRIGHT_C = 1.0
"""The absolute constant c of the theorem, which the paper leaves open; everything here uses this.

For Gaussian noise any c up to 2 will do: by the inequality of B. Laurent and P. Massart (2000) the
squared norm of the noise exceeds tr Σ · (1 + 2√t + 2t), where t = log(1/δ), with a probability of
at most δ, and 4(√(t/c) + t/c) is no smaller than 2√t + 2t. With 1 there is room beyond that for
some of the cross term of shift and noise, of which the proof takes the expectation alone.
"""


@dataclass(frozen=True)
class TheoremRow:
    """The error ‖μ̂_i - θ_i‖² of one client's interpolated mean, over all draws.

    Parameters
    ----------
    samples
        The client's samples n_i.
    beta
        The weight β of its own mean.
    mean_error
        The mean over the draws.
    high_error
        The error that a share δ of the draws exceeds.
    bound
        What the theorem allows all but a share δ of the draws.
    failures
        The share of the draws above the bound.
    """

    samples: int
    beta: float
    mean_error: float
    high_error: float
    bound: float
    failures: float


def simulate_theorem(
    *,
    samples: Sequence[int] = (5, 20, 80),
    betas: Sequence[float] = (0.0, 0.25, 0.5, 0.75, 1.0),
    shift: float = 0.5,
    clients: int = 20,
    dimension: int = 16,
    delta: float = 0.1,
    draws: int = 4000,
    seed: int = 0,
) -> list[TheoremRow]:
    """Measure the error of an interpolated mean for every n and β, and compute the bound on it.

    The clients are Gaussians with means and covariances of their own; one of them is looked at. The
    mean of n samples is drawn as what it is, a Gaussian with 1/n of the covariance, so that large n
    cost nothing.

    Parameters
    ----------
    samples
        Samples of every client, one simulation each.
    betas
        The weights β to try.
    shift
        The distance ‖θ_g - θ_i‖ of the client's true mean from the global one; the features have a
        standard deviation of about 1 in each of their dimensions.
    clients, dimension
        The number of clients and of features.
    delta
        The probability δ with which the bound may fail.
    draws
        How often all samples are drawn anew.
    seed
        Determines the clients and the draws.

    Returns
    -------
    list of TheoremRow
        A row for each number of samples and each β, in this order.

    Notes
    -----
    The theorem does not hold for every shift: the proof drops the deviation of the cross term,
    which shrinks with 1/√N where the bound's allowance shrinks with 1/N. At β = 0 and any shift
    above 0 the bound therefore fails in about half of the draws once N is large enough. Since
    ‖a + b‖² ≤ 2‖a‖² + 2‖b‖², twice the bound holds always.
    """
    if clients < 2:
        raise InputError(f"The number of clients is {clients}; it must be at least 2.")
    if not 0 <= shift < math.inf:
        raise InputError(f"The shift is {shift}; it must be 0 or more.")
    if dimension < 1 or draws < 1 or not samples or min(samples) < 1:
        raise InputError("The dimension, the draws and the samples must all be at least 1.")
    random = numpy_generator("theorem", seed)
    means = random.standard_normal((clients, dimension))
    means *= shift / np.linalg.norm(means.mean(0) - means[0])  # all clients have equal weight
    factors = random.standard_normal((clients, dimension, 2 * dimension)) / np.sqrt(2 * dimension)
    traces = (factors**2).sum(axis=(1, 2))  # client k's covariance is factors[k] @ factors[k].T
    rows = []
    for n in samples:
        own, everybody = _draw_means(random, means, factors / np.sqrt(n), draws)
        for beta in betas:
            errors = ((beta * own + (1 - beta) * everybody - means[0]) ** 2).sum(1)
            bound = interpolation_error_bound(
                float(beta),
                squared_shift=shift**2,
                local_trace=float(traces[0]),
                global_trace=float(traces.mean()),
                local_samples=n,
                total_samples=n * clients,
                delta=delta,
                c=HANSON_WRIGHT_C,
            )
            rows.append(
                TheoremRow(
                    samples=n,
                    beta=float(beta),
                    mean_error=float(errors.mean()),
                    high_error=float(np.quantile(errors, 1 - delta)),
                    bound=bound,
                    failures=float((errors > bound).mean()),
                )
            )
    return rows


def _draw_means(
    random: np.random.Generator,
    means: NDArray[np.float64],
    factors: NDArray[np.float64],
    draws: int,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Draw the sample mean of the first client and that of all samples, (draws, dimension) each."""
    own = np.zeros((draws, means.shape[1]))
    total = np.zeros_like(own)
    for client, (mean, factor) in enumerate(zip(means, factors, strict=True)):
        drawn = mean + random.standard_normal((draws, factor.shape[1])) @ factor.T
        total += drawn
        if client == 0:
            own = drawn
    return own, total / len(means)
