"""Tables: what is read, in which order, and what is refused."""

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pfedfda.data import Dataset, open_source
from pfedfda.data.tables import Columns
from pfedfda.errors import InputError
from tests.data import wine
from tests.untrusted.refusals import little_memory

pytest.importorskip("pyarrow")
import pyarrow
import pyarrow.parquet


def write(tmp_path: Path, text: str, name: str = "t.csv") -> str:
    (tmp_path / name).write_text(text, encoding="utf-8", newline="")
    return str(tmp_path / name)


def load(path: str | Path, **options: Any) -> Dataset:
    return open_source(str(path), options=options).load()


def refusal(path: str | Path, **options: Any) -> str:
    with pytest.raises(InputError) as caught:
        load(path, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def is_wine(loaded: Dataset) -> None:
    np.testing.assert_array_equal(loaded.inputs, wine.X.astype(np.float32))
    assert loaded.inputs.dtype == np.float32
    np.testing.assert_array_equal(loaded.labels, wine.Y)
    assert loaded.class_names == ("0", "1", "2")
    assert loaded.columns == wine.NAMES
    assert loaded.groups is None


@pytest.mark.parametrize(
    ("name", "delimiter"), [("t.csv", ","), ("t.csv", ";"), ("t.csv", "\t"), ("T.TSV", "\t")]
)
def test_delimiters(tmp_path: Path, name: str, delimiter: str) -> None:
    is_wine(load(wine.write_csv(tmp_path / name, wine.columns(), delimiter)))


def test_gzip_a_byte_order_mark_and_empty_lines(tmp_path: Path) -> None:
    plain = wine.write_csv(tmp_path / "t.csv", wine.columns())
    (tmp_path / "g.csv.gz").write_bytes(gzip.compress(plain.read_bytes()))
    is_wine(load(tmp_path / "g.csv.gz"))
    # As spreadsheets write it.
    text = plain.read_text().replace("\n", "\r\n") + "\r\n\r\n"
    (tmp_path / "b.csv").write_bytes(b"\xef\xbb\xbf" + text.encode())
    is_wine(load(tmp_path / "b.csv"))


def test_parquet(tmp_path: Path) -> None:
    pyarrow.parquet.write_table(pyarrow.table(wine.columns()), tmp_path / "t.parquet")
    is_wine(load(tmp_path / "t.parquet"))
    missing = {"a": [1.0, None], "label": [0, 1]}
    pyarrow.parquet.write_table(pyarrow.table(missing), tmp_path / "m.parquet")
    assert "no value in row 2" in refusal(tmp_path / "m.parquet")


def test_quoted_cells_may_have_delimiters_quotes_and_newlines(tmp_path: Path) -> None:
    texts = ["one, two; three", 'she said "no"', "a line\nand another\r\nand a third", "plain"]
    table = {"text": texts, "y": [0, 1, 0, 1]}
    loaded = load(wine.write_csv(tmp_path / "t.csv", table), text_column="text")
    assert loaded.inputs.tolist() == texts
    assert loaded.labels.tolist() == [0, 1, 0, 1]
    assert loaded.columns == ()


def test_lines_are_counted_as_an_editor_shows_them(tmp_path: Path) -> None:
    path = write(tmp_path, 'text,y\n"one\ntwo",0\nthree\n')
    assert "Line 4 of the table" in refusal(path, text_column="text")
    # A blank line is not a row, and still a line.
    path = write(tmp_path, "a,y\n1,0\n\n\nx,1\n")
    assert "'x' in line 5" in refusal(path)
    path = write(tmp_path, 'text,a,y\n"one\ntwo",1,0\nthree,nan,1\n')
    assert "no value in line 4" in refusal(path, drop_columns="text")


def test_the_label_and_client_columns(tmp_path: Path) -> None:
    text = "Client,a,Target\nb,1,dog\na,2,cat\nb,3,cat\n"
    loaded = load(write(tmp_path, text))
    assert loaded.columns == ("a",)
    assert loaded.class_names == ("cat", "dog")
    assert loaded.labels.tolist() == [1, 0, 0]
    assert loaded.group_names == ("a", "b")
    assert loaded.groups is not None
    assert loaded.groups.tolist() == [1, 0, 1]
    text = "a,ward,kind\n1,10,x\n2,9,y\n"
    loaded = load(write(tmp_path, text), label_column="kind", group_column="ward")
    assert loaded.group_names == ("9", "10")  # numbers in their order
    assert loaded.columns == ("a",)


def test_class_names_keep_their_order_and_are_all_kinds_of_words(tmp_path: Path) -> None:
    loaded = load(write(tmp_path, "a,y\n1,10\n2,9\n3,-1\n4,10\n"))
    assert loaded.class_names == ("-1", "9", "10")
    assert loaded.labels.tolist() == [2, 1, 0, 2]
    loaded = load(write(tmp_path, "a,y\n1, ja \n2,n\u00e9e\n3,none\n"))
    assert loaded.class_names == ("ja", "none", "n\u00e9e")


def test_one_hot(tmp_path: Path) -> None:
    text = "colour,a,y\nred,1,0\nblue,2,1\nred,3,0\n"
    loaded = load(write(tmp_path, text), one_hot=True)
    assert loaded.columns == ("colour=blue", "colour=red", "a")
    assert loaded.inputs.tolist() == [[0, 1, 1], [1, 0, 2], [0, 1, 3]]
    said = refusal(write(tmp_path, text))
    assert "'colour'" in said
    assert "'red' in line 2" in said
    assert "--one-hot" in said
    many = "w,y\n" + "".join(f"w{n},{n % 2}\n" for n in range(1001))
    assert "1,001 different words" in refusal(write(tmp_path, many), one_hot=True)
    two = "a,a=b,y\nb,1,0\nc,2,1\n"
    assert "'a=b'" in refusal(write(tmp_path, two), one_hot=True)


def test_drop_columns(tmp_path: Path) -> None:
    path = write(tmp_path, "id,note,a,y\n7,x,1,0\n8,,2,1\n")
    assert load(path, drop_columns="id, note").columns == ("a",)
    assert "has no column 'nota'" in refusal(path, drop_columns="nota")
    assert "Did you mean 'note'?" in refusal(path, drop_columns="nota")
    assert "no column besides" in refusal(path, drop_columns="id,note,a")


EXPECTED = ("colour=blue", "colour=red", "size=1", "size=2", "size=L", "a")


def columns_of(table: dict[str, list[Any]], **settings: Any) -> Dataset:
    return Columns(expected=EXPECTED, one_hot=True, **settings).dataset(table, "the table t")


def test_a_table_is_read_by_the_columns_that_a_model_expects() -> None:
    table = {"a": ["5"] * 2, "y": ["0"] * 2, "size": ["2", "1"], "colour": ["red", "red"]}
    loaded = columns_of(table)
    assert loaded.columns == EXPECTED
    # What the newcomer lacks is 0; sizes that all look like numbers are the words they were.
    assert loaded.inputs.tolist() == [[0, 1, 0, 1, 0, 5], [0, 1, 1, 0, 0, 5]]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"colour": ["green", "red"]}, "also has 'colour=green'"),
        ({"b": ["1", "2"]}, "also has 'b'"),
        ({"a": None}, "lacks 'a'"),
        ({"colour": None}, "lacks 'colour=blue'"),
        ({"a": ["x", "1"]}, "lacks 'a'"),
    ],
)
def test_other_columns_than_expected_are_refused(change: dict[str, Any], message: str) -> None:
    table = {"a": ["5", "6"], "y": ["0", "1"], "size": ["2", "1"], "colour": ["red", "red"]}
    table = {name: cells for name, cells in (table | change).items() if cells is not None}
    with pytest.raises(InputError, match=message):
        columns_of(table)


