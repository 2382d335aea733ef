"""Runs and models of others: tensors, manifests and folders that are damaged or malicious."""

import json
import shutil
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from pfedfda import FederationConfig, load_model, personalize, resume, run
from pfedfda.cli import main
from pfedfda.data import Federation, prepare
from pfedfda.errors import InputError
from pfedfda.experiment.personal import load_finished
from pfedfda.runs import ClientStates
from pfedfda.runs.checkpoint import _digest, read_checkpoint
from tests.untrusted.refusals import (
    JSON_VALUES,
    damaged,
    is_refused,
    little_memory,
    peak_memory,
)

pytestmark = pytest.mark.timeout(120)
IN_ONE_FOLDER = [HealthCheck.function_scoped_fixture]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, tiny_config: FederationConfig) -> Path:
    """A finished run of Ditto, whose clients keep tensors, with a personal model in it."""
    folder = tmp_path_factory.mktemp("runs")
    few = {"rounds": 1, "epochs": 1, "workers": 0, "quiet": True, "output": folder}
    return run("ditto", tiny_config, participation=1.0, **few).folder


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory, tiny: Federation) -> Path:
    """Images of a new client."""
    path = tmp_path_factory.mktemp("images") / "own.npz"
    data = tiny.client(0)
    labels = np.arange(len(data.train_labels)) % 2
    np.savez(path, images=data.train_inputs, labels=labels)
    return path


