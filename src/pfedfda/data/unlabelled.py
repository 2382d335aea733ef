"""Samples without labels, in whatever form somebody has them who wants to know their classes."""

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from pfedfda.data.arrays import ArrayFile
from pfedfda.data.decoding import MOST_PIXELS, decode_image, fit_image, image_suffixes
from pfedfda.data.preprocessing import Preprocessing
from pfedfda.data.table_files import SUFFIXES, TableFile
from pfedfda.data.tables import Columns
from pfedfda.errors import InputError, quote
from pfedfda.files import LARGE, expand_user, read_text
from pfedfda.inputs import describe_inputs

BATCH_BYTES = 2**26  # of decoded images at a time
LARGEST_BATCH = 256
ARRAYS = (".npz", ".npy")
TEXT_COLUMN = "text"
Batches = Iterator["NamedSamples"]


class NamedSamples(NamedTuple):
    """Some samples, and what to call each."""

    names: list[str]
    values: NDArray[Any]


@dataclass(frozen=True)
class SampleReader:
    """Reads samples for a model: as it was trained on them, but without labels.

    Parameters
    ----------
    wanted
        What samples the model takes.
    text_column
        The column of a table that holds the texts; by default that of the training, or the one
        called text, or the only one.
    """

    wanted: Preprocessing
    text_column: str | None = None

    def read(self, source: object) -> Batches:
        """Yield batches of samples, in their order.

        Parameters
        ----------
        source
            A path of an image, of a folder of images, of an ``.npz`` or ``.npy`` file, of a table
            or of a ``.txt`` file with a text in each line; a Pillow image; an array or a data
            frame; or a list of those. For a model of texts a string is a text, and a path must be
            a `pathlib.Path`.
        """
        names: list[str] = []
        parts: list[NDArray[Any]] = []
        for batch in self._read(source):  # of single images, many go through a network at once
            if parts and len(names) + len(batch.names) > self._batch_size:
                yield NamedSamples(names, np.concatenate(parts))
                names, parts = [], []
            names = names + batch.names
            parts.append(batch.values)
        yield NamedSamples(names, np.concatenate(parts))

    def _read(self, source: object) -> Batches:
        """Yield samples as they come."""
        if isinstance(source, os.PathLike) or (
            isinstance(source, str) and self.wanted.type != "text"
        ):
            yield from self._place(expand_user(Path(source)))
        elif isinstance(source, str):
            yield NamedSamples(["0"], _texts([source]))
        elif isinstance(source, Image.Image):
            yield NamedSamples(["0"], self._pil("the image", source)[None])
        elif self.wanted.columns and hasattr(source, "columns"):
            frame: Any = source
            table = {str(name): frame[name].tolist() for name in frame.columns}
            yield self._rows(table, "the data frame", None, "")
        elif isinstance(source, list | tuple) and not _is_plain(source):
            for number, item in enumerate(source):
                for batch in self._read(item):
                    own = [str(number)] if batch.names == ["0"] else batch.names
                    yield NamedSamples(own, batch.values)
        else:
            values = self._array(np.asarray(source), "the array")
            yield NamedSamples([str(number) for number in range(len(values))], values)

    def _place(self, path: Path) -> Batches:
        """Yield the samples of a file or a folder."""
        name = path.name.lower()
        if path.is_dir():
            yield from self._images(_images_in(path))
        elif not path.exists():
            raise InputError(f"There is no file or folder {path}.")
        elif name.endswith(ARRAYS):
            values = self._array(ArrayFile(path).load_inputs(), str(path))
            yield NamedSamples(_numbered(path, len(values)), values)
        elif name.endswith(SUFFIXES):
            table, places = TableFile(path).read()
            yield self._rows(table, f"the table {path}", places, str(path))
        elif name.endswith(".txt"):
            self._expect("text", str(path), "texts")
            lines = [line for line in _read_lines(path) if line.strip()]
            if not lines:
                raise InputError(f"The file {path} holds no texts.")
            yield NamedSamples(_numbered(path, len(lines)), _texts(lines))
        else:
            yield from self._images([path])

    def _images(self, paths: list[Path]) -> Batches:
        self._expect("uint8", str(paths[0]), "an image")
        height, width, channels = self.wanted.shape
        mode = "RGB" if channels == 3 else "L"
        size = self._batch_size
        with ThreadPoolExecutor() as pool:  # Pillow decodes outside the interpreter lock
            for start in range(0, len(paths), size):
                part = paths[start : start + size]
                images = pool.map(lambda p: decode_image((str(p), p), height, width, mode), part)
                yield NamedSamples([str(path) for path in part], np.stack(list(images)))

    def _pil(self, name: str, image: Image.Image) -> NDArray[np.uint8]:
        self._expect("uint8", name, "an image")
        if image.width * image.height > MOST_PIXELS:
            raise InputError(
                f"{_capital(name)} has {image.width}×{image.height} pixels; at most "
                f"{MOST_PIXELS:,} are allowed."
            )
        height, width, channels = self.wanted.shape
        return fit_image(name, image, height, width, "RGB" if channels == 3 else "L")

    def _rows(
        self,
        table: Mapping[str, Sequence[Any]],
        place: str,
        lines: Sequence[int] | None,
        path: str,
    ) -> NamedSamples:
        """Return the samples of a table."""
        if self.wanted.type == "text":
            columns = Columns(text_column=self._text_column(table))
        elif self.wanted.columns:
            columns = Columns(expected=self.wanted.columns)
        else:
            raise InputError(f"{_capital(place)} is a table; the model takes {self._wants}.")
        values = columns.rows(table, place, lines)
        prefix = f"{path}:" if path else ""
        return NamedSamples([f"{prefix}{row + 1}" for row in range(len(values))], values)

    def _text_column(self, table: Mapping[str, Sequence[Any]]) -> str:
        usual = (self.wanted.text_column, TEXT_COLUMN)
        found = next((name for name in usual if name in table), None)
        return self.text_column or found or (next(iter(table)) if len(table) == 1 else TEXT_COLUMN)

    def _array(self, values: NDArray[Any], name: str) -> NDArray[Any]:
        """Return an array of samples, or of one, in the type and shape that the model takes."""
        if self.wanted.type == "text":
            self._expect("text" if values.dtype.kind in "UT" else "", name, str(values.dtype))
            return _texts(np.atleast_1d(values).tolist())
        if self.wanted.type == "uint8":
            return self._image_array(values, name)
        shape, kinds = self.wanted.shape, "fiub" if self.wanted.type == "float32" else "iu"
        if values.dtype.kind not in kinds:
            raise InputError(f"{_capital(name)} holds {values.dtype}; {self._takes}.")
        values = values[None] if values.shape == shape else values
        if values.shape[1:] != shape or not len(values):
            raise InputError(f"{_capital(name)} has shape {values.shape}; {self._takes}.")
        with np.errstate(over="ignore"):  # too large a number is refused as not finite
            numbers = np.ascontiguousarray(values, dtype=self.wanted.type)
        if not np.isfinite(numbers).all():
            row = int(np.argwhere(~np.isfinite(numbers))[0][0])
            raise InputError(f"Sample {row} of {name} has a value that is not finite.")
        return numbers

    def _image_array(self, values: NDArray[Any], name: str) -> NDArray[np.uint8]:
        if values.dtype != np.uint8:
            raise InputError(
                f"{_capital(name)} holds {values.dtype}; expected uint8 images, 0 to 255."
            )
        if values.ndim == 2 or (values.ndim == 3 and values.shape[2] in (1, 3, 4)):
            values = values[None]  # one image
        if values.ndim == 3:
            values = values[..., None]
        if values.ndim != 4 or values.shape[3] not in (1, 3, 4) or not values.size:
            raise InputError(
                f"{_capital(name)} has shape {values.shape}; expected images (n, height, width) or "
                f"(n, height, width, channels)."
            )
        if values.shape[1:] == self.wanted.shape:
            return np.ascontiguousarray(values)
        grey = values.shape[3] == 1
        pictures = (Image.fromarray(image[..., 0] if grey else image) for image in values)
        return np.stack([self._pil(name, picture) for picture in pictures])

    def _expect(self, kind: str, name: str, found: str) -> None:
        if self.wanted.type != kind:
            raise InputError(f"{_capital(name)} holds {found}; {self._takes}.")

    @property
    def _batch_size(self) -> int:
        if self.wanted.type != "uint8":
            return LARGEST_BATCH
        return max(1, min(LARGEST_BATCH, BATCH_BYTES // math.prod(self.wanted.shape)))

    @property
    def _takes(self) -> str:
        return f"the model takes {self._wants}"

    @property
    def _wants(self) -> str:
        what = describe_inputs(self.wanted.shape, self.wanted.type)
        return f"{what} images" if self.wanted.type == "uint8" else what


def _images_in(folder: Path) -> list[Path]:
    """Return the images in a folder and those below it, less everything hidden."""
    suffixes = image_suffixes()
    files = sorted(
        path
        for path in folder.rglob("*")
        if path.suffix.lower() in suffixes
        and path.is_file()
        and not any(part.startswith(".") for part in path.relative_to(folder).parts)
    )
    if not files:
        raise InputError(f"The folder {folder} holds no images.")
    return files


def _is_plain(values: Sequence[Any]) -> bool:
    """Tell whether a list is of numbers, or of lists of them, and not of samples."""
    first: Any = values
    while isinstance(first, list | tuple):
        if not first:
            raise InputError("The list holds no samples.")
        first = first[0]
    return isinstance(first, bool | int | float | np.number)


def _read_lines(path: Path) -> list[str]:
    try:
        return read_text(path, LARGE).splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"The file {path} cannot be read ({error}).") from error


def _numbered(path: Path, count: int) -> list[str]:
    return [f"{path}:{number + 1}" for number in range(count)]


def _texts(texts: Sequence[str]) -> NDArray[Any]:
    for number, text in enumerate(texts):
        if not text.strip():
            raise InputError(f"Text {number + 1} is empty: {quote(text)}.")
    return np.array(texts, dtype=np.dtypes.StringDType())


def _capital(name: str) -> str:
    return name if "/" in name or "." in name else name[:1].upper() + name[1:]
