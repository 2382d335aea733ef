"""What pFedFDA's clients add up in a private run, and what its server makes of the noisy sum.

Everything is a difference from what all know already: the body and the covariance from the global
ones, class sums from those that the global means would have. What is learned once has little to say
in later rounds, and little of it is clipped.
"""

import torch
from torch import Tensor

from pfedfda.gaussian import pack_symmetric, unpack_symmetric
from pfedfda.methods.base import WEIGHT, Tensors, Update, differences, from_differences, part
from pfedfda.methods.private_moments import (
    SAMPLES,
    between_classes,
    denoised,
    held,
    units,
    within_classes,
)


def interpolated_differences(state: Tensors, update: Update) -> Tensors:
    """Return how what a client interpolated differs from the global body and Gaussians."""
    return _in_units(differences(update.tensors, state))


def interpolated_total(state: Tensors, noisy: Tensors, clients: float, noise: float) -> Tensors:
    """Return the sum of what clients interpolated, with a covariance that can be one."""
    total = from_differences(_from_units(noisy), state, clients)
    covariance = unpack_symmetric(total["covariance"])
    repaired = denoised(covariance, noise * units(len(covariance)).squares)
    return total | {
        "covariance": pack_symmetric(repaired),
        WEIGHT: torch.tensor(clients, dtype=torch.float64),
    }


def pooled_differences(state: Tensors, update: Update, adds_squares: bool) -> Tensors:
    """Return what a client's plain estimates add to counts, class sums, covariance and body.

    Where the covariance is to be that about the global means, as without a body, it has the squares
    of the client's class means in it.
    """
    tensors = update.tensors
    counts, means = tensors["counts"].double(), tensors["means"].double()
    shares = counts / counts.sum().clamp(min=1)  # all classes may be too rare to be sent
    sent = differences(part(tensors, "body", "covariance"), state)
    if adds_squares:
        sent["covariance"] += pack_symmetric(between_classes(shares, shares[:, None] * means))
    sums = shares[:, None] * (means - _known_means(state))
    return _in_units(sent | {"counts": shares, "means": sums})


def pooled_total(state: Tensors, noisy: Tensors, clients: float, noise: float) -> Tensors:
    """Return the sums of plain estimates, as estimates of real samples are."""
    noisy = _from_units(noisy)
    known = part(state, "body", "covariance")
    total = from_differences(part(noisy, "body", "covariance"), known, clients)
    counts = held(noisy["counts"], noise * units(noisy["means"].shape[1]).counts)
    sums = noisy["means"] + noisy["counts"][:, None] * _known_means(state)
    sums = torch.where(counts[:, None] > 0, sums, 0.0)
    covariance = unpack_symmetric(total["covariance"])
    if part(noisy, "body"):
        covariance = denoised(covariance, noise * units(len(covariance)).squares)
    else:
        covariance = within_classes(covariance, counts, sums, noise)
    # What pools covariances divides by all samples, and noise has changed how many there are.
    covariance *= counts.sum() / clients
    total |= {
        "counts": counts,
        "means": sums,
        "covariance": pack_symmetric(covariance),
        WEIGHT: torch.tensor(clients, dtype=torch.float64),
    }
    if "losses" in state:
        total["losses"] = torch.zeros_like(state["losses"], dtype=torch.float64)
        total["validated"] = torch.zeros((), dtype=torch.float64)
    return {name: SAMPLES * tensor for name, tensor in total.items()}


def _known_means(state: Tensors) -> Tensor:
    """Return the global means of the classes that have been seen, and 0 for the others."""
    return torch.where(state["seen"][:, None] > 0, state["means"], 0.0).double()


def _units(tensors: Tensors) -> dict[str, float]:
    unit = units(tensors["means"].shape[1])
    return {"counts": unit.counts, "means": unit.sums, "covariance": unit.squares}


def _in_units(sent: Tensors) -> Tensors:
    unit = _units(sent)
    return {name: tensor / unit.get(name, 1.0) for name, tensor in sent.items()}


def _from_units(noisy: Tensors) -> Tensors:
    unit = _units(noisy)
    return {name: tensor * unit.get(name, 1.0) for name, tensor in noisy.items()}
