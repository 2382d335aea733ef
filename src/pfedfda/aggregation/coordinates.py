"""Medians and trimmed means over clients, entry by entry."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from pfedfda.aggregation.client_values import Values

AT_ONCE = 2**22  # numbers sorted at a time: sorting needs several times their memory

Chunk = Callable[[Tensor, Tensor], Tensor]


def weighted_median(given: Values) -> Tensor:
    """Return the median of each entry, with clients counted by their votes.

    Where exactly half of the votes lie on either side, it is the middle between the two values
    around, as ever; where nobody votes, it is 0.
    """
    return _by_entry(given, _median)


def trimmed_mean(given: Values, share: float) -> Tensor:
    """Return the mean of each entry, weighted by votes, without the lowest and highest values.

    Of n clients that vote, as many as a share of n, rounded up, are left out at either end, and at
    least one or two stay. They are counted as clients whatever their votes, which a client may
    exaggerate.

    Parameters
    ----------
    given
        What the clients say.
    share
        The share that is left out at either end, below 0.5.
    """

    def trimmed(values: Tensor, votes: Tensor) -> Tensor:
        voters = (votes > 0).sum(0)
        cut = torch.minimum(number_of(share, voters), (voters - 1).clamp(min=0) // 2)
        position = torch.arange(len(values))[:, None]
        kept = torch.where((position >= cut) & (position < voters - cut), votes, 0.0)
        heard = kept.sum(0)
        sums = torch.where(kept > 0, kept * values, 0.0).sum(0)
        return torch.where(heard > 0, sums / heard.clamp(min=1e-300), 0.0)

    return _by_entry(given, trimmed)


def number_of(share: float, clients: Tensor) -> Tensor:
    """Return how many of the clients a share is, rounded up, but for what is only rounding."""
    return (share * clients.double() - 1e-9).ceil().long()


def _median(values: Tensor, votes: Tensor) -> Tensor:
    so_far = votes.cumsum(0)
    half = so_far[-1:] / 2
    below = (so_far < half).sum(0, keepdim=True)
    upto = (so_far <= half).sum(0, keepdim=True).clamp(max=len(values) - 1)
    middle = (values.gather(0, below) + values.gather(0, upto)) / 2
    return torch.where(half > 0, middle, 0.0)[0]


def _by_entry(given: Values, rule: Chunk) -> Tensor:
    """Apply a rule to sorted values with their votes, some columns at a time."""
    shape = given.values.shape
    values, votes = (t.expand(shape).reshape(len(t), -1) for t in given)
    width = max(AT_ONCE // len(values), 1)
    found = []
    for start in range(0, math.prod(shape[1:]), width):
        columns = slice(start, start + width)
        vote = votes[:, columns]
        # Who says nothing comes last.
        ordered, order = values[:, columns].masked_fill(vote <= 0, math.inf).sort(dim=0)
        found.append(rule(ordered, vote.gather(0, order)))
    return torch.cat(found).reshape(shape[1:]) if found else values.new_zeros(shape[1:])
