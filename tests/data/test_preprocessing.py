"""Standardisation, and that it goes with the run to clients that come later."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file
from sklearn.preprocessing import StandardScaler

import pfedfda
from pfedfda.data import Federation, FederationConfig, Preprocessing, prepare
from pfedfda.data.features import standardization
from pfedfda.data.federation import ClientData
from pfedfda.errors import InputError
from pfedfda.experiment import personal
from pfedfda.experiment.finished import load_finished
from tests.data import wine
from tests.untrusted.refusals import is_refused

SETTINGS: dict[str, Any] = {
    "rounds": 3, "participation": 1.0, "batch_size": 8, "workers": 0, "quiet": True
}  # fmt: skip


def pooled(federation: Federation) -> NDArray[np.float32]:
    """Return the training inputs of all clients."""
    return np.concatenate([federation.client(c).train_inputs for c in range(len(federation))])


def both(config: FederationConfig) -> tuple[Federation, Federation]:
    """Return the federation with its inputs as they are, and standardised."""
    return prepare(replace(config, standardize=False)), prepare(config)


def test_training_inputs_are_those_of_the_standard_scaler(tmp_path: Path) -> None:
    config = FederationConfig(str(wine.write_csv(tmp_path / "t.csv", wine.columns())), clients=5)
    raw, scaled = both(config)
    assert {*raw.inputs[:, 0].tolist()} == {*wine.X[:, 0].astype(np.float32).tolist()}
    scaler = StandardScaler().fit(pooled(raw).astype(np.float64))
    expected = scaler.transform(np.asarray(raw.inputs, dtype=np.float64))
    np.testing.assert_allclose(scaled.inputs, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(pooled(scaled).mean(0), 0, atol=1e-6)
    np.testing.assert_allclose(pooled(scaled).std(0), 1, atol=1e-6)
    # The test samples have no part in it.
    assert abs(scaled.inputs.mean(0)).max() > 1e-3


def test_numbers_that_hardly_change_are_told_from_those_that_never_do() -> None:
    random = np.random.default_rng(0)
    columns = {
        "constant": np.full(400, 0.1),
        "zero": np.zeros(400),
        "large constant": np.full(400, -3.7e30),
        "times": 1.7e9 + 1000 * random.normal(size=400),
        "tiny": 1e-30 * random.normal(size=400),
        "huge": 1e36 * random.normal(size=400),
        "once": np.eye(400)[7],
    }
    inputs = np.stack(list(columns.values()), axis=1).astype(np.float32)
    mapped = standardization(inputs, [slice(0, 150), slice(150, 400)])(inputs)
    assert np.abs(mapped[:, :3]).max() < 1e23  # moved by rounding at most, and not scaled
    np.testing.assert_allclose(mapped[:, :2], 0, atol=1e-12)
    np.testing.assert_allclose(mapped[:, 3:].std(0), 1, rtol=1e-4)
    np.testing.assert_allclose(mapped[:, 3:].mean(0), 0, atol=1e-4)


def test_other_inputs_than_vectors_stay_as_they_are(tmp_path: Path) -> None:
    grids = np.random.default_rng(0).normal(7, 3, (40, 3, 4)).astype(np.float32)
    labels = np.arange(40) % 2
    for inputs in (grids, (grids * 10).astype(np.int64)):
        config = pfedfda.data.federation_from_arrays(inputs, labels, clients=2, partition="iid")
        raw, scaled = both(config)
        np.testing.assert_array_equal(raw.inputs, scaled.inputs)
        assert not scaled.preprocessing.does_something


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on the wines of five clients, with a column of words and one that never changes."""
    folder = tmp_path_factory.mktemp("wines")
    ward = [f"ward {n}" for n in wine.CLIENTS]
    table = wine.columns(soil=words(), constant=[4.0] * len(wine.Y), ward=ward, id=ward)
    config = FederationConfig(
        str(wine.write_csv(folder / "t.csv", table)),
        group_column="ward",
        drop_columns="id",
        one_hot=True,
    )
    return pfedfda.run("pfedfda", config, output=folder, **SETTINGS).folder


def words() -> list[str]:
    return [("clay", "7", "12")[n % 3] for n in range(len(wine.Y))]


