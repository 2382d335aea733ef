"""The models that come out of a run are those that were evaluated in it."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from pfedfda import FederationConfig, InputError, export_models, load_model, load_run, run
from pfedfda.data import Federation, prepare
from pfedfda.data.preparing import prepare_raw
from pfedfda.experiment.exporting import plain_names
from pfedfda.experiment.finished import load_finished
from pfedfda.methods import all_methods
from tests.inference.conftest import QUICK

METHODS = [name for name, method in all_methods().items() if not method.is_preset]


def raw_federation(folder: Path) -> Federation:
    """Return the federation of a run, with its samples as the source has them."""
    return prepare_raw(load_finished(folder).config.federation)


def accuracies(folder: Path) -> list[float]:
    """Return the test accuracies that the run has written down."""
    found = [client.accuracy for client in load_run(folder).clients]
    assert all(accuracy is not None for accuracy in found)
    return [float(accuracy or 0) for accuracy in found]


def check(folder: Path, clients: list[int], output: Path, **programs: str) -> None:
    """Export models of clients, load each, and let it predict the client's raw test samples."""
    federation = raw_federation(folder)
    written = export_models(folder, clients, output=output)
    names = np.array(federation.class_names)
    recorded = accuracies(folder)
    for client, one in zip(clients, written, strict=True):
        data = federation.client(client)
        model = load_model(one.path, **programs)
        assert model.class_names == federation.class_names
        found = np.array(model.predict(data.test_inputs))
        accuracy = (found == names[data.test_labels]).sum() / len(found)
        assert accuracy == one.accuracy == one.recorded == recorded[client]


@pytest.mark.parametrize("method", METHODS)
def test_every_method_gives_the_models_that_were_evaluated(method: str, tmp_path: Path) -> None:
    """Some clients have not trained in the last round before all do; some keep states."""
    federation = FederationConfig(partition="client-dirichlet", clients=6, samples=20, alpha=0.5)
    result = run(method, federation, rounds=3, participation=0.4, output=tmp_path, **QUICK)
    check(result.folder, [0, 3, 5], tmp_path / "models")


def test_numbers_are_standardised_by_the_model(vectors_run: Path, tmp_path: Path) -> None:
    check(vectors_run, [0, 1, 2, 3], tmp_path)
    raw = raw_federation(vectors_run)
    assert np.asarray(raw.inputs).std(axis=0).max() > 50  # they really are raw


def test_a_backbone_is_part_of_the_model(backbone_run: tuple[Path, str], tmp_path: Path) -> None:
    folder, spec = backbone_run
    check(folder, [0, 2, 3], tmp_path, backbone=spec)


def test_batch_norm_comes_along(norm_run: tuple[Path, str], tmp_path: Path) -> None:
    folder, spec = norm_run
    check(folder, [0, 1, 3], tmp_path, model=spec)


def test_reduced_precision_comes_along(tmp_path: Path) -> None:
    settings = QUICK | {"precision": "bfloat16", "output": tmp_path}
    folder = run("fedavg", FederationConfig(clients=3), rounds=1, **settings).folder
    check(folder, [0, 2], tmp_path / "models")
    about = json.loads((tmp_path / "models" / "0" / "model.json").read_text())
    assert about["precision"] == "bfloat16"


def test_exporting_changes_nothing_in_the_run(digits_run: Path, tmp_path: Path) -> None:
    def content() -> dict[str, bytes]:
        files = [path for path in digits_run.rglob("*") if path.is_file()]
        return {str(path): path.read_bytes() for path in files}

    before = content()
    first, second = (export_models(digits_run, [1], output=tmp_path / name) for name in "ab")
    assert content() == before
    for name in ("model.safetensors", "model.json", "preprocessing.json"):
        assert (first[0].path / name).read_bytes() == (second[0].path / name).read_bytes()


def test_a_client_that_was_new_has_a_model_too(digits_run: Path, tmp_path: Path) -> None:
    (one,) = export_models(digits_run, [4], output=tmp_path)
    clean = load_run(digits_run).new_clients["clean"]
    assert [one.accuracy] == clean
    assert one.recorded is None


