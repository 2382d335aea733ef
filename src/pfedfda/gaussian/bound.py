"""The error bound of Theorem 1: bias against variance of an interpolated mean."""

import math
from typing import overload

import torch
from torch import Tensor


@overload
def interpolation_error_bound(
    beta: Tensor,
    *,
    squared_shift: float,
    local_trace: float,
    global_trace: float,
    local_samples: int,
    total_samples: int,
    delta: float,
    c: float,
) -> Tensor: ...
@overload
def interpolation_error_bound(
    beta: float,
    *,
    squared_shift: float,
    local_trace: float,
    global_trace: float,
    local_samples: int,
    total_samples: int,
    delta: float,
    c: float,
) -> float: ...
def interpolation_error_bound(
    beta: Tensor | float,
    *,
    squared_shift: float,
    local_trace: float,
    global_trace: float,
    local_samples: int,
    total_samples: int,
    delta: float,
    c: float,
) -> Tensor | float:
    """Bound the squared error ‖μ̂_i - θ_i‖² of the interpolated mean (Theorem 1).

    With probability of at least 1 - δ it is no more than

        (1-β)² ‖θ_g - θ_i‖² + [1 + 4 (√(log(1/δ)/c) + log(1/δ)/c)]
                              · [2β/n_i · tr Σ_i + (1-β)²/N · tr Σ_g].

    Parameters
    ----------
    beta : Tensor or float
        One or many interpolation weights β in [0, 1].
    squared_shift : float
        Squared distance of global and local true means, ‖θ_g - θ_i‖².
    local_trace, global_trace : float
        Traces of the true covariances, tr Σ_i and tr Σ_g, where Σ_g is the average of the
        clients' covariances weighted by their samples.
    local_samples, total_samples : int
        Samples of the client, n_i, and of all clients together, N (the client's included).
    delta : float
        The probability δ in (0, 1) with which the bound may fail.
    c : float
        The absolute constant of the Hanson-Wright inequality, c > 0.

    Returns
    -------
    Tensor or float
        The bound, of the type and shape of `beta`.

    Notes
    -----
    The proof takes the expectation of the cross term 2(1-β)⟨θ_g - θ_i, Σ̂^{1/2}g⟩, which is 0,
    and bounds its deviation nowhere. The theorem therefore needs a shift that is not large
    against the standard error of the estimate times the factor in square brackets.
    """
    if not 0 < delta < 1:
        raise ValueError(f"delta is {delta}, but only numbers between 0 and 1 are allowed.")
    if not c > 0:
        raise ValueError(f"c is {c}, but only positive numbers are allowed.")
    if not 1 <= local_samples <= total_samples:
        raise ValueError(
            f"local_samples is {local_samples} of total_samples {total_samples}, but only 1 up to "
            "the total are allowed."
        )
    weights = torch.as_tensor(beta, dtype=torch.float64)
    if not bool(((weights >= 0) & (weights <= 1)).all()):
        raise ValueError(f"beta is {beta}, but only numbers from 0 to 1 are allowed.")
    ratio = math.log(1 / delta) / c
    confidence = 1 + 4 * (math.sqrt(ratio) + ratio)
    bias = (1 - weights) ** 2 * squared_shift
    variance = 2 * weights * local_trace / local_samples
    variance = variance + (1 - weights) ** 2 * global_trace / total_samples
    bound = bias + confidence * variance
    return bound if isinstance(beta, Tensor) else float(bound)