def test_columns_that_were_left_out_need_not_be_there_again() -> None:
    table = {"a": ["5"], "y": ["0"], "size": ["2"], "colour": ["red"]}
    assert columns_of(table, drop_columns="id", group_column="ward").columns == EXPECTED
    with pytest.raises(InputError, match="has no column 'id'"):
        Columns(drop_columns="id").dataset(table, "the table t")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("a,y\n", "has no rows"),
        ("a,y\n1\n", "Line 2 of the table .* has 1 cells; the first line names 2 columns"),
        ("a,y\n1,0,2\n", "has 3 cells"),
        ("a,a,y\n1,2,0\n", "two columns called 'a'"),
        (",a,y\n0,1,2\n", "Column 1 of the table .* has no name"),
        ("a,b\n1,2\n", "no column of labels called label, labels, y, target, class"),
        ("a,y\n1,0\nNaN,1\n", "The column 'a' .* has no value in line 3"),
        ("a,y\n1,0\n,1\n", "The column 'a' .* has no value in line 3"),
        ("a,y\n1,0\n?,1\n", "The column 'a' .* has no value in line 3"),
        ("a,y\n,0\n,1\n", "The column 'a' .* has no value in line 2"),
        ("a,y\n1,0\n-inf,1\n", "'-inf' in line 3, which is not a finite number"),
        ("a,y\n1,0\n1e39,1\n", "'1e39' in line 3, which is not a finite number"),
        ("a,y\n1,0\n2,\n", "The column 'y' .* has no value in line 3"),
        ("a,y\n1,0\n2,NaN\n", "The column 'y' .* has no value in line 3"),
        ('a,y\n"1,0\n', "unexpected end of data|has 1 cells"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        load(write(tmp_path, text))


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "latin.csv").write_bytes("a,y\n1,n\xe9e\n".encode("latin-1"))
    assert "not text in UTF-8" in refusal(tmp_path / "latin.csv")
    for name in ("t.csv.gz", "t.parquet"):
        (tmp_path / name).write_bytes(b"neither")
        assert f"{name} cannot be" in refusal(tmp_path / name)
    packed = gzip.compress(b"a,y\n1,0\n" * 1000)
    (tmp_path / "t.csv.gz").write_bytes(packed[:-9])
    assert "cannot be unpacked" in refusal(tmp_path / "t.csv.gz")
    (tmp_path / "t.csv.gz").write_bytes(packed[:20] + bytes(20) + packed[40:])
    assert "cannot be unpacked" in refusal(tmp_path / "t.csv.gz")
    with pytest.raises(InputError, match="There is no file"):
        open_source(str(tmp_path / "absent.csv")).key()


