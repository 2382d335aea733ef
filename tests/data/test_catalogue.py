from pathlib import Path

import numpy as np
import pytest

from pfedfda.data import FEDERATIONS, FederationConfig, digit5, open_source, prepare
from pfedfda.data.sources import Dataset
from pfedfda.errors import InputError
from pfedfda.runs.config import make_config
from tests.conftest import write_image


def test_every_named_federation_is_a_valid_configuration() -> None:
    for name in FEDERATIONS:
        config = make_config({}, name)
        assert config.federation.source
    assert make_config({}, "cifar10-s").federation.shift == "paper"
    assert make_config({}, "emnist").training.batch_size == 16
    assert make_config({}, "cifar10", alpha=0.1).federation.alpha == 0.1
    with pytest.raises(InputError, match="Did you mean 'cifar10-s'"):
        make_config({}, "cifar-10-s")


def test_font_digits_are_the_same_every_time_and_differ_from_each_other() -> None:
    source = digit5.FontDigits(40)
    first, second = source.load(), source.load()
    np.testing.assert_array_equal(first.inputs, second.inputs)
    assert first.inputs.shape == (40, 32, 32, 3)
    assert len({image.tobytes() for image in first.inputs}) == 40
    assert np.bincount(first.labels).tolist() == [4] * 10
    # Every image shows something: its colours are not all alike.
    assert first.inputs.reshape(40, -1).astype(float).std(axis=1).min() > 10


class FakeDomain:
    """A domain of random images."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def key(self) -> dict[str, int]:
        return {"seed": self.seed}

    def load(self, progress: object = None) -> Dataset:
        random = np.random.default_rng(self.seed)
        images = random.integers(0, 256, (200, 32, 32, 3), dtype=np.uint8)
        return Dataset(images, np.arange(200) % 10, tuple("0123456789"))


def test_each_client_of_digit5_is_one_domain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    domains = {name: FakeDomain(seed) for seed, name in enumerate(("a", "b", "c"))}
    monkeypatch.setattr(digit5.Digit5, "domains", lambda _: domains)
    config = FederationConfig(source="digit5", partition="group-dirichlet", clients_per_group=4)
    prepared = prepare(config, cache=tmp_path)
    assert prepared.attributes["domain"] == ["a"] * 4 + ["b"] * 4 + ["c"] * 4
    assert prepared.client_names[5] == "b-1"
    owner = {image.tobytes(): name for name, d in domains.items() for image in d.load().inputs}
    for client in range(12):
        data = prepared.client(client)
        images = np.concatenate([data.train_inputs, data.test_inputs])
        assert {owner[i.tobytes()] for i in images} == {prepared.attributes["domain"][client]}
    assert (prepared.train_sizes + prepared.test_sizes).sum() == 600


def test_the_original_fifth_domain_is_used_where_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PFEDFDA_DATA", raising=False)
    assert "fontdigits" in digit5.Digit5().domains()
    write_image(tmp_path / "synthdigits" / "0" / "1.png")
    names = digit5.Digit5(tmp_path).domains()
    assert "synthdigits" in names
    assert "fontdigits" not in names
    with pytest.raises(InputError, match="cannot be set"):
        open_source("digit5", image_size=28)


@pytest.mark.real_data
@pytest.mark.parametrize(
    ("name", "clients", "classes", "shape"),
    [
        ("cifar10-s", 100, 10, (32, 32, 3)),
        ("cifar100-scarce", 100, 100, (32, 32, 3)),
        ("emnist", 373, 62, (28, 28, 1)),
        ("tiny-imagenet", 100, 200, (64, 64, 3)),
        ("digit5", 20, 10, (32, 32, 3)),
    ],
)
def test_real_federations(
    data_folder: Path, tmp_path: Path, name: str, clients: int, classes: int, shape: tuple[int, ...]
) -> None:
    prepared = prepare(make_config({}, name).federation, cache=tmp_path)
    assert len(prepared) == clients
    assert len(prepared.class_names) == classes
    assert prepared.input_shape == shape
    if name == "emnist":  # each client is exactly one writer
        assert len(set(prepared.client_names)) == clients
