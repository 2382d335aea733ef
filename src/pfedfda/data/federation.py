"""Federations: who holds which images.

A federation is a source, split over clients by a partition, split again into training and test
images inside every client. It is prepared once into a folder of the cache: one file of uint8 images
sorted by client, the labels, and an index. Every worker maps the same file into memory, so a client
is a slice and costs nothing until it is read.
"""

import hashlib
import json
import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pfedfda.data import partition
from pfedfda.data.catalogue import open_source
from pfedfda.data.corruptions import corrupt
from pfedfda.data.hub import data_folder
from pfedfda.data.shift import Shift, ShiftName, assign_shift, frost_photos
from pfedfda.data.sources import ImageSet
from pfedfda.data.store import default_cache, store
from pfedfda.errors import InputError
from pfedfda.seeding import numpy_generator

FORMAT = 2
SOURCE_COLUMNS = ("image_column", "label_column", "group_column")
PartitionName = Literal[
    "auto", "iid", "dirichlet", "client-dirichlet", "shards", "group", "group-dirichlet"
]
PARTITIONS: dict[str, str] = {
    "iid": "the same distribution for everyone",
    "dirichlet": "each class split over the clients by Dirichlet(alpha) shares (the paper's)",
    "client-dirichlet": "a Dirichlet(alpha) class mix and a fixed number of samples a client",
    "shards": "exactly k classes a client",
    "group": "one client for each group of the source, such as a writer or a folder",
    "group-dirichlet": "several clients for each group, its samples split as by dirichlet",
}
PrepareProgress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class FederationConfig:
    """Who holds which images.

    Parameters
    ----------
    source
        Where the images come from: digits, a dataset such as cifar10 or hub:OWNER/NAME (pfedfda
        datasets lists them), or the path of a folder (class/image.png or client/class/image.png) or
        of an .npz file with images and labels.
    data_dir
        The folder with local copies of datasets of the Hub, in the Hub's layout; by default what
        the variable PFEDFDA_DATA names. What is not there comes from the Hub.
    image_column, label_column, group_column
        Columns of a dataset of the Hub, where they cannot be told by their types.
    image_size
        Scale all images to squares of this many pixels; the source's own size if not given.
    partition
        How samples are dealt to clients: iid, dirichlet (over clients for each class, the paper's),
        client-dirichlet (fixed number of samples a client), shards (k classes a client), or group
        (one client for each group of the source), or group-dirichlet (several clients for each
        group). auto is group where the source has groups, otherwise dirichlet.
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
    clients_per_group
        Clients of each group, for partition group-dirichlet.
    train_share
        The share of each client's samples used for training; the rest is for testing.
    train_fraction
        The fraction of each client's training samples that is kept: 1, 0.75, 0.5, 0.25 in the
        paper. Test samples are not affected.
    shift
        Corrupt the images of the first half of the clients: none, paper (different
        corruption-severity pairs), or released (the ten pairs of the authors' program).
    shift_table
        A CSV file with the columns client, corruption, severity, in place of a named shift.
    partition_seed
        Determines the partition, the split, the fraction and the corruptions; 42 gives the authors'
        released partitions.
    """

    source: str = "digits"
    data_dir: Path | None = None
    image_column: str | None = None
    label_column: str | None = None
    group_column: str | None = None
    image_size: int | None = None
    partition: PartitionName = "auto"
    clients: int | None = None
    alpha: float = 0.5
    min_samples: int | None = None
    samples: int = 50
    classes_per_client: int = 2
    clients_per_group: int = 4
    train_share: float = 0.8
    train_fraction: float = 1.0
    shift: ShiftName = "none"
    shift_table: Path | None = None
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
        if self.clients_per_group < 1:
            raise InputError(
                f"clients-per-group is {self.clients_per_group}; it must be at least 1."
            )
        if self.shift != "none" and self.shift_table is not None:
            raise InputError("Give either a shift or a shift-table, not both.")
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

    @property
    def attributes(self) -> dict[str, list[Any]]:
        """What is known of every client: its domain, its corruption and the severity, if any."""
        attributes: dict[str, list[Any]] = self.index["attributes"]
        return attributes

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


