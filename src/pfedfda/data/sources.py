"""Sources: where images and labels come from before anybody holds them.

A source can tell what determines its content without reading all of it (`Source.key`), and it can
load it (`Source.load`). This file has the digits and the user's own images; datasets of the Hub are
in `pfedfda.data.hub`, and names for all of them in `pfedfda.data.catalogue`.
"""

import io
import math
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from pfedfda.data.decoding import Progress, decode_all, image_suffixes, scale
from pfedfda.errors import InputError, quote
from pfedfda.files import LARGEST_SIDE, MOST_CLASSES

ARRAYS = ("images", "labels", "clients", "class_names")
# What a compressed file makes of itself in memory may have half a gigabyte; beyond that only what
# images really compress to. Without compression, there is no bound.
HARMLESS_BYTES = 2**29
MOST_COMPRESSION = 20
# A label, a client or a class name becomes a long number or a Python string, with copies of it.
ENTRY_BYTES = 128
HEADER_BYTES = 2**14  # of an array in a file; numpy itself takes up to 10,000


@dataclass(frozen=True)
class Dataset:
    """Labelled samples as they come out of a source.

    Parameters
    ----------
    inputs
        uint8 images (samples, height, width, channels) with one or three channels; float32 numbers
        (samples, …); int64 indices (samples, …); or texts (samples,), which a backbone must turn
        into features.
    labels
        One integer label a sample, from 0 to the number of classes minus one.
    class_names
        The names of the classes, in the order of the labels.
    groups
        An integer group id for each sample where the source has natural clients, otherwise None.
    group_names
        The names of the groups, in the order of their ids.
    """

    inputs: NDArray[Any]
    labels: NDArray[np.int64]
    class_names: tuple[str, ...]
    groups: NDArray[np.int64] | None = None
    group_names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.inputs.ndim > 0 and len(self.inputs) == 0:
            raise InputError("The source holds no samples.")
        self._check_inputs()
        count, classes = len(self.inputs), len(self.class_names)
        if classes > MOST_CLASSES:
            raise InputError(
                f"The source has {classes:,} classes; at most {MOST_CLASSES:,} are allowed."
            )
        if self.labels.shape != (count,):
            raise InputError(
                f"There are {count} inputs but labels of shape {self.labels.shape}; expected one "
                f"label per input."
            )
        if self.labels.min() < 0 or self.labels.max() >= classes:
            wrong = self.labels.min() if self.labels.min() < 0 else self.labels.max()
            raise InputError(
                f"Label {wrong} is out of range: with {classes} classes labels go from 0 to "
                f"{classes - 1}."
            )
        empty = np.flatnonzero(np.bincount(self.labels, minlength=classes) == 0)
        if len(empty):
            raise InputError(
                f"Class {self.class_names[empty[0]]!r} has no samples: every class needs at least "
                f"one; remove it or number the labels without gaps."
            )
        if self.groups is not None and self.groups.shape != (count,):
            raise InputError(
                f"There are {count} inputs but client ids of shape {self.groups.shape}; expected "
                f"one id per input."
            )

    def _check_inputs(self) -> None:
        shape, dtype = self.inputs.shape, self.inputs.dtype
        if dtype == np.uint8:
            if len(shape) != 4 or shape[3] not in (1, 3) or not self.inputs.size:
                raise InputError(
                    f"The images have shape {shape}; expected (samples, height, width) or "
                    f"(samples, height, width, channels) with 1 or 3 channels."
                )
        elif dtype.kind == "T":
            if len(shape) != 1:
                raise InputError(f"The texts have shape {shape}; expected one text per sample.")
        elif dtype not in (np.float32, np.int64):
            raise InputError(
                f"The inputs are {dtype}; expected uint8 images of 0 to 255, floats or integers."
            )
        elif len(shape) < 2 or not self.inputs.size:
            raise InputError(
                f"The inputs have shape {shape}; expected (samples, features) or more axes."
            )
        elif dtype == np.float32 and not np.isfinite(self.inputs).all():
            row = int(np.argwhere(~np.isfinite(self.inputs))[0][0])
            raise InputError(
                f"Sample {row} of the source has a value that is not finite: fill in or remove it."
            )


class Source(Protocol):
    """What the rest of the package needs from a source."""

    def key(self) -> dict[str, Any]:
        """Return everything that determines the content, as JSON values."""

    def load(self, progress: Progress | None = None) -> Dataset:
        """Read all images; `progress` is called with the number done and the number in all."""


