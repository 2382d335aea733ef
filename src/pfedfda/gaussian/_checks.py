"""Checks of input that several modules of the package share: one sentence for each refusal."""

import math

import torch
from torch import Tensor


def as_float64(tensor: Tensor) -> Tensor:
    """Return a detached float64 copy (or view) of a tensor on the CPU.

    The move comes before the conversion because not every device knows float64.
    """
    return tensor.detach().cpu().to(torch.float64)


def check_finite(tensor: Tensor, name: str) -> None:
    """Refuse a tensor that holds NaN or an infinity."""
    # One sum is far cheaper than a test of each entry, and not finite if any entry is not;
    # only a sum that overflowed needs the long way.
    if math.isfinite(tensor.sum().item()):
        return
    bad = int((~torch.isfinite(tensor)).sum())
    if bad:
        raise ValueError(f"{name} holds {bad} NaN or infinite values, but all must be finite.")


def checked_features(features: Tensor, name: str = "features") -> Tensor:
    """Return features as a float64 matrix on the CPU, refusing anything else."""
    if features.ndim != 2 or features.shape[0] == 0 or features.shape[1] == 0:
        raise ValueError(
            f"{name} has shape {tuple(features.shape)}, but a matrix of at least one sample and "
            "one feature is needed."
        )
    converted = as_float64(features)
    check_finite(converted, name)
    return converted


def checked_labels(labels: Tensor, samples: int, num_classes: int) -> Tensor:
    """Return labels as int64 on the CPU, refusing a wrong length, type or range."""
    if num_classes < 1:
        raise ValueError(f"num_classes is {num_classes}, but at least 1 class is needed.")
    if tuple(labels.shape) != (samples,):
        raise ValueError(
            f"labels has shape {tuple(labels.shape)}, but one label for each of the {samples} "
            "rows of features is needed."
        )
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise ValueError(f"labels has type {labels.dtype}, but an integer type is needed.")
    converted = labels.detach().cpu().to(torch.int64)
    lowest, highest = (int(bound) for bound in torch.aminmax(converted))
    if lowest < 0 or highest >= num_classes:
        raise ValueError(
            f"labels range from {lowest} to {highest}, but only 0 to {num_classes - 1} are allowed."
        )
    return converted


def checked_means(means: Tensor, num_classes: int, dimension: int, name: str) -> Tensor:
    """Return class means as float64 on the CPU, refusing a wrong shape."""
    if tuple(means.shape) != (num_classes, dimension):
        raise ValueError(
            f"{name} has shape {tuple(means.shape)}, but ({num_classes}, {dimension}) is needed: "
            "one row for each class, one column for each feature."
        )
    converted = as_float64(means)
    check_finite(converted, name)
    return converted


def checked_covariance(covariance: Tensor, name: str = "covariance") -> Tensor:
    """Return a covariance as an exactly symmetric float64 matrix on the CPU."""
    if covariance.ndim != 2 or covariance.shape[0] != covariance.shape[1]:
        raise ValueError(
            f"{name} has shape {tuple(covariance.shape)}, but a square matrix is needed."
        )
    converted = as_float64(covariance)
    check_finite(converted, name)
    return (converted + converted.T) / 2


def checked_priors(priors: Tensor, num_classes: int) -> Tensor:
    """Return class priors as float64 on the CPU that sum to one."""
    if tuple(priors.shape) != (num_classes,):
        raise ValueError(
            f"priors has shape {tuple(priors.shape)}, but ({num_classes},) is needed: "
            "one probability for each class."
        )
    converted = as_float64(priors)
    check_finite(converted, "priors")
    total = float(converted.sum())
    if float(converted.min()) < 0 or total <= 0:
        raise ValueError(
            f"priors range from {float(converted.min()):g} and sum to {total:g}, but only "
            "probabilities of at least 0 with a positive sum are allowed."
        )
    return converted / total


def check_ridge(ridge: float) -> None:
    """Refuse a ridge that is negative or not finite."""
    if not (math.isfinite(ridge) and ridge >= 0):
        raise ValueError(f"ridge is {ridge}, but only finite numbers of at least 0 are allowed.")
