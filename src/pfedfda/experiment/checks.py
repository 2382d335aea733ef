"""Updates and test results are checked before they count."""

import math
import re
from collections.abc import Collection, Mapping
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from pfedfda.errors import DivergedRunError, quote
from pfedfda.methods import Method, Tensors, Update
from pfedfda.runs import Outcome

NOT_FINITE = "not finite"  # part of the reason wherever training may have diverged
MOST_METRICS = 20  # numbers that a client may report
# A loss is computed in single precision. Within its range no sum over clients, however weighted,
# leaves that of a double.
LARGEST = float(torch.finfo(torch.float32).max)
PLAIN = re.compile(r"\w[\w.-]{0,59}")


def fault_of(
    update: Update, method: Method, expected: Tensors | None, max_norm: float, samples: int
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
    samples
        The client's number of training samples.
    """
    weight = update.weight
    if not isinstance(weight, int | float) or not 0 < weight <= samples:
        value = f"{weight:.6g}" if isinstance(weight, float) else quote(weight)
        return (
            f"its weight is {value}; it must be above 0 and at most {samples}, its number of "
            f"training samples"
        )
    return (
        _wrong_metrics(update.metrics)
        or _wrong_names(update.tensors, expected)
        or _wrong_tensor(update.tensors, expected, max_norm)
        or method.fault(update)
    )


def evaluation_fault(
    outcome: Outcome, samples: int, columns: Collection[str], num_classes: int
) -> str | None:
    """Return what is wrong with a test result, None if nothing is.

    Parameters
    ----------
    outcome
        What a client reported.
    samples
        The client's number of test samples.
    columns
        The columns of the table of clients, whose names no metric can have.
    num_classes
        The number of classes.
    """
    if not 0 <= outcome.correct <= outcome.tested <= samples or outcome.tested < 1:
        return (
            f"it reports {outcome.correct} of {outcome.tested} test samples as correct, and has "
            f"{samples}"
        )
    if not math.isfinite(outcome.loss):
        return f"its test loss is {NOT_FINITE}"
    if not 0 <= outcome.loss <= LARGEST * outcome.tested:
        return f"its test loss is {outcome.loss:.3g}"
    taken = [name for name in outcome.metrics if name in columns]
    if taken:
        return f"it reports a number called {taken[0]!r}, which is another column of clients.csv"
    if outcome.predictions is None:
        return "it does not report what its predictions add up to"
    return _wrong_metrics(outcome.metrics) or outcome.predictions.fault(
        outcome.tested, outcome.correct, num_classes
    )


def _wrong_metrics(metrics: Mapping[str, Any]) -> str | None:
    if len(metrics) > MOST_METRICS:
        return f"it reports {len(metrics)} numbers, and {MOST_METRICS} are allowed"
    for name, value in metrics.items():
        if not isinstance(name, str) or not PLAIN.fullmatch(name):
            return f"it reports a number called {quote(name)}, which is not a plain name"
        if not isinstance(value, Real):
            return f"its {name} is {quote(value)} instead of a number"
        size: Any = abs(value)
        if not size < math.inf:
            return f"its {name} is {NOT_FINITE}"
        if size > LARGEST:
            return f"its {name} is {quote(value)}, beyond {LARGEST:.2g}"
    return None


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
            return f"the tensor {name} is {NOT_FINITE}"
        if norm > max_norm:
            return f"the tensor {name} has norm {norm:.3g}, above max-update-norm {max_norm:.3g}"
    return None


def _kind(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def refuse_divergence(state: Tensors, train_loss: float, round_number: int) -> None:
    """Stop a run whose numbers have become infinite or undefined; more rounds cannot mend it."""
    broken = [name for name, tensor in state.items() if not bool(torch.isfinite(tensor).all())]
    if broken or not math.isfinite(train_loss):
        what = f"tensor {broken[0]}" if broken else "training loss"
        raise DivergedRunError(
            f"Training diverged: the {what} is not finite after round {round_number}; a smaller "
            f"--lr usually helps."
        )
