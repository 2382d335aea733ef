"""Secure aggregation: the server learns the sum of the contributions and nothing else.

What is here is the same whether masks are there or not: contributions as whole numbers, their sum,
and when a round is given up. On one machine that simulates secure aggregation, rounding included;
over real sites `pfedfda.flower` adds masks, which cancel in the sum.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pfedfda.aggregation.base import Aggregation, Terms
from pfedfda.aggregation.fixed_point import FixedPoint, client_bits, contribution_bounds
from pfedfda.errors import InputError, PfedfdaError
from pfedfda.methods import Method, Tensors, Update
from pfedfda.methods.base import WEIGHT
from pfedfda.runs.config import Config

FEWEST = 3  # participants: of a sum of two, each of the two knows the other's part
RESOLUTION_BITS = 20  # below a weight of 1 that a unit must have
SUMMAND = "summand"  # the one tensor of an update that is a vector of whole numbers
LOSS, LOSS_WEIGHT = "update_loss", "update_loss_weight"
"""The training loss times the weight, and the weight if there is a loss: they travel in the sum."""


class AbandonedRoundError(PfedfdaError):
    """A round from which no sum can be had; the state stays as it was."""


@dataclass
class Summation:
    """The sum of a round, while it is formed.

    Parameters
    ----------
    fixed
        How contributions become whole numbers.
    asked
        How many clients take part.
    needed
        How many contributions there must be.
    weights
        The smallest and the largest weight that a client may have.
    noise_multiplier
        The noise of a private sum, as in `Terms`.
    state_bytes
        What a client is sent of the server's state besides its message, in bytes.
    total
        The sum so far, modulo 2**64.
    count
        How many contributions it has.
    failure
        Why there is no sum, if an engine has said so.
    """

    fixed: FixedPoint
    asked: int
    needed: int
    weights: tuple[float, float]
    noise_multiplier: float | None = None
    state_bytes: int = 0
    total: Tensor | None = None
    count: int = 0
    failure: str = ""

    def add(self, numbers: Tensor, clients: int = 1) -> None:
        """Add the whole numbers of a client, or their sum over several."""
        # Whole numbers of 64 bits wrap around: that is addition modulo 2**64.
        self.total = numbers.clone() if self.total is None else self.total.add_(numbers)
        self.count += clients

    def result(self) -> Tensors:
        """Return the sum in double precision, or give the round up."""
        if not self.failure and self.count < self.needed:
            self.failure = too_few(self.count, self.asked, self.needed, "contributed")
        if self.failure:
            raise AbandonedRoundError(self.failure)
        assert self.total is not None
        largest = self.count << self.fixed.bits
        sums = self.fixed.decode(self.total)
        within = not self.total.numel() or (
            int(self.total.max()) <= largest and int(self.total.min()) >= -largest
        )
        weight = float(sums[WEIGHT])
        least, most = (self.count * bound for bound in self.weights)
        # Masks that do not cancel leave numbers of any size.
        if not within or not least <= weight <= most or not weight > 0:
            raise AbandonedRoundError("the masks do not cancel, so that there is no sum")
        return sums


def too_few(found: int, asked: int, needed: int, did: str) -> str:
    """Return why a round is given up: too few clients did their part."""
    return f"{found} of {asked} clients {did}, and secure-threshold needs {needed}"


def threshold(share: float, asked: int) -> int:
    """Return how many of the clients that are asked must contribute."""
    return max(math.ceil(share * asked - 1e-9), 2)


class SecureSum(Aggregation):
    """The sum of all contributions in fixed-point numbers.

    Parameters
    ----------
    config
        The settings of the run.
    """

    def __init__(self, config: Config) -> None:
        self.share = config.aggregation.secure_threshold
        self.max_norm = config.schedule.max_update_norm
        self.summation: Summation | None = None

    def begin(
        self,
        method: Method,
        state: Tensors,
        expected: Tensors | None,
        train_sizes: NDArray[np.int64],
    ) -> Summation:
        """Choose ranges for a round, or give it up if too few take part."""
        self.summation, self.state, self.loss = None, state, (0.0, 0.0)
        if expected is None:
            raise InputError(
                f"Secure aggregation needs to know the shapes that {method.name} sends, and a "
                f"training on two made-up samples failed."
            )
        asked = len(train_sizes)
        if asked < FEWEST:
            raise AbandonedRoundError(f"{asked} clients take part, and it needs {FEWEST}")
        zeros = {n: torch.zeros(t.shape, dtype=t.dtype) for n, t in expected.items()}
        self.summation = self.open(method, state, zeros, train_sizes)
        return self.summation

    def open(
        self, method: Method, state: Tensors, zeros: Tensors, train_sizes: NDArray[np.int64]
    ) -> Summation:
        """Return the empty sum of a round, with the ranges of its numbers.

        Parameters
        ----------
        method, state, train_sizes
            Those of `begin`.
        zeros
            An update of zeros.
        """
        asked, largest = len(train_sizes), float(train_sizes.max())
        layout = with_loss(method.contribution(Update(zeros, 1.0)), Update({}, 1.0))
        bounds = contribution_bounds(layout, state, largest, self.max_norm)
        fixed = FixedPoint.of(layout, bounds, asked)
        return Summation(fixed, asked, threshold(self.share, asked), (0.0, largest))

    def contribution(self, method: Method, state: Tensors, update: Update, terms: Terms) -> Tensors:
        """Return the method's contribution with the training loss."""
        return with_loss(method.contribution(update), update)

    def take(self, method: Method, update: Update, round_number: int) -> Update:
        """Return a client's contribution as whole numbers, or refuse it."""
        summation = self.summation
        assert summation is not None
        terms = Terms(round_number, summation.needed, summation.noise_multiplier)
        clear = self.contribution(method, self.state, update, terms)
        return replace(update, tensors={SUMMAND: summation.fixed.encode(clear)})

    def aggregate(
        self, method: Method, state: Tensors, updates: Iterable[Update], round_number: int
    ) -> Tensors:
        """Return the server's state from the sum, which an engine may have formed already."""
        assert self.summation is not None
        for update in updates:
            self.summation.add(update.tensors[SUMMAND])
        return self.finish(method, state, self.summation.result())

    def finish(self, method: Method, state: Tensors, total: Tensors) -> Tensors:
        """Return the server's state from the sum."""
        self.loss = (float(total.pop(LOSS)), float(total.pop(LOSS_WEIGHT)))
        return method.finish(state, total)


