"""Federations: who holds which images.

A federation is a source, split over clients by a partition, split again into training and test
images inside every client. It is prepared once into a folder of the cache: one file of uint8 images
sorted by client, the labels, and an index. Every worker maps the same file into memory, so a client
is a slice and costs nothing until it is read.
"""

import hashlib
import json
import math
import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pfedfda.data import partition
from pfedfda.data.sources import ImageSet, open_source
from pfedfda.errors import InputError
from pfedfda.seeding import numpy_generator

FORMAT = 1
PartitionName = Literal["auto", "iid", "dirichlet", "client-dirichlet", "shards", "group"]
PARTITIONS: dict[str, str] = {
    "iid": "the same distribution for everyone",
    "dirichlet": "each class split over the clients by Dirichlet(alpha) shares (the paper's)",
    "client-dirichlet": "a Dirichlet(alpha) class mix and a fixed number of samples a client",
    "shards": "exactly k classes a client",
    "group": "one client for each group of the source, such as a writer or a folder",
}
PrepareProgress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class FederationConfig:
    """Who holds which images.

    Parameters
    ----------
    source
        Where the images come from: digits, or the path of a folder (class/image.png or
        client/class/image.png) or of an .npz file with images and labels.
    image_size
        Scale all images to squares of this many pixels; the source's own size if not given.
    partition
        How samples are dealt to clients: iid, dirichlet (over clients for each class, the paper's),
        client-dirichlet (fixed number of samples a client), shards (k classes a client), or group
        (one client for each group of the source). auto is group where the source has groups,
        otherwise dirichlet.
    clients
        The number of clients; for partition group, how many groups to use (default: all).
    alpha
        Dirichlet concentration: small means few classes a client.
    min_samples
        The fewest samples a client may hold, training and test together (default: 10 for dirichlet;
        2 for group, where smaller groups are left out).
    samples
        Training samples of each client, for partition client-dirichlet.
    classes_per_client
        Classes of each client, for partition shards.
    train_share
        The share of each client's samples used for training; the rest is for testing.
    train_fraction
        The fraction of each client's training samples that is kept: 1, 0.75, 0.5, 0.25 in the
        paper. Test samples are not affected.
    partition_seed
        Determines the partition, the split and the fraction; 42 gives the authors' released
        partitions.
    """

    source: str = "digits"
    image_size: int | None = None
    partition: PartitionName = "auto"
    clients: int | None = None
    alpha: float = 0.5
    min_samples: int | None = None
    samples: int = 50
    classes_per_client: int = 2
    train_share: float = 0.8
    train_fraction: float = 1.0
    partition_seed: int = 42

    def __post_init__(self) -> None:
        if self.clients is not None and self.clients < 1:
            raise InputError(f"The number of clients is {self.clients}; it must be at least 1.")
        if not (self.alpha > 0 and math.isfinite(self.alpha)):
            raise InputError(f"The Dirichlet concentration alpha is {self.alpha}; it must be > 0.")
        smallest = partition.MIN_CLIENT_SAMPLES
        if self.min_samples is not None and self.min_samples < smallest:
            raise InputError(
                f"min-samples is {self.min_samples}; it must be at least {smallest}, one sample to "
                f"train on and one to test on."
            )
        if self.samples < 1:
            raise InputError(f"The number of samples a client is {self.samples}; it must be >= 1.")
        if not 0 < self.train_share < 1:
            raise InputError(f"train-share is {self.train_share}; it must lie between 0 and 1.")
        if not 0 < self.train_fraction <= 1:
            raise InputError(f"train-fraction is {self.train_fraction}; it must lie in (0, 1].")
        if not 0 <= self.partition_seed < 2**32:
            raise InputError(f"partition-seed is {self.partition_seed}; it must lie in [0, 2^32).")


class ClientData(NamedTuple):
    """The images of one client, as slices of the mapped file."""

    train_images: NDArray[np.uint8]
    train_labels: NDArray[np.int64]
    test_images: NDArray[np.uint8]
    test_labels: NDArray[np.int64]


