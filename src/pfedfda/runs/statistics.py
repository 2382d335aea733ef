"""What can be said about accuracies that were measured with a few seeds on many clients.

Pure functions on arrays of accuracies by seed (rows) and client (columns). What the intervals and
tests mean is explained in ``docs/statistics.md``.

References
----------
W. G. Cochran, "Approximate significance levels of the Behrens-Fisher test", Biometrics 1964.
S. Holm, "A simple sequentially rejective multiple test procedure", Scand. J. Statist. 1979.
J. Demšar, "Statistical comparisons of classifiers over multiple data sets", JMLR 2006.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

LEVEL = 0.95
"""The confidence of every interval; tests use one less this."""
Matrix = NDArray[np.float64]


@dataclass(frozen=True)
class Interval:
    """A mean with its confidence interval; the ends are None where one value says nothing."""

    mean: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Difference(Interval):
    """A mean difference with its interval, and the p-value of the test that it is zero."""

    p: float | None = None

    def reversed(self) -> "Difference":
        """Return the difference the other way round."""
        low = None if self.high is None else -self.high
        high = None if self.low is None else -self.low
        return Difference(-self.mean, low, high, self.p)


@dataclass(frozen=True)
class Part:
    """A share of the variance of a mean, as it was estimated, with its degrees of freedom."""

    variance: float
    freedom: int


def mean_interval(values: Sequence[float], level: float = LEVEL) -> Interval:
    """Return the mean over seeds with its t interval.

    With S values of mean m and standard deviation s (of S - 1 degrees of freedom) that is
    m ± t(S - 1) · s / √S.

    Parameters
    ----------
    values
        A value for each seed.
    level
        The confidence.
    """
    numbers = np.asarray(values, dtype=np.float64)
    mean = float(numbers.mean())
    if len(numbers) < 2:
        return Interval(mean)
    error = float(numbers.std(ddof=1)) / math.sqrt(len(numbers))
    half = float(_stats().t.ppf((1 + level) / 2, len(numbers) - 1)) * error
    return Interval(mean, mean - half, mean + half)


def paired_difference(
    first: ArrayLike, second: ArrayLike, same_clients: bool = True, level: float = LEVEL
) -> Difference:
    """Return by how much the first method is better, over seeds and clients.

    Parameters
    ----------
    first, second
        Accuracies by seed and client, of the same seeds and clients.
    same_clients
        Whether a column is the same client in every seed (one partition); otherwise clients are
        nested in seeds (a partition for each seed).
    level
        The confidence.
    """
    matrix = np.asarray(first, dtype=np.float64) - np.asarray(second, dtype=np.float64)
    parts = crossed_parts(matrix) if same_clients else nested_parts(matrix)
    return _difference(float(matrix.mean()), parts, level)


def crossed_parts(matrix: Matrix) -> list[Part]:
    """Return the variance of the mean where the same clients were measured with every seed.

    The model is d[s, c] = δ + seed[s] + client[c] + rest[s, c] with independent random effects.
    For S seeds and K clients, and with the mean squares of the two-way table,

    - MS(seeds) / SK estimates what another draw of seeds would change, S - 1 degrees of freedom;
    - (MS(clients) - MS(rest)) / SK, if positive, estimates what other clients would, K - 1.

    With one seed there is nothing but the differences between clients.

    Parameters
    ----------
    matrix
        Differences by seed and client.
    """
    seeds, clients = matrix.shape
    if seeds < 2:
        return [Part(float(matrix.var(ddof=1)) / clients, clients - 1)] if clients > 1 else []
    by_seed = matrix.mean(axis=1)
    parts = [Part(float(by_seed.var(ddof=1)) / seeds, seeds - 1)]
    if clients > 1:
        by_client = matrix.mean(axis=0)
        rest = matrix - by_seed[:, None] - by_client[None, :] + matrix.mean()
        rest_square = float((rest**2).sum()) / ((seeds - 1) * (clients - 1))
        between = float(by_client.var(ddof=1)) / clients - rest_square / (seeds * clients)
        parts.append(Part(max(between, 0.0), clients - 1))
    return parts


def nested_parts(matrix: Matrix) -> list[Part]:
    """Return the variance of the mean where every seed has clients of its own.

    Then seeds are independent repetitions of everything, and the spread of their means has all.
    """
    seeds = len(matrix)
    if seeds < 2:
        return crossed_parts(matrix)
    return [Part(float(matrix.mean(axis=1).var(ddof=1)) / seeds, seeds - 1)]


def _difference(mean: float, parts: Sequence[Part], level: float) -> Difference:
    total = sum(part.variance for part in parts)
    if not parts:
        return Difference(mean)
    if total <= 1e-30:  # nothing varies: only rounding errors are left
        return Difference(mean, mean, mean, 1.0 if abs(mean) < 1e-12 else 0.0)
    error = math.sqrt(total)
    quantile = _mixture_quantile(parts, 1 - level)
    half = quantile * error
    return Difference(mean, mean - half, mean + half, mixture_tail(abs(mean) / error, parts))


def mixture_tail(ratio: float, parts: Sequence[Part]) -> float:
    """Return the p-value of a mean of so many standard errors, whose variance has several parts.

    It is the mean of the two-sided tails of the t distributions with each part's degrees of
    freedom, weighted by the parts: Cochran's solution for two means, applied to the tails. With a
    single part it is the t test.
    """
    total = sum(part.variance for part in parts)
    tails = [2 * float(_stats().t.sf(ratio, part.freedom)) for part in parts]
    return math.fsum(p.variance / total * tail for p, tail in zip(parts, tails, strict=True))


def _mixture_quantile(parts: Sequence[Part], tail: float) -> float:
    quantiles = [float(_stats().t.isf(tail / 2, p.freedom)) for p in parts if p.variance > 0]
    # A little wider, since a part may be so small that rounding hides it.
    low, high = 0.999 * min(quantiles), 1.001 * max(quantiles)
    from scipy.optimize import brentq

    return float(brentq(lambda t: mixture_tail(t, parts) - tail, low, high, xtol=1e-12))


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values corrected for their number, after Holm.

    Rejecting all that are at most α keeps the probability of any wrong rejection at most α.
    """
    order = sorted(range(len(p_values)), key=lambda place: p_values[place])
    corrected = [1.0] * len(p_values)
    largest = 0.0
    for rank, place in enumerate(order):
        largest = max(largest, min((len(p_values) - rank) * p_values[place], 1.0))
        corrected[place] = largest
    return corrected


