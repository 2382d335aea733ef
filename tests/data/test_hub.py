import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from pfedfda.data import FederationConfig, default_cache, open_source, prepare
from pfedfda.errors import InputError

datasets = pytest.importorskip("datasets")

IMAGES = np.random.default_rng(0).integers(0, 256, (12, 20, 20, 3), dtype=np.uint8)
LABELS = [0, 1, 2] * 4


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No test asks the network, and each has a cache of its own."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("PFEDFDA_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("PFEDFDA_DATA", raising=False)


def png(image: np.ndarray) -> dict[str, bytes | None]:
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "PNG")
    return {"bytes": buffer.getvalue(), "path": None}


def write_repository(
    folder: Path,
    name: str = "somebody/shapes",
    label: object = None,
    splits: dict[str, slice] | None = None,
    **columns: list[object],
) -> Path:
    """Write a dataset in the layout of the Hub: parquet files in a folder of its name."""
    kind = label or datasets.ClassLabel(names=["circle", "square", "star"])
    for split, rows in (splits or {"train": slice(0, 8), "test": slice(8, 12)}).items():
        features = {"picture": datasets.Image(), "shape": kind}
        content = {"picture": [png(i) for i in IMAGES[rows]], "shape": LABELS[rows]}
        for column, values in columns.items():
            features[column] = datasets.Value("string")
            content[column] = values[rows]
        place = folder / name / "default"
        place.mkdir(parents=True, exist_ok=True)
        table = datasets.Dataset.from_dict(content, features=datasets.Features(features))
        table.to_parquet(place / f"{split}-00000-of-00001.parquet")
    return folder


def test_splits_are_merged_in_order_and_bit_exact(tmp_path: Path) -> None:
    write_repository(tmp_path)
    loaded = open_source("hub:somebody/shapes", data_dir=tmp_path).load()
    np.testing.assert_array_equal(loaded.inputs, IMAGES)
    assert loaded.labels.tolist() == LABELS
    assert loaded.class_names == ("circle", "square", "star")
    assert loaded.groups is None


def test_data_folder_of_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PFEDFDA_DATA", str(write_repository(tmp_path)))
    assert len(open_source("hub:somebody/shapes").load().labels) == 12


def test_groups_become_clients(tmp_path: Path) -> None:
    write_repository(tmp_path, author=[f"w{i % 2}" for i in range(12)])
    config = FederationConfig(
        source="hub:somebody/shapes", data_dir=tmp_path, group_column="author", image_size=28
    )
    prepared = prepare(config)
    assert prepared.client_names == ["w0", "w1"]
    assert prepared.input_shape == (28, 28, 3)


def test_decoded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_repository(tmp_path)
    source = open_source("hub:somebody/shapes", data_dir=tmp_path)
    first = source.load()
    monkeypatch.setattr("pfedfda.data.hub.decode_all", lambda *_: pytest.fail("decoded twice"))
    second = source.load()
    np.testing.assert_array_equal(first.inputs, second.inputs)
    assert first.class_names == second.class_names


def test_a_decoded_dataset_with_a_changed_byte_is_decoded_again(tmp_path: Path) -> None:
    write_repository(tmp_path)
    source = open_source("hub:somebody/shapes", data_dir=tmp_path)
    source.load()
    (path,) = default_cache().glob("sources/*/inputs.npy")
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    np.testing.assert_array_equal(source.load().inputs, IMAGES)


def test_plain_integer_labels_need_no_names(tmp_path: Path) -> None:
    write_repository(tmp_path, label=datasets.Value("int64"))
    with pytest.raises(InputError, match="no column of labels"):
        open_source("hub:somebody/shapes", data_dir=tmp_path).load()
    columns = {"label_column": "shape"}
    loaded = open_source("hub:somebody/shapes", data_dir=tmp_path, options=columns).load()
    assert loaded.class_names == ("0", "1", "2")


