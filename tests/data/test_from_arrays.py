"""Arrays from Python; and that every way in leads to the same federation."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pfedfda
from pfedfda.data import Federation, FederationConfig, federation_from_arrays, prepare
from pfedfda.errors import InputError
from tests.data import wine
from tests.models.tiny_backbones import numbers

TEXTS = ['one, "two"', "three\nfour", "five\r\nsix", " seven ", "acht \u00e9", "=1+1"]


def as_csv(folder: Path, **more: Any) -> FederationConfig:
    return FederationConfig(str(wine.write_csv(folder / "t.csv", wine.columns(**more))))


def as_parquet(folder: Path, **more: Any) -> FederationConfig:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(pyarrow.table(wine.columns(**more)), folder / "t.parquet")
    return FederationConfig(str(folder / "t.parquet"))


def as_npz(folder: Path, **more: Any) -> FederationConfig:
    np.savez(folder / "t.npz", X=wine.X, y=wine.Y, **more)
    return FederationConfig(str(folder / "t.npz"))


def as_arrays(folder: Path, **more: Any) -> FederationConfig:
    return federation_from_arrays(wine.X, wine.Y, **more)


FORMS: list[Callable[..., FederationConfig]] = [as_csv, as_parquet, as_npz, as_arrays]


def same(left: Federation, right: Federation) -> bool:
    return (
        left.fingerprint == right.fingerprint
        and left.client_names == right.client_names
        and left.class_names == right.class_names
    )


@pytest.mark.parametrize("settings", [{}, {"partition": "iid", "clients": 4, "train_share": 0.5}])
@pytest.mark.parametrize(
    "more",
    [{}, {"client": wine.CLIENTS}, {"client": [f"ward {n}" for n in wine.CLIENTS]}],
    ids=["no clients", "numbers", "names"],
)
def test_all_forms_give_the_same_inputs_and_split(
    tmp_path: Path, more: dict[str, Any], settings: dict[str, Any]
) -> None:
    from dataclasses import replace

    settings = settings or ({} if more else {"clients": 6})
    prepared = [prepare(replace(form(tmp_path, **more), **settings)) for form in FORMS]
    assert len({f.folder for f in prepared}) == len(FORMS)
    assert all(same(prepared[0], other) for other in prepared[1:])
    assert len(prepared[0]) == settings.get("clients", 5)
    # Every sample is with the client that has it in the arrays.
    if more and not settings:
        sizes = prepared[0].train_sizes + prepared[0].test_sizes
        assert sizes.tolist() == np.bincount(wine.CLIENTS).tolist()


def test_the_same_arrays_are_written_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PFEDFDA_CACHE", str(tmp_path))
    sources = {federation_from_arrays(wine.X, wine.Y).source for _ in range(2)}
    assert len(sources) == 1
    changed = wine.X.copy()
    changed[0, 0] += 1
    for other in (
        federation_from_arrays(changed, wine.Y),
        federation_from_arrays(wine.X.astype(np.float32), wine.Y),
        federation_from_arrays(wine.X, wine.Y, class_names=list(wine.CLASSES)),
        federation_from_arrays(wine.X, wine.Y, client=wine.CLIENTS),
    ):
        assert other.source not in sources
        sources.add(other.source)
    assert len(list((tmp_path / "arrays").iterdir())) == 5


def test_data_frames_and_lists(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(wine.X, columns=wine.NAMES)
    labels = pandas.Series(wine.Y).map(dict(enumerate(wine.CLASSES)))
    of_frame = prepare(federation_from_arrays(frame, labels, clients=3))
    of_lists = prepare(federation_from_arrays(wine.X.tolist(), labels.tolist(), clients=3))
    assert same(of_frame, of_lists)
    assert of_lists.class_names == tuple(sorted(wine.CLASSES))


@pytest.mark.parametrize("names", [None, ["no", "yes"]])
def test_texts_keep_every_character(names: list[str] | None) -> None:
    texts, labels = TEXTS * 3, [0, 1] * 9
    sites = [f"s{n % 2}" for n in range(18)]
    config = federation_from_arrays(texts, labels, client=sites, class_names=names)
    federation = prepare(config)
    assert sorted(federation.inputs.tolist()) == sorted(texts)
    assert federation.class_names == (("0", "1") if names is None else ("no", "yes"))
    assert federation.client_names == ["s0", "s1"]
    own = federation.client(1)
    held = {*own.train_inputs.tolist(), *own.test_inputs.tolist()}
    assert held == {texts[n] for n in range(18) if n % 2}


def test_texts_that_no_file_can_hold() -> None:
    assert prepare(federation_from_arrays(["a\ud800", "b"] * 4, [0, 1] * 4, clients=1))


def test_images_from_python() -> None:
    images = np.random.default_rng(0).integers(0, 256, (30, 28, 28), dtype=np.uint8)
    config = federation_from_arrays(images, np.arange(30) % 3, clients=2, partition="iid")
    federation = prepare(config)
    assert (federation.input_shape, federation.input_type) == ((28, 28, 1), "uint8")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"X": [[1.0], ["a", 2]], "y": [0, 1]}, "X "),
        ({"X": np.array([{}, {}]), "y": [0, 1]}, "Python objects"),
        ({"X": [[1.0], [2.0]], "y": [0]}, r"y \(1,\): expected one entry of y per input"),
        ({"X": [[1.0], [2.0]], "y": [0, 1], "client": [[1], [2]]}, "one entry of client"),
        ({"X": [[1.0], [2.0]], "y": [0.5, 1]}, "y is float64; expected integers or names"),
        ({"X": [["a", "b"], ["c", "d"]], "y": [0, 1]}, "one text per sample"),
        ({"X": ["a", "b"], "y": [0, -1], "class_names": ["n", "y"]}, "Label -1 is out of range"),
        ({"X": ["a", "b"], "y": [0, 2], "class_names": ["n", "y"]}, "Label 2 is out of range"),
        ({"X": ["a", "b"], "y": ["n", "y"], "class_names": ["n", "y"]}, "names already"),
        ({"X": [[1.0], [2.0]], "y": [0, 1], "class_names": [["n"], ["y", "z"]]}, "class_names"),
    ],
)
def test_bad_arrays(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        federation_from_arrays(**arguments)


def test_a_run_of_arrays(tmp_path: Path) -> None:
    federation = federation_from_arrays(wine.X, wine.Y, client=wine.CLIENTS)
    result = pfedfda.run(
        "pfedfda", federation, rounds=10, participation=1.0, lr=0.05, batch_size=16, workers=0,
        output=tmp_path, quiet=True,
    )  # fmt: skip
    assert result.mean_accuracy > 0.9  # a linear classifier gets 0.98 of the wines right


def test_a_backbone_may_be_a_function() -> None:
    federation = prepare(federation_from_arrays(wine.X, wine.Y, clients=4, backbone=numbers))
    assert federation.input_shape == (7,)
