"""Methods on CIFAR10-S whose corrupted clients hold nothing that could be learned.

Either their labels are permuted, among the training images and among the test images of each, so
that images and labels do not belong together, or their images are replaced by plain grey ones. With
``--test-only`` they train on what is theirs, and only their tests mean nothing. Who holds how many
samples of which class stays as it is. These are attempts to explain the paper's
numbers with 25 % of the samples, see docs/differences.md:

    python experiments/spoiled_clients.py images local fedavg fedavg-ft
"""

import argparse
import os
import shutil
import tempfile
from pathlib import Path

import numpy as np

from pfedfda.data import Federation, prepare
from pfedfda.data.store import write_hashes
from pfedfda.experiment import compare
from pfedfda.runs.config import make_config
from pfedfda.seeding import numpy_generator

GREY = 128


def spoil(federation: Federation, what: str, test_only: bool = False) -> None:
    """Permute the labels or blank the images of every corrupted client, in the files."""
    labels = np.load(federation.folder / "labels.npy", mmap_mode="r+")
    images = np.load(federation.folder / "inputs.npy", mmap_mode="r+")
    start = 0
    for client, corruption in enumerate(federation.attributes["corruption"]):
        random = numpy_generator("mixed-labels", client)
        middle = start + federation.train_sizes[client]
        stop = middle + federation.test_sizes[client]
        parts = [(middle, stop)] if test_only else [(start, middle), (middle, stop)]
        for first, last in parts if corruption else []:
            if what == "labels":
                random.shuffle(labels[first:last])
            else:
                images[first:last] = GREY
        start = stop
    labels.flush()
    images.flush()
    write_hashes(federation.folder)  # otherwise the damage would be noticed, and mended


def main() -> None:
    """Prepare the federation, spoil a copy of it, and run the methods there."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("labels", "images"), help="what is spoiled")
    parser.add_argument("methods", nargs="+", help="such as local, fedavg or fedavg-ft")
    parser.add_argument("--test-only", action="store_true", help="leave training samples alone")
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
        spoil(Federation(copy), options.what, options.test_only)
        os.environ["PFEDFDA_CACHE"] = cache
        comparison = compare(
            options.methods,
            options.federation,
            rounds=options.rounds,
            output=options.output,
            name=f"spoiled-{'test-' if options.test_only else ''}{options.what}",
            **settings,
        )
    print(comparison)


if __name__ == "__main__":
    main()
