"""Models of users, and models for inputs that are not images, under every method."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file
from torch import Tensor, nn

from pfedfda.data import Federation, Preprocessing
from pfedfda.data.store import write_hashes
from pfedfda.engine import LocalEngine
from pfedfda.errors import InputError
from pfedfda.experiment.observers import Observer
from pfedfda.experiment.rounds import run_rounds
from pfedfda.inference import PersonalClassifier, load_model, save_model
from pfedfda.inputs import InputType
from pfedfda.machine import one_thread
from pfedfda.methods import Task, all_methods
from pfedfda.models import ModelConfig, build_model
from pfedfda.models.factories import load_factory, name_callable
from pfedfda.models.weights import load_weights
from pfedfda.runs import EngineConfig
from pfedfda.runs.config import make_config, read_config, write_config

CLASSES, CLIENTS, HELD, TESTED = 3, 4, 13, 6
METHODS = [name for name, method in all_methods().items() if not method.is_preset]


class Normed(nn.Module):
    """Batch norm, dropout, a tied pair and a frozen layer in one body."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.conv = nn.Conv2d(shape[0], 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.drop = nn.Dropout(0.3)
        self.frozen = nn.Linear(4, 6).requires_grad_(False)
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)
        self.second.weight = self.first.weight

    def forward(self, images: Tensor) -> Tensor:
        x = self.drop(torch.relu(self.norm(self.conv(images)))).mean(dim=(2, 3))
        return self.second(torch.relu(self.first(self.frozen(x))))


SPEC = name_callable(Normed)
KINDS = {
    "mlp": ((5,), "float32"),
    "linear": ((5,), "float32"),
    SPEC: ((8, 8, 1), "uint8"),
}


@pytest.fixture(scope="module")
def federations(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Federation]:
    return {
        model: write_federation(tmp_path_factory.mktemp("federation"), shape, kind)
        for model, (shape, kind) in KINDS.items()
    }


def write_federation(folder: Path, shape: tuple[int, ...], kind: str) -> Federation:
    random = np.random.default_rng(0)
    labels = random.integers(0, CLASSES, CLIENTS * (HELD + TESTED))
    centres = random.normal(size=(CLASSES, *shape))
    inputs: NDArray[np.float32] = centres[labels] + random.normal(size=(len(labels), *shape))
    values = inputs.astype(np.float32) if kind == "float32" else (inputs * 30 + 120).astype("u1")
    np.save(folder / "inputs.npy", values)
    np.save(folder / "labels.npy", labels)
    index = {
        "shape": shape,
        "type": kind,
        "class_names": ["a", "b", "c"],
        "names": list("wxyz"),
        "train": [HELD] * CLIENTS,
        "test": [TESTED] * CLIENTS,
        "attributes": {},
        "config": {},
    }
    (folder / "index.json").write_text(json.dumps(index))
    write_hashes(folder)
    return Federation(folder)


def run(method: str, model: str, federation: Federation, folder: Path, workers: int = 0) -> str:
    """Run three rounds and return everything that the run has left, times aside."""
    config = make_config(
        {method: all_methods()[method]()},
        model=model,
        rounds=3,
        participation=0.6,
        eval_every=1,
        epochs=2,
        batch_size=4,  # 13 samples: the last batch is of one
        workers=workers,
    )
    shape, kind = federation.input_shape, federation.input_type
    task = config.task(shape, CLASSES, CLIENTS, kind)
    folder.mkdir()
    with LocalEngine(federation, task, config.engine) as engine, one_thread():
        run_rounds(config.methods[method], config, engine, folder, Observer())
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert all(np.isfinite(line["accuracy"]["mean"]) for line in lines if "accuracy" in line)
    for line in lines:
        line.pop("seconds", None)
    return (folder / "clients.csv").read_text()


@pytest.mark.parametrize("model", KINDS)
@pytest.mark.parametrize("method", METHODS)
def test_every_method_takes_every_model(
    tmp_path: Path, federations: dict[str, Federation], method: str, model: str
) -> None:
    assert "accuracy" in run(method, model, federations[model], tmp_path / "run")


@pytest.mark.parametrize("method", ["fedavg", "ditto", "fedpac", "pfedfda"])
def test_dropout_does_not_depend_on_the_number_of_workers(
    tmp_path: Path, federations: dict[str, Federation], method: str
) -> None:
    left = [run(method, SPEC, federations[SPEC], tmp_path / str(n), n) for n in (0, 1, 2)]
    assert left[0] == left[1] == left[2]


def make_task(model: str, shape: tuple[int, ...], kind: InputType, **settings: object) -> Task:
    return make_config({}, model=model, **settings).task(shape, CLASSES, CLIENTS, kind)


