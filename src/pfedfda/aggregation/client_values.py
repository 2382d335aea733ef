"""What each client of a round says, one beside the other, and what a rule made of it as a sum.

A contribution is a weighted value: parameters times samples, class means times class counts. Rules
that compare clients need the values, and what was found among them goes back as the sum that
`Method.finish` understands. `Method.summands` says what is divided by what.
"""

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from pfedfda.gaussian import (
    is_positive_semidefinite,
    nearest_positive_definite,
    pack_symmetric,
    unpack_symmetric,
)
from pfedfda.methods import WEIGHT, Method, Tensors, Update, add
from pfedfda.methods.summands import Summand


class Values(NamedTuple):
    """What the clients say of one tensor.

    Its first dimension is that of the clients. Votes have as many dimensions, some of length 1; a
    vote of 0 means that the client says nothing, for example of a class of which it has no sample.
    """

    values: Tensor
    votes: Tensor

    @classmethod
    def of(cls, sums: Tensor, divisors: Tensor) -> "Values":
        """Divide sums by what they are sums over."""
        missing = sums.ndim - divisors.ndim
        votes = divisors.reshape(*divisors.shape, *[1] * missing)
        return cls(torch.where(votes > 0, sums / votes.clamp(min=1e-300), 0.0), votes)

    @property
    def total(self) -> Tensor:
        """What the value of all has to be multiplied by to be a sum again."""
        return self.votes.sum(0)


class ClientValues:
    """The contributions of a round.

    Parameters
    ----------
    method
        The method, which says what its contributions are.
    updates
        The updates; memory is needed for all of them at once.
    """

    def __init__(self, method: Method, updates: Iterable[Update]) -> None:
        self.contributions = [method.contribution(update) for update in updates]
        self.present = self.contributions[0].keys()
        self.summands = method.summands
        kinds = [self._kind(name) for name in self.present]
        self.divisors = {WEIGHT, *(kind.per for kind in kinds if kind.per)}
        # Second moments are compared about class means, which have to be there.
        names = [name for name in self.present if name not in self.divisors]
        self.names = sorted(names, key=lambda name: self._kind(name).about is not None)

    def __len__(self) -> int:
        return len(self.contributions)

    def plain_sum(self, which: Iterable[int]) -> Tensors:
        """Return the sum of some clients' contributions, as it would be without the others."""
        total: Tensors = {}
        for number in which:
            add(total, self.contributions[number])
        return total

    def sums_of_divisors(self) -> Tensors:
        """Return the sums of counts and weights, which updates are checked for: no rule is needed.

        A median of class counts would be 0 for every class that a minority of the clients has.
        """
        total: Tensors = {}
        for contribution in self.contributions:
            add(total, {name: contribution[name] for name in self.present & self.divisors})
        return total

    def of(self, name: str, total: Tensors | None = None) -> Values:
        """Return what the clients say of a tensor.

        Parameters
        ----------
        name
            The name of the summand.
        total
            The sums so far. With them, second moments are those about the class means of all, as
            upper triangles.
        """
        kind = self._kind(name)
        sums, divisors = self._stack(name), self._stack(kind.per or WEIGHT)
        if kind.about is not None:
            counts, divisors = divisors, divisors.sum(-1)
            if total is not None:
                means = _means(total, kind)
                cross = self._stack(kind.about).mT @ means
                sums = _matrices(sums, means) - cross - cross.mT + _about_zero(means, counts)
                sums = _packed(sums)
        elif divisors.numel() == len(divisors):
            divisors = divisors.reshape(-1)
        return Values.of(sums, divisors)

    def put_back(self, total: Tensors, name: str, value: Tensor, divisor: Tensor) -> None:
        """Add to the sums what all clients together say of a tensor.

        A matrix that has lost the properties of a covariance is replaced by the nearest that has
        them: entry by entry, a median of covariances need not be one.
        """
        kind = self._kind(name)
        if kind.covariance:
            value = _repaired(value, singular=False)
        if kind.about is not None:
            # Of few samples the scatter may be singular in any case.
            value = _repaired(value, singular=True)
        summed = value * divisor
        if kind.about is not None:
            means = _means(total, kind)
            matrices = _matrices(summed, means)
            matrices = matrices + _about_zero(means, total[kind.per or WEIGHT])
            packed = self.contributions[0][name].shape != matrices.shape
            summed = _packed(matrices) if packed else matrices
        total[name] = summed

    def _kind(self, name: str) -> Summand:
        kind = self.summands.get(name.split(".")[0], Summand())
        return kind if kind.per in self.present else kind._replace(per=None)

    def _stack(self, name: str) -> Tensor:
        return torch.stack([contribution[name] for contribution in self.contributions])


def _means(total: Tensors, kind: Summand) -> Tensor:
    """Return the class means of all clients, zero for a class that nobody has."""
    assert kind.about is not None
    assert kind.per is not None
    return Values.of(total[kind.about], total[kind.per]).values


def _about_zero(means: Tensor, counts: Tensor) -> Tensor:
    """Return the second moments about zero of samples that lie at their class means."""
    return means.mT @ (counts[..., None] * means)


def _matrices(moments: Tensor, means: Tensor) -> Tensor:
    """Return matrices, whether they come as such or as upper triangles."""
    size = means.shape[-1]
    if moments.shape[-2:] == (size, size):
        return moments
    rows = moments.reshape(-1, moments.shape[-1])
    return torch.stack([unpack_symmetric(r) for r in rows]).reshape(*moments.shape[:-1], size, size)


def _packed(matrices: Tensor) -> Tensor:
    """Return upper triangles."""
    rows = matrices.reshape(-1, *matrices.shape[-2:])
    return torch.stack([pack_symmetric(m) for m in rows]).reshape(*matrices.shape[:-2], -1)


def _repaired(packed: Tensor, singular: bool) -> Tensor:
    """Return upper triangles of covariances: unchanged if they are some, else the nearest."""
    rows = []
    for row in packed.reshape(-1, packed.shape[-1]):
        matrix = unpack_symmetric(row).clone()
        if singular and is_positive_semidefinite(matrix):
            rows.append(row)
            continue
        matrix.diagonal().clamp_(min=0)  # a scatter of nothing may be below 0 by its rounding
        rows.append(pack_symmetric(nearest_positive_definite(matrix)))
    return torch.stack(rows).reshape(packed.shape)
