"""Methods on CIFAR10-S whose corrupted clients have images and labels that do not belong together.

The labels are permuted inside of each corrupted client, among its training images and among its
test images, so that everything but the pairing stays as it is. It is one explanation for the
paper's numbers with 25 % of the samples, see docs/differences.md:

    python benchmarks/mixed_labels.py --output runs/mixed local fedavg fedavg-ft
"""

import argparse
import os
import shutil
import tempfile
from pathlib import Path

import numpy as np

from pfedfda.data import Federation, prepare
from pfedfda.experiment import compare
from pfedfda.experiment.config import make_config
from pfedfda.seeding import numpy_generator


def permute_labels(federation: Federation) -> None:
    """Permute the labels of each corrupted client in the federation's file."""
    labels = np.array(federation.labels)
    sizes = np.stack([federation.train_sizes, federation.test_sizes], axis=1)
    ends = sizes.ravel().cumsum().reshape(sizes.shape)
    for client, corruption in enumerate(federation.attributes["corruption"]):
        random = numpy_generator("mixed-labels", client)
        for end, size in zip(ends[client], sizes[client], strict=True):
            if corruption:
                random.shuffle(labels[end - size : end])
    np.save(federation.folder / "labels.npy", labels)


def main() -> None:
    """Prepare the federation, permute labels in a copy of it, and run the methods there."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("methods", nargs="+", help="such as local, fedavg or fedavg-ft")
    parser.add_argument("--federation", default="cifar10-s")
    parser.add_argument("--train-fraction", type=float, default=0.25)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--output", type=Path, default=Path("runs"))
    options = parser.parse_args()
    settings = {"train_fraction": options.train_fraction}
    intact = prepare(make_config({}, options.federation, **settings).federation)
    with tempfile.TemporaryDirectory() as cache:
        copy = Path(cache) / "federations" / intact.folder.name
        shutil.copytree(intact.folder, copy)
        permute_labels(Federation(copy))
        os.environ["PFEDFDA_CACHE"] = cache
        comparison = compare(
            options.methods,
            options.federation,
            rounds=options.rounds,
            output=options.output,
            name="mixed-labels",
            **settings,
        )
    print(comparison)


if __name__ == "__main__":
    main()