def test_all_models_at_the_end_of_a_run(tmp_path: Path) -> None:
    federation = FederationConfig(partition="client-dirichlet", clients=3, samples=8)
    settings = QUICK | {"output": tmp_path, "workers": 2}
    result = run("ditto", federation, rounds=2, save_models=True, **settings)
    models = result.folder / "models"
    assert sorted(path.name for path in models.iterdir()) == ["0", "1", "2"]
    again = export_models(result.folder, output=tmp_path / "again")
    for one in again:
        written = (models / one.path.name / "model.safetensors").read_bytes()
        assert (one.path / "model.safetensors").read_bytes() == written


def test_names_of_clients_are_no_paths(vectors_run: Path, tmp_path: Path) -> None:
    written = export_models(vectors_run, output=tmp_path / "models")
    assert {one.name for one in written} == {"anna", "bo/b", "..", "dora"}
    assert all(one.path.parent == tmp_path / "models" for one in written)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["models"]
    assert plain_names(["a/b", "a_b", "A_B", "", "..", "shared"]) == [
        "a_b", "a_b-2", "A_B-3", "client", "client-2", "shared-2",
    ]  # fmt: skip


def test_names_come_before_numbers(vectors_run: Path, tmp_path: Path) -> None:
    (by_name,) = export_models(vectors_run, ["dora"], output=tmp_path / "a")
    names = prepare(load_finished(vectors_run).config.federation).client_names
    (by_number,) = export_models(vectors_run, [str(names.index("dora"))], output=tmp_path / "b")
    assert by_name.name == by_number.name == "dora"


def test_the_shared_model_is_the_server_s(vectors_run: Path, tmp_path: Path) -> None:
    from tests.experiment.files import final_state

    (one,) = export_models(vectors_run, shared=True, output=tmp_path)
    state = load_model(one.path).network.state_dict()
    server = final_state(vectors_run)
    assert {name: t.tolist() for name, t in state.items()} == {
        name: t.tolist() for name, t in server.items()
    }


def test_what_cannot_be_exported(digits_run: Path, vectors_run: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="Unknown client 'nobody'"):
        export_models(digits_run, ["nobody"])
    with pytest.raises(InputError, match="There is no client 5: the run has the clients 0 to 4"):
        export_models(digits_run, [5])
    with pytest.raises(InputError, match="Unknown format 'pickle'"):
        export_models(digits_run, [0], format="pickle")  # type: ignore[arg-type]
    federation = FederationConfig(partition="client-dirichlet", clients=3, samples=8)
    local = run("local", federation, rounds=1, output=tmp_path, **QUICK).folder
    with pytest.raises(InputError, match="Local has no model that all clients share"):
        export_models(local, shared=True)
    link = local / "models"
    link.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InputError, match="is a symbolic link"):
        export_models(local, [0])


def test_samples_that_have_changed_are_noticed(tmp_path: Path) -> None:
    arrays = {"X": np.random.default_rng(0).normal(size=(40, 3)), "y": np.arange(40) % 2}
    np.savez(tmp_path / "a.npz", **arrays)
    federation = FederationConfig(source=str(tmp_path / "a.npz"), clients=2)
    folder = run("fedavg", federation, rounds=1, output=tmp_path, **QUICK).folder
    np.savez(tmp_path / "a.npz", X=arrays["X"] + 1, y=1 - arrays["y"])
    with pytest.raises(InputError, match="are not those that the run"):
        export_models(folder, [0])


def test_clients_that_were_sites_keep_their_models(digits_run: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(digits_run, folder)
    manifest = json.loads((folder / "checkpoint" / "manifest.json").read_text())
    manifest["about"]["federation"] = ""
    (folder / "checkpoint" / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(InputError, match="were sites: each has its model on its own disk"):
        export_models(folder, [0])
    (one,) = export_models(folder, shared=True)
    assert load_model(one.path).about["client"] == "shared"
