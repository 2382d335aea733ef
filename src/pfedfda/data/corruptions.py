"""Ten image corruptions at five severities: what turns CIFAR-10 into the paper's CIFAR-S.

D. Hendrycks and T. Dietterich, "Benchmarking Neural Network Robustness to Common Corruptions and
Perturbations", ICLR 2019. The parameters are those of their CIFAR-C images, which are milder than
the ImageNet-C ones that ready packages carry. They are meant for images of 32 × 32 pixels and are
used unchanged, in pixels, on images of every other size.

Values are rounded to the nearest of the 256 levels, so that a blur leaves an even image as it is;
the CIFAR-C files were truncated instead, and are darker by half a level for it.
"""

import io
import math
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from pfedfda.errors import InputError, unknown
from pfedfda.seeding import numpy_generator

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]

SEVERITIES = (1, 2, 3, 4, 5)
CORRUPTIONS: tuple[str, ...] = (
    "gaussian_noise",
    "shot_noise",
    "impulse_noise",
    "defocus_blur",
    "motion_blur",
    "fog",
    "frost",
    "brightness",
    "contrast",
    "jpeg_compression",
)
CHUNK_VALUES = 2**18  # pixel values that are corrupted at a time: bounds the memory, nothing else
FROST_STEP = 5  # CIFAR-C shrinks the frost photographs to a fifth of their size
FROST_PANES = 5  # the number of frosted panes to draw when there are no photographs
PANE_SIDE = 128


