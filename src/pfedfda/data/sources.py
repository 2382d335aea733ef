"""Sources: where inputs and labels come from before anybody holds them.

A source can tell what determines its content without reading all of it (`Source.key`), and it can
load it (`Source.load`). This file has the digits and the user's own images. Arrays are in
`pfedfda.data.arrays`, tables in `pfedfda.data.table_files`, datasets of the Hub in
`pfedfda.data.hub`, and names for all of them in `pfedfda.data.catalogue`.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from pfedfda.data.decoding import Progress, decode_all, image_suffixes
from pfedfda.errors import InputError
from pfedfda.files import MOST_CLASSES

SPLITS = {"train", "training", "test", "testing", "val", "valid", "validation", "dev", "eval"}


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
    columns
        The names of the features of a table, in their order.
    left_out
        How many samples could not be read and were left out.
    """

    inputs: NDArray[Any]
    labels: NDArray[np.int64]
    class_names: tuple[str, ...]
    groups: NDArray[np.int64] | None = None
    group_names: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    left_out: int = 0

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
        """Read all samples; `progress` is called with the number done and the number in all."""


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
    skip_unreadable
        Leave out images that cannot be decoded, and count them.
    splits
        What folders such as train and val above the classes are: parts of one dataset (merge), or
        clients. Without a decision they are refused.
    """

    path: Path
    image_size: int | None = None
    skip_unreadable: bool = False
    splits: Literal["merge", "clients"] | None = None

    def key(self) -> dict[str, Any]:
        """Return the name, size and time of change of every file."""
        files = [
            [str(f.relative_to(self.path)), f.stat().st_size, f.stat().st_mtime_ns]
            for f in self._files()
        ]
        key = {"source": "folder", "version": 1, "files": files, "image_size": self.image_size}
        if self.skip_unreadable:
            key["skip_unreadable"] = True
        if self.splits is not None:
            key["splits"] = self.splits
        return key

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
        depth = depths.pop()
        self._refuse_empty_classes(files, depth)
        grouped = depth == 3 and not self._has_splits(files)
        unreadable: list[int] | None = [] if self.skip_unreadable else None
        encoded = [(str(f), f) for f in files]
        images = decode_all(encoded, self.image_size, progress, unreadable=unreadable)
        skipped = set(unreadable or ())
        files = [f for row, f in enumerate(files) if row not in skipped]
        class_names = sorted({f.parent.name for f in files})
        labels = np.array([class_names.index(f.parent.name) for f in files])
        groups, group_names = None, []
        if grouped:
            group_names = sorted({f.parents[1].name for f in files})
            groups = np.array([group_names.index(f.parents[1].name) for f in files])
        return Dataset(
            images,
            labels,
            printable_names(class_names),
            groups,
            printable_names(group_names),
            left_out=len(skipped),
        )

    def _has_splits(self, files: list[Path]) -> bool:
        """Return whether the folders above the classes are splits that belong together."""
        tops = sorted({f.relative_to(self.path).parts[0] for f in files})
        if len(tops) < 2 or not all(top.lower() in SPLITS for top in tops):
            return False
        if self.splits is None:
            raise InputError(
                f"The folders {' and '.join(tops)} in {self.path} look like splits of one dataset, "
                f"not like clients: take them together with --splits merge, or keep them as "
                f"clients with --splits clients."
            )
        return self.splits == "merge"

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


def printable_names(names: Iterable[object]) -> tuple[str, ...]:
    """Return names as text that can be written to any file; names of files may be any bytes."""
    return tuple(
        str(name).encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
        for name in names
    )
