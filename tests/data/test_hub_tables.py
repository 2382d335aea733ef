"""Datasets of the Hub without images, and those with images that cannot be read."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pfedfda.data import FederationConfig, open_source, prepare
from pfedfda.errors import InputError

pytest.importorskip("datasets")
import datasets

from tests.data.test_hub import IMAGES, offline, png

__all__ = ["offline"]  # the fixture


def write_table(
    folder: Path, features: dict[str, object], **splits: dict[str, list[object]]
) -> str:
    """Write a dataset without images; return its name as a source."""
    place = folder / "somebody" / "table" / "default"
    place.mkdir(parents=True)
    for split, content in splits.items():
        table = datasets.Dataset.from_dict(content, features=datasets.Features(features))
        table.to_parquet(place / f"{split}-00000-of-00001.parquet")
    return "hub:somebody/table"


NUMBER, WORD = datasets.Value("float32"), datasets.Value("string")
KINDS = datasets.ClassLabel(names=["none", "yes", "also"])


def test_columns_of_numbers(tmp_path: Path) -> None:
    train = {"a": [1.0, 2.0], "soil": ["clay", "sand"], "kind": [1, 0]}
    test = {"a": [3.0], "soil": ["clay"], "kind": [2]}
    source = write_table(
        tmp_path, {"a": NUMBER, "soil": WORD, "kind": KINDS}, train=train, test=test
    )
    loaded = open_source(source, data_dir=tmp_path, options={"one_hot": True}).load()
    assert loaded.columns == ("a", "soil=clay", "soil=sand")
    assert loaded.inputs.tolist() == [[1, 1, 0], [2, 0, 1], [3, 1, 0]]
    assert [loaded.class_names[k] for k in loaded.labels] == ["yes", "none", "also"]
    left = open_source(source, data_dir=tmp_path, options={"drop_columns": "soil"}).load()
    assert left.columns == ("a",)
    by_soil = {"group_column": "soil", "label_column": "kind"}
    grouped = open_source(source, data_dir=tmp_path, options=by_soil).load()
    assert grouped.group_names == ("clay", "sand")
    assert grouped.columns == ("a",)
    with pytest.raises(InputError, match="holds no images: drop --image-size"):
        open_source(source, image_size=28, data_dir=tmp_path).load()


def test_the_only_column_of_words_is_the_text(tmp_path: Path) -> None:
    hidden = {"text": ["x"], "kind": [-1]}
    train = {"text": ["a, b", "c\n\u00e9", "null"], "kind": [1, 0, 2]}
    source = write_table(tmp_path, {"text": WORD, "kind": KINDS}, train=train, test=hidden)
    loaded = open_source(source, data_dir=tmp_path).load()
    assert loaded.inputs.tolist() == train["text"]  # the split without labels is left out
    named = open_source(source, data_dir=tmp_path, options={"text_column": "text"}).load()
    assert named.inputs.tolist() == loaded.inputs.tolist()
    config = FederationConfig(source, data_dir=tmp_path, partition="iid", clients=1)
    backbone = replace(config, backbone="tests.models.tiny_backbones:texts")
    assert prepare(backbone).input_shape == (26,)
    with pytest.raises(InputError, match="no column 'words'"):
        open_source(source, data_dir=tmp_path, options={"text_column": "words"}).load()


def test_several_columns_of_words_need_a_decision(tmp_path: Path) -> None:
    content = {"title": ["a", "b"], "body": ["c", "d"], "kind": [1, 0]}
    source = write_table(tmp_path, {"title": WORD, "body": WORD, "kind": KINDS}, train=content)
    with pytest.raises(InputError, match="'title' of the dataset somebody/table holds words"):
        open_source(source, data_dir=tmp_path).load()
    mixed = write_table(
        tmp_path / "mixed", {"a": NUMBER, "note": WORD, "kind": KINDS},
        train={"a": [1.0, 2.0], "note": ["c", "d"], "kind": [1, 0]},
    )  # fmt: skip
    with pytest.raises(InputError, match="'note' of the dataset somebody/table holds words"):
        open_source(mixed, data_dir=tmp_path / "mixed").load()


def test_unreadable_images_are_left_out_and_counted(tmp_path: Path) -> None:
    place = tmp_path / "somebody" / "shapes" / "default"
    place.mkdir(parents=True)
    entries = [png(image) for image in IMAGES]
    entries[3] = {"bytes": b"no image", "path": None}
    entries[5] = {"bytes": b"", "path": None}
    entries[7] = None
    import pyarrow
    import pyarrow.parquet

    labels = [0, 1, 2, 9, 0, 1, 2, 0, 1, 2, 0, 1]  # the only image of class 9 cannot be read
    authors = [f"w{n}" for n in range(12)]
    table = pyarrow.table({"picture": entries, "shape": labels, "author": authors})
    pyarrow.parquet.write_table(table, place / "train-00000-of-00001.parquet")
    options = {"image_column": "picture", "label_column": "shape", "group_column": "author"}
    with pytest.raises(InputError, match=r"3 of split train cannot be decoded|5 of split train"):
        open_source("hub:somebody/shapes", data_dir=tmp_path, options=options).load()
    skipping = options | {"skip_unreadable": True}
    good = [row for row in range(12) if row not in (3, 5, 7)]
    for _ in range(2):  # from the files, and then from the cache
        loaded = open_source("hub:somebody/shapes", data_dir=tmp_path, options=skipping).load()
        np.testing.assert_array_equal(loaded.inputs, IMAGES[good])
        assert loaded.class_names == ("0", "1", "2")
        assert loaded.labels.tolist() == [labels[row] for row in good]
        assert loaded.left_out == 3
        assert loaded.groups is not None
        assert [loaded.group_names[g] for g in loaded.groups] == [authors[row] for row in good]