def corrupt(
    images: Bytes,
    corruption: str,
    severity: int,
    random: np.random.Generator,
    frost_photos: Sequence[Bytes] | None = None,
) -> Bytes:
    """Return corrupted copies of the images.

    Parameters
    ----------
    images
        Grey or colour images of any size: (count, height, width, 1 or 3) with values 0 to 255.
    corruption
        One of `CORRUPTIONS`.
    severity
        From 1, mild, to 5, strong. Two steps are not what the word promises, here as in CIFAR-C:
        motion blur 4 is motion blur 3 to within a grey level, since only a negligible tail is
        added, and frost 4 and 5 hide more of the image but change its values less than frost 3.
    random
        Where noise, angles, fog and crops come from; each image is drawn on its own, in order.
    frost_photos
        Colour photographs, (height, width, 3), of which frost takes a random crop for each image,
        as `load_frost_photos` returns them. A photograph that is smaller than the images is scaled
        up until it covers them, and otherwise used as it is. Without photographs the crops are
        taken from a few panes of frost that are drawn by a procedure: feathers of ice on a cloudy
        ground, in blueish white, with about the brightness of the photographs.

    Examples
    --------
    >>> import numpy as np
    >>> images = np.full((2, 32, 32, 3), 100, dtype=np.uint8)
    >>> corrupt(images, "brightness", 2, np.random.default_rng(0))[0, 0, 0]
    array([126, 126, 126], dtype=uint8)
    """
    if corruption not in CORRUPTIONS:
        raise unknown("corruption", corruption, CORRUPTIONS)
    if severity not in SEVERITIES:
        raise InputError(f"The severity of a corruption is {severity!r}; it must be from 1 to 5.")
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[3] not in (1, 3):
        raise InputError(
            f"Images of shape {images.shape} and type {images.dtype} cannot be corrupted: they "
            f"must be uint8 of shape (count, height, width, 1 or 3)."
        )
    if images.size == 0:
        return images.copy()
    function, parameters = _TABLE[corruption]
    if corruption == "frost":
        panes = _drawn_frost() if frost_photos is None else frost_photos
        function = partial(_frost, photos=_prepare_frost(panes, images.shape[1:]))
    corrupted = np.empty_like(images)
    chunk = max(1, CHUNK_VALUES // images[0].size)
    for start in range(0, len(images), chunk):
        clean = images[start : start + chunk].astype(np.float32) / np.float32(255)
        corrupted[start : start + chunk] = _to_bytes(
            function(clean, random, *parameters[int(severity) - 1])
        )
    return corrupted


def load_frost_photos(folder: Path) -> list[Bytes]:
    """Load photographs of frost and shrink them to a fifth of their size, as CIFAR-C does.

    Every fifth pixel is kept, which is what the bilinear shrinking of CIFAR-C amounts to at exactly
    this factor. It suits images of 32 × 32 pixels, and serves all others as well: larger images
    see a larger piece of the pane, with crystals of the same size in pixels.

    Parameters
    ----------
    folder
        Holds the photographs: every ``frost*.png`` and ``frost*.jpg``, used in order of name.
    """
    paths = sorted(
        path for path in folder.glob("frost*") if path.suffix.lower() in (".png", ".jpg")
    )
    if not paths:
        raise InputError(f"There is no frost*.png or frost*.jpg in the folder {folder}.")
    photos = []
    for path in paths:
        try:
            with Image.open(path, formats=("PNG", "JPEG")) as photo:
                pixels = np.asarray(photo.convert("RGB"))
        except Exception as error:  # there is no saying what a decoder raises on a damaged file
            raise InputError(f"The photograph {path} cannot be decoded ({error}).") from error
        photos.append(pixels[FROST_STEP // 2 :: FROST_STEP, FROST_STEP // 2 :: FROST_STEP].copy())
    return photos


def _to_bytes(images: Floats) -> Bytes:
    return np.rint(np.clip(images, 0, 1) * 255).astype(np.uint8)


# Every corruption takes images in [0, 1], the random generator and the parameters of the severity,
# and may leave [0, 1]. It makes one draw with the images as first axis: the numbers of an image
# then do not depend on how many images are drawn at a time.


def _gaussian_noise(images: Floats, random: np.random.Generator, deviation: float) -> Floats:
    """Add independent normal noise to every value."""
    return images + deviation * random.standard_normal(images.shape, dtype=np.float32)


def _shot_noise(images: Floats, random: np.random.Generator, photons: float) -> Floats:
    """Count photons, of which a white pixel expects the given number."""
    return (random.poisson(images * photons) / photons).astype(np.float32)


def _impulse_noise(images: Floats, random: np.random.Generator, amount: float) -> Floats:
    """Set the given share of the values, each on its own, to black or white with equal chances."""
    chance = random.random(images.shape, dtype=np.float32)
    return np.where(chance < amount, (chance < amount / 2).astype(np.float32), images)


def _defocus_blur(
    images: Floats, _: np.random.Generator, radius: float, alias_blur: float
) -> Floats:
    """Convolve with a disk whose edge is softened by a Gaussian over 3 × 3 pixels.

    A disk with a radius below one is a single pixel, so there the Gaussian is all of the blur.
    """
    from scipy.ndimage import convolve  # the import takes a quarter of a second

    reach = int(radius) + 1
    offsets = np.arange(-reach, reach + 1)
    disk = (offsets[:, None] ** 2 + offsets**2 <= radius**2).astype(float)
    softening = np.exp(-(np.arange(-1, 2) ** 2) / (2 * alias_blur**2))
    kernel = convolve(disk, np.outer(softening, softening), mode="constant")
    kernel /= kernel.sum()
    kernel[kernel < 1e-5] = 0  # below a hundredth of a grey level
    kernel /= kernel.sum()
    rows, columns = np.nonzero(kernel)
    padded = np.pad(images, ((0, 0), (reach, reach), (reach, reach), (0, 0)), mode="reflect")
    return _sum_of_shifts(padded, images.shape, rows, columns, kernel[rows, columns])


def _motion_blur(
    images: Floats, random: np.random.Generator, radius: float, deviation: float
) -> Floats:
    """Smear every image along an angle of its own, between -45 and 45 degrees.

    The smear goes one way: a pixel is the mean of the 2 · radius + 1 pixels from itself onwards,
    each the nearest to its place on the line, with the weights of half a Gaussian. Pixels beyond
    the border repeat it.
    """
    steps = np.arange(2 * int(radius) + 1)
    weights = np.exp(-(steps**2) / (2 * deviation**2))
    weights /= weights.sum()
    angles = np.deg2rad(random.uniform(-45, 45, len(images)))
    reach = len(steps) - 1
    rows = np.rint(np.outer(np.sin(angles), steps)).astype(int) + reach
    columns = np.rint(np.outer(np.cos(angles), steps)).astype(int)
    padded = np.pad(images, ((0, 0), (reach, reach), (0, reach), (0, 0)), mode="edge")
    smeared = np.empty_like(images)
    for i in range(len(images)):
        smeared[i] = _sum_of_shifts(padded[i], images[i].shape, rows[i], columns[i], weights)
    return smeared


def _sum_of_shifts(
    padded: Floats,
    shape: tuple[int, ...],
    rows: NDArray[np.int64],
    columns: NDArray[np.int64],
    weights: NDArray[np.float64],
) -> Floats:
    """Add up the windows that start at the given rows and columns, each with its weight."""
    height, width = shape[-3:-1]
    total = np.zeros(shape, dtype=np.float32)
    for row, column, weight in zip(rows.tolist(), columns.tolist(), weights.tolist(), strict=True):
        total += weight * padded[..., row : row + height, column : column + width, :]
    return total


def _fog(images: Floats, random: np.random.Generator, amount: float, decay: float) -> Floats:
    """Add a cloud of the given thickness, and scale the brightest possible value back."""
    height, width = images.shape[1:3]
    side = 2 ** max(1, math.ceil(math.log2(max(height, width))))
    clouds = _plasma(random.random((len(images), side, side), dtype=np.float32), decay)
    brightest: Floats = images.max(axis=(1, 2, 3), keepdims=True)
    foggy = images + amount * clouds[:, :height, :width, None]
    return foggy * (brightest / (brightest + amount))


def _plasma(noise: Floats, decay: float) -> Floats:
    """Turn uniform noise in [0, 1) of shape (count, side, side) into clouds from 0 to 1.

    Diamond-square on a torus: midpoints are the mean of their four neighbours plus noise, which
    shrinks with every halving of the grid. It shrinks by the *square* of the decay, as in CIFAR-C,
    where the noise is scaled twice.
    """
    side = noise.shape[-1]
    clouds = np.zeros_like(noise)
    step, strength = side, 1.0
    while step >= 2:
        old, new = slice(0, side, step), slice(step // 2, side, step)
        corners = clouds[:, old, old]
        below = corners + np.roll(corners, -1, axis=1)
        right = corners + np.roll(corners, -1, axis=2)
        shake = strength * (2 * noise - 1)
        centres = (below + np.roll(below, -1, axis=2)) / 4 + shake[:, new, new]
        clouds[:, new, new] = centres
        clouds[:, old, new] = (right + centres + np.roll(centres, 1, axis=1)) / 4
        clouds[:, old, new] += shake[:, old, new]
        clouds[:, new, old] = (below + centres + np.roll(centres, 1, axis=2)) / 4
        clouds[:, new, old] += shake[:, new, old]
        step //= 2
        strength /= decay**2
    clouds -= clouds.min(axis=(1, 2), keepdims=True)
    clouds /= clouds.max(axis=(1, 2), keepdims=True)
    return clouds


def _frost(
    images: Floats,
    random: np.random.Generator,
    image_share: float,
    frost_share: float,
    photos: list[Floats],
) -> Floats:
    """Blend every image with a random crop of a random photograph."""
    height, width = images.shape[1:3]
    blended = images * np.float32(image_share)
    for image, (which, down, across) in zip(blended, random.random((len(images), 3)), strict=True):
        photo = photos[int(which * len(photos))]
        top = int(down * (photo.shape[0] - height + 1))
        left = int(across * (photo.shape[1] - width + 1))
        image += frost_share * photo[top : top + height, left : left + width]
    return blended


def _prepare_frost(photos: Sequence[Bytes], shape: tuple[int, ...]) -> list[Floats]:
    """Return the photographs with values in [0, 1], large enough for the images, grey if they are.

    Parameters
    ----------
    photos
        Colour photographs.
    shape
        Height, width and channels of the images.
    """
    height, width, channels = shape
    if len(photos) == 0:
        raise InputError("Frost was given an empty list of photographs: give some, or None.")
    prepared = []
    for pixels in photos:
        if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] != 3 or not pixels.size:
            raise InputError(
                f"A frost photograph has shape {pixels.shape} and type {pixels.dtype}; "
                f"it must be uint8 of shape (height, width, 3)."
            )
        photo = Image.fromarray(np.ascontiguousarray(pixels))
        enlargement = max(height / photo.height, width / photo.width)
        if enlargement > 1:
            size = (round(photo.width * enlargement), round(photo.height * enlargement))
            photo = photo.resize(size, Image.Resampling.BICUBIC)
        if channels == 1:
            photo = photo.convert("L")
        values = np.asarray(photo, dtype=np.float32) / np.float32(255)
        prepared.append(values.reshape(photo.height, photo.width, channels))
    return prepared


@cache
def _drawn_frost() -> tuple[Bytes, ...]:
    """Draw frosted panes, always the same ones, to stand in for photographs."""
    return tuple(_pane(numpy_generator("frost", number)) for number in range(FROST_PANES))


def _pane(random: np.random.Generator) -> Bytes:
    """Draw one pane of frost: feathers of ice, branching at 60 degrees, on a cloudy ground."""
    fine = 3  # the feathers are drawn this many times larger and shrunk, which smooths the lines
    canvas = Image.new("L", (fine * PANE_SIDE, fine * PANE_SIDE))
    draw = ImageDraw.Draw(canvas)

    def grow(start: complex, twig: complex, brightness: float, generations: int) -> None:
        end = start + twig
        draw.line((start.real, start.imag, end.real, end.imag), fill=int(brightness), width=fine)
        if generations == 0:
            return
        branches = max(2, round(abs(twig) / (4 * fine)))
        for i in range(1, branches):
            root = start + twig * i / branches
            for side in (-1, 1):
                length = 0.5 * (1 - i / branches) * random.uniform(0.6, 1.2)
                angle = side * math.pi / 3 + random.normal(0, 0.1)
                branch = twig * length * complex(math.cos(angle), math.sin(angle))
                grow(root, branch, 0.85 * brightness, generations - 1)

    for _ in range(60):
        start = complex(*random.uniform(0, fine * PANE_SIDE, 2))
        angle, length = random.uniform(0, 2 * math.pi), fine * random.uniform(15, 50)
        stem = length * complex(math.cos(angle), math.sin(angle))
        grow(start, stem, random.uniform(120, 255), generations=2)
    ice = np.asarray(canvas.reduce(fine), dtype=np.float32)[..., None] / 255
    clouds = _plasma(random.random((1, PANE_SIDE, PANE_SIDE), dtype=np.float32), 1.4)[0, ..., None]
    ground = random.uniform(0.2, 0.5) + 0.35 * clouds
    deep_blue, white = np.array([[0.75, 0.92, 1.0], [0.95, 0.98, 1.0]], dtype=np.float32)
    return _to_bytes(ground * (1 - ice) * deep_blue + ice * white)


def _brightness(images: Floats, _: np.random.Generator, amount: float) -> Floats:
    """Add to the value in hue-saturation-value.

    The value is the largest channel, and at a fixed hue and saturation all channels are
    proportional to it. Black has no hue and turns grey.
    """
    value: Floats = images.max(axis=3, keepdims=True)
    raised: Floats = np.minimum(value + np.float32(amount), np.float32(1))
    scale = np.divide(raised, value, out=np.zeros_like(value), where=value > 0)
    return np.where(value > 0, images * scale, raised)


def _contrast(images: Floats, _: np.random.Generator, factor: float) -> Floats:
    """Move all values towards the mean of their channel in their image."""
    means: Floats = images.mean(axis=(1, 2), keepdims=True, dtype=np.float64).astype(np.float32)
    return (images - means) * np.float32(factor) + means


def _jpeg_compression(images: Floats, _: np.random.Generator, quality: float) -> Floats:
    """Encode and decode every image with Pillow."""
    decoded = np.empty_like(images)
    for i, pixels in enumerate(_to_bytes(images)):
        file = io.BytesIO()
        Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels).save(
            file, "JPEG", quality=int(quality)
        )
        decoded[i] = np.asarray(Image.open(file)).reshape(pixels.shape)
    return decoded / np.float32(255)


# Each corruption with its parameters at severities 1 to 5, those of CIFAR-C.
_TABLE: dict[str, tuple[Callable[..., Floats], tuple[tuple[float, ...], ...]]] = {
    "gaussian_noise": (_gaussian_noise, ((0.04,), (0.06,), (0.08,), (0.09,), (0.10,))),
    "shot_noise": (_shot_noise, ((500,), (250,), (100,), (75,), (50,))),
    "impulse_noise": (_impulse_noise, ((0.01,), (0.02,), (0.03,), (0.05,), (0.07,))),
    "defocus_blur": (_defocus_blur, ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1))),
    "motion_blur": (_motion_blur, ((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5))),
    "fog": (_fog, ((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75))),
    "frost": (_frost, ((1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45))),
    "brightness": (_brightness, ((0.05,), (0.1,), (0.15,), (0.2,), (0.3,))),
    "contrast": (_contrast, ((0.75,), (0.5,), (0.4,), (0.3,), (0.15,))),
    "jpeg_compression": (_jpeg_compression, ((80,), (65,), (58,), (50,), (40,))),
}
