from pathlib import Path

import numpy as np
import pytest

from pfedfda import FederationConfig, federation_from_arrays, run
from pfedfda.models.factories import allow
from tests.inference.programs import BACKBONE, BODY, write_program

QUICK = {"epochs": 1, "batch_size": 10, "workers": 0, "quiet": True}


@pytest.fixture(scope="module")
def digits_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pFedFDA run on the digits of five clients, and one that is new."""
    output = tmp_path_factory.mktemp("runs")
    federation = FederationConfig(clients=5, alpha=0.5)
    return run("pfedfda", federation, rounds=3, new_clients=0.2, output=output, **QUICK).folder


@pytest.fixture(scope="module")
def vectors_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with the model mlp on numbers of very different sizes, and clients with names."""
    random = np.random.default_rng(0)
    y = random.integers(0, 3, 160)
    X = (random.normal(size=(3, 4))[y] + random.normal(size=(160, 4))) * [1, 100, 0.01, 5] + 7
    names = np.array(["anna", "bo/b", "..", "dora"])[np.arange(160) % 4]
    federation = federation_from_arrays(X, y, client=names, class_names=["low", "mid", "high"])
    output = tmp_path_factory.mktemp("runs")
    return run("fedavg-ft", federation, rounds=2, model="mlp", output=output, **QUICK).folder


@pytest.fixture(scope="module")
def backbone_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A run on the features of a user's backbone, less some directions, and the backbone."""
    spec = write_program(tmp_path_factory.mktemp("programs"), "backbone", BACKBONE)
    allow(spec)
    federation = FederationConfig(
        clients=4, backbone=spec, backbone_size=32, feature_dims=10, feature_transform="sqrt"
    )
    output = tmp_path_factory.mktemp("runs")
    return run("pfedfda", federation, rounds=1, output=output, **QUICK).folder, spec


@pytest.fixture(scope="module")
def norm_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A run with a user's body that has batch norm and dropout, and the body."""
    spec = write_program(tmp_path_factory.mktemp("programs"), "body", BODY)
    federation = FederationConfig(clients=4)
    output = tmp_path_factory.mktemp("runs")
    allow(spec)
    return run("apfl", federation, model=spec, rounds=2, output=output, **QUICK).folder, spec
