"""Decoding encoded images into arrays of one shape."""

import io
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Condition

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from pfedfda.errors import InputError

Progress = Callable[[int, int], None]
Encoded = tuple[str, Path | bytes]
"""An image as a file has it: what to call it in an error, and where its bytes are."""

LARGEST_DEFAULT_SIZE = 64
DEFAULT_SIZES = (64, 32, 28)
# Pillow knows more formats, but some start other programs (EPS) and few eyes have been on the rest.
FORMATS = ("BMP", "GIF", "JPEG", "JPEG2000", "PNG", "PPM", "TIFF", "WEBP")
MOST_PIXELS = 89_478_485  # of an image, where Pillow suspects a bomb; photographs have 12 to 50e6
DECODED_BYTES = 2**30  # over all threads: seven photographs of 12e6 pixels at a time
# What a pixel takes at the peak of decoding and converting, measured; others take PIXEL_BYTES.
PIXEL_BYTES_OF = {"JPEG2000": 25, "WEBP": 17}
PIXEL_BYTES = 12
STRIP_PIXELS = 2**20
ORIENTATION = 0x0112  # the tag of EXIF by which cameras say how a photograph was held
UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""What turns an image upright, by the number of its orientation; from 5 on sides change places."""
GREY_MODES = ("1", "L", "I", "F", "I;16", "I;16B", "I;16L")


class Budget:
    """Bytes that threads share; one that needs more than all of them gets them alone.

    Parameters
    ----------
    limit
        How many.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._held = 0
        self._changed = Condition()

    @contextmanager
    def holding(self, size: int) -> Iterator[None]:
        """Hold so many bytes, as soon as they are free."""
        with self._changed:
            self._changed.wait_for(lambda: not self._held or self._held + size <= self._limit)
            self._held += size
        try:
            yield
        finally:
            with self._changed:
                self._held -= size
                self._changed.notify_all()


class UndecodableError(InputError):
    """An image cannot be decoded, and may be left out."""


_budget = Budget(DECODED_BYTES)


def decode_all(
    encoded: Sequence[Encoded],
    image_size: int | None,
    progress: Progress | None = None,
    colour: bool | None = None,
    unreadable: list[int] | None = None,
) -> NDArray[np.uint8]:
    """Decode images into one array (n, side, side, channels).

    Images become squares: they are turned upright if their camera says how it was held, cropped at
    the centre and scaled. If all are grey the array has
    one channel, otherwise three.

    Parameters
    ----------
    encoded
        The images.
    image_size
        The side of the squares. By default it is the images' own size if they are all squares of
        one size up to 64, otherwise the largest of 64, 32 and 28 that no image is smaller than (28
        for images that are smaller still).
    progress
        Called with the number decoded and the number in all.
    colour
        Make colour (True) or grey images (False) of them, whatever they are.
    unreadable
        Takes the numbers of images that cannot be decoded, which are then left out; without it,
        the first one is an error.
    """
    if unreadable is not None:
        encoded = _readable(encoded, unreadable)
    size, mode = _choose_format(encoded, image_size)
    if colour is not None:
        mode = "RGB" if colour else "L"
    images = np.empty((len(encoded), size, size, 3 if mode == "RGB" else 1), dtype=np.uint8)
    with ThreadPoolExecutor() as pool:  # Pillow decodes outside the interpreter lock
        for row, image in enumerate(
            pool.map(lambda item: decode_image(item, size, size, mode), encoded)
        ):
            images[row] = image
            if progress is not None:
                progress(row + 1, len(encoded))
    return images


def decode_image(item: Encoded, height: int, width: int, mode: str) -> NDArray[np.uint8]:
    """Decode one image as `decode_all` does, to a given height and width; the mode is L or RGB."""
    with _open(item) as image:
        return fit_image(item[0], image, height, width, mode)


def fit_image(
    name: str, image: Image.Image, height: int, width: int, mode: str
) -> NDArray[np.uint8]:
    """Return a Pillow image in a mode, upright, cropped and scaled; see `decode_image`."""
    pixel_bytes = PIXEL_BYTES_OF.get(image.format or "", PIXEL_BYTES)
    with _budget.holding(image.width * image.height * pixel_bytes):
        try:
            image.load()
        except Exception as error:
            raise _undecodable(name, error) from error
        # 16 bits or more: keep the upper eight
        deep = image.mode.startswith(("I", "F"))
        decoded = (_upper_bits(image) if deep else image).convert(mode)
        orientation = _orientation(image)
        # Turned after scaling, when there is little to turn.
        size = (height, width) if orientation >= 5 else (width, height)
        if decoded.size != size:
            decoded = ImageOps.fit(decoded, size, Image.Resampling.BICUBIC)
        if orientation in UPRIGHT:
            decoded = decoded.transpose(UPRIGHT[orientation])
        return np.asarray(decoded).reshape(height, width, -1)


