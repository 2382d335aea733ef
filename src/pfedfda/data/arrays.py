"""Arrays as a source: an ``.npz`` file, or ``.npy`` files side by side."""

import io
import math
import zipfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pfedfda.data.decoding import Progress, scale
from pfedfda.data.sources import Dataset, printable_names
from pfedfda.errors import InputError, quote
from pfedfda.files import LARGEST_SIDE

# Names that arrays may have: as in image datasets, and as in scikit-learn.
INPUTS = ("images", "X")
LABELS = {"images": ("labels", "y"), "X": ("y", "labels")}
CLIENTS = ("clients", "client")
CLASS_NAMES = "class_names"
ARRAYS = ("images", "labels", "X", "y", *CLIENTS, CLASS_NAMES)
# What a compressed file makes of itself in memory may have half a gigabyte; beyond that only what
# images really compress to. Without compression, there is no bound.
HARMLESS_BYTES = 2**29
MOST_COMPRESSION = 20
# A label, a client or a class name becomes a long number or a Python string, with copies of it.
ENTRY_BYTES = 128
HEADER_BYTES = 2**14  # of an array in a file; numpy itself takes up to 10,000


class ArrayHeader(NamedTuple):
    """How many values an array in a file has, and the bytes of each."""

    values: int
    value_bytes: int


@dataclass(frozen=True)
class ArrayFile:
    """An ``.npz`` file with inputs and labels, or an ``.npy`` of inputs beside one of labels.

    Parameters
    ----------
    path
        An ``.npz`` with `images` and `labels` or `X` and `y`, and optionally `clients` (or
        `client`) and `class_names`; or a file ``X.npy`` (``images.npy``) in whose folder there are
        ``y.npy`` (``labels.npy``) and optionally the others. Inputs of uint8 with three or four
        axes are images (samples, height, width[, channels]); other numbers are floats or indices of
        any shape; labels are integers from 0, or names. An ``.npz`` whose arrays would take more
        than half a gigabyte of memory must have at least a twentieth of that itself.
    image_size
        Scale images to squares of this side; by default they stay as they are.
    """

    path: Path
    image_size: int | None = None

    def key(self) -> dict[str, Any]:
        """Return the path, size and time of change of every file."""
        files = [self.path] if self.path.suffix == ".npz" else list(self._siblings().values())
        about = []
        for file in files:
            if not file.is_file():
                raise InputError(f"There is no file {file}.")
            stat = file.stat()
            about.append([str(file.resolve()), stat.st_size, stat.st_mtime_ns])
        kind = {"source": "npz", "version": 1, "file": about[0], "image_size": self.image_size}
        return kind if self.path.suffix == ".npz" else {**kind, "source": "npy", "files": about}

    def load(self, progress: Progress | None = None) -> Dataset:
        """Read the arrays."""
        arrays = self._read_npz() if self.path.suffix == ".npz" else self._read_npy()
        arrays |= {n: _decoded(a, n, self.path) for n, a in arrays.items() if a.dtype.kind == "S"}
        inputs, labels = self._inputs_and_labels(arrays)
        labels, class_names = self._numbered(labels, arrays.get(CLASS_NAMES))
        groups: NDArray[np.int64] | None = None
        group_names: tuple[str, ...] = ()
        clients = next((arrays[name] for name in CLIENTS if name in arrays), None)
        if clients is not None:
            if clients.dtype.kind not in "US":
                clients = _integers(clients, "clients", self.path)
            names, groups = np.unique(clients, return_inverse=True)
            group_names = printable_names(names.tolist())
        loaded = Dataset(_as_inputs(inputs, self.path), labels, class_names, groups, group_names)
        return self._sized(loaded)

    def load_inputs(self) -> NDArray[Any]:
        """Read the inputs alone; there need be no labels, and an ``.npy`` may have any name."""
        if not self.path.is_file():
            raise InputError(f"There is no file {self.path}.")
        if self.path.suffix == ".npy":
            return _as_inputs(_map_npy(self.path), self.path)
        arrays = self._read_npz()
        name = next((name for name in INPUTS if name in arrays), None)
        if name is None:
            raise InputError(f"The file {self.path} has no array 'images' (or 'X').")
        return _as_inputs(arrays[name], self.path)

    def _inputs_and_labels(self, arrays: dict[str, NDArray[Any]]) -> tuple[NDArray[Any], Any]:
        name = next((name for name in INPUTS if name in arrays), None)
        labels = next((n for n in LABELS[name] if n in arrays), None) if name else None
        if name is None or labels is None:
            missing = "images" if name is None else LABELS[name][0]
            instead = "X" if name is None else LABELS[name][1]
            raise InputError(
                f"The file {self.path} has no array {missing!r} (or {instead!r}); it has "
                f"{quote(', '.join(sorted(arrays)) or 'none')}."
            )
        return arrays[name], arrays[labels]

    def _numbered(
        self, labels: NDArray[Any], names: NDArray[Any] | None
    ) -> tuple[NDArray[np.int64], tuple[str, ...]]:
        """Return labels from 0 and the names of the classes."""
        if labels.dtype.kind in "US" and names is None:
            unique, numbers = np.unique(labels, return_inverse=True)
            return numbers.astype(np.int64), printable_names(unique.tolist())
        numbers = _integers(labels, "labels", self.path)
        if names is not None:
            return numbers, printable_names(names.ravel().tolist())
        # No class may be empty, so more classes than samples are refused in any case.
        classes = min(int(numbers.max(initial=0)), numbers.size) + 1
        return numbers, tuple(str(c) for c in range(classes))

    def _sized(self, loaded: Dataset) -> Dataset:
        """Return the dataset with its images scaled, if there are any and they are to be."""
        if loaded.inputs.dtype != np.uint8:
            if self.image_size is not None:
                raise InputError(f"The inputs in {self.path} are not images: drop --image-size.")
            return loaded
        if self.image_size is not None:
            return replace(loaded, inputs=scale(loaded.inputs, self.image_size))
        height, width = loaded.inputs.shape[1:3]
        if max(height, width) > LARGEST_SIDE:
            raise InputError(
                f"The images in {self.path} are {height}×{width}; sides of at most {LARGEST_SIDE} "
                f"pixels are allowed: scale them with --image-size."
            )
        return loaded

    def _siblings(self) -> dict[str, Path]:
        """Return the ``.npy`` files that belong together, by name."""
        if self.path.stem not in INPUTS:
            raise InputError(
                f"The file {self.path} is not called X.npy or images.npy, with y.npy or labels.npy "
                f"beside it."
            )
        found = {name: self.path.with_name(f"{name}.npy") for name in ARRAYS}
        others = {name: p for name, p in found.items() if name not in INPUTS and p.is_file()}
        return {self.path.stem: self.path, **others}

    def _read_npy(self) -> dict[str, NDArray[Any]]:
        return {name: _map_npy(file) for name, file in self._siblings().items()}

    def _read_npz(self) -> dict[str, NDArray[Any]]:
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
        if not arrays and present:
            raise InputError(
                f"The file {self.path} has no array 'images' (or 'X'); it has "
                f"{quote(', '.join(sorted(present)))}."
            )
        return arrays

    def _refuse_bomb(self, headers: dict[str, ArrayHeader]) -> None:
        """Refuse a small file whose arrays would take very much memory."""
        needed = 0
        for name, (values, value_bytes) in headers.items():
            # All but the inputs are copied while they are numbered.
            needed += values * (value_bytes if name in INPUTS else 3 * value_bytes + ENTRY_BYTES)
        packed = self.path.stat().st_size
        if needed > max(HARMLESS_BYTES, MOST_COMPRESSION * packed):
            raise InputError(
                f"The file {self.path} has {packed:,} bytes and would take {needed:,} in memory; "
                f"more than {HARMLESS_BYTES:,} are allowed only at up to {MOST_COMPRESSION} times "
                f"the size of the file: write it without compression, with numpy.savez."
            )