def fitted_samples(
    run: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return the inputs that a new client's model is fitted to, and their labels."""
    seen: list[Any] = []
    samples = personal._samples
    with monkeypatch.context() as patched:
        patched.setattr(personal, "_samples", lambda *a: seen.append(samples(*a)) or seen[0])
        pfedfda.personalize(run, str(source), output=source.with_suffix(".model"))
    raw, labels = seen[0]
    return load_finished(run).preprocessing(raw), labels


def test_a_newcomers_table_is_treated_as_the_training_s(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows of one client, columns in another order, without columns that were left out."""
    config = pfedfda.runs.config.read_config(finished / "config.toml").federation
    federation = prepare(config)
    own: ClientData = federation.client(2)
    rows = np.flatnonzero(wine.CLIENTS == 2)
    table = wine.columns(soil=words(), constant=[4.0] * len(wine.Y))
    newcomer = {name: [table[name][row] for row in rows] for name in reversed(table)}
    inputs, labels = fitted_samples(
        finished, wine.write_csv(tmp_path / "n.csv", newcomer, ";"), monkeypatch
    )
    expected = np.concatenate([own.train_inputs, own.test_inputs])
    assert sorted(inputs.tolist()) == sorted(expected.tolist())
    assert sorted(labels.tolist()) == sorted([*own.train_labels, *own.test_labels])
    # With the column of clients, and no word but one that looks like a number.
    newcomer = {**newcomer, "ward": ["ward 9"] * len(rows), "soil": ["7"] * len(rows)}
    inputs, _ = fitted_samples(finished, wine.write_csv(tmp_path / "m.csv", newcomer), monkeypatch)
    columns = federation.preprocessing.columns
    soils = [columns.index(f"soil={word}") for word in ("7", "clay", "12")]
    scale = federation.preprocessing.map
    assert scale is not None
    plain = inputs * scale.scale + scale.mean
    np.testing.assert_allclose(plain[:, soils], [[1, 0, 0]] * len(rows), atol=1e-6)
    newcomer["ward"][0] = "ward 8"
    with pytest.raises(InputError, match="the samples of 2 clients"):
        pfedfda.personalize(finished, str(wine.write_csv(tmp_path / "m.csv", newcomer)))
    newcomer = {"x": [1.0, 2.0], "soil": ["clay", "clay"], "label": [0, 1]}
    with pytest.raises(InputError, match="does not have the columns"):
        pfedfda.personalize(finished, str(wine.write_csv(tmp_path / "o.csv", newcomer)))


def test_the_numbers_travel_with_the_run_and_the_model(finished: Path, tmp_path: Path) -> None:
    table = wine.columns(soil=words(), constant=[4.0] * len(wine.Y))
    source = wine.write_csv(tmp_path / "n.csv", table)
    result = pfedfda.personalize(finished, str(source), output=tmp_path / "model")
    federation = prepare(pfedfda.runs.config.read_config(finished / "config.toml").federation)
    samples = np.random.default_rng(0).normal(size=(9, len(federation.preprocessing.columns)))
    expected = federation.preprocessing(samples.astype(np.float32))
    for folder in (finished, result.folder):
        kept = Preprocessing.read(folder)
        assert kept is not None
        assert kept.columns == federation.preprocessing.columns
        np.testing.assert_array_equal(kept(samples.astype(np.float32)), expected)


def test_a_run_without_the_training_s_file_still_takes_newcomers(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing but the folder of the run is needed: no cache, no table."""
    alone = tmp_path / "alone"
    shutil.copytree(finished, alone)
    monkeypatch.setenv("PFEDFDA_CACHE", str(tmp_path / "cache"))
    table = wine.columns(soil=words(), constant=[4.0] * len(wine.Y))
    source = wine.write_csv(tmp_path / "n.csv", table)
    assert pfedfda.personalize(alone, str(source)).fitted == 142


DAMAGES: dict[str, Any] = {
    "type": ["other", 3, None, {}],
    "shape": [3, ["a"], [[1]]],
    "columns": [7, None],
    "backbone": [3, {}],
    "backbone_size": ["large", 10**9, -1, [1], True],
    "backbone_key": [3, "abc"],
    "transform": ["cube", 3, {}, [1]],
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_description_is_refused(finished: Path, tmp_path: Path, name: str) -> None:
    about = json.loads((finished / "preprocessing.json").read_text())
    shutil.copy(finished / "preprocessing.safetensors", tmp_path)
    for value in DAMAGES[name]:
        (tmp_path / "preprocessing.json").write_text(json.dumps(about | {name: value}))
        if name == "backbone":  # any name is text; a wrong one is refused when it is opened
            kept = Preprocessing.read(tmp_path)
            assert kept is not None
            assert is_refused(kept, np.zeros((2, 17), dtype=np.float32))
        else:
            assert is_refused(Preprocessing.read, tmp_path), value
        (tmp_path / "preprocessing.json").write_text(
            json.dumps({k: v for k, v in about.items() if k != name})
        )
        assert is_refused(Preprocessing.read, tmp_path)
    for text in ("", "[]", "3", "[" * 100_000, "\0"):
        (tmp_path / "preprocessing.json").write_text(text)
        assert is_refused(Preprocessing.read, tmp_path)


def test_damaged_numbers_are_refused(finished: Path, tmp_path: Path) -> None:
    shutil.copy(finished / "preprocessing.json", tmp_path)
    whole = load_file(finished / "preprocessing.safetensors")
    d = len(whole["mean"])
    changes: list[dict[str, Any]] = [
        {"mean": np.zeros((d, 2))},
        {"mean": np.ones(())},
        {"mean": np.full(d, np.nan)},
        {"scale": np.zeros(d)},
        {"scale": np.full(d, np.inf)},
        {"scale": -whole["scale"]},
        {"scale": whole["scale"][:-1]},
        {"directions": np.zeros(d)},
        {"directions": np.zeros((d + 1, 2))},
        {"directions": np.full((d, d), np.nan)},
        {"mean": np.zeros(d, dtype=np.int64)},
    ]
    for change in changes:
        save_file(whole | change, tmp_path / "preprocessing.safetensors")
        assert is_refused(Preprocessing.read, tmp_path), change
    save_file({"mean": whole["mean"]}, tmp_path / "preprocessing.safetensors")
    assert is_refused(Preprocessing.read, tmp_path)
    for content in (b"", b"\xff" * 100):
        (tmp_path / "preprocessing.safetensors").write_bytes(content)
        assert is_refused(Preprocessing.read, tmp_path)
    (tmp_path / "preprocessing.safetensors").unlink()
    assert is_refused(Preprocessing.read, tmp_path)


def test_a_run_over_sites_that_prepared_numbers_themselves_takes_no_newcomers(
    finished: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    for file in run.glob("preprocessing.*"):
        file.unlink()
    (run / "roster.json").write_text("{}")
    source = wine.write_csv(tmp_path / "n.csv", wine.columns())
    with pytest.raises(InputError, match="does not know how its sites prepared their samples"):
        pfedfda.personalize(run, str(source))
