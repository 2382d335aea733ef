"""The Gaussian model of a feature space: a mean for each class and one tied covariance."""

import math
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class GaussianStatistics:
    """Class means and tied covariance of p(z | y = c) = N(z | μ^c, Σ).

    Parameters
    ----------
    means : Tensor of shape (C, d)
        The mean of each class, μ^c.
    covariance : Tensor of shape (d, d)
        The covariance Σ that all classes share.
    counts : Tensor of shape (C,), optional
        How many samples of each class stand behind the means, where that is known.
    """

    means: Tensor
    covariance: Tensor
    counts: Tensor | None = None

    @property
    def num_classes(self) -> int:
        """The number of classes C."""
        return self.means.shape[0]

    @property
    def dimension(self) -> int:
        """The number of features d."""
        return self.means.shape[1]


def pack_symmetric(matrix: Tensor) -> Tensor:
    """Return the upper triangle of a symmetric matrix, row by row.

    A covariance travels between client and server in this form: d(d+1)/2 numbers instead of d².

    Parameters
    ----------
    matrix : Tensor of shape (d, d)
        A symmetric matrix; its lower triangle is not read.

    Returns
    -------
    Tensor of shape (d * (d + 1) / 2,)
        The entries on and above the diagonal, with the type and device of the input.
    """
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        raise ValueError(f"matrix has shape {tuple(matrix.shape)}, but a square matrix is needed.")
    rows, columns = torch.triu_indices(*matrix.shape, device=matrix.device)
    return matrix[rows, columns]


def unpack_symmetric(packed: Tensor) -> Tensor:
    """Return the symmetric matrix whose upper triangle `pack_symmetric` gave.

    Parameters
    ----------
    packed : Tensor of shape (d * (d + 1) / 2,)
        The upper triangle, row by row.

    Returns
    -------
    Tensor of shape (d, d)
        The symmetric matrix, bit for bit the one that was packed.
    """
    dimension = (math.isqrt(8 * packed.numel() + 1) - 1) // 2
    if packed.ndim != 1 or dimension * (dimension + 1) // 2 != packed.numel():
        raise ValueError(
            f"packed has shape {tuple(packed.shape)}, but a vector of d(d+1)/2 numbers is needed."
        )
    places = _places(dimension).to(packed.device)
    return packed.index_select(0, places).view(dimension, dimension)


@lru_cache(maxsize=4)
def _places(dimension: int) -> Tensor:
    """Return where each entry of a symmetric matrix is among those of its upper triangle."""
    rows, columns = torch.triu_indices(dimension, dimension)
    places = torch.empty(dimension, dimension, dtype=torch.int64)
    places[rows, columns] = places[columns, rows] = torch.arange(len(rows))
    return places.reshape(-1)