@pytest.fixture(scope="module")
def model_folder(whole: Path, images: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("model")
    personalize(whole, str(images), output=output)
    return output


@pytest.fixture
def copied(whole: Path, tmp_path: Path) -> Path:
    """A copy of the run that a test may damage, stopped before its last round was summed up."""
    folder = tmp_path / "run"
    shutil.copytree(whole, folder)
    (folder / "summary.json").unlink()
    return folder


MODEL_FILES = ["model.json", "model.safetensors", "preprocessing.json"]


def tensor_file(header: Any, content: bytes = b"", length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + content


def entry(shape: list[int], start: int, stop: int, kind: str = "F32") -> dict[str, Any]:
    return {"dtype": kind, "shape": shape, "data_offsets": [start, stop]}


TENSOR_FILES: dict[str, bytes] = {
    "nothing": b"",
    "a header of 2^63 bytes": tensor_file({}, length=2**63),
    "a header of 99 MB": tensor_file({}, length=99_000_000),
    "a header of no JSON": tensor_file(b"{" * 100),
    "a deep header": tensor_file(b"[" * 100_000),
    "no tensors": tensor_file({}),
    "overlapping tensors": tensor_file({"a": entry([2], 0, 8), "b": entry([2], 4, 12)}, bytes(12)),
    "an offset beyond the end": tensor_file({"a": entry([2], 0, 8)}, bytes(4)),
    "offsets in reverse": tensor_file({"a": entry([2], 8, 0)}, bytes(8)),
    "a giant shape": tensor_file({"a": entry([2**40, 2**40], 0, 8)}, bytes(8)),
    "a giant shape of nothing": tensor_file({"a": entry([0, 2**62, 2**62], 0, 0)}),
    "many axes": tensor_file({"a": entry([1] * 5000, 0, 4)}, bytes(4)),
    "an unknown type": tensor_file({"a": entry([2], 0, 8, "X32")}, bytes(8)),
    "a type of tiny floats": tensor_file({"a": entry([8], 0, 8, "F8_E8M0")}, bytes(8)),
    "a type of four bits": tensor_file({"a": entry([16], 0, 8, "F4")}, bytes(8)),
    "a complex type": tensor_file({"a": entry([1], 0, 8, "C64")}, bytes(8)),
    "names as paths": tensor_file({"../../a": entry([2], 0, 8)}, bytes(8)),
}


@pytest.mark.parametrize("what", TENSOR_FILES)
def test_bad_tensor_files_are_refused_everywhere(
    copied: Path, model_folder: Path, what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    content = TENSOR_FILES[what]
    model = copied / "model"
    shutil.copytree(model_folder, model)
    (model / "model.safetensors").write_bytes(content)
    (copied / "checkpoint" / "server-000001.safetensors").write_bytes(content)
    states = ClientStates(copied / "checkpoint" / "clients")
    states._path(0, 1).write_bytes(content)
    with little_memory():
        assert is_refused(load_model, model)
        assert is_refused(read_checkpoint, copied / "checkpoint")
        is_refused(states.load, 0, 2)  # names and shapes are the method's business
        assert main(["run", "--resume", str(copied), "--quiet"]) in (1, 2)
    assert "Traceback" not in capsys.readouterr().err


@settings(max_examples=150, suppress_health_check=IN_ONE_FOLDER)
@given(data=st.data())
def test_a_damaged_model_is_read_or_refused(
    tmp_path: Path, model_folder: Path, data: st.DataObject
) -> None:
    file = data.draw(st.sampled_from(MODEL_FILES))
    shutil.copytree(model_folder, tmp_path, dirs_exist_ok=True)
    (tmp_path / file).write_bytes(data.draw(damaged((model_folder / file).read_bytes())))
    is_refused(load_model, tmp_path)


@settings(max_examples=200, suppress_health_check=IN_ONE_FOLDER)
@given(
    name=st.sampled_from(
        ["type", "shape", "columns", "text_column", "backbone_size", "backbone_key", "transform"]
    ),
    value=st.one_of(
        JSON_VALUES,
        st.sampled_from(["sqrt", "none", "text", "int64", "float32", [10**5, 10**5, 3], [28, 28]]),
    ),
)
def test_a_strange_preprocessing_is_refused(
    tmp_path: Path, model_folder: Path, images: Path, name: str, value: Any
) -> None:
    """Whoever is not refused can predict, or is refused then, and takes little memory."""
    shutil.copytree(model_folder, tmp_path, dirs_exist_ok=True)
    about = json.loads((model_folder / "preprocessing.json").read_text())
    (tmp_path / "preprocessing.json").write_text(json.dumps({**about, name: value}))
    with little_memory():
        is_refused(lambda: load_model(tmp_path).predict(images))


@settings(max_examples=200, suppress_health_check=IN_ONE_FOLDER)
@given(
    name=st.sampled_from(["format", "model", "input_shape", "class_names", "precision", "about"]),
    value=st.one_of(
        JSON_VALUES,
        st.lists(st.sampled_from([-1, 0, 1, 3, 28, 1000, 20_000, 10**12]), min_size=3, max_size=3),
        st.sampled_from(["resnet18", "cifar-cnn", float("inf"), [28, 28, float("inf")]]),
    ),
)
def test_a_strange_description_of_a_model_is_refused(
    tmp_path: Path, model_folder: Path, name: str, value: Any
) -> None:
    shutil.copytree(model_folder, tmp_path, dirs_exist_ok=True)
    description = json.loads((model_folder / "model.json").read_text())
    (tmp_path / "model.json").write_text(json.dumps({**description, name: value}))
    with little_memory():
        is_refused(load_model, tmp_path)


@pytest.mark.parametrize("model", ["emnist-cnn", "resnet18"])
@pytest.mark.parametrize("classes", [90_000, 5_000_000])
def test_a_description_of_a_giant_is_refused_before_it_is_built(
    tmp_path: Path, model_folder: Path, model: str, classes: int
) -> None:
    shutil.copytree(model_folder, tmp_path, dirs_exist_ok=True)
    description = json.loads((model_folder / "model.json").read_text())
    giant = {**description, "model": model, "class_names": [""] * classes}
    (tmp_path / "model.json").write_text(json.dumps(giant, separators=(",", ":")))
    setup = "from pfedfda import load_model"
    grown, printed = peak_memory(setup, "load_model(sys.argv[1])", str(tmp_path))
    assert f"{tmp_path} does not hold a model" in printed
    assert f"{classes:,} classes" in printed or "model.safetensors" in printed
    assert grown < 150e6


PLACES = ["format", "round", "digest", "log_sizes", "tally", "final", "about"]


@settings(suppress_health_check=IN_ONE_FOLDER)
@given(data=st.data())
def test_a_strange_manifest_is_refused(whole: Path, tmp_path: Path, data: st.DataObject) -> None:
    shutil.copytree(whole, tmp_path / "run", dirs_exist_ok=True)
    path = tmp_path / "run" / "checkpoint" / "manifest.json"
    manifest = json.loads((whole / "checkpoint" / "manifest.json").read_text())
    name = data.draw(st.sampled_from([*PLACES, "task", "input_shape", "num_clients"]))
    value = data.draw(JSON_VALUES)
    if name in PLACES:
        manifest[name] = value
    elif name == "task":
        manifest["about"]["task"] = value
    else:
        manifest["about"]["task"][name] = value
    path.write_text(json.dumps(manifest))
    is_refused(load_finished, tmp_path / "run")


@pytest.mark.parametrize("text", ["", "[" * 100_000, '{"round": ' + "9" * 5000 + "}", "\0", "3"])
@pytest.mark.parametrize("name", ["manifest.json", "model.json"])
def test_text_that_is_no_description_is_refused(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    function = read_checkpoint if name == "manifest.json" else load_model
    assert is_refused(function, tmp_path)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("final", {}),
        ("final", {"mean_accuracy": "high"}),
        ("final", {"new_clients": 3}),
        ("tally", {"seconds": {}}),
        ("tally", {"bytes_up": float("inf")}),
        ("round", 10**30),
        ("log_sizes", {"metrics.jsonl": 10**30}),
        ("about", {}),
    ],
)
def test_a_run_does_not_go_on_from_a_strange_manifest(
    copied: Path, name: str, value: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    path = copied / "checkpoint" / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), name: value}))
    assert main(["run", "--resume", str(copied)]) in (1, 2)
    assert capsys.readouterr().err.splitlines()[-1].startswith("pfedfda: ")