def _map_npy(file: Path) -> NDArray[Any]:
    try:
        array: NDArray[Any] = np.load(file, mmap_mode="r", allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        raise InputError(f"The file {file} cannot be read as a plain array ({error}).") from error
    return array


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


def _as_inputs(inputs: NDArray[Any], path: Path) -> NDArray[Any]:
    """Return inputs in one of the types that a federation has."""
    kind = inputs.dtype.kind
    if inputs.dtype == np.uint8 and inputs.ndim in (3, 4):
        return inputs[..., None] if inputs.ndim == 3 else inputs
    if kind == "f" or inputs.dtype in (np.uint8, np.bool_):
        with np.errstate(over="ignore"):  # too large a number is refused as not finite
            return np.ascontiguousarray(inputs, dtype=np.float32)
    if kind in "iu":
        return np.ascontiguousarray(inputs, dtype=np.int64)
    if kind == "U":
        return inputs.astype(np.dtypes.StringDType())
    raise InputError(
        f"The inputs in {path} are {inputs.dtype}; expected uint8 images, numbers or texts."
    )


def _decoded(values: NDArray[Any], name: str, path: Path) -> NDArray[Any]:
    """Return bytes as text."""
    try:
        return np.char.decode(values, "utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"The array {name!r} in {path} is not text in UTF-8 ({error}).") from error


def _integers(values: NDArray[Any], name: str, path: Path) -> NDArray[np.int64]:
    if values.dtype.kind not in "iu":
        raise InputError(f"The array {name!r} in {path} is {values.dtype}; expected integers.")
    return values.astype(np.int64)
