"""The same federation on one machine and on Flower ends with the same tensors."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import pfedfda
from pfedfda.experiment.observers import Observer

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'pfedfda[flower]'")

from pfedfda.flower.app_settings import read_run_config
from pfedfda.flower.client_app import app
from pfedfda.flower.server_app import serve
from tests.data import wine
from tests.experiment.files import final_state
from tests.flower.grids import FakeGrid

SETTINGS: dict[str, Any] = {
    "source": "digits",
    "clients": 4,
    "alpha": 0.3,
    "train_fraction": 0.1,
    "rounds": 3,
    "participation": 0.5,
    "eval_every": 2,
    "epochs": 1,
    "batch_size": 16,
    "lr": 0.02,
    "seed": 3,
}


def on_flower(tmp_path: Path, method: str, **settings: Any) -> pfedfda.RunResult:
    nodes = {
        100 + n: {"partition-id": 3 - n, "state-dir": str(tmp_path / "sites")} for n in range(4)
    }
    run_config = {
        **SETTINGS,
        "method": method,
        "min-nodes": 4,
        "output": str(tmp_path),
        "name": "flower",
        **settings,
    }
    return serve(FakeGrid(app, nodes), read_run_config(run_config), Observer(), poll=0.01)


def check_parity(method: str, tmp_path: Path, **settings: Any) -> None:
    """Run a method on one machine and on Flower, and compare everything."""
    settings = SETTINGS | settings
    local = pfedfda.run(method, output=tmp_path, name="local", workers=0, quiet=True, **settings)
    flower = on_flower(tmp_path, method, **settings)

    expected = final_state(local.folder)
    found = final_state(flower.folder)
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor), name
    for after, before in zip(flower.metrics, local.metrics, strict=True):
        same = {name for name in before if name != "seconds"}
        assert {n: after[n] for n in same} == {n: before[n] for n in same}
    table = (flower.folder / "clients.csv").read_text()
    assert table == (local.folder / "clients.csv").read_text()


@pytest.mark.parametrize("method", sorted(pfedfda.all_methods()))
def test_final_tensors_and_accuracies_are_those_of_a_local_run(method: str, tmp_path: Path) -> None:
    check_parity(method, tmp_path)


ADDITIVE = sorted(name for name, method in pfedfda.all_methods().items() if method.additive)


@pytest.mark.parametrize("method", ADDITIVE)
def test_a_sum_under_masks_is_that_of_the_simulation(method: str, tmp_path: Path) -> None:
    check_parity(method, tmp_path, secure_aggregation=True, participation=0.8)


@pytest.mark.parametrize(
    "method", ["pfedfda", "pfedfda-paper", "feddbe", "fedas", "fedproto", "fed3r", "local"]
)
def test_noise_in_shares_is_that_of_the_simulation(method: str, tmp_path: Path) -> None:
    """If it comes from the seed; what a message lacks of the state, a site is sent besides."""
    pytest.importorskip("opacus")
    private = {"dp_epsilon": 50.0, "dp_randomness": "seed", "secure_aggregation": True}
    check_parity(method, tmp_path, participation=0.8, **private)


KINDS: dict[str, dict[str, Any]] = {
    "numbers": {"model": "mlp"},
    "own module": {"model": "tests.models.normed:Normed"},
    "features": {"backbone": "tests.models.tiny_backbones:images", "feature_dims": 8},
}


METHODS = sorted(name for name, method in pfedfda.all_methods().items() if not method.is_preset)
# Every method with the hardest, and what methods do differently with the others.
PAIRS = [(name, "own module") for name in METHODS]
PAIRS += [(name, kind) for name in ("pfedfda", "fedpac") for kind in ("numbers", "features")]


@pytest.mark.parametrize(("method", "kind"), PAIRS)
def test_other_inputs_and_models_too(method: str, kind: str, tmp_path: Path) -> None:
    if kind == "numbers":
        source = wine.write_csv(tmp_path / "wines.csv", wine.columns())
    else:
        images = np.random.default_rng(0).integers(0, 256, (90, 10, 10), dtype=np.uint8)
        source = tmp_path / "images.npz"
        np.savez(source, images=images, labels=np.arange(90) % 3)
    more = {"source": str(source), "partition": "iid", "train_fraction": 1.0, "rounds": 2}
    check_parity(method, tmp_path, **KINDS[kind], **more)
    if kind != "own module":
        (kept,) = tmp_path.glob("sites/2/*/model/preprocessing.json")
        local = (tmp_path / "local" / "preprocessing.json").read_text()
        assert kept.read_text() == local  # a site's model says what it takes


@pytest.mark.parametrize("rule", ["median", "trimmed-mean", "clipped"])
def test_rules_for_lying_sites_are_those_of_one_machine(rule: str, tmp_path: Path) -> None:
    check_parity("pfedfda", tmp_path, aggregation=rule, assumed_liars=0.3, participation=1.0)