@pytest.mark.parametrize("content", ["{}", '{"status": "complete"}', "[]", "[" * 100_000])
def test_going_on_with_a_strange_summary_works_or_is_refused(copied: Path, content: str) -> None:
    (copied / "summary.json").write_text(content)
    assert main(["run", "--resume", str(copied), "--quiet"]) in (0, 1, 2)


def test_a_summary_without_numbers_is_refused(copied: Path) -> None:
    (copied / "summary.json").write_text('{"status": "complete", "method": "ditto"}')
    assert main(["run", "--resume", str(copied)]) == 2


def test_tensors_of_another_network_are_refused(copied: Path, images: Path) -> None:
    path = copied / "checkpoint" / "server-000001.safetensors"
    state = load_file(path)
    save_file({**state, "head.weight": torch.zeros(3, 7)}, path)
    manifest = copied / "checkpoint" / "manifest.json"
    known = json.loads(manifest.read_text())
    manifest.write_text(json.dumps({**known, "digest": _digest(load_file(path))}))
    with pytest.raises(InputError, match=r"does not fit its config.toml"):
        resume(copied, quiet=True)
    with pytest.raises(InputError, match=r"does not fit its config.toml"):
        personalize(copied, str(images))


@pytest.mark.parametrize("place", ["checkpoint/clients/000/evil", "metrics.jsonl", "lock.new"])
def test_a_run_with_links_to_elsewhere_does_not_go_on(
    copied: Path, tmp_path: Path, place: str
) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "letters.txt").write_text("dear")
    path = copied / place
    path.unlink(missing_ok=True)
    path.symlink_to(precious if "evil" in place else precious / "letters.txt")
    with pytest.raises(InputError, match=r"symbolic link"):
        resume(copied, quiet=True)
    assert (precious / "letters.txt").read_text() == "dear"


def test_files_among_the_clients_do_no_harm(copied: Path) -> None:
    clients = copied / "checkpoint" / "clients"
    (clients / "000" / "file").touch()
    (clients / "file").touch()
    (clients / "000" / "000000" / "notes.txt").write_text("mine")
    assert main(["run", "--resume", str(copied), "--quiet"]) == 0
    assert (clients / "000" / "000000" / "notes.txt").read_text() == "mine"


DAMAGES = ["", "garbage", "[]", "{}", "[" * 100_000, '{"format": 2, "train": [1e400]}']


@pytest.mark.parametrize("content", DAMAGES, ids=lambda text: text[:20])
@pytest.mark.parametrize("name", ["index.json", "inputs.npy", "labels.npy"])
def test_a_damaged_federation_is_made_again(tmp_path: Path, name: str, content: str) -> None:
    config = FederationConfig(clients=3, partition="iid")
    made = prepare(config, tmp_path)
    before = {f.name: f.read_bytes() for f in made.folder.iterdir()}
    (made.folder / name).write_text(content)
    again = prepare(config, tmp_path)
    assert {f.name: f.read_bytes() for f in again.folder.iterdir()} == before


@settings(max_examples=30, suppress_health_check=IN_ONE_FOLDER)
@given(
    name=st.sampled_from(
        ["format", "shape", "class_names", "names", "train", "test", "attributes"]
    ),
    value=st.one_of(JSON_VALUES, st.sampled_from([[10**30] * 3, [-1, 2, 3], [1, 1, 1]])),
)
def test_a_strange_index_is_made_again(tmp_path: Path, name: str, value: Any) -> None:
    config = FederationConfig(clients=3, partition="iid", train_share=0.5)
    made = prepare(config, tmp_path)
    whole = (made.folder / "index.json").read_text()
    (made.folder / "index.json").write_text(json.dumps({**json.loads(whole), name: value}))
    again = prepare(config, tmp_path)
    assert len(again) == 3
    assert again.client(2).train_inputs.shape[1:] == (28, 28, 1)
