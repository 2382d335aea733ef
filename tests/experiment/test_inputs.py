"""Numbers, own modules and frozen backbones under every method: workers, resuming, newcomers."""

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pfedfda
from pfedfda import FederationConfig, RunStoppedError, resume, run
from pfedfda.data import federation_from_arrays, prepare
from pfedfda.methods import Client, Tensors, Update, all_methods
from pfedfda.methods.fedavg import FedAvg
from tests.data import wine
from tests.experiment.files import comparable_files

METHODS = [name for name, method in all_methods().items() if not method.is_preset]
# Every method with the hardest, and with the others those that do most with features.
PAIRS = [(name, "own module") for name in METHODS]
PAIRS += [(name, kind) for name in ("pfedfda", "fedpac") for kind in ("numbers", "features")]
IMAGES = np.random.default_rng(0).integers(0, 256, (90, 10, 10), dtype=np.uint8)
LABELS = np.arange(90) % 3
IMAGES[LABELS == 1, :5] //= 3
IMAGES[LABELS == 2, 5:] //= 3
SETTINGS: dict[str, Any] = {
    "rounds": 3,
    "participation": 0.6,
    "eval_every": 1,
    "epochs": 1,
    "batch_size": 4,
    "lr": 0.02,
    "quiet": True,
}


@dataclass(frozen=True)
class Kind:
    """A federation of four clients, and the model for it."""

    federation: Callable[[], FederationConfig]
    model: str = "auto"
    settings: dict[str, Any] = field(default_factory=dict)


def of_numbers() -> FederationConfig:
    return federation_from_arrays(wine.X, wine.Y, clients=4)


def of_images(**settings: Any) -> FederationConfig:
    return federation_from_arrays(IMAGES, LABELS, clients=4, partition="iid", **settings)


def of_features() -> FederationConfig:
    return of_images(backbone="tests.models.tiny_backbones:images", feature_dims=8)


KINDS = {
    "numbers": Kind(of_numbers, "mlp"),
    "own module": Kind(of_images, "tests.models.normed:Normed"),
    "features": Kind(of_features),
}


def start(method: str, kind: str, folder: Path, **settings: Any) -> Path:
    chosen = KINDS[kind]
    given = SETTINGS | {"workers": 0} | settings
    return run(
        method, chosen.federation(), model=chosen.model, output=folder, name="run", **given
    ).folder


@pytest.mark.parametrize(("method", "kind"), PAIRS)
def test_workers_change_nothing(method: str, kind: str, tmp_path: Path) -> None:
    alone = start(method, kind, tmp_path / "alone")
    for workers in (1, 2) if method == "pfedfda" else (2,):
        folder = start(method, kind, tmp_path / str(workers), workers=workers)
        assert comparable_files(folder) == comparable_files(alone)


def in_a_process(work: Callable[[], object]) -> bool:
    """Do something in a forked process; tell whether it was killed."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
        finally:
            os._exit(1)
    return os.WIFSIGNALED(os.waitpid(pid, 0)[1])


@pytest.mark.parametrize(
    ("method", "kind"),
    [*((name, "own module") for name in METHODS), ("pfedfda", "numbers"), ("pfedfda", "features")],
)
def test_killed_and_resumed_it_ends_with_the_same_bytes(
    method: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = start(method, kind, tmp_path / "whole", rounds=5)
    kind_of_method = all_methods()[method]
    train = kind_of_method.train

    def dying(self: Any, client: Client, message: Tensors) -> Update:
        if client.round == 4:
            os.kill(os.getpid(), signal.SIGKILL)
        return train(self, client, message)

    with monkeypatch.context() as patched:
        patched.setattr(kind_of_method, "train", dying)
        settings = {"rounds": 5, "checkpoint_every": 1}
        assert in_a_process(lambda: start(method, kind, tmp_path / "killed", **settings))
    resumed = resume(tmp_path / "killed" / "run", workers=0, quiet=True)
    assert comparable_files(resumed.folder) == comparable_files(whole)


def test_features_are_linear_and_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = start("fedavg", "features", tmp_path)
    names = pfedfda.runs.checkpoint.read_checkpoint(folder / "checkpoint").state.keys()
    assert names == {"head.weight", "head.bias"}
    monkeypatch.setattr(
        "pfedfda.models.backbones.Backbone.features", lambda *_: pytest.fail("computed again")
    )
    start("fedavg", "features", tmp_path / "again")


def test_a_run_with_other_inputs_is_not_resumed(tmp_path: Path) -> None:
    config = FederationConfig(str(wine.write_csv(tmp_path / "t.csv", wine.columns())), clients=3)
    train = FedAvg.train

    def stopping(self: FedAvg, client: Client, message: Tensors) -> Update:
        if client.round == 2:
            raise KeyboardInterrupt
        return train(self, client, message)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(FedAvg, "train", stopping)
        with pytest.raises(RunStoppedError):
            run("fedavg", config, output=tmp_path, name="run", workers=0, **SETTINGS)
    table = wine.columns()
    table["alcohol"][3] += 1
    wine.write_csv(tmp_path / "t.csv", table)
    with pytest.raises(pfedfda.InputError, match="other images than those"):
        resume(tmp_path / "run", workers=0, quiet=True)
    wine.write_csv(tmp_path / "t.csv", wine.columns())
    assert resume(tmp_path / "run", workers=0, quiet=True).summary["status"] == "complete"


@pytest.mark.parametrize("kind", ["numbers", "features"])
def test_a_newcomer_gets_the_features_that_the_training_had(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pfedfda.experiment import personal
    from pfedfda.experiment.finished import load_finished

    folder = start("pfedfda", kind, tmp_path)
    raw, labels = (wine.X, wine.Y) if kind == "numbers" else (IMAGES, LABELS)
    np.savez(tmp_path / "all.npz", X=raw, y=labels)
    seen: list[Any] = []
    samples = personal._samples
    monkeypatch.setattr(personal, "_samples", lambda *a: seen.append(samples(*a)) or seen[0])
    result = pfedfda.personalize(folder, str(tmp_path / "all.npz"))
    federation = prepare(KINDS[kind].federation())
    raw, found = seen[0]
    inputs = load_finished(folder).preprocessing(raw)
    order, expected = (np.lexsort(np.round(values.T, 3)) for values in (inputs, federation.inputs))
    np.testing.assert_allclose(inputs[order], federation.inputs[expected], rtol=1e-4, atol=1e-5)
    assert found[order].tolist() == federation.labels[expected].tolist()
    assert result.accuracy is not None
    assert result.accuracy > 0.6


def test_a_function_from_python_is_given_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pfedfda.models import factories
    from tests.models.normed import Normed

    given = SETTINGS | {"rounds": 1, "workers": 0}
    folder = run("fedavg", of_images(), model=Normed, output=tmp_path, **given).folder
    np.savez(tmp_path / "new.npz", X=IMAGES, y=LABELS)
    monkeypatch.setattr(factories, "_named", set())  # another process
    monkeypatch.setattr(factories, "_from_python", {})
    for again in (lambda: resume(folder), lambda: pfedfda.personalize(folder, "new.npz")):
        with pytest.raises(pfedfda.InputError, match="again in Python, with model=FUNCTION"):
            again()
    assert pfedfda.personalize(folder, str(tmp_path / "new.npz"), model=Normed).fitted == 72
    assert resume(folder, quiet=True, model=Normed).folder == folder