@dataclass(frozen=True)
class Digits:
    """The 1,797 handwritten digits that scikit-learn ships, scaled from 8×8 to 28×28.

    They are the test part of the UCI "Optical Recognition of Handwritten Digits" set (E. Alpaydin
    and C. Kaynak, 1998), written by 13 people.
    """

    image_size: int = 28

    def key(self) -> dict[str, Any]:
        """Return the name, the version of the scaling, and the size."""
        return {"source": "digits", "version": 1, "image_size": self.image_size}

    def load(self, progress: Progress | None = None) -> Dataset:
        """Return the digits, scaled with bicubic interpolation."""
        from sklearn.datasets import load_digits

        digits = load_digits()
        small = np.rint(digits.images * (255 / 16)).astype(np.uint8)
        size = (self.image_size, self.image_size)
        images = [Image.fromarray(d).resize(size, Image.Resampling.BICUBIC) for d in small]
        return Dataset(
            inputs=np.stack([np.asarray(image) for image in images])[..., None],
            labels=digits.target.astype(np.int64),
            class_names=tuple(str(name) for name in digits.target_names),
        )


@dataclass(frozen=True)
class Folder:
    """The user's own images: ``class/image.png``, or ``client/class/image.png``.

    Files that are not images by their name are passed over, and so is everything hidden. Images
    become squares: they are cropped at the centre and scaled.

    Parameters
    ----------
    path
        The folder.
    image_size
        The side of the squares in pixels; by default what `pfedfda.data.decoding` chooses.
    """

    path: Path
    image_size: int | None = None

    def key(self) -> dict[str, Any]:
        """Return the name, size and time of change of every file."""
        files = [
            [str(f.relative_to(self.path)), f.stat().st_size, f.stat().st_mtime_ns]
            for f in self._files()
        ]
        return {"source": "folder", "version": 1, "files": files, "image_size": self.image_size}

    def load(self, progress: Progress | None = None) -> Dataset:
        """Decode every image and take classes, and clients if there are any, from the folders."""
        files = self._files()
        depths = {len(f.relative_to(self.path).parts) for f in files}
        if depths not in ({2}, {3}):
            deepest = max(depths) if len(depths) > 1 else 0
            named = next(f for f in files if len(f.relative_to(self.path).parts) != deepest)
            raise InputError(
                f"The images in {self.path} must all lie at class/image.png or all at "
                f"client/class/image.png, but {named.relative_to(self.path)} does not fit."
            )
        self._refuse_empty_classes(files, depths.pop())
        images = decode_all([(str(f), f) for f in files], self.image_size, progress)
        class_names = sorted({f.parent.name for f in files})
        labels = np.array([class_names.index(f.parent.name) for f in files])
        groups, group_names = None, []
        if len(files[0].relative_to(self.path).parts) == 3:
            group_names = sorted({f.parents[1].name for f in files})
            groups = np.array([group_names.index(f.parents[1].name) for f in files])
        return Dataset(images, labels, _printable(class_names), groups, _printable(group_names))

    def _files(self) -> list[Path]:
        if not self.path.is_dir():
            raise InputError(f"There is no folder {self.path}.")
        extensions = image_suffixes()
        files = sorted(
            f
            for f in self.path.rglob("*")
            if f.suffix.lower() in extensions
            and f.is_file()
            and not any(part.startswith(".") for part in f.relative_to(self.path).parts)
        )
        if not files:
            raise InputError(
                f"The folder {self.path} holds no images; expected class/image.png or "
                f"client/class/image.png."
            )
        return files

    def _refuse_empty_classes(self, files: list[Path], depth: int) -> None:
        """Refuse a class folder without images: it is a mistake more often than a wish."""
        used = {f.parent.name for f in files}
        pattern = "*" if depth == 2 else "*/*"
        for folder in sorted(self.path.glob(pattern)):
            if folder.is_dir() and not folder.name.startswith(".") and folder.name not in used:
                raise InputError(
                    f"Class {folder.name!r} has no samples: the folder {folder} holds no images."
                )


class ArrayHeader(NamedTuple):
    """How many values an array in a file has, and the bytes of each."""

    values: int
    value_bytes: int


