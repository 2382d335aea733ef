"""Photographs are turned upright as their camera says; Pillow's own way is the oracle."""

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageOps

from pfedfda.data.decoding import decode_all, decode_image


def photograph(orientation: object, kind: str = "PNG", size: tuple[int, int] = (60, 40)) -> bytes:
    """Encode a picture whose four corners differ."""
    rows, columns = np.mgrid[: size[1], : size[0]]
    pixels = np.stack([4 * columns, 6 * rows, 2 * (rows + columns)], axis=-1).astype(np.uint8)
    exif = Image.Exif()
    exif[0x0112] = orientation
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind, exif=exif)
    return file.getvalue()


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP"])
@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("side", [40, 16])
def test_a_photograph_is_turned_as_pillow_turns_it(kind, orientation, side):
    content = photograph(orientation, kind)
    found = decode_image(("photo", content), side, side, "RGB")
    upright = ImageOps.exif_transpose(Image.open(io.BytesIO(content))).convert("RGB")
    expected = np.asarray(ImageOps.fit(upright, (side, side), Image.Resampling.BICUBIC))
    # Scaling before or after turning rounds differently by one level at most.
    assert np.abs(found.astype(int) - expected.astype(int)).max() <= 1


@pytest.mark.parametrize("orientation", [6, 8])
def test_sides_change_places_where_the_network_takes_no_squares(orientation):
    content = photograph(orientation)
    found = decode_image(("photo", content), 60, 40, "RGB")
    upright = ImageOps.exif_transpose(Image.open(io.BytesIO(content)))
    assert np.array_equal(found, np.asarray(upright.convert("RGB")))


@pytest.mark.parametrize("orientation", [0, 9, 65535])
def test_an_orientation_that_means_nothing_leaves_an_image_as_it_is(orientation):
    found = decode_image(("photo", photograph(orientation)), 40, 60, "RGB")
    assert np.array_equal(found, decode_image(("photo", photograph(1)), 40, 60, "RGB"))


def test_a_damaged_description_leaves_an_image_as_it_is(tmp_path: Path):
    image = Image.open(io.BytesIO(photograph(6)))
    path = tmp_path / "damaged.png"
    image.save(path, exif=b"Exif\x00\x00MM\x00*\xff\xff\xff\xff garbage")
    (found,) = decode_all([("damaged", path)], 40)
    expected = decode_image(("photo", photograph(1)), 40, 40, "RGB")
    assert np.array_equal(found, expected)