def with_loss(contribution: Tensors, update: Update) -> Tensors:
    """Return a contribution with the training loss, which would tell something if it came alone."""
    loss = update.metrics.get("train_loss")
    pair = (0.0, 0.0) if loss is None else (loss * update.weight, update.weight)
    tensors = (torch.tensor(value, dtype=torch.float64) for value in pair)
    return {**contribution, **dict(zip((LOSS, LOSS_WEIGHT), tensors, strict=True))}


def refuse(config: Config, method: Method, clients: int | None) -> None:
    """Refuse a method that must see single updates, and too few clients.

    Parameters
    ----------
    config
        The settings of the run.
    method
        The method.
    clients
        How many clients are trained, if that is known.
    """
    if not method.additive:
        raise InputError(
            f"{method.title} looks at the update of each client, which secure aggregation hides; "
            f"choose a method for which pfedfda methods says that only the sum is needed."
        )
    if clients is None:
        return
    if clients < FEWEST:
        raise InputError(
            f"{clients} clients are trained; secure aggregation needs at least {FEWEST}."
        )
    expected = config.schedule.participation * clients
    if expected < FEWEST:
        raise InputError(
            f"With participation {config.schedule.participation:g}, {expected:.3g} of {clients} "
            f"clients take part in a round on average; secure aggregation needs at least {FEWEST}."
        )
    most = 2.0 ** (client_bits(clients) - RESOLUTION_BITS)
    if config.schedule.max_update_norm > most:
        raise InputError(
            f"max-update-norm is {config.schedule.max_update_norm:g}; with secure aggregation of "
            f"{clients} clients it must be at most {most:.3g}, or numbers would be too coarse."
        )