def _orientation(image: Image.Image) -> int:
    """Return how the camera was held, 1 for upright or if it cannot be told."""
    try:
        value = image.getexif().get(ORIENTATION, 1)
    except Exception:  # a description that is damaged says nothing; the image itself is in order
        return 1
    return value if type(value) is int and value in UPRIGHT else 1


def scale(images: NDArray[np.uint8], size: int) -> NDArray[np.uint8]:
    """Crop and scale an array of images to squares of a given side."""
    if images.shape[1:3] == (size, size):
        return images
    fitted = [np.asarray(ImageOps.fit(to_pil(image), (size, size))) for image in images]
    return np.stack(fitted).reshape(len(images), size, size, images.shape[3])


def image_suffixes() -> set[str]:
    """Return the endings of the names of files that may be images, in lower case."""
    known = Image.registered_extensions()
    return {suffix for suffix, kind in known.items() if kind in FORMATS}


def to_pil(image: NDArray[np.uint8]) -> Image.Image:
    """Return an array (height, width, channels) as a Pillow image."""
    return Image.fromarray(image[..., 0] if image.shape[2] == 1 else image)


def with_channels(images: NDArray[np.uint8], channels: int) -> NDArray[np.uint8]:
    """Return the images in grey (1) or colour (3)."""
    if images.shape[3] == channels:
        return np.ascontiguousarray(images)
    if channels == 3:
        return np.repeat(images, 3, axis=3)
    grey = [np.asarray(Image.fromarray(image).convert("L")) for image in images]
    return np.stack(grey)[..., None]


def _readable(encoded: Sequence[Encoded], unreadable: list[int]) -> list[Encoded]:
    """Return the images that can be decoded; add the numbers of the others to a list."""

    def is_readable(item: Encoded) -> bool:
        try:
            decode_image(item, 8, 8, "L")
        except InputError:
            return False
        return True

    with ThreadPoolExecutor() as pool:
        readable = list(pool.map(is_readable, encoded))
    unreadable += [row for row, good in enumerate(readable) if not good]
    if not any(readable):
        raise InputError("None of the images can be decoded.")
    return [item for item, good in zip(encoded, readable, strict=True) if good]


def _choose_format(encoded: Sequence[Encoded], image_size: int | None) -> tuple[int, str]:
    """Return the side of the squares and the mode, grey (L) or RGB, that fit all images."""
    shapes, grey = set(), True
    with warnings.catch_warnings():  # not for threads: filters are the same for all of them
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # it is refused below
        for item in encoded:  # reads the headers only
            with _open(item) as image:
                shapes.add(image.size)
                grey = grey and image.mode in GREY_MODES
    mode = "L" if grey else "RGB"
    if image_size is not None:
        return image_size, mode
    smallest = min(min(shape) for shape in shapes)
    if len(shapes) == 1 and len(set(shapes.pop())) == 1 and smallest <= LARGEST_DEFAULT_SIZE:
        return smallest, mode
    return next((s for s in DEFAULT_SIZES if s <= smallest), DEFAULT_SIZES[-1]), mode


def _open(item: Encoded) -> Image.Image:
    name, content = item
    try:
        file = io.BytesIO(content) if isinstance(content, bytes) else content
        image = Image.open(file, formats=FORMATS)
    except Image.DecompressionBombError as error:
        raise _too_large(name, str(error)) from error
    except Exception as error:  # there is no saying what a decoder raises on a damaged file
        raise _undecodable(name, error) from error
    if image.width * image.height > MOST_PIXELS:
        image.close()
        raise _too_large(name, f"{image.width}×{image.height} pixels")
    return image


def _upper_bits(image: Image.Image) -> Image.Image:
    """Return an image of integers or floats with eight bits a pixel."""
    deep = np.asarray(image)
    unit = 255 / 65535 if image.mode.startswith("I") else 255.0
    upper = np.empty(deep.shape, dtype=np.uint8)
    rows = max(1, STRIP_PIXELS // image.width)
    for top in range(0, len(deep), rows):  # in strips: as doubles all at once would be a giant
        strip = deep[top : top + rows].astype(np.float64)
        upper[top : top + rows] = (strip * unit).clip(0, 255).astype(np.uint8)
    return Image.fromarray(upper)


def _too_large(name: str, what: str) -> InputError:
    return InputError(
        f"The image {name} is too large ({what}); at most {MOST_PIXELS:,} pixels are allowed: "
        f"scale it down, or remove it."
    )


def _undecodable(name: str, error: Exception) -> InputError:
    reason = str(error).replace(f" '{name}'", "")  # Pillow names the file once more
    return UndecodableError(f"The image {name} cannot be decoded ({reason}); repair or remove it.")
