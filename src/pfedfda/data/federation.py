"""Federations: who holds which samples.

A federation is a source, split over clients by a partition, split again into training and test
samples inside every client. It is prepared once into a folder of the cache: one file of inputs
sorted by client, the labels, and an index. Every worker maps the same file into memory, so a client
is a slice and costs nothing until it is read.
"""

import hashlib
import json
import math
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pfedfda.data.partition import MIN_CLIENT_SAMPLES
from pfedfda.data.preprocessing import Preprocessing
from pfedfda.data.shift import ShiftName
from pfedfda.data.store import read_hashes
from pfedfda.errors import InputError
from pfedfda.inputs import InputType, describe_inputs

PartitionName = Literal[
    "auto", "iid", "dirichlet", "client-dirichlet", "shards", "group", "group-dirichlet"
]
PARTITIONS: dict[str, str] = {
    "iid": "the same distribution for everyone",
    "dirichlet": "each class split over the clients by Dirichlet(alpha) shares (the paper's)",
    "client-dirichlet": "a Dirichlet(alpha) class mix and a fixed number of samples per client",
    "shards": "exactly k classes per client",
    "group": "one client for each group of the source, such as a writer or a folder",
    "group-dirichlet": "several clients for each group, its samples split as by dirichlet",
}


@dataclass(frozen=True)
class FederationConfig:
    """Who holds which samples.

    Parameters
    ----------
    source
        Where the samples come from: digits, a dataset such as cifar10 or hub:OWNER/NAME (pfedfda
        datasets lists them), or the path of a folder (class/image.png or client/class/image.png),
        of an .npz file with X and y or images and labels, or of a table (.csv, .parquet).
    data_dir
        The folder with local copies of datasets of the Hub, in the Hub's layout; by default what
        the variable PFEDFDA_DATA names. What is not there comes from the Hub.
    image_column
        The column of the images in a dataset of the Hub, where it cannot be told by its type.
    label_column
        The column of the labels in a table or a dataset of the Hub, where it cannot be told by its
        name or type.
    group_column
        The column of a table or a dataset of the Hub whose values are the groups, e.g. writers; in
        a table by default the one called client.
    text_column
        The column of a table or a dataset of the Hub that holds texts, which are then the inputs; a
        backbone turns them into features.
    one_hot
        Turn a column of words in a table into one column of 0 and 1 for each word.
    drop_columns
        Columns of a table that are not inputs, separated by commas.
    standardize
        Give every number of a table or of vectors mean 0 and variance 1 over the training samples
        of all clients, and the features of a backbone mean 0 and one common scale; the numbers that
        do it are kept with the model.
    skip_unreadable
        Leave out images that cannot be decoded, and count them.
    splits
        What folders called train, val or test above the classes are: parts of one dataset (merge),
        or clients. They are refused until this is decided.
    image_size
        Scale all images to squares of this many pixels; the source's own size if not given.
    partition
        How samples are dealt to clients: iid, dirichlet (over clients for each class, the paper's),
        client-dirichlet (fixed number of samples per client), shards (k classes per client), group
        (one client for each group of the source), or group-dirichlet (several clients for each
        group). auto is group where the source has groups, otherwise dirichlet.
    clients
        The number of clients; for partition group, how many groups to use (default: all).
    alpha
        Dirichlet concentration: small means few classes per client.
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
    train_samples
        Keep at most this many training samples of each client; all if not given. Test samples are
        not affected.
    validation_share
        To choose settings without a look at test images: this share of each client's kept training
        samples is held out, and the federation has them in place of the test samples. With 0 there
        is no validation, and the test samples are those for testing.
    shift
        Corrupt the images of the first half of the clients: none, paper (different
        corruption-severity pairs), or released (the ten pairs of the authors' program).
    shift_table
        A CSV file with the columns client, corruption, severity, in place of a named shift.
    shift_version
        2: training and test images are corrupted with random numbers of their own. 1: the numbers
        of the test images follow those of the training images, so that the corrupted test images
        depend on train-fraction; records of runs from before there was a version have this.
    backbone
        A pretrained network that turns images or texts into features once, before training:
        efficientnet-lite0, all-minilm-l6-v2, transformers:ID_OR_FOLDER, file.py:factory or
        package.module:factory. The features take the place of the inputs, and the model is then
        linear unless another is given.
    backbone_size
        Scale images to squares of this many pixels for the backbone; by default its own choice:
        for efficientnet-lite0 three times the images' side, 96 to 224.
    feature_dims
        Keep this many principal directions of the backbone's features, those of the pooled
        covariance of the clients' training samples; all dimensions if not given.
    feature_transform
        sqrt: take the square root of the features first (Tukey's power transform, with the sign
        kept), which makes skewed features more like Gaussians; none.
    partition_seed
        Determines the partition, the split, the fraction and the corruptions; 42 gives the authors'
        released partitions.
    """

    source: str = "digits"
    data_dir: Path | None = None
    image_column: str | None = None
    label_column: str | None = None
    group_column: str | None = None
    text_column: str | None = None
    one_hot: bool = False
    drop_columns: str | None = None
    standardize: bool = True
    skip_unreadable: bool = False
    splits: Literal["merge", "clients"] | None = None
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
    train_samples: int | None = None
    validation_share: float = 0.0
    shift: ShiftName = "none"
    shift_table: Path | None = None
    shift_version: int = 2
    backbone: str | None = None
    backbone_size: int | None = None
    feature_dims: int | None = None
    feature_transform: Literal["none", "sqrt"] = "none"
    partition_seed: int = 42

    def __post_init__(self) -> None:
        if self.clients is not None and self.clients < 1:
            raise InputError(f"The number of clients is {self.clients}; it must be at least 1.")
        if not (self.alpha > 0 and math.isfinite(self.alpha)):
            raise InputError(f"The Dirichlet concentration alpha is {self.alpha}; it must be > 0.")
        smallest = MIN_CLIENT_SAMPLES
        if self.min_samples is not None and self.min_samples < smallest:
            raise InputError(
                f"min-samples is {self.min_samples}; it must be at least {smallest}, one sample to "
                f"train on and one to test on."
            )
        if self.samples < 1:
            raise InputError(
                f"The number of samples per client is {self.samples}; it must be >= 1."
            )
        if self.clients_per_group < 1:
            raise InputError(
                f"clients-per-group is {self.clients_per_group}; it must be at least 1."
            )
        if self.shift != "none" and self.shift_table is not None:
            raise InputError("Give either a shift or a shift-table, not both.")
        if self.shift_version not in (1, 2):
            raise InputError(f"shift-version is {self.shift_version}; it must be 1 or 2.")
        if not 0 < self.train_share < 1:
            raise InputError(f"train-share is {self.train_share}; it must lie between 0 and 1.")
        if not 0 < self.train_fraction <= 1:
            raise InputError(f"train-fraction is {self.train_fraction}; it must lie in (0, 1].")
        if self.train_samples is not None and self.train_samples < 1:
            raise InputError(f"train-samples is {self.train_samples}; it must be at least 1.")
        if not 0 <= self.validation_share < 1:
            raise InputError(f"validation-share is {self.validation_share}; it must lie in [0, 1).")
        if self.backbone is None and (
            self.backbone_size is not None
            or self.feature_dims is not None
            or self.feature_transform != "none"
        ):
            raise InputError(
                "backbone-size, feature-dims and feature-transform need a backbone: name one with "
                "--backbone."
            )
        if self.backbone_size is not None and not 8 <= self.backbone_size <= 1024:
            raise InputError(
                f"backbone-size is {self.backbone_size}; it must be between 8 and 1024 pixels."
            )
        if self.feature_dims is not None and not self.standardize:
            raise InputError("feature-dims centres and scales features: drop standardize false.")
        if self.feature_dims is not None and self.feature_dims < 1:
            raise InputError(f"feature-dims is {self.feature_dims}; it must be at least 1.")
        if not 0 <= self.partition_seed < 2**32:
            raise InputError(f"partition-seed is {self.partition_seed}; it must lie in [0, 2^32).")


