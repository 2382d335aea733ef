"""Rules that let some of the clients lie: medians, trimmed means, Multi-Krum and clipping.

They compare clients, so the updates of a round are in memory at once, and the server sees them.
"""

import math
from abc import abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from pfedfda.aggregation.base import Aggregation
from pfedfda.aggregation.client_values import ClientValues, Values
from pfedfda.aggregation.coordinates import number_of, trimmed_mean, weighted_median
from pfedfda.errors import InputError
from pfedfda.methods import Method, Tensors, Update


class Robust(Aggregation):
    """A sum that is not the plain one; a base class.

    Parameters
    ----------
    method
        The method; one that is not additive is refused.
    """

    name: ClassVar[str]

    def __init__(self, method: Method) -> None:
        if not method.additive:
            raise InputError(
                f"{method.title} combines its clients' updates in a way of its own, which "
                f"--aggregation {self.name} cannot take the place of: use sum, or another method."
            )

    def aggregate(
        self, method: Method, state: Tensors, updates: Iterable[Update], round_number: int
    ) -> Tensors:
        """Return what the method makes of a sum in which no few clients have the last word."""
        return method.finish(state, self.total(ClientValues(method, updates), state))

    @abstractmethod
    def total(self, clients: ClientValues, state: Tensors) -> Tensors:
        """Return what stands in for the sum of contributions."""

    def least_participants(self, participants: float) -> int:
        """Return how many clients a round needs if it has about so many."""
        return 3

    def summary(self, rounds: int) -> Mapping[str, Any]:
        """Name the rule."""
        return {"aggregation": self.name}


class Median(Robust):
    """The median of each entry, in which clients count by their samples.

    D. Yin, Y. Chen, K. Ramchandran and P. Bartlett, "Byzantine-Robust Distributed Learning: Towards
    Optimal Statistical Rates", ICML 2018.
    """

    name = "median"

    def total(self, clients: ClientValues, state: Tensors) -> Tensors:
        """Return the sum of as many clients that all say the median."""
        total = clients.sums_of_divisors()
        for name in clients.names:
            given = clients.of(name, total)
            clients.put_back(total, name, self.combine(given), given.total)
        return total

    def combine(self, given: Values) -> Tensor:
        """Return what all clients together say of a tensor."""
        return weighted_median(given)


class TrimmedMean(Median):
    """The mean of each entry without its lowest and highest values; the citation is Median's.

    Parameters
    ----------
    method
        The method.
    assumed_liars
        The share of the clients that is left out at either end.
    """

    name = "trimmed-mean"

    def __init__(self, method: Method, assumed_liars: float) -> None:
        super().__init__(method)
        self.share = assumed_liars

    def combine(self, given: Values) -> Tensor:
        """Return what the clients in the middle say, on average."""
        return trimmed_mean(given, self.share)


class MultiKrum(Robust):
    """The sum over those clients that lie nearest to others.

    P. Blanchard, E. M. El Mhamdi, R. Guerraoui and J. Stainer, "Machine Learning with Adversaries:
    Byzantine Tolerant Gradient Descent", NeurIPS 2017.

    Parameters
    ----------
    method
        The method.
    assumed_liars
        The share of the clients that is left out.
    """

    name = "multi-krum"

    def __init__(self, method: Method, assumed_liars: float) -> None:
        super().__init__(method)
        self.share = assumed_liars

    def total(self, clients: ClientValues, state: Tensors) -> Tensors:
        """Return the sum over the chosen clients."""
        liars = self._liars(len(clients))
        # A round that is too small for the assumed liars guards against as many as it can.
        liars = min(liars, max((len(clients) - 3) // 2, 0))
        scores = krum_scores(squared_distances(clients, state), liars)
        chosen = scores.argsort(stable=True)[: len(clients) - liars]
        return clients.plain_sum(sorted(chosen.tolist()))

    def least_participants(self, participants: float) -> int:
        """Return the least n above 2 f + 2, where f are the assumed liars of a round."""
        return 2 * self._liars(participants) + 3

    def _liars(self, clients: float) -> int:
        return int(number_of(self.share, torch.tensor(clients)))


class Clipped(Robust):
    """The sum, in which no client moves a part of the state much further than others do.

    Z. Sun, P. Kairouz, A. T. Suresh and H. B. McMahan, "Can You Really Backdoor Federated
    Learning?", 2019.

    Parameters
    ----------
    method
        The method.
    clip_norm
        The longest move of a part, such as the body, in multiples of the clients' median.
    """

    name = "clipped"

    def __init__(self, method: Method, clip_norm: float) -> None:
        super().__init__(method)
        self.clip_norm = clip_norm

    def total(self, clients: ClientValues, state: Tensors) -> Tensors:
        """Return the sum with long moves shortened."""
        total = clients.sums_of_divisors()
        parts: dict[str, list[str]] = {}
        for name in clients.names:
            parts.setdefault(name.split(".")[0], []).append(name)
        for names in parts.values():
            factors = self._factors(clients, names, total, state)
            for name in names:
                given = clients.of(name, total)
                start = origin(name, given, state)
                if is_counter(name, state):
                    value = weighted_median(given)
                else:
                    moves = _moves(given, start) * factors.reshape(-1, *[1] * start.ndim)
                    heard = given.total.clamp(min=1e-300)
                    value = start + (given.votes * moves).sum(0) / heard
                clients.put_back(total, name, value, given.total)
        return total

    def _factors(
        self, clients: ClientValues, names: list[str], total: Tensors, state: Tensors
    ) -> Tensor:
        """Return by what each client's move of a part is shortened."""
        squares = torch.zeros(len(clients), dtype=torch.float64)
        for name in names:
            if not is_counter(name, state):
                given = clients.of(name, total)
                squares += _moves(given, origin(name, given, state)).flatten(1).square().sum(1)
        norms = squares.sqrt()
        limit = self.clip_norm * float(norms.quantile(0.5))
        return torch.where(norms > limit, limit / norms.clamp(min=1e-300), 1.0)


def squared_distances(clients: ClientValues, state: Tensors) -> Tensor:
    """Return the squared distances between what any two clients say of everything, (n, n)."""
    products = torch.zeros(len(clients), len(clients), dtype=torch.float64)
    for name in clients.names:
        if not is_counter(name, state):
            given = clients.of(name)
            moves = _moves(given, origin(name, given, state)).flatten(1)
            products += moves @ moves.T
    lengths = products.diagonal()
    return (lengths[:, None] + lengths - 2 * products).clamp(min=0)


def krum_scores(distances: Tensor, liars: int) -> Tensor:
    """Return each client's sum of squared distances to its n - f - 2 nearest others."""
    others = distances.clone()
    others.fill_diagonal_(math.inf)
    nearest = min(max(len(distances) - liars - 2, 1), len(distances) - 1)
    return others.sort(dim=1).values[:, :nearest].sum(1)


def origin(name: str, given: Values, state: Tensors) -> Tensor:
    """Return from where clients move: the state's tensor, or where it has none, their median."""
    start = state.get(name)
    if start is not None and start.shape == given.values.shape[1:]:
        return start.double()
    return weighted_median(given)


def is_counter(name: str, state: Tensors) -> bool:
    """Tell whether a tensor holds whole numbers, which have no common scale with parameters."""
    return name in state and not state[name].is_floating_point()


def _moves(given: Values, start: Tensor) -> Tensor:
    """Return how far clients are from a start; who says nothing stays there."""
    return torch.where(given.votes > 0, given.values - start, 0.0)