@dataclass(frozen=True)
class Federation:
    """A prepared federation.

    Only the folder is state: the object can be sent to another process, which maps the files anew.

    Parameters
    ----------
    folder
        Where `prepare` put it.
    """

    folder: Path

    def __reduce__(self) -> tuple[type["Federation"], tuple[Path]]:
        return Federation, (self.folder,)

    @cached_property
    def index(self) -> dict[str, Any]:
        """The content of ``index.json``."""
        index: dict[str, Any] = json.loads((self.folder / "index.json").read_text())
        return index

    @cached_property
    def images(self) -> NDArray[np.uint8]:
        """All images, sorted by client, mapped from the file."""
        return _map_array(self.folder / "images.npy")

    @cached_property
    def labels(self) -> NDArray[np.int64]:
        """All labels in the order of the images."""
        return _map_array(self.folder / "labels.npy")

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Height, width and channels of every image."""
        height, width, channels = self.index["shape"]
        return height, width, channels

    @property
    def class_names(self) -> tuple[str, ...]:
        """The names of the classes, in the order of the labels."""
        return tuple(self.index["class_names"])

    @cached_property
    def train_sizes(self) -> NDArray[np.int64]:
        """The number of training samples of every client."""
        return np.array(self.index["train"], dtype=np.int64)

    @cached_property
    def test_sizes(self) -> NDArray[np.int64]:
        """The number of test samples of every client."""
        return np.array(self.index["test"], dtype=np.int64)

    @cached_property
    def client_names(self) -> list[str]:
        """The name of every client: its group's, or its number."""
        return [str(name) for name in self.index["names"]]

    @cached_property
    def _starts(self) -> NDArray[np.int64]:
        sizes = self.train_sizes + self.test_sizes
        return np.concatenate([[0], np.cumsum(sizes)])

    def __len__(self) -> int:
        return len(self.train_sizes)

    def client(self, client_id: int) -> ClientData:
        """Return the slices of one client."""
        start = int(self._starts[client_id])
        middle = start + int(self.train_sizes[client_id])
        stop = int(self._starts[client_id + 1])
        return ClientData(
            self.images[start:middle],
            self.labels[start:middle],
            self.images[middle:stop],
            self.labels[middle:stop],
        )

    def classes_held(self, client_id: int) -> int:
        """Return how many classes occur among a client's training samples."""
        return len(np.unique(self.client(client_id).train_labels))

    def describe(self) -> str:
        """Return a line about the federation for people."""
        height, width, channels = self.image_shape
        sizes = self.train_sizes
        colour = "grey" if channels == 1 else "colour"
        return (
            f"{len(self)} clients, {len(self.class_names)} classes, {height}×{width} {colour}, "
            f"{sizes.min()}-{sizes.max()} training samples a client (median "
            f"{np.median(sizes):.0f}), {self.test_sizes.sum()} test samples in all"
        )


def default_cache() -> Path:
    """Return the folder for prepared federations; the variable ``PFEDFDA_CACHE`` overrides it."""
    if folder := os.environ.get("PFEDFDA_CACHE"):
        return Path(folder).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pfedfda"


def prepare(
    config: FederationConfig,
    cache: Path | None = None,
    progress: PrepareProgress | None = None,
) -> Federation:
    """Return the federation that a configuration describes, making it if it is not there yet.

    It is written into a temporary folder beside its place and then renamed, which is atomic: of two
    processes that prepare the same federation at once, one wins and both get the same bytes.

    Parameters
    ----------
    config
        Source, partition, split and seed.
    cache
        The folder for prepared federations, `default_cache` when None.
    progress
        Called with a description, the number done and the number in all during long steps.
    """
    source = open_source(config.source, config.image_size)
    settings = {k: v for k, v in asdict(config).items() if k not in ("source", "image_size")}
    determined_by = {"format": FORMAT, "source": source.key(), "settings": settings}
    key = hashlib.sha256(json.dumps(determined_by, sort_keys=True).encode()).hexdigest()[:24]
    root = cache or default_cache()
    target = root / "federations" / key
    federation = Federation(target)
    if _is_complete(federation):
        return federation

    def report(step: str) -> Callable[[int, int], None] | None:
        return None if progress is None else lambda done, total: progress(step, done, total)

    image_set = source.load(report("reading images"))
    names, parts = _deal(config, image_set, report("drawing a partition"))
    order, train_sizes, test_sizes = _split(config, parts)
    index = {
        "format": FORMAT,
        "config": asdict(config),
        "shape": image_set.images.shape[1:],
        "class_names": image_set.class_names,
        "names": names,
        "train": train_sizes,
        "test": test_sizes,
    }
    _write(target, image_set, order, index)
    return Federation(target)