def test_small_files_that_become_giants_are_refused(tmp_path: Path) -> None:
    part = gzip.compress(b"0,1\n" * 2**18)
    (tmp_path / "t.csv.gz").write_bytes(gzip.compress(b"a,y\n") + 5000 * part)
    with little_memory():
        assert "unpack it yourself" in refusal(tmp_path / "t.csv.gz")
    zeros = pyarrow.array(np.zeros(2**26, dtype=np.int8))
    long = pyarrow.DictionaryArray.from_arrays(np.zeros(2**16, dtype=np.int8), ["x" * 2**16])
    for values in (zeros, long):
        table = pyarrow.table({"a": values, "y": values})
        pyarrow.parquet.write_table(table, tmp_path / "t.parquet")
        assert (tmp_path / "t.parquet").stat().st_size < 2**20
        assert "would take" in refusal(tmp_path / "t.parquet", text_column="a")


def test_the_key_tells_what_columns_are(tmp_path: Path) -> None:
    path = write(tmp_path, "a,b,y\n1,2,0\n")
    keys = [
        open_source(path, options=options).key()
        for options in ({}, {"label_column": "y"}, {"drop_columns": "b"}, {"one_hot": True})
    ]
    assert all(keys.count(key) == 1 for key in keys)
    write(tmp_path, "a,b,y\n1,2,0\n3,4,1\n")
    assert open_source(path).key() != keys[0]
