"""Differential privacy with secure aggregation: clients add the noise, nobody sees the exact sum.

Each client shortens its contribution to at most C and adds a share of the noise, of standard
deviation σC/√k, where k contributions must arrive or there is no sum. So the sum of those that do
has noise of at least σC. Who takes part is seen, and chance hides nobody: every round costs what
one with all clients would. The neighbour of a federation is one in which a client that takes part
adds noise and nothing else.
"""

import math

import numpy as np
import torch
from numpy.typing import NDArray

from pfedfda.aggregation.base import Terms
from pfedfda.aggregation.fixed_point import FixedPoint
from pfedfda.aggregation.private import (
    PrivateSum,
    clipped,
    noise_like,
    secure_draw,
    seeded_draw,
)
from pfedfda.aggregation.secure import SecureSum, Summation, threshold
from pfedfda.methods import Method, Tensors, Update
from pfedfda.methods.base import WEIGHT
from pfedfda.runs.config import Config

WIDEST = 40  # standard deviations that a share may reach; no honest one ever does


class PrivateSecureSum(SecureSum, PrivateSum):
    """The sum of clipped contributions, to each of which its client has added a share of the noise.

    Parameters
    ----------
    config
        The settings, with an ε and secure aggregation.
    method
        The method, which must be content with a sum.
    """

    fills_empty_rounds = False  # with too few clients there is no noise either

    def __init__(self, config: Config, method: Method) -> None:
        SecureSum.__init__(self, config)
        PrivateSum.__init__(self, config, method)

    @property
    def counted_rate(self) -> float:
        """One: an abandoned round tells that few took part, and the server sees who does."""
        return 1.0

    def open(
        self, method: Method, state: Tensors, zeros: Tensors, train_sizes: NDArray[np.int64]
    ) -> Summation:
        """Return the empty sum of a round; every client counts as one, and the ranges are equal."""
        assert self.budget is not None
        asked, noise = len(train_sizes), self.budget.noise_multiplier
        needed = threshold(self.share, asked)
        layout = {**self.layout, WEIGHT: torch.ones(())}
        widest = self.clip + WIDEST * self._share(needed, noise)
        fixed = FixedPoint.of(layout, dict.fromkeys(layout, widest) | {WEIGHT: 1.0}, asked)
        unknown = lacking(method.message(state, 0), state)
        return Summation(
            fixed,
            asked,
            needed,
            (1.0, 1.0),
            noise_multiplier=noise,
            state_bytes=sum(tensor.nbytes for tensor in unknown.values()),
        )

    def contribution(self, method: Method, state: Tensors, update: Update, terms: Terms) -> Tensors:
        """Return the shortened contribution with its share of the noise, and nothing without it.

        The training loss has no bound, and stays at home. The weight is the same for all clients:
        it tells the server whether the masks cancel.
        """
        parts = clipped(method, state, update, self.clip)
        seeded = seeded_draw("privacy", self.schedule.seed, terms.round, update.client_id)
        deviation = self._share(terms.needed, terms.noise_multiplier)
        share = noise_like(parts, deviation, secure_draw if self.is_secret else seeded)
        noisy = {name: tensor + share[name] for name, tensor in parts.items()}
        return {**noisy, WEIGHT: torch.ones((), dtype=torch.float64)}

    def finish(self, method: Method, state: Tensors, total: Tensors) -> Tensors:
        """Return the server's state from the noisy sum."""
        assert self.summation is not None
        count = self.summation.count
        share = self._share(self.summation.needed, self.summation.noise_multiplier)
        noisy = {name: tensor for name, tensor in total.items() if name != WEIGHT}
        mended = method.private_total(state, noisy, count, share * math.sqrt(count))
        return method.finish(state, mended)

    def _share(self, needed: int, noise_multiplier: float | None) -> float:
        """Return the standard deviation of a client's share of the noise."""
        assert noise_multiplier is not None
        return noise_multiplier * self.clip / math.sqrt(needed)


def lacking(message: Tensors, state: Tensors) -> Tensors:
    """Return the tensors of the state that a message does not have, or has otherwise.

    A client shortens what the server will expect only if it knows the state as the server does.
    """
    return {
        name: tensor
        for name, tensor in state.items()
        if name not in message
        or not (message[name] is tensor or torch.equal(message[name], tensor))
    }
