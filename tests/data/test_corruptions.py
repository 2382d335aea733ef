import colorsys
import io
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from scipy import ndimage
from sklearn.datasets import load_sample_images

from pfedfda.data import corruptions
from pfedfda.data.corruptions import CORRUPTIONS, SEVERITIES, corrupt, load_frost_photos
from pfedfda.errors import InputError

Bytes = NDArray[np.uint8]
DETERMINISTIC = {"defocus_blur", "brightness", "contrast", "jpeg_compression"}


def generator(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def even(level: int, count: int = 1, side: int = 32, channels: int = 3) -> Bytes:
    return np.full((count, side, side, channels), level, dtype=np.uint8)


@pytest.fixture(scope="module")
def natural() -> Bytes:
    """Patches of 32 × 32 of two photographs, shrunk four times to have the detail of CIFAR."""
    patches = []
    for photo in load_sample_images().images:
        small = photo[:424, :640].reshape(106, 4, 160, 4, 3).mean(axis=(1, 3))
        patches += [small[y : y + 32, x : x + 32] for y in (0, 32, 64) for x in range(0, 160, 32)]
    return np.rint(np.stack(patches)).astype(np.uint8)


@pytest.fixture(scope="module")
def framed(natural: Bytes) -> Bytes:
    """Natural detail in the middle of an even image: no blur carries any of it over the border."""
    images = even(128, len(natural), side=64)
    images[:, 24:40, 24:40] = natural[:, 8:24, 8:24]
    return images


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("size", [(8, 8), (28, 28), (32, 32), (64, 64), (24, 40), (200, 150)])
@pytest.mark.parametrize("corruption", CORRUPTIONS)
def test_every_size(corruption: str, size: tuple[int, int], channels: int) -> None:
    images = generator().integers(0, 256, (3, *size, channels), dtype=np.uint8)
    before = images.copy()
    for severity in (1, 3, 5):
        corrupted = corrupt(images, corruption, severity, generator(1))
        assert corrupted.dtype == np.uint8
        assert corrupted.shape == images.shape
        assert (corrupted != before).any()
        np.testing.assert_array_equal(images, before)


@pytest.mark.parametrize("corruption", CORRUPTIONS)
def test_the_generator_decides(corruption: str, natural: Bytes) -> None:
    first = corrupt(natural, corruption, 3, generator(5))
    np.testing.assert_array_equal(first, corrupt(natural, corruption, 3, generator(5)))
    same = np.array_equal(first, corrupt(natural, corruption, 3, generator(6)))
    assert same == (corruption in DETERMINISTIC)


@pytest.mark.parametrize("corruption", sorted(set(CORRUPTIONS) - DETERMINISTIC))
def test_equal_images_are_corrupted_differently(corruption: str, natural: Bytes) -> None:
    pair = corrupt(np.repeat(natural[:1], 2, axis=0), corruption, 3, generator())
    assert (pair[0] != pair[1]).any()


@pytest.mark.parametrize("corruption", CORRUPTIONS)
@pytest.mark.parametrize("chunk", [1, 3, 7])
def test_the_chunk_size_does_not_matter(
    corruption: str, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = generator().integers(0, 256, (11, 9, 13, 3), dtype=np.uint8)
    together = corrupt(images, corruption, 4, generator(2))
    monkeypatch.setattr(corruptions, "CHUNK_VALUES", chunk * images[0].size)
    np.testing.assert_array_equal(corrupt(images, corruption, 4, generator(2)), together)


@pytest.mark.parametrize("corruption", CORRUPTIONS)
def test_images_that_lie_apart_in_memory(corruption: str, natural: Bytes) -> None:
    view = natural[::3, ::-1].transpose(0, 2, 1, 3)
    apart = corrupt(view, corruption, 2, generator())
    np.testing.assert_array_equal(apart, corrupt(view.copy(), corruption, 2, generator()))


def mean_changes(images: Bytes, corruption: str) -> NDArray[np.float64]:
    corrupted = [corrupt(images, corruption, s, generator()).astype(float) for s in SEVERITIES]
    return np.array([np.abs(c - images).mean() for c in corrupted])


@pytest.mark.parametrize("corruption", sorted(set(CORRUPTIONS) - {"motion_blur", "frost"}))
def test_severity_grows(corruption: str, natural: Bytes) -> None:
    changes = mean_changes(natural, corruption)
    assert (np.diff(changes) > 0.03 * changes[0]).all()


def test_severity_of_motion_blur(natural: Bytes) -> None:
    """From 3 to 4 only the length grows, by a tail that a deviation of 2 pixels does not reach."""
    changes = mean_changes(natural, "motion_blur")
    assert (np.diff(changes)[[0, 1, 3]] > 0.5).all()
    third, fourth = (corrupt(natural, "motion_blur", s, generator()).astype(int) for s in (3, 4))
    assert np.abs(third - fourth).max() <= 1


def test_severity_of_frost(natural: Bytes) -> None:
    """Darkening undoes some of the change above 3, but ever less of the image shows through."""
    assert (np.diff(mean_changes(natural, "frost"))[:2] > 0.5).all()
    alike = [
        np.corrcoef(corrupt(natural, "frost", s, generator()).ravel(), natural.ravel())[0, 1]
        for s in SEVERITIES
    ]
    assert (np.diff(alike) < 0).all()


@pytest.mark.parametrize("severity", SEVERITIES)
def test_gaussian_noise_has_its_deviation(severity: int) -> None:
    deviation = (0.04, 0.06, 0.08, 0.09, 0.10)[severity - 1]
    noise = corrupt(even(128, 20), "gaussian_noise", severity, generator()) - 128.0
    assert noise.std() / 255 == pytest.approx(deviation, rel=0.01)
    assert abs(noise.mean()) < 0.4


@pytest.mark.parametrize("severity", SEVERITIES)
def test_shot_noise_has_the_variance_of_counts(severity: int) -> None:
    photons = (500, 250, 100, 75, 50)[severity - 1]
    # Over many levels: at one, counts and grey levels beat against each other.
    images = np.concatenate([even(level) for level in range(30, 130)])
    errors = (corrupt(images, "shot_noise", severity, generator()) - images.astype(float)) / 255
    variances = errors.reshape(5, 20, -1).var(axis=(1, 2))
    expected = images.reshape(5, 20, -1).mean(axis=(1, 2)) / 255 / photons
    np.testing.assert_allclose(variances, expected, rtol=0.04)
    assert abs(errors.mean()) < 0.001
    assert corrupt(even(0), "shot_noise", severity, generator()).max() == 0


@pytest.mark.parametrize("severity", SEVERITIES)
def test_impulse_noise_hits_its_share(severity: int) -> None:
    amount = (0.01, 0.02, 0.03, 0.05, 0.07)[severity - 1]
    hit = corrupt(even(100, 60), "impulse_noise", severity, generator())
    assert set(np.unique(hit)) == {0, 100, 255}
    assert (hit == 0).mean() == pytest.approx(amount / 2, rel=0.1)
    assert (hit == 255).mean() == pytest.approx(amount / 2, rel=0.1)


@pytest.mark.parametrize("corruption", ["defocus_blur", "motion_blur"])
@pytest.mark.parametrize("severity", SEVERITIES)
def test_blurs_keep_even_images_and_means(corruption: str, severity: int, framed: Bytes) -> None:
    for level in (0, 1, 77, 254, 255):
        np.testing.assert_array_equal(
            corrupt(even(level), corruption, severity, generator()), even(level)
        )
    blurred = corrupt(framed, corruption, severity, generator())
    np.testing.assert_allclose(blurred.mean(axis=(1, 2)), framed.mean(axis=(1, 2)), atol=0.03)
    assert (blurred.std(axis=(1, 2)) < framed.std(axis=(1, 2))).all()


@pytest.mark.parametrize("severity", SEVERITIES)
def test_defocus_blur_is_a_plain_filter(severity: int, natural: Bytes) -> None:
    """The disk is one pixel (all blur is Gaussian), then a cross, then a square of 3 × 3."""
    images = natural.astype(float)
    if severity <= 3:
        deviation = (0.4, 0.5, 0.6)[severity - 1]
        expected = ndimage.gaussian_filter(images, deviation, radius=1, mode="mirror", axes=(1, 2))
    elif severity == 4:
        cross = ndimage.generate_binary_structure(2, 1)[None, :, :, None] / 5
        expected = ndimage.convolve(images, cross, mode="mirror")
    else:
        expected = ndimage.uniform_filter(images, 3, mode="mirror", axes=(1, 2))
    blurred = corrupt(natural, "defocus_blur", severity, generator())
    assert np.abs(blurred - expected).max() < 0.51


@pytest.mark.parametrize("severity", SEVERITIES)
def test_motion_blur_draws_half_a_gaussian(severity: int) -> None:
    radius, deviation = ((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5))[severity - 1]
    weights = np.exp(-0.5 * (np.arange(2 * radius + 1) / deviation) ** 2)
    weights /= weights.sum()
    point = np.zeros((200, 65, 65, 1), dtype=np.uint8)
    point[:, 32, 32] = 255
    smears = corrupt(point, "motion_blur", severity, generator())[..., 0]
    slopes, level = [], 0
    for smear in smears:
        rows, columns = np.nonzero(smear)
        # From the point itself to the left, within 45 degrees; steps may share a pixel.
        assert columns.max() == 32
        assert (np.abs(rows - 32) <= 32 - columns).all()
        assert smear.sum() == pytest.approx(255, abs=5)
        down, left = (smear[rows, columns] * [rows - 32.0, 32.0 - columns]).sum(axis=1) / 255
        assert np.hypot(down, left) == pytest.approx(weights @ np.arange(len(weights)), abs=0.3)
        slopes.append(np.arctan2(down, left))
        if (rows == 32).all():
            level += 1
            drawn = smear[32, columns][::-1] / 255
            assert np.abs(drawn - weights[: len(drawn)]).max() < 0.51 / 255
    assert level > 0
    angles = np.rad2deg(slopes)
    assert angles.min() < -35
    assert angles.max() > 35
    assert abs(angles.mean()) < 8


@pytest.mark.parametrize("severity", SEVERITIES)
def test_fog_on_black_and_white(severity: int) -> None:
    """White shows the cloud itself, from none to full; in the dark there is no fog to see."""
    amount = (0.2, 0.5, 0.75, 1, 1.5)[severity - 1]
    assert corrupt(even(0), "fog", severity, generator()).max() == 0
    foggy = corrupt(even(255, 5), "fog", severity, generator())
    assert (foggy.max(axis=(1, 2, 3)) == 255).all()
    assert (foggy.min(axis=(1, 2, 3)) == round(255 / (1 + amount))).all()
    np.testing.assert_array_equal(foggy[..., 0], foggy[..., 2])


def test_plasma_point_by_point() -> None:
    """Diamond-square, written a second time one point after the other."""
    side, decay = 16, 1.75
    noise = generator().random((side, side))
    cloud = np.zeros((side, side))
    step, strength = side, 1.0
    while step > 1:
        half = step // 2
        for offsets, starts in (
            ([(-half, -half), (-half, half), (half, -half), (half, half)], [(half, half)]),
            ([(-half, 0), (half, 0), (0, -half), (0, half)], [(0, half), (half, 0)]),
        ):
            for top, left in starts:
                for y in range(top, side, step):
                    for x in range(left, side, step):
                        near = [cloud[(y + dy) % side, (x + dx) % side] for dy, dx in offsets]
                        cloud[y, x] = np.mean(near) + strength * (2 * noise[y, x] - 1)
        step, strength = half, strength / decay**2
    expected = (cloud - cloud.min()) / (cloud.max() - cloud.min())
    plasma = corruptions._plasma(noise[None].astype(np.float32), decay)[0]
    np.testing.assert_allclose(plasma, expected, atol=1e-5)


@pytest.mark.parametrize("severity", SEVERITIES)
@pytest.mark.parametrize("channels", [1, 3])
def test_frost_blends(severity: int, channels: int) -> None:
    image_share, frost_share = ((1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45))[
        severity - 1
    ]
    images = generator().integers(0, 256, (4, 32, 32, channels), dtype=np.uint8)
    frosted = corrupt(images, "frost", severity, generator(), [even(200, side=50)[0]])
    expected = np.minimum(image_share * images + frost_share * 200.0, 255)
    assert np.abs(frosted - expected).max() < 0.51


def test_frost_uses_every_photo_and_every_crop() -> None:
    photos = [generator(i).integers(0, 256, (9, 10, 3), dtype=np.uint8) for i in range(2)]
    crops = {
        np.rint(0.2 * photo[y : y + 8, x : x + 8].astype(np.float32)).astype(np.uint8).tobytes()
        for photo in photos
        for y in range(2)
        for x in range(3)
    }
    frosted = corrupt(even(0, 300, side=8), "frost", 1, generator(), photos)
    assert {image.tobytes() for image in frosted} == crops


def test_frost_from_photos_and_without(natural: Bytes) -> None:
    photos = [generator().integers(90, 250, (20, 60, 3), dtype=np.uint8)]
    drawn = corrupt(natural, "frost", 3, generator())
    assert (drawn != corrupt(natural, "frost", 3, generator(), photos)).mean() > 0.5
    # A small photograph is enlarged, so that the whole image is under frost.
    on_black = corrupt(even(0, 5, side=64), "frost", 3, generator(), photos)
    assert on_black.min() > 0
    assert on_black.max() <= 0.4 * 255 + 0.5


def test_drawn_frost_is_blueish_and_has_structure() -> None:
    layer = corrupt(even(0, 200), "frost", 5, generator()) / (0.45 * 255)
    red, green, blue = layer.mean(axis=(0, 1, 2))
    assert 0.4 < red < green < blue < 0.8
    assert np.median(layer.std(axis=(1, 2))) > 0.05


def test_brightness_is_that_of_colorsys() -> None:
    pixels = generator().integers(0, 256, (1, 16, 16, 3), dtype=np.uint8)
    pixels[0, 0, :4] = [[0, 0, 0], [255, 255, 255], [0, 0, 200], [9, 9, 9]]
    for severity, amount in zip(SEVERITIES, (0.05, 0.1, 0.15, 0.2, 0.3), strict=True):
        brighter = corrupt(pixels, "brightness", severity, generator())
        for before, after in zip(pixels.reshape(-1, 3), brighter.reshape(-1, 3), strict=True):
            hue, saturation, value = colorsys.rgb_to_hsv(*(before / 255).tolist())
            expected = colorsys.hsv_to_rgb(hue, saturation, min(value + amount, 1))
            assert np.abs(after - 255 * np.array(expected)).max() < 0.51


def test_brightness_of_grey() -> None:
    grey = np.arange(256, dtype=np.uint8).reshape(1, 16, 16, 1)
    brighter = corrupt(grey, "brightness", 4, generator())
    np.testing.assert_array_equal(brighter, np.minimum(grey.astype(int) + 51, 255))


@pytest.mark.parametrize("severity", SEVERITIES)
def test_contrast_shrinks_deviations(severity: int, natural: Bytes) -> None:
    factor = (0.75, 0.5, 0.4, 0.3, 0.15)[severity - 1]
    faded = corrupt(natural, "contrast", severity, generator())
    means = natural.mean(axis=(1, 2), keepdims=True)
    assert np.abs(faded - means - factor * (natural - means)).max() < 0.51


@pytest.mark.parametrize("severity", SEVERITIES)
@pytest.mark.parametrize("mode", ["L", "RGB"])
def test_jpeg_is_that_of_pillow(severity: int, mode: str, natural: Bytes) -> None:
    quality = (80, 65, 58, 50, 40)[severity - 1]
    images = natural[:4] if mode == "RGB" else natural[:4, ..., :1]
    for image, compressed in zip(
        images, corrupt(images, "jpeg_compression", severity, generator()), strict=True
    ):
        file = io.BytesIO()
        Image.fromarray(image.squeeze()).save(file, format="JPEG", quality=quality)
        decoded = Image.open(file)
        assert decoded.mode == mode
        np.testing.assert_array_equal(compressed.squeeze(), np.asarray(decoded))


def test_load_frost_photos(tmp_path: Path) -> None:
    photos = [generator(i).integers(0, 256, (150 + i, 200, 3), dtype=np.uint8) for i in range(2)]
    opaque = np.concatenate([photos[0], np.full((150, 200, 1), 255, dtype=np.uint8)], axis=2)
    Image.fromarray(opaque).save(tmp_path / "frost1.png")
    Image.fromarray(photos[1]).save(tmp_path / "frost2.jpg")
    (tmp_path / "frost.txt").write_text("not a photograph")
    Image.fromarray(photos[1]).save(tmp_path / "ice.png")
    loaded = load_frost_photos(tmp_path)
    assert [photo.shape for photo in loaded] == [(30, 40, 3), (30, 40, 3)]
    # Bilinear shrinking without smoothing first, as another library does it.
    channels_first = torch.from_numpy(photos[0].astype(np.float32)).permute(2, 0, 1)[None]
    shrunk = torch.nn.functional.interpolate(channels_first, size=(30, 40), mode="bilinear")[0]
    np.testing.assert_allclose(loaded[0], shrunk.permute(1, 2, 0), atol=1e-3)
    corrupt(even(0), "frost", 1, generator(), loaded)


def test_no_images() -> None:
    none = np.zeros((0, 32, 32, 3), dtype=np.uint8)
    for corruption in CORRUPTIONS:
        assert corrupt(none, corruption, 1, generator()).shape == none.shape


def test_what_cannot_be_used(tmp_path: Path) -> None:
    images = even(0)
    with pytest.raises(InputError, match="Unknown corruption 'forst'.*Did you mean 'frost'"):
        corrupt(images, "forst", 1, generator())
    for severity in (0, 6, -1):
        with pytest.raises(InputError, match=f"severity of a corruption is {severity};"):
            corrupt(images, "fog", severity, generator())
    for wrong in (images[0], images[..., :2], images.astype(np.float32)):
        with pytest.raises(InputError, match="cannot be corrupted"):
            corrupt(wrong, "fog", 1, generator())  # type: ignore[arg-type]
    with pytest.raises(InputError, match="empty list of photographs"):
        corrupt(images, "frost", 1, generator(), [])
    with pytest.raises(InputError, match=r"A frost photograph has shape \(9, 9\)"):
        corrupt(images, "frost", 1, generator(), [np.zeros((9, 9), dtype=np.uint8)])
    with pytest.raises(InputError, match="There is no frost"):
        load_frost_photos(tmp_path)
    with pytest.raises(InputError, match="There is no frost"):
        load_frost_photos(tmp_path / "nowhere")
