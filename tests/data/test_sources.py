from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits

from pfedfda.data.catalogue import open_source
from pfedfda.data.decoding import DEFAULT_SIZES
from pfedfda.data.sources import Dataset
from pfedfda.errors import InputError
from tests.conftest import write_image


def test_digits_are_those_of_scikit_learn() -> None:
    digits = open_source("digits").load()
    assert digits.inputs.shape == (1797, 28, 28, 1)
    assert digits.inputs.dtype == np.uint8
    np.testing.assert_array_equal(digits.labels, load_digits().target)
    # Scaled down again by averaging, they are the originals up to interpolation.
    small = np.stack([np.asarray(Image.fromarray(i[..., 0]).resize((8, 8))) for i in digits.inputs])
    original = load_digits().images * (255 / 16)
    correlation = np.corrcoef(small.ravel(), original.ravel())[0, 1]
    assert correlation > 0.97


def test_folder_of_classes(tmp_path: Path) -> None:
    for name in ("cat", "dog"):
        for number in range(3):
            write_image(tmp_path / name / f"{number}.png", number, mode="RGB")
    (tmp_path / "cat" / "notes.txt").write_text("not an image")
    write_image(tmp_path / ".hidden" / "x.png")
    loaded = open_source(str(tmp_path)).load()
    assert loaded.inputs.shape == (6, 28, 28, 3)
    assert loaded.class_names == ("cat", "dog")
    assert loaded.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert loaded.groups is None
    with Image.open(tmp_path / "cat" / "1.png") as image:
        np.testing.assert_array_equal(loaded.inputs[1], np.asarray(image))


def test_folder_of_clients(tmp_path: Path) -> None:
    write_image(tmp_path / "anna" / "cat" / "1.png")
    write_image(tmp_path / "anna" / "dog" / "1.png")
    write_image(tmp_path / "ben" / "dog" / "1.png")
    loaded = open_source(f"folder:{tmp_path}").load()
    assert loaded.group_names == ("anna", "ben")
    assert loaded.groups is not None
    assert loaded.groups.tolist() == [0, 0, 1]
    assert loaded.labels.tolist() == [0, 1, 1]
    assert loaded.inputs.shape[3] == 1  # all grey


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([(40, 40), (40, 40)], 40),
        ([(40, 40), (90, 50)], 32),
        ([(200, 100), (120, 90)], 64),
        ([(200, 200), (200, 200)], 64),
        ([(10, 12)], DEFAULT_SIZES[-1]),
    ],
)
def test_default_size_of_folder_images(
    tmp_path: Path, sizes: list[tuple[int, int]], expected: int
) -> None:
    for number, size in enumerate(sizes):
        write_image(tmp_path / "one" / f"{number}.png", size=size)
    assert open_source(str(tmp_path)).load().inputs.shape[1:3] == (expected, expected)


def test_sixteen_bit_images_keep_their_upper_bits(tmp_path: Path) -> None:
    deep = (np.arange(28 * 28).reshape(28, 28) * 80).astype(np.uint16)
    (tmp_path / "one").mkdir()
    Image.fromarray(deep).save(tmp_path / "one" / "deep.png")
    loaded = open_source(str(tmp_path)).load().inputs[0, ..., 0]
    assert np.abs(loaded.astype(int) - deep / 257).max() <= 1


def test_npz(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (4, 9, 11), dtype=np.uint8)
    path = tmp_path / "data.npz"
    clients = np.array(["b", "a", "b", "a"])
    np.savez(path, images=images, labels=np.array([0, 1, 1, 0], dtype=np.int32), clients=clients)
    loaded = open_source(str(path)).load()
    np.testing.assert_array_equal(loaded.inputs[..., 0], images)
    assert loaded.groups is not None
    assert [loaded.group_names[g] for g in loaded.groups] == clients.tolist()
    assert open_source(str(path), image_size=28).load().inputs.shape == (4, 28, 28, 1)


def test_key_changes_with_the_content(tmp_path: Path) -> None:
    write_image(tmp_path / "one" / "1.png")
    source = open_source(str(tmp_path))
    before = source.key()
    assert source.key() == before
    write_image(tmp_path / "one" / "2.png")
    assert source.key() != before


def _npz(path: Path, **arrays: np.ndarray) -> str:
    np.savez(path / "data.npz", **arrays)
    return str(path / "data.npz")


IMAGES = np.zeros((3, 28, 28), dtype=np.uint8)


