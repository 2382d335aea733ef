"""Contributions as whole numbers modulo 2**64, whose sum is exact and the same in any order.

A number is rounded to a multiple of its tensor's unit, a power of two. Units follow from bounds
that everybody may know, and leave room for the sum of all clients: nothing ever wraps around, and a
contribution beyond its bound is refused as a whole, never clipped.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from pfedfda.errors import PfedfdaError
from pfedfda.methods import Tensors

SUM_BITS = 62  # of the absolute value of a sum; a word has 63 beside its sign
HEADROOM_BITS = 20  # by which a tensor may be smaller than 1 in the state before it counts as such


class OutOfRangeError(PfedfdaError):
    """A contribution that the fixed-point numbers cannot hold; the text says which tensor."""


def client_bits(clients: int) -> int:
    """Return the bits of one client's numbers, so that the sum over all has `SUM_BITS`."""
    return SUM_BITS - (clients - 1).bit_length()


@dataclass(frozen=True)
class FixedPoint:
    """How contributions of a round become whole numbers.

    Parameters
    ----------
    shapes
        The shapes of a contribution's tensors by name, in the order in which they are laid out.
    exponents
        The unit of each tensor is two to this power.
    bits
        A client's whole numbers are at most two to this power, in absolute value.
    """

    shapes: Mapping[str, tuple[int, ...]]
    exponents: Mapping[str, int]
    bits: int

    @classmethod
    def of(cls, layout: Tensors, bounds: Mapping[str, float], clients: int) -> "FixedPoint":
        """Return the finest units with which so many contributions within bounds can be added up.

        Parameters
        ----------
        layout
            Tensors with the names and shapes of a contribution.
        bounds
            The largest absolute value in each tensor of one contribution.
        clients
            The number of contributions, at most.
        """
        bits = client_bits(clients)
        names = sorted(layout)
        shapes = {name: tuple(layout[name].shape) for name in names}
        return cls(shapes, {name: math.frexp(bounds[name])[1] - bits for name in names}, bits)

    @property
    def size(self) -> int:
        """The number of whole numbers in a contribution."""
        return sum(math.prod(shape) for shape in self.shapes.values())

    @property
    def num_bytes(self) -> int:
        """The size of a contribution in bytes."""
        return 8 * self.size

    def encode(self, contribution: Tensors) -> Tensor:
        """Return a contribution as a vector of whole numbers, or refuse it.

        Parameters
        ----------
        contribution
            Tensors in double precision, with exactly the names and shapes that are laid out.
        """
        found = {name: tuple(tensor.shape) for name, tensor in contribution.items()}
        if found != dict(self.shapes):
            odd = sorted(set(found.items()) ^ set(self.shapes.items()))[0][0]
            raise OutOfRangeError(f"its contribution has a tensor {odd} that the others lack")
        parts = [self._whole(name, contribution[name]) for name in self.shapes]
        return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.int64)

    def decode(self, total: Tensor) -> Tensors:
        """Return a sum of whole numbers as tensors in double precision."""
        sums: Tensors = {}
        sizes = [math.prod(shape) for shape in self.shapes.values()]
        for name, part in zip(self.shapes, torch.split(total, sizes), strict=True):
            unit = math.ldexp(1.0, self.exponents[name])
            sums[name] = (part.double() * unit).reshape(self.shapes[name])
        return sums

    def _whole(self, name: str, tensor: Tensor) -> Tensor:
        """Return a tensor as whole numbers of its unit; a product with a power of two is exact."""
        exponent = self.exponents[name]
        scaled = (tensor.reshape(-1).double() * math.ldexp(1.0, -exponent)).round()
        # A comparison with NaN is false, so it is refused too.
        if not bool((scaled.abs() <= float(2**self.bits)).all()):
            largest = float(tensor.abs().max())
            raise OutOfRangeError(
                f"its contribution to {name} reaches {largest:.3g}, beyond the range of "
                f"{math.ldexp(1.0, exponent + self.bits):.3g} that secure aggregation has for it"
            )
        return scaled.long()


def contribution_bounds(
    layout: Tensors, state: Tensors, largest_weight: float, max_norm: float
) -> dict[str, float]:
    """Return a bound on each tensor of a contribution, from what the server knows anyway.

    A tensor of an update has at most the norm `max_norm`, and is multiplied by a weight. A tensor
    that the state has under the same name, with elements below 1, is not expected to grow by more
    than `max_norm` times its largest element, so that small numbers get small units; but never is
    the bound below `max_norm` divided by two to the power of `HEADROOM_BITS`, times the weight.

    Parameters
    ----------
    layout
        Tensors with the names and shapes of a contribution.
    state
        The server's state before the round.
    largest_weight
        The largest weight of a client.
    max_norm
        The longest tensor that is believed.
    """
    bounds = {}
    for name in layout:
        like = state.get(name)
        largest = float(like.double().abs().max()) if like is not None and like.numel() else 0.0
        scale = min(max(largest, 2.0**-HEADROOM_BITS), 1.0) if largest > 0 else 1.0
        bounds[name] = largest_weight * max_norm * scale
    return bounds