def prepare(
    config: FederationConfig,
    cache: Path | None = None,
    progress: PrepareProgress | None = None,
) -> Federation:
    """Return the federation that a configuration describes, making it if it is not there yet.

    Parameters
    ----------
    config
        Source, partition, split, shift and seed.
    cache
        The folder for prepared federations, `default_cache` when None.
    progress
        Called with a description, the number done and the number in all during long steps.
    """
    columns = {
        name: value for name in SOURCE_COLUMNS if (value := getattr(config, name)) is not None
    }
    source = open_source(config.source, config.image_size, config.data_dir, columns)
    of_source = ("source", "image_size", "data_dir", "shift_table", *SOURCE_COLUMNS)
    settings = {name: v for name, v in asdict(config).items() if name not in of_source}
    frost = _frost_folder(config)
    determined_by = {
        "format": FORMAT,
        "source": source.key(),
        "settings": settings,
        "shift_table": _content(config.shift_table),
        "frost": None if frost is None else sorted(f.name for f in frost.iterdir()),
    }
    key = hashlib.sha256(json.dumps(determined_by, sort_keys=True).encode()).hexdigest()[:24]
    root = cache or default_cache()
    target = root / "federations" / key
    federation = Federation(target)
    if _is_complete(federation):
        return federation

    def report(step: str) -> Callable[[int, int], None] | None:
        return None if progress is None else lambda done, total: progress(step, done, total)

    image_set = source.load(report("reading images"))
    names, parts, attributes = _deal(config, image_set, report("drawing a partition"))
    order, train_sizes, test_sizes = _split(config, parts)
    shifts = assign_shift(config.shift, config.shift_table, len(parts))
    if shifts:
        attributes["corruption"] = [
            shifts[c].corruption if c in shifts else "" for c in range(len(parts))
        ]
        attributes["severity"] = [
            shifts[c].severity if c in shifts else 0 for c in range(len(parts))
        ]
    index = {
        "format": FORMAT,
        "config": {**asdict(config), "data_dir": None, "shift_table": None},
        "shape": image_set.images.shape[1:],
        "class_names": image_set.class_names,
        "names": names,
        "train": train_sizes,
        "test": test_sizes,
        "attributes": attributes,
    }

    def write(folder: Path) -> None:
        photos = frost_photos(config.data_dir) if shifts else None
        _write_images(folder, image_set, order, index, shifts, photos, report("writing images"))
        np.save(folder / "labels.npy", image_set.labels[order])
        (folder / "index.json").write_text(json.dumps(index))

    store(target, write, lambda: _is_complete(Federation(target)))
    return Federation(target)


def _frost_folder(config: FederationConfig) -> Path | None:
    """Return the folder with photographs of frost, if they are needed and there."""
    folder = data_folder(config.data_dir)
    shifted = config.shift != "none" or config.shift_table is not None
    if not shifted or folder is None or not (folder / "frost").is_dir():
        return None
    return folder / "frost"


def _content(path: Path | None) -> str | None:
    try:
        return None if path is None else path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"The shift table {path} cannot be read ({error}).") from error


def _deal(
    config: FederationConfig,
    image_set: ImageSet,
    progress: Callable[[int, int], None] | None,
) -> tuple[list[str], list[NDArray[np.int64]], dict[str, list[Any]]]:
    """Return the names of the clients, the sample indices of each, and their attributes."""
    kind = config.partition
    if kind == "auto":
        kind = "dirichlet" if image_set.groups is None else "group"
    labels, seed = image_set.labels, config.partition_seed
    if kind in ("group", "group-dirichlet"):
        if image_set.groups is None:
            raise InputError(
                f"The partition {kind!r} needs a source with groups, and {config.source!r} has "
                f"none: use client/class/image.png or an array 'clients'."
            )
        if kind == "group-dirichlet":
            return _deal_inside_groups(config, image_set, image_set.groups, progress)
        minimum = config.min_samples or partition.MIN_CLIENT_SAMPLES
        parts = partition.by_group(image_set.groups, config.clients, minimum)
        return [image_set.group_names[image_set.groups[part[0]]] for part in parts], parts, {}
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
        minimum = config.min_samples or _usual_minimum(len(labels), clients)
        parts = partition.dirichlet(labels, clients, config.alpha, minimum, seed, progress)
    return [str(client) for client in range(clients)], parts, {}


def _deal_inside_groups(
    config: FederationConfig,
    image_set: ImageSet,
    groups: NDArray[np.int64],
    progress: Callable[[int, int], None] | None,
) -> tuple[list[str], list[NDArray[np.int64]], dict[str, list[Any]]]:
    """Split every group over clients of its own by Dirichlet shares."""
    names, parts, domains = [], [], []
    count = config.clients_per_group
    for group, name in enumerate(image_set.group_names):
        members = np.flatnonzero(groups == group)
        minimum = config.min_samples or _usual_minimum(len(members), count)
        inside = partition.dirichlet(
            image_set.labels[members],
            count,
            config.alpha,
            minimum,
            config.partition_seed + group,
            progress,
        )
        parts += [members[part] for part in inside]
        names += [f"{name}-{client}" for client in range(count)]
        domains += [name] * count
    return names, parts, {"domain": domains}


def _usual_minimum(samples: int, clients: int) -> int:
    """Return the smallest size of a client where the user has not given one."""
    return min(10, max(partition.MIN_CLIENT_SAMPLES, samples // clients // 2))


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


def _write_images(
    folder: Path,
    image_set: ImageSet,
    order: NDArray[np.int64],
    index: dict[str, Any],
    shifts: dict[int, Shift],
    frost_photos: list[NDArray[np.uint8]] | None,
    progress: Callable[[int, int], None] | None,
) -> None:
    """Write the images client by client, corrupted where they are to be."""
    shape = (len(order), *image_set.images.shape[1:])
    images = np.lib.format.open_memmap(
        folder / "images.npy", mode="w+", dtype=np.uint8, shape=shape
    )
    sizes = np.array(index["train"]) + np.array(index["test"])
    stops = np.cumsum(sizes)

    def fill(client: int) -> None:
        start, stop = int(stops[client] - sizes[client]), int(stops[client])
        own = image_set.images[order[start:stop]]
        if client in shifts:
            random = numpy_generator("shift", index["config"]["partition_seed"], client)
            own = corrupt(own, *shifts[client], random, frost_photos)
        images[start:stop] = own

    with ThreadPoolExecutor() as pool:  # numpy and Pillow work outside the interpreter lock
        for done, _ in enumerate(pool.map(fill, range(len(sizes))), start=1):
            if progress is not None:
                progress(done, len(sizes))
    images.flush()


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