def test_splits_without_labels_are_left_out(tmp_path: Path) -> None:
    write_repository(tmp_path)
    features = datasets.Features(
        {
            "picture": datasets.Image(),
            "shape": datasets.ClassLabel(names=["circle", "square", "star"]),
        }
    )
    hidden = datasets.Dataset.from_dict(
        {"picture": [png(i) for i in IMAGES[:3]], "shape": [-1, -1, -1]}, features=features
    )
    hidden.to_parquet(tmp_path / "somebody/shapes/default/validation-00000-of-00001.parquet")
    assert len(open_source("hub:somebody/shapes", data_dir=tmp_path).load().labels) == 12


def test_wrong_column(tmp_path: Path) -> None:
    write_repository(tmp_path)
    source = open_source(
        "hub:somebody/shapes", data_dir=tmp_path, options={"group_column": "writer"}
    )
    with pytest.raises(InputError, match="no column 'writer'; it has picture, shape"):
        source.load()


def test_neither_hub_nor_copy_says_both_ways(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="connect to the internet, or name a folder"):
        open_source("hub:nobody/nothing").load()
    with pytest.raises(InputError, match="has no copy"):
        open_source("cifar10", data_dir=tmp_path).load()
    with pytest.raises(InputError, match="There is no data folder"):
        open_source("cifar10", data_dir=tmp_path / "absent").load()


def test_truncated_file_is_refused_and_nothing_is_kept(tmp_path: Path) -> None:
    write_repository(tmp_path)
    path = tmp_path / "somebody/shapes/default/train-00000-of-00001.parquet"
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(InputError, match="cannot be read") as caught:
        open_source("hub:somebody/shapes", data_dir=tmp_path).load()
    assert "\n" not in str(caught.value)
    assert not (default_cache() / "sources").exists()


def test_unwritable_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_repository(tmp_path)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PFEDFDA_CACHE", str(tmp_path / "file"))
    with pytest.raises(InputError, match=r"cannot be written to the cache.*PFEDFDA_CACHE"):
        open_source("hub:somebody/shapes", data_dir=tmp_path).load()


def test_names_that_leave_the_folder_are_refused(tmp_path: Path) -> None:
    for name in ("hub:../secrets", "hub:", "hub:a//b"):
        with pytest.raises(InputError, match="does not name a dataset"):
            open_source(name, data_dir=tmp_path)


def test_a_dataset_of_image_files_is_read(tmp_path: Path) -> None:
    for split in ("train", "test"):
        for number, name in enumerate(("cat", "dog")):
            folder = tmp_path / "somebody" / "pets" / split / name
            folder.mkdir(parents=True)
            Image.fromarray(IMAGES[number]).save(folder / "one.png")
    loaded = open_source("hub:somebody/pets", data_dir=tmp_path).load()
    np.testing.assert_array_equal(loaded.inputs, IMAGES[[0, 1, 0, 1]])
    assert loaded.class_names == ("cat", "dog")


@pytest.mark.parametrize("leads", ["{}/private.png", "{}/somebody/shapes/../../private.png"])
def test_images_outside_the_dataset_are_refused(tmp_path: Path, leads: str) -> None:
    """A table may name images by their paths; it must not name what is not its own."""
    import pyarrow
    import pyarrow.parquet

    Image.fromarray(IMAGES[0]).save(tmp_path / "private.png")
    place = tmp_path / "somebody" / "shapes"
    place.mkdir(parents=True)
    entry = {"bytes": None, "path": leads.format(tmp_path)}
    table = pyarrow.table({"picture": [entry] * 2, "shape": [0, 1]})
    pyarrow.parquet.write_table(table, place / "train-00000-of-00001.parquet")
    columns = {"image_column": "picture", "label_column": "shape"}
    with pytest.raises(InputError, match=r"private.png', outside its folder"):
        open_source("hub:somebody/shapes", data_dir=tmp_path, options=columns).load()


def test_missing_package_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_repository(tmp_path)
    monkeypatch.setitem(__import__("sys").modules, "datasets", None)
    with pytest.raises(InputError, match=r"pip install 'pfedfda\[hub\]'"):
        open_source("hub:somebody/shapes", data_dir=tmp_path).load()
