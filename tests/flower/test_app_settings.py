"""Settings survive the way from the run configuration to a site."""

from pathlib import Path

import pytest

from pfedfda import InputError, all_methods
from pfedfda.flower.app_settings import (
    from_settings,
    read_node_config,
    read_run_config,
    to_settings,
)


@pytest.mark.parametrize("method", sorted(all_methods()))
def test_a_site_gets_the_configuration_that_the_server_has(method: str) -> None:
    config = read_run_config(
        {"method": method, "lr": 1, "eval-every": 3, "image-size": 32, "data-dir": "/data"}
    ).config
    back = from_settings(to_settings(config))
    assert back.methods == config.methods
    for group in ("federation", "model", "training", "schedule", "aggregation"):
        assert getattr(back, group) == getattr(config, group)
    assert back.training.lr == 1.0
    assert back.federation.data_dir == Path("/data")


def test_hyperparameters_and_empty_settings() -> None:
    settings = read_run_config(
        {"method": "ditto", "hyperparameters.mu": 0.5, "name": "", "min-nodes": 7, "wait": 5}
    )
    (method,) = settings.config.methods.values()
    assert vars(method)["mu"] == 0.5
    assert settings.config.output.name is None
    assert (settings.server.min_nodes, settings.server.wait) == (7, 5.0)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"methd": "fedavg"}, "Unknown setting 'methd'"),
        ({"method": "fedavgg"}, "Did you mean 'fedavg'"),
        ({"rounds": "many"}, "a whole number"),
        ({"hyperparameters.no": 1}, "'no'"),
        ({"min-nodes": 0}, "at least 1"),
        ({"timeout": -1.0}, "above 0"),
    ],
)
def test_wrong_settings_are_refused(wrong: dict[str, str | int | float], said: str) -> None:
    with pytest.raises(InputError, match=said):
        read_run_config(wrong)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({}, "names no data"),
        ({"data": "/images"}, "no name"),
        ({"partition-id": "first"}, "a whole number"),
        ({"name": "../other", "data": "/images"}, "letters"),
        ({"name": "", "data": "/images"}, "letters"),
    ],
)
def test_wrong_node_configurations_are_refused(wrong: dict[str, str], said: str) -> None:
    with pytest.raises(InputError, match=said):
        read_node_config(wrong)


def test_a_site_has_a_folder_of_its_own() -> None:
    site = read_node_config({"name": "kaunas", "data": "/images", "state-dir": "/state", "x": 1})
    assert site.folder == Path("/state/kaunas")
    assert read_node_config({"partition-id": 3}).site_name == "3"


def test_a_site_is_told_how_updates_are_combined() -> None:
    settings = {"method": "fedavg", "aggregation": "multi-krum", "assumed-liars": 0.1}
    config = read_run_config(settings).config
    assert from_settings(to_settings(config)).aggregation == config.aggregation
    assert config.aggregation.aggregation == "multi-krum"
    assert config.aggregation.assumed_liars == 0.1
