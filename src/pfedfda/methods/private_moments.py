"""Moments of features in a private sum: common units for clients, and repairs for the server.

A client sends shares: its counts, class sums and second moments are divided by its number of
samples, and then by public units, with which all blocks together have a length of about 1. So one
clip and one noise suit them all. The units are for features whose dimensions have a mean variance
of 1, as those of a frozen backbone have; with others, more or less is clipped.

What the server makes of noisy sums costs no privacy, since it sees nothing but them.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from pfedfda.gaussian import pack_symmetric, unpack_symmetric
from pfedfda.methods.base import Tensors

SAMPLES = 100.0
"""How many samples a client stands for in a private total. Only ratios matter, but what divides by
counts takes fewer than one sample for none."""


class Units(NamedTuple):
    """What counts, sums of features and second moments are divided by."""

    counts: float
    sums: float
    squares: float


def units(dimension: int) -> Units:
    """Return the units for features of so many dimensions.

    Features of d dimensions have a length of about √d, and second moments one of at most d. Means
    over many samples are shorter, and class sums need the least noise of all: their noise is
    divided by the share of their class.
    """
    return Units(counts=1.0, sums=math.sqrt(dimension) / 4, squares=dimension / 2)


def held(counts: Tensor, noise: float) -> Tensor:
    """Return counts without those that noise alone could have made, but for the largest.

    Without any class there would be no mean of everything.
    """
    kept = torch.where(counts > noise, counts, 0.0)
    if not bool(kept.any()):
        kept[counts.argmax()] = max(noise, 1e-300)
    return kept


def denoised(matrix: Tensor, noise: float) -> Tensor:
    """Return a covariance, or a multiple of one, from a symmetric matrix with noise.

    Eigenvalues below 0 are raised to 0, and the matrix is drawn to the multiple ν of the identity
    with the same trace, by the share ρ of its squared distance to νI that noise makes up. That is
    the linear shrinkage of least expected error, of Ledoit and Wolf, where the noise is known.
    Without noise a covariance is returned as it is.

    Parameters
    ----------
    matrix : Tensor of shape (d, d)
        A symmetric matrix.
    noise : float
        The standard deviation of the noise on each entry on and above the diagonal.
    """
    dimension = len(matrix)
    # The trace has noise too; a mean below its deviation may be anything, even negative.
    mean = max(float(matrix.trace()) / dimension, noise / math.sqrt(dimension))
    distance = float(matrix.square().sum()) - dimension * mean**2
    share = 0.0
    if noise:
        share = min(1.0, (noise * dimension) ** 2 / max(distance, 1e-300))
    eigenvalues, axes = torch.linalg.eigh(matrix)
    raised = (1 - share) * eigenvalues.clamp(min=0) + share * mean
    repaired: Tensor = (axes * raised) @ axes.T
    return (repaired + repaired.T) / 2


def between_classes(counts: Tensor, sums: Tensor) -> Tensor:
    """Return Σ n_c μ_c μ_cᵀ, from counts n_c and class sums n_c μ_c."""
    scaled = sums / counts.clamp(min=1e-300).sqrt()[:, None]
    return torch.where(counts[:, None] > 0, scaled, 0.0).T @ torch.where(
        counts[:, None] > 0, scaled, 0.0
    )


def within_classes(squares: Tensor, counts: Tensor, sums: Tensor, noise: float) -> Tensor:
    """Return the scatter about class means from noisy sums, as a covariance has to be.

    Parameters
    ----------
    squares : Tensor of shape (d, d)
        The noisy Σzzᵀ.
    counts : Tensor of shape (C,)
        Noisy counts, none below 0.
    sums : Tensor of shape (C, d)
        Noisy class sums.
    noise : float
        The standard deviation of the noise in `units`.
    """
    unit = units(len(squares))
    scatter = squares - between_classes(counts, sums)
    # Noise makes class sums longer, by this much on average.
    longer = ((noise * unit.sums) ** 2 / counts[counts > 0]).sum()
    scatter.diagonal().add_(longer)
    return denoised(scatter, noise * unit.squares)


def mended_moments(noisy: Tensors, noise: float) -> Tensors:
    """Return counts, sums and packed squares of one set of samples as those of real samples are.

    Parameters
    ----------
    noisy
        ``counts``, ``sums`` and, if need be, ``squares``, in `units`.
    noise
        The standard deviation of the noise on each number.
    """
    unit = units(noisy["sums"].shape[-1])
    counts = held(noisy["counts"], noise) * unit.counts
    sums = torch.where(counts[:, None] > 0, noisy["sums"], 0.0) * unit.sums
    mended = {"counts": counts, "sums": sums}
    if "squares" in noisy:
        squares = unpack_symmetric(noisy["squares"]) * unit.squares
        within = within_classes(squares, counts, sums, noise)
        mended["squares"] = pack_symmetric(within + between_classes(counts, sums))
    return {name: SAMPLES * tensor for name, tensor in mended.items()}