@dataclass(frozen=True)
class NpzFile:
    """An ``.npz`` file with `images` and `labels`, and optionally `clients` and `class_names`.

    Parameters
    ----------
    path
        The file. `images` is uint8 of shape (samples, height, width) or (samples, height, width,
        channels); `labels` and `clients` are one integer a sample. A file whose arrays would take
        more than half a gigabyte of memory must have at least a twentieth of that itself.
    image_size
        Scale the images to squares of this side; by default they stay as they are.
    """

    path: Path
    image_size: int | None = None

    def key(self) -> dict[str, Any]:
        """Return the path, size and time of change of the file."""
        if not self.path.is_file():
            raise InputError(f"There is no file {self.path}.")
        stat = self.path.stat()
        file = [str(self.path.resolve()), stat.st_size, stat.st_mtime_ns]
        return {"source": "npz", "version": 1, "file": file, "image_size": self.image_size}

    def load(self, progress: Progress | None = None) -> Dataset:
        """Read the arrays."""
        arrays = self._read()
        images, labels = arrays["images"], arrays["labels"]
        if images.ndim == 3:
            images = images[..., None]
        labels = _integers(labels, "labels", self.path)
        if "class_names" in arrays:
            class_names = _printable(arrays["class_names"].ravel().tolist())
        else:
            # No class may be empty, so more classes than samples are refused below in any case.
            classes = min(int(labels.max(initial=0)), labels.size) + 1
            class_names = tuple(str(c) for c in range(classes))
        groups: NDArray[np.int64] | None = None
        group_names: tuple[str, ...] = ()
        if "clients" in arrays:
            clients = arrays["clients"]
            if clients.dtype.kind not in "US":
                clients = _integers(clients, "clients", self.path)
            names, groups = np.unique(clients, return_inverse=True)
            group_names = _printable(names.tolist())
        loaded = Dataset(images, labels, class_names, groups, group_names)
        if self.image_size is not None:
            return replace(loaded, inputs=scale(loaded.inputs, self.image_size))
        if max(loaded.inputs.shape[1:3]) > LARGEST_SIDE:
            raise InputError(
                f"The images in {self.path} are {images.shape[1]}×{images.shape[2]}; sides of at "
                f"most {LARGEST_SIDE} pixels are allowed: scale them with --image-size."
            )
        return loaded

    def _read(self) -> dict[str, NDArray[Any]]:
        try:
            with zipfile.ZipFile(self.path) as archive:
                present = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
                wanted = {name: present[name] for name in ARRAYS if name in present}
                headers = {name: _read_header(archive, info) for name, info in wanted.items()}
                self._refuse_bomb(headers)
                arrays = {name: _read_array(archive, info) for name, info in wanted.items()}
        except InputError:
            raise
        except Exception as error:  # there is no saying what damage in a compressed file leads to
            raise InputError(
                f"The file {self.path} cannot be read as an .npz of plain arrays "
                f"({str(error) or type(error).__name__})."
            ) from error
        for name in ("images", "labels"):
            if name not in arrays:
                raise InputError(
                    f"The file {self.path} has no array {name!r}; it has "
                    f"{quote(', '.join(sorted(present)) or 'none')}."
                )
        return arrays

    def _refuse_bomb(self, headers: dict[str, ArrayHeader]) -> None:
        """Refuse a small file whose arrays would take very much memory."""
        needed = 0
        for name, (values, value_bytes) in headers.items():
            # All but the images are copied while they are numbered.
            needed += values * (value_bytes if name == "images" else 3 * value_bytes + ENTRY_BYTES)
        packed = self.path.stat().st_size
        if needed > max(HARMLESS_BYTES, MOST_COMPRESSION * packed):
            raise InputError(
                f"The file {self.path} has {packed:,} bytes and would take {needed:,} in memory; "
                f"more than {HARMLESS_BYTES:,} are allowed only at up to {MOST_COMPRESSION} times "
                f"the size of the file: write it without compression, with numpy.savez."
            )


def _read_header(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> ArrayHeader:
    """Read the header of an array after it has been found to agree with the array's length."""
    with archive.open(info) as whole:
        file = io.BytesIO(whole.read(HEADER_BYTES))
    version = np.lib.format.read_magic(file)
    if version == (1, 0):
        shape, _, dtype = np.lib.format.read_array_header_1_0(file)
    else:
        shape, _, dtype = np.lib.format.read_array_header_2_0(file)
    # An entry without bytes, such as an empty string, counts as well: reading it takes time.
    header = ArrayHeader(math.prod(shape), max(dtype.itemsize, 1))
    plain = info.compress_type in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
    fits = 0 <= header.values * header.value_bytes <= info.file_size
    if not plain or dtype.hasobject or not fits:
        raise ValueError(f"{info.filename} claims {dtype} values of shape {shape}")
    return header


def _read_array(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> NDArray[Any]:
    with archive.open(info) as file:
        array: NDArray[Any] = np.lib.format.read_array(file, allow_pickle=False)
    return array


def _printable(names: Iterable[object]) -> tuple[str, ...]:
    """Return names as text that can be written to any file; names of files may be any bytes."""
    return tuple(
        str(name).encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
        for name in names
    )


def _integers(values: NDArray[Any], name: str, path: Path) -> NDArray[np.int64]:
    if values.dtype.kind not in "iu":
        raise InputError(f"The array {name!r} in {path} is {values.dtype}; expected integers.")
    return values.astype(np.int64)