def _deal(
    config: FederationConfig,
    image_set: ImageSet,
    progress: Callable[[int, int], None] | None,
) -> tuple[list[str], list[NDArray[np.int64]]]:
    """Return the names of the clients and the sample indices of each."""
    kind = config.partition
    if kind == "auto":
        kind = "dirichlet" if image_set.groups is None else "group"
    labels, seed = image_set.labels, config.partition_seed
    if kind == "group":
        if image_set.groups is None:
            raise InputError(
                f"The partition 'group' needs a source with groups, and {config.source!r} has "
                f"none: use client/class/image.png or an array 'clients'."
            )
        minimum = config.min_samples or partition.MIN_CLIENT_SAMPLES
        parts = partition.by_group(image_set.groups, config.clients, minimum)
        return [image_set.group_names[image_set.groups[part[0]]] for part in parts], parts
    clients = config.clients or 50
    if clients > len(labels):
        raise InputError(
            f"{clients} clients were asked for and {config.source!r} has {len(labels)} samples: "
            f"use at most {len(labels) // partition.MIN_CLIENT_SAMPLES} clients."
        )
    if kind == "iid":
        parts = partition.iid(labels, clients, seed)
    elif kind == "shards":
        parts = partition.shards(labels, clients, config.classes_per_client, seed)
    elif kind == "client-dirichlet":
        samples = max(math.ceil(config.samples / config.train_share - 1e-9), config.samples + 1)
        parts = partition.client_dirichlet(labels, clients, config.alpha, samples, seed)
    else:
        minimum = config.min_samples or min(10, max(2, len(labels) // clients // 2))
        parts = partition.dirichlet(labels, clients, config.alpha, minimum, seed, progress)
    return [str(client) for client in range(clients)], parts


def _split(
    config: FederationConfig, parts: list[NDArray[np.int64]]
) -> tuple[NDArray[np.int64], list[int], list[int]]:
    """Shuffle every client's samples and cut them into training and test samples.

    Each client keeps at least one of both. A smaller training fraction keeps the first of the same
    training samples, so that the sets of 25, 50, 75 and 100 % are nested and the test set is one.
    """
    order, train_sizes, test_sizes = [], [], []
    for client, part in enumerate(parts):
        random = numpy_generator("split", config.partition_seed, client)
        shuffled = random.permutation(part)
        cut = min(max(int(len(part) * config.train_share + 1e-9), 1), len(part) - 1)
        kept = max(round(cut * config.train_fraction), 1)
        order += [shuffled[:kept], shuffled[cut:]]
        train_sizes.append(kept)
        test_sizes.append(len(part) - cut)
    return np.concatenate(order), train_sizes, test_sizes


def _write(
    target: Path, image_set: ImageSet, order: NDArray[np.int64], index: dict[str, Any]
) -> None:
    temporary: Path | None = None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=".preparing-", dir=target.parent))
        shape = (len(order), *image_set.images.shape[1:])
        images = np.lib.format.open_memmap(
            temporary / "images.npy", mode="w+", dtype=np.uint8, shape=shape
        )
        for start in range(0, len(order), 4096):  # bounds the memory of the gather
            images[start : start + 4096] = image_set.images[order[start : start + 4096]]
        images.flush()
        np.save(temporary / "labels.npy", image_set.labels[order])
        (temporary / "index.json").write_text(json.dumps(index))
        try:
            temporary.rename(target)
        except OSError:  # another process was faster, or a damaged folder is in the way
            if not _is_complete(Federation(target)):
                shutil.rmtree(target, ignore_errors=True)
                temporary.rename(target)
    except OSError as error:
        raise InputError(
            f"The federation cannot be written to the cache {target.parent} ({error}); free some "
            f"space or name another folder in the variable PFEDFDA_CACHE."
        ) from error
    finally:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)


def _is_complete(federation: Federation) -> bool:
    """Tell whether a prepared federation is there and its files have the sizes they should."""
    try:
        samples = int(federation.train_sizes.sum() + federation.test_sizes.sum())
        return (
            federation.index["format"] == FORMAT
            and federation.images.shape == (samples, *federation.image_shape)
            and federation.labels.shape == (samples,)
        )
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _map_array(path: Path) -> NDArray[Any]:
    array: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    return array
