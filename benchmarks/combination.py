"""Time how FedPAC's server combines heads, and measure what bounding the partners costs.

Clients hold 10 to 60 of the built-in digits with classes drawn from Dirichlet(0.5); features are
those of the initial network. The optimum is the one with all clients as partners, found for ten
clients; "the nearest alone" is what the best weights for only the nearest partners have:

    python benchmarks/combination.py --clients 100 300 1000 3000
"""

import argparse
import time

import numpy as np
import torch
from numpy.typing import NDArray

from pfedfda.data.sources import Digits
from pfedfda.machine import one_thread
from pfedfda.methods import to_input
from pfedfda.methods.fedpac import (
    FedPAC,
    _quadratic_form,
    combination_statistics,
    combination_weights,
    minimize_on_simplex,
)
from pfedfda.models import ModelConfig, build_model

Matrix = NDArray[np.float64]


def make_clients(number: int, alpha: float = 0.5) -> tuple[Matrix, Matrix]:
    """Return the class features and variances of clients that hold digits."""
    digits, random = Digits().load(), np.random.default_rng(0)
    body = build_model(ModelConfig(), digits.inputs.shape[1:], 10, seed=0).body
    with torch.no_grad():
        features = body(to_input(torch.from_numpy(digits.inputs))).double()
    class_features, variances = [], []
    for _ in range(number):
        shares = random.dirichlet([alpha] * 10)[digits.labels]
        rows = random.choice(len(features), random.integers(10, 60), p=shares / shares.sum())
        labels, own = torch.from_numpy(digits.labels[rows]), features[rows]
        counts = torch.bincount(labels, minlength=10)
        average = torch.nn.functional.one_hot(labels, 10).double().T / counts.clamp(min=1)[:, None]
        means, squares = average @ own, average @ own.square().sum(1)
        of_client = combination_statistics(counts, means, squares)
        class_features.append(of_client[0])
        variances.append(of_client[1])
    return torch.stack(class_features).numpy(), torch.cat(variances).numpy()


def excess(
    class_features: Matrix, variances: Matrix, weights: Matrix, partners: int
) -> tuple[list[float], list[float]]:
    """Return by how much the objective of some clients is above the optimum, relatively.

    First that of the weights, then that of the best weights for the nearest partners alone.
    """
    flat = class_features.reshape(len(class_features), -1)
    flat = flat - flat.mean(axis=0)
    gram = flat @ flat.T
    found, nearest = [], []
    for i in range(0, len(flat), max(len(flat) // 10, 1)):
        form = _quadratic_form(gram, variances, i, np.arange(len(flat)))
        best = _value(minimize_on_simplex(form), form)
        near = np.argsort(np.square(flat - flat[i]).sum(1))[:partners]
        of_near = form[np.ix_(near, near)]
        found.append(_value(weights[i], form) / best - 1)
        nearest.append(_value(minimize_on_simplex(of_near), of_near) / best - 1)
    return found, nearest


def _value(weights: Matrix, form: Matrix) -> float:
    return float(weights @ form @ weights)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, nargs="+", default=[100, 300, 1000])
    parser.add_argument("--partners", type=int, default=FedPAC().partners)
    options = parser.parse_args()
    print(
        "| participants | partners at most | seconds | partners with weight, mean "
        "| above the optimum, mean | max | the nearest alone, mean |\n|---|---|---|---|---|---|---|"
    )
    for number in options.clients:
        class_features, variances = make_clients(number)
        with one_thread():
            start = time.perf_counter()
            weights = combination_weights(class_features, variances, partners=options.partners)
            seconds = time.perf_counter() - start
            found, nearest = excess(class_features, variances, weights, options.partners)
        print(
            f"| {number:,} | {min(options.partners, number):,} | {seconds:.1f} "
            f"| {(weights > 0).sum(1).mean():.0f} | {np.mean(found):.0e} | {np.max(found):.0e} "
            f"| {np.mean(nearest):.0%} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
