"""Files of arrays: every naming that is allowed, and what is refused."""

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pfedfda.data import Dataset, open_source
from pfedfda.errors import InputError
from tests.data import wine


def load(path: Path) -> Dataset:
    return open_source(str(path)).load()


def npz(tmp_path: Path, **arrays: Any) -> Path:
    np.savez_compressed(tmp_path / "data.npz", **arrays)
    return tmp_path / "data.npz"


def npy(tmp_path: Path, **arrays: Any) -> Path:
    for file in tmp_path.glob("*.npy"):
        file.unlink()
    for name, array in arrays.items():
        np.save(tmp_path / f"{name}.npy", array)
    return tmp_path / f"{next(iter(arrays))}.npy"


@pytest.mark.parametrize("write", [npz, npy])
@pytest.mark.parametrize("clients", ["client", "clients"])
@pytest.mark.parametrize(
    ("inputs", "labels"), [("X", "y"), ("X", "labels"), ("images", "labels"), ("images", "y")]
)
def test_every_name(tmp_path: Path, write: Any, inputs: str, labels: str, clients: str) -> None:
    arrays = {inputs: wine.X, labels: wine.Y, clients: wine.CLIENTS}
    loaded = load(write(tmp_path, **arrays, class_names=np.array(wine.CLASSES)))
    np.testing.assert_array_equal(loaded.inputs, wine.X.astype(np.float32))
    np.testing.assert_array_equal(loaded.labels, wine.Y)
    np.testing.assert_array_equal(loaded.groups, wine.CLIENTS)
    assert loaded.class_names == wine.CLASSES
    assert loaded.group_names == tuple("01234")


@pytest.mark.parametrize("kind", ["U", "S"])
def test_names_may_be_text_or_bytes(tmp_path: Path, kind: str) -> None:
    names = np.array(wine.CLASSES, dtype=kind)
    sites = np.array(["b", "a"], dtype=kind)[wine.Y % 2]
    loaded = load(npz(tmp_path, X=wine.X, y=names[wine.Y], client=sites))
    assert loaded.class_names == tuple(sorted(wine.CLASSES))
    assert [loaded.class_names[k] for k in loaded.labels] == [wine.CLASSES[k] for k in wine.Y]
    assert loaded.group_names == ("a", "b")
    assert load(npz(tmp_path, X=wine.X, y=wine.Y, class_names=names)).class_names == wine.CLASSES
    if kind == "S":
        with pytest.raises(InputError, match="'client' in .* is not text in UTF-8"):
            load(npz(tmp_path, X=wine.X, y=wine.Y, client=np.array([b"\xff"] * len(wine.Y))))


LABELS = np.array([0, 1, 1, 0])


@pytest.mark.parametrize(
    ("inputs", "kind", "shape"),
    [
        (np.zeros((4, 3)), "float32", (3,)),
        (np.zeros((4, 3), dtype=np.float16), "float32", (3,)),
        (np.zeros((4, 3), dtype=np.uint8), "float32", (3,)),  # not an image, by its axes
        (np.zeros((4, 3), dtype=bool), "float32", (3,)),
        (np.zeros((4, 3, 2, 5), dtype=np.float32), "float32", (3, 2, 5)),
        (np.zeros((4, 8, 9), dtype=np.uint8), "uint8", (8, 9, 1)),
        (np.zeros((4, 8, 9, 3), dtype=np.uint8), "uint8", (8, 9, 3)),
        (np.zeros((4, 7), dtype=np.int16), "int64", (7,)),
        (np.array(["a", "b b", "", "\u00e9"]), "T", ()),
    ],
)
def test_the_type_and_axes_say_what_inputs_are(
    tmp_path: Path, inputs: Any, kind: str, shape: tuple[int, ...]
) -> None:
    for write in (npz, npy):
        loaded = load(write(tmp_path, X=inputs, y=LABELS))
        assert (loaded.inputs.dtype.kind if kind == "T" else loaded.inputs.dtype) == kind
        assert loaded.inputs.shape == (4, *shape)
        if kind == "T":
            assert loaded.inputs.tolist() == inputs.tolist()


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"X": np.full((4, 2), np.nan), "y": LABELS}, "Sample 0 .* not finite"),
        ({"X": np.array([[0], [1e39], [0], [0]]), "y": LABELS}, "Sample 1 .* not finite"),
        ({"X": np.zeros(4), "y": LABELS}, r"shape \(4,\); expected \(samples, features\)"),
        ({"X": np.zeros((4, 0)), "y": LABELS}, r"shape \(4, 0\)"),
        ({"X": np.zeros((0, 2)), "y": LABELS[:0]}, "holds no samples"),
        ({"X": np.float64(3), "y": LABELS}, r"have shape \(1,\)"),
        ({"X": np.zeros((4, 2)), "y": np.int64(3)}, "labels of shape"),
        ({"X": np.zeros((4, 2), dtype=complex), "y": LABELS}, "are complex128; expected"),
        ({"X": np.zeros((4, 2)), "y": LABELS * 1.0}, "'labels' .* is float64; expected integers"),
        ({"X": np.zeros((4, 2)), "y": LABELS + 1}, "Class '0' has no samples"),
        ({"X": np.zeros((4, 2)), "y": LABELS - 1}, "Label -1 is out of range"),
        ({"X": np.zeros((4, 2)), "y": LABELS, "client": LABELS * 0.5}, "'clients' .* is float64"),
        ({"X": np.zeros((4, 2)), "y": LABELS, "client": LABELS[:3]}, "client ids of shape"),
        ({"X": np.array([["a"], ["b"], ["c"], ["d"]]), "y": LABELS}, "one text per sample"),
        ({"X": np.zeros((4, 2)), "z": LABELS}, r"no array 'y' \(or 'labels'\)"),
        ({"X": np.array([{"a": 1}] * 4), "y": LABELS}, "plain array"),
        ({"X": np.zeros((4, 2)), "y": np.array([None] * 4)}, "plain array"),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, arrays: dict[str, Any], message: str) -> None:
    for write in (npz, npy):
        with pytest.raises(InputError, match=message) as caught:
            load(write(tmp_path, **arrays))
        assert "\n" not in str(caught.value)


def test_files_that_are_not_what_they_claim(tmp_path: Path) -> None:
    np.save(tmp_path / "y.npy", LABELS)
    np.save(tmp_path / "other.npy", LABELS)
    (tmp_path / "X.npy").write_bytes(b"\x93NUMPY\x01\x00")
    with pytest.raises(InputError, match="cannot be read as a plain array"):
        load(tmp_path / "X.npy")
    (tmp_path / "X.npy").write_bytes(b"")
    with pytest.raises(InputError, match="cannot be read as a plain array"):
        load(tmp_path / "X.npy")
    with pytest.raises(InputError, match=r"is not called X\.npy or images\.npy"):
        load(tmp_path / "other.npy")
    with pytest.raises(InputError, match="no array 'images' \\(or 'X'\\); it has 'other'"):
        load(npz(tmp_path, other=LABELS))
    with zipfile.ZipFile(tmp_path / "empty.npz", "w"):
        pass
    with pytest.raises(InputError, match="no array 'images'"):
        load(tmp_path / "empty.npz")


def test_only_images_are_scaled(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not images: drop --image-size"):
        open_source(str(npz(tmp_path, X=wine.X, y=wine.Y)), image_size=28).load()


def test_the_key_knows_the_files_beside(tmp_path: Path) -> None:
    source = open_source(str(npy(tmp_path, X=wine.X, y=wine.Y)))
    before = source.key()
    np.save(tmp_path / "client.npy", wine.CLIENTS)
    assert source.key() != before