@pytest.mark.parametrize("method", METHODS)
def test_frozen_parameters_do_not_move_and_counters_stay_whole(
    federations: dict[str, Federation], method: str
) -> None:
    from tests.methods.toy import make_client

    task = make_task(SPEC, (8, 8, 1), "uint8", epochs=1, batch_size=4)
    instance = all_methods()[method]()
    state = instance.init(task)
    before = task.initial_tensors()
    clients = [make_client([0, 1, 2, 0, 1], n, task=task) for n in range(2)]
    updates = [
        replace(instance.train(c, instance.message(state, c.client_id)), client_id=c.client_id)
        for c in clients
    ]
    after = instance.aggregate(state, updates)
    for tensors in (after, *(client.state for client in clients)):
        for name, tensor in tensors.items():
            if name.endswith("frozen.weight"):
                torch.testing.assert_close(tensor, before["body.frozen.weight"], rtol=0, atol=1e-7)
            if name.endswith("num_batches_tracked"):
                assert tensor.dtype == torch.int64


def bad_rank(shape: tuple[int, ...]) -> nn.Module:
    return nn.Identity()


def not_a_module(shape: tuple[int, ...]) -> object:
    return 3


def raises(shape: tuple[int, ...]) -> nn.Module:
    raise RuntimeError("no such layer")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("nowhere.py:net", "There is no file nowhere.py"),
        ("no_such_package.x:net", "needs a package that is missing"),
        ("math:net", "has no function 'net'"),
        ("resnet", "Unknown model 'resnet'"),
        (name_callable(bad_rank), r"returns \(2, 1, 8, 8\) for two inputs"),
        (name_callable(not_a_module), "returns a int; expected a torch.nn.Module"),
        (name_callable(raises), "no such layer"),
    ],
)
def test_what_is_no_model_is_refused(spec: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        build_model(ModelConfig(spec), (8, 8, 1), 3, 0)


def test_indices_and_odd_shapes_need_a_model_of_their_own() -> None:
    with pytest.raises(InputError, match="no built-in model for 4×5 numbers"):
        build_model(ModelConfig(), (4, 5), 3, 0, "float32")
    with pytest.raises(InputError, match="indices such as"):
        build_model(ModelConfig("mlp"), (4,), 3, 0, "int64")
    with pytest.raises(InputError, match="takes images"):
        build_model(ModelConfig("cifar-cnn"), (4,), 3, 0, "float32")


def test_settings_do_not_run_a_program_that_nobody_named(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text("raise SystemExit('was run')\n")
    config = make_config({"fedavg": all_methods()["fedavg"]()}, model=f"{tmp_path / 'net.py'}:net")
    (tmp_path / "config.toml").write_text(write_config(config))
    with pytest.raises(InputError, match="must not run a program by themselves"):
        read_config(tmp_path / "config.toml")


def test_a_file_gives_the_model_it_names(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(
        "from torch import nn\ndef net(shape):\n    return nn.Sequential(nn.Flatten(), nn.Tanh())\n"
    )
    factory, program = load_factory(f"{tmp_path / 'net.py'}:net")
    assert callable(factory)
    assert "Tanh" in program
    model = build_model(ModelConfig(f"{tmp_path / 'net.py'}:net"), (2, 3), 4, 0, "float32")
    assert model(torch.zeros(5, 2, 3)).shape == (5, 4)


def test_weights_go_in_by_name_and_shape(tmp_path: Path) -> None:
    source = build_model(ModelConfig("mlp"), (5,), 3, 1, "float32")
    tensors = {name: t.clone() for name, t in source.body.state_dict().items()}
    save_file(tensors | {"odd": torch.zeros(2)}, tmp_path / "w.safetensors")
    config = ModelConfig("mlp", weights=tmp_path / "w.safetensors")
    model = build_model(config, (5,), 3, 0, "float32")
    for name, tensor in model.body.state_dict().items():
        assert torch.equal(tensor, tensors[name])
    fit = load_weights(model, tmp_path / "w.safetensors")
    assert fit.unused == ["odd"]
    assert fit.missing == ["head.weight", "head.bias"]
    save_file({"odd": torch.zeros(2)}, tmp_path / "odd.safetensors")
    with pytest.raises(InputError, match="fit nothing"):
        build_model(replace(config, weights=tmp_path / "odd.safetensors"), (5,), 3, 0, "float32")


@pytest.mark.parametrize("name", ["mlp", "linear"])
def test_saved_models_for_vectors_come_back(tmp_path: Path, name: str) -> None:
    model = build_model(ModelConfig(name), (5,), 3, 0, "float32")
    raw = Preprocessing("float32", (5,))
    classifier = PersonalClassifier(model, ("a", "b", "c"), ModelConfig(name), (5,), "float32", raw)
    save_model(tmp_path, classifier)
    inputs = torch.randn(4, 5)
    assert torch.equal(load_model(tmp_path)(inputs), model(inputs))
    assert EngineConfig().device == "cpu"