def mean_ranks(scores: ArrayLike) -> list[float]:
    """Return the mean rank of each method (column) over federations (rows); the best has 1.

    Equal scores share their ranks.
    """
    table = np.asarray(scores, dtype=np.float64)
    return [float(rank) for rank in _stats().rankdata(-table, axis=1).mean(axis=0)]


def critical_difference(methods: int, federations: int, level: float = LEVEL) -> float:
    """Return by how much two mean ranks must differ, after Nemenyi.

    That is q √(k (k + 1) / 6N) for k methods on N federations, where q is the quantile of the
    studentised range of k values, divided by √2.
    """
    quantile = float(_stats().studentized_range.ppf(level, methods, math.inf)) / math.sqrt(2)
    return quantile * math.sqrt(methods * (methods + 1) / (6 * federations))


def friedman(scores: ArrayLike) -> float:
    """Return the p-value of Friedman's test that all methods have the same mean rank.

    In the form of Iman and Davenport, which is less conservative.

    Parameters
    ----------
    scores
        A row for each federation and a column for each method.
    """
    table = np.asarray(scores, dtype=np.float64)
    rows, columns = table.shape
    ranks = np.array(mean_ranks(table))
    square = 12 * rows / (columns * (columns + 1)) * float(((ranks - (columns + 1) / 2) ** 2).sum())
    rest = rows * (columns - 1) - square
    if rest <= 1e-12:  # the same order everywhere
        return 0.0
    ratio = (rows - 1) * square / rest
    return float(_stats().f.sf(ratio, columns - 1, (columns - 1) * (rows - 1)))


def cliques(ranks: Sequence[float], critical: float) -> list[tuple[float, float]]:
    """Return the longest stretches of mean ranks that do not differ by more than is critical."""
    ordered = sorted(ranks)
    stretches: list[tuple[float, float]] = []
    for low in ordered:
        high = max(rank for rank in ordered if rank - low <= critical)
        if high > low and (not stretches or high > stretches[-1][1]):
            stretches.append((low, high))
    return stretches


def _stats() -> Any:
    from scipy import stats  # the import takes about a second, and few commands need it

    return stats