class ClientData(NamedTuple):
    """The samples of one client, as slices of the mapped file."""

    train_inputs: NDArray[Any]
    train_labels: NDArray[np.int64]
    test_inputs: NDArray[Any]
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

    client_noun = "client"  # what to call one of them in a message

    def __reduce__(self) -> tuple[type["Federation"], tuple[Path]]:
        return Federation, (self.folder,)

    @cached_property
    def index(self) -> dict[str, Any]:
        """The content of ``index.json``."""
        index: dict[str, Any] = json.loads((self.folder / "index.json").read_text())
        return index

    @cached_property
    def inputs(self) -> NDArray[Any]:
        """All inputs, sorted by client, mapped from the file; texts are read into memory."""
        stored = _map_array(self.folder / "inputs.npy")
        if self.index["type"] != "text":
            return stored
        stops = np.load(self.folder / "stops.npy", allow_pickle=False).tolist()
        whole = stored.tobytes()
        texts = [whole[a:b].decode() for a, b in zip([0, *stops], stops, strict=False)]
        return np.array(texts, dtype=np.dtypes.StringDType())

    @cached_property
    def labels(self) -> NDArray[np.int64]:
        """All labels in the order of the inputs."""
        return _map_array(self.folder / "labels.npy")

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one input; height, width and channels for images."""
        return tuple(self.index["shape"])

    @property
    def input_type(self) -> InputType:
        """What inputs are: uint8 (images), float32 or int64."""
        input_type: InputType = self.index["type"]
        return input_type

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
    def fingerprint(self) -> str:
        """Content fingerprint: who has how many samples, and the hashes of images and labels.

        Not the name of the folder or the index, which depend on where the source is.
        """
        hashes = read_hashes(self.folder)
        digest = hashlib.blake2b(digest_size=16)
        for array in (self.train_sizes, self.test_sizes):
            digest.update(array.data)
        for name in ("inputs.npy", "labels.npy"):
            digest.update(hashes[name].encode())
        return digest.hexdigest()

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
            self.inputs[start:middle],
            self.labels[start:middle],
            self.inputs[middle:stop],
            self.labels[middle:stop],
        )

    @cached_property
    def preprocessing(self) -> Preprocessing:
        """What turns a new sample into an input, as the samples here have been."""
        kept = Preprocessing.read(self.folder)
        return kept or Preprocessing(self.index["type"], self.input_shape)

    def classes_held(self, client_id: int) -> int:
        """Return how many classes occur among a client's training samples."""
        return len(np.unique(self.client(client_id).train_labels))

    def describe(self) -> str:
        """Return a line about the federation for people."""
        sizes = self.train_sizes
        held_out = "validation" if self.index["config"].get("validation_share") else "test"
        left_out = self.index.get("left_out", 0)
        unreadable = f"; {left_out} left out because unreadable" if left_out else ""
        return (
            f"{len(self)} clients, {len(self.class_names)} classes, "
            f"{describe_inputs(self.input_shape, self.input_type)}, "
            f"{sizes.min()}-{sizes.max()} training samples per client (median "
            f"{np.median(sizes):.0f}), {self.test_sizes.sum()} {held_out} samples in "
            f"all{unreadable}"
        )


def _map_array(path: Path) -> NDArray[Any]:
    # A plain array over the mapped pages: slices of it are made quicker than those of a memmap.
    return np.asarray(np.load(path, mmap_mode="r", allow_pickle=False))
