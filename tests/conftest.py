import os
import signal
from collections.abc import Iterator
from pathlib import Path

# One thread each, here and in the processes that tests start: the matrices are small, and threads
# that wait for each other on a busy machine cost ten times the work. Before the libraries load.
for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

import numpy as np
import pytest
from hypothesis import settings
from PIL import Image

from pfedfda.data import Federation, FederationConfig, prepare
from pfedfda.methods import all_methods, registry

# A shell's background job ignores Ctrl-C and so would all processes that tests start and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)

# The same examples in every run: a failure is there for everybody, and goes away only when mended.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")


OWN_METHODS = all_methods()


@pytest.fixture(autouse=True)
def methods(monkeypatch: pytest.MonkeyPatch) -> None:
    """A method that a test registers is known to no other test."""
    monkeypatch.setattr(registry, "_registry", dict(OWN_METHODS))


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """No test reads or writes the user's cache."""
    folder = tmp_path_factory.mktemp("cache")
    before = os.environ.get("PFEDFDA_CACHE")
    os.environ["PFEDFDA_CACHE"] = str(folder)
    yield folder
    if before is None:
        del os.environ["PFEDFDA_CACHE"]
    else:
        os.environ["PFEDFDA_CACHE"] = before


@pytest.fixture(scope="session")
def tiny_config() -> FederationConfig:
    """Six clients with eight training digits each, of few classes."""
    return FederationConfig(partition="client-dirichlet", clients=6, samples=8, alpha=0.5)


@pytest.fixture(scope="session")
def tiny(tiny_config: FederationConfig, cache: Path) -> Federation:
    return prepare(tiny_config)


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """The folder with the real datasets in the layout of the Hub."""
    folder = os.environ.get("PFEDFDA_DATA")
    if not folder:
        pytest.skip("PFEDFDA_DATA names no folder with the real images")
    return Path(folder)


def write_image(
    path: Path, value: int = 0, size: tuple[int, int] = (28, 28), mode: str = "L"
) -> None:
    """Write a small image with some structure."""
    path.parent.mkdir(parents=True, exist_ok=True)
    width, height = size
    ramp = (np.add.outer(np.arange(height), np.arange(width)) + value).astype(np.uint8)
    Image.fromarray(ramp).convert(mode).save(path)
