"""What can be had on a federation without looking at an image.

Prints how many classes a client holds, how many of its test images are of a class that it has a
training image of, and the accuracy of naming its most frequent training class, whatever the image:

    python experiments/class_counts.py cifar10-scarce --alpha 0.1
"""

import argparse
from dataclasses import fields
from typing import NamedTuple

import numpy as np

from pfedfda.data import Federation, FederationConfig, prepare
from pfedfda.runs.config import make_config


class Counts(NamedTuple):
    """What the labels of one client say."""

    classes: int
    known: float
    majority: float


def count(federation: Federation, client: int) -> Counts:
    """Count the labels of a client."""
    data = federation.client(client)
    held, times = np.unique(data.train_labels, return_counts=True)
    return Counts(
        len(held),
        float(np.isin(data.test_labels, held).mean()),
        float((data.test_labels == held[times.argmax()]).mean()),
    )


def main() -> None:
    """Prepare a federation and print the means over its clients."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("federation", help="one of the paper's, such as cifar10-s")
    parser.add_argument("--alpha", type=float)
    parser.add_argument("--train-fraction", type=float)
    options = parser.parse_args()
    known = {field.name for field in fields(FederationConfig)}
    settings = {k: v for k, v in vars(options).items() if k in known and v is not None}
    federation = prepare(make_config({}, options.federation, **settings).federation)
    counts = np.array([count(federation, client) for client in range(len(federation))])
    corrupted = np.array([bool(c) for c in federation.attributes.get("corruption", [])])
    groups = {"all clients": np.ones(len(federation), bool)}
    if corrupted.any():
        groups |= {"corrupted clients": corrupted, "clean clients": ~corrupted}
    for name, chosen in groups.items():
        classes, seen, majority = counts[chosen].mean(axis=0)
        spread = counts[chosen, 2].std()
        print(
            f"{name}: {classes:.1f} classes on average, {seen:.3f} of the test images of a class "
            f"it holds, most frequent class right in {majority:.3f} ({spread:.3f})"
        )


if __name__ == "__main__":
    main()
