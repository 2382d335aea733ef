"""How a server forms global Gaussians from the sums of its clients' estimates.

What clients send is pooled: the mean of a class is weighted by the samples behind it, the
covariance by those of all classes. A part of the old statistics is kept from round to round.

*pooled* keeps a fixed part of every mean, however few samples the new one has. *accumulated* keeps
that part of the old sums and counts, so that the mean of a class moves as far as it has new
samples: with many classes and few clients in a round, new means are noisy.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from pfedfda.gaussian import pack_symmetric
from pfedfda.methods.base import Tensors, add, part


def add_estimates(tensors: Tensors, total: Tensors, with_squares: bool) -> Tensors:
    """Add a client's estimates to a sum: means by class counts, the covariance by all of them.

    Parameters
    ----------
    tensors
        What the client sent.
    total
        The sum, which is changed.
    with_squares
        Whether to add the squares of its class means, from which the covariance of all features
        about the global means follows.
    """
    counts, means = (tensors[name].double() for name in ("counts", "means"))
    add(total, {"means": counts[:, None] * means, "counts": counts})
    add(total, part(tensors, "covariance"), float(counts.sum()))
    add(total, part(tensors, "losses", "validated"))
    if with_squares:
        add(total, {"squares": means.T @ (counts[:, None] * means)})
    return total


def pooled_state(state: Tensors, total: Tensors, keep: float) -> Tensors:
    """Return the new global Gaussians, and what the server remembers about them.

    Parameters
    ----------
    state
        The server's state before the round.
    total
        The sum of estimates; some client has sent statistics of some class.
    keep
        How much of the old statistics to keep.
    """
    kept = kept_share(state, total, keep)
    pooled = {
        "means": pooled_means(state, total, kept),
        "covariance": moved(state["covariance"], pooled_covariance(total), kept.others),
        "seen": torch.maximum(state["seen"], (total["counts"] > 0).float()),
    }
    if "mass" in state:
        pooled["mass"] = (keep * state["mass"].double() + total["counts"]).float()
    if "losses" in state:
        pooled["losses"] = moved_losses(state, total, kept)
    return pooled


class Kept(NamedTuple):
    """How much of the old statistics a round keeps."""

    means: Tensor
    """For each class, (C,)."""
    others: float
    """For the covariance, and whatever else is averaged over all samples."""


def kept_share(state: Tensors, total: Tensors, keep: float) -> Kept:
    """Return the share of the old means and covariance in the new ones.

    Parameters
    ----------
    state
        The server's state, with the ``mass`` of old samples if they are accumulated.
    total
        The sum of contributions.
    keep
        The fixed share, or what is kept of the mass.
    """
    counts = total["counts"]
    if "mass" not in state:
        fixed = torch.full_like(counts, keep)
        return Kept(fixed, keep if bool(state["seen"].any()) else 0.0)
    mass = keep * state["mass"].double()
    means = mass / (mass + counts).clamp(min=1e-300)
    return Kept(means, float(mass.sum() / (mass.sum() + counts.sum())))


def pooled_means(state: Tensors, total: Tensors, kept: Kept) -> Tensor:
    """Return the new global means."""
    sums, counts = total["means"], total["counts"]
    held, seen = counts[:, None] > 0, state["seen"][:, None] > 0
    fresh = (sums / counts.clamp(min=1)[:, None]).float()
    share = kept.means[:, None].float()
    # A class is first seen as it is: its random start carries no information. Until then the
    # mean of everything stands in for it, and a class that nobody holds now keeps its mean.
    moved = torch.where(seen, share * state["means"] + (1 - share) * fresh, fresh)
    stand_in = torch.where(seen, state["means"], (sums.sum(0) / counts.sum()).float())
    return torch.where(held, moved, stand_in)


def pooled_covariance(total: Tensors) -> Tensor:
    """Return the mean of the clients' covariances, with the scatter between clients if any."""
    sums, counts = total["means"], total["counts"]
    covariance = total["covariance"] / float(counts.sum())
    if "squares" in total:
        about_global = sums.T @ (sums / counts.clamp(min=1)[:, None])
        covariance += pack_symmetric((total["squares"] - about_global) / counts.sum())
    return covariance.float()


def moved(old: Tensor, new: Tensor, kept: float) -> Tensor:
    """Return the new value of a moving average."""
    return kept * old + (1 - kept) * new if kept else new


def moved_losses(state: Tensors, total: Tensors, kept: Kept) -> Tensor:
    """Return the losses per sample at all strengths; those of round 1 are of chance."""
    if not state["seen"].any() or not total["validated"]:
        return state["losses"]
    losses = (total["losses"] / total["validated"]).float()
    return moved(state["losses"], losses, kept.others if state["losses"].any() else 0.0)
