"""Updates are checked before they count."""

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from pfedfda.methods import Method, Tensors, Update


def fault_of(
    update: Update, method: Method, expected: Tensors | None, max_norm: float
) -> str | None:
    """Return what is wrong with an update, None if nothing is.

    Parameters
    ----------
    update
        What a client sent.
    method
        The method, which knows what its clients send.
    expected
        Tensors of the names, shapes and types that a proper update has (`dry_run`), None if that
        is not known.
    max_norm
        The longest tensor that is believed.
    """
    weight = update.weight
    if not isinstance(weight, int | float) or not math.isfinite(weight) or weight <= 0:
        return f"its weight is {weight!r}"
    return _wrong_names(update.tensors, expected) or _wrong_tensor(
        update.tensors, expected, max_norm
    )


def _wrong_names(
    tensors: Mapping[str, Tensor], expected: Mapping[str, Tensor] | None
) -> str | None:
    if expected is None:
        return None
    missing = [name for name in expected if name not in tensors]
    if missing:
        return f"the tensor {missing[0]} is missing"
    for name in tensors:
        if name not in expected:
            return f"it has a tensor {name[:80]!r} that nobody asked for"
    return None


def _wrong_tensor(
    tensors: Mapping[str, Tensor], expected: Mapping[str, Tensor] | None, max_norm: float
) -> str | None:
    for name, tensor in tensors.items():
        like = (expected or {}).get(name)
        if like is not None and (tensor.shape != like.shape or tensor.dtype != like.dtype):
            return (
                f"the tensor {name} is {_kind(tensor)} of shape {tuple(tensor.shape)} instead of "
                f"{_kind(like)} of shape {tuple(like.shape)}"
            )
        # Below a double's range nothing overflows, and a sum is finite only if every term is.
        norm = float(torch.linalg.vector_norm(tensor.reshape(-1).double()))
        if not math.isfinite(norm):
            return f"the tensor {name} is not finite"
        if norm > max_norm:
            return f"the tensor {name} has norm {norm:.3g}, above max-update-norm {max_norm:.3g}"
    return None


def _kind(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