@pytest.mark.parametrize(
    ("labels", "extra", "message"),
    [
        ([0, 1, -1], {}, "Label -1 is out of range"),
        ([0, 1, 2], {"class_names": np.array(["a", "b"])}, "Label 2 is out of range"),
        ([0, 2, 2], {}, "Class '1' has no samples"),
        ([0, 1], {}, "labels of shape"),
        ([0.0, 1.0, 1.0], {}, "expected integers"),
        ([0, 1, 1], {"clients": np.array([1])}, "client ids of shape"),
    ],
)
def test_bad_npz(
    tmp_path: Path, labels: list[float], extra: dict[str, np.ndarray], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        open_source(_npz(tmp_path, images=IMAGES, labels=np.array(labels), **extra)).load()


def test_npz_of_other_things(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no array 'labels'"):
        open_source(_npz(tmp_path, images=IMAGES)).load()
    with pytest.raises(InputError, match="expected uint8"):
        open_source(_npz(tmp_path, images=IMAGES * 1j, labels=np.array([0, 0, 0]))).load()
    pickled = np.array([{"a": 1}], dtype=object)
    with pytest.raises(InputError, match="plain arrays"):
        open_source(_npz(tmp_path, images=IMAGES, labels=pickled)).load()
    (tmp_path / "broken.npz").write_bytes(b"PK\x03\x04 not a zip")
    with pytest.raises(InputError, match=r"broken\.npz"):
        open_source(str(tmp_path / "broken.npz")).load()
    with pytest.raises(InputError, match="There is no file"):
        open_source(str(tmp_path / "absent.npz")).key()


def test_undecodable_image_is_named(tmp_path: Path) -> None:
    write_image(tmp_path / "one" / "good.png")
    (tmp_path / "one" / "bad.png").write_bytes(b"\x89PNG\r\n\x1a\n broken")
    with pytest.raises(InputError, match=r"bad\.png cannot be decoded"):
        open_source(str(tmp_path)).load()
    (tmp_path / "one" / "bad.png").unlink()
    whole = (tmp_path / "one" / "good.png").read_bytes()
    (tmp_path / "one" / "cut.png").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError, match=r"cut\.png cannot be decoded"):
        open_source(str(tmp_path)).load()


def test_bad_folders(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no images"):
        open_source(str(tmp_path)).load()
    write_image(tmp_path / "flat" / "1.png")
    with pytest.raises(InputError, match=r"but 1\.png does not fit"):
        open_source(str(tmp_path / "flat")).load()
    (tmp_path / "flat").rename(tmp_path / "one")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="Class 'empty' has no samples"):
        open_source(str(tmp_path)).load()
    (tmp_path / "empty").rmdir()
    write_image(tmp_path / "deep" / "two" / "1.png")
    with pytest.raises(InputError, match="does not fit"):
        open_source(str(tmp_path)).load()
    with pytest.raises(InputError, match="There is no folder"):
        open_source(str(tmp_path / "absent"))


def test_unknown_name_comes_with_a_hint() -> None:
    with pytest.raises(InputError, match="Did you mean 'digits'"):
        open_source("digit")


def test_image_size_is_checked() -> None:
    with pytest.raises(InputError, match="between 8 and 1024"):
        open_source("digits", image_size=3)


def test_wrong_number_of_channels() -> None:
    with pytest.raises(InputError, match="1 or 3 channels"):
        Dataset(np.zeros((1, 8, 8, 2), dtype=np.uint8), np.zeros(1, dtype=np.int64), ("a",))


def test_unreadable_images_of_a_folder_are_left_out_and_counted(tmp_path: Path) -> None:
    for number in range(4):
        write_image(tmp_path / "ab"[number % 2] / f"{number}.png", number)
    before = open_source(str(tmp_path)).load()
    (tmp_path / "a" / "1.png").write_bytes(b"no image")
    (tmp_path / "b" / "empty.png").touch()
    write_image(tmp_path / "c" / "cut.png")
    (tmp_path / "c" / "cut.png").write_bytes((tmp_path / "c" / "cut.png").read_bytes()[:-30])
    with pytest.raises(InputError, match=r"1\.png cannot be decoded"):
        open_source(str(tmp_path)).load()
    skipping = open_source(str(tmp_path), options={"skip_unreadable": True})
    assert skipping.key() != open_source(str(tmp_path)).key()
    loaded = skipping.load()
    assert loaded.left_out == 3
    np.testing.assert_array_equal(loaded.inputs, before.inputs)
    np.testing.assert_array_equal(loaded.labels, before.labels)
    assert loaded.class_names == ("a", "b")  # nothing of c can be read
    for path in tmp_path.rglob("*.png"):
        path.write_bytes(b"no image")
    with pytest.raises(InputError, match="None of the images can be decoded"):
        skipping.load()


def test_folders_that_look_like_splits_need_a_decision(tmp_path: Path) -> None:
    for split in ("Train", "val"):
        for name in ("cat", "dog"):
            write_image(tmp_path / split / name / f"{split}.png", len(split))
    with pytest.raises(InputError, match=r"Train and val .* --splits merge.* --splits clients"):
        open_source(str(tmp_path)).load()
    merged = open_source(str(tmp_path), options={"splits": "merge"})
    assert merged.load().groups is None
    assert merged.load().labels.tolist() == [0, 1, 0, 1]
    clients = open_source(str(tmp_path), options={"splits": "clients"})
    assert clients.load().group_names == ("Train", "val")
    assert merged.key() != clients.key()
    # One folder of that name alone, or among others, is a client like any other.
    (tmp_path / "val").rename(tmp_path / "anna")
    assert open_source(str(tmp_path)).load().group_names == ("Train", "anna")
