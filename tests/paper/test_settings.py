import dataclasses

import pytest

from pfedfda.data import FEDERATIONS
from pfedfda.errors import InputError
from pfedfda.methods import all_methods, find_method
from pfedfda.methods.base import BATCH_SIZE
from pfedfda.paper import METHOD_SETTINGS, TABLES, federation_settings, table_settings
from pfedfda.paper.settings import (
    COMMON,
    FEDERATION_SETTINGS,
    TABLE_SETTINGS,
    TUNED_OVER,
)
from pfedfda.runs.config import Config, make_config

RUNS = [
    (key, federation) for key, table in TABLE_SETTINGS.items() for federation in table.federations
]


@pytest.mark.parametrize(("key", "federation"), RUNS)
def test_every_run_of_every_table_is_a_configuration(key: str, federation: str) -> None:
    settings = table_settings(key).settings
    config = make_config({}, **federation_settings(federation), **settings)
    assert config.schedule.rounds == 200
    assert config.federation.train_share == 0.8
    assert config.federation.alpha == (0.1 if "dir0.1" in federation else 0.5)
    assert config.federation.train_fraction == int((federation + "@100").split("@")[1]) / 100
    assert (config.federation.shift == "paper") == ("-s" in federation.replace("-scarce", ""))
    assert (config.schedule.new_clients == 0.5) == (key == "table4")


def test_the_defaults_of_training_are_the_papers() -> None:
    """Only the number of clients is left to the federation."""
    common = {name: value for name, value in COMMON.items() if name != "clients"}
    assert common.pop("batch_size") == BATCH_SIZE  # the task's, where nothing else is said
    assert make_config({}, **common) == Config({})


def test_the_catalogue_has_the_papers_settings() -> None:
    """What the catalogue leaves out is the default, or chosen by the size of the images."""
    for name, (_, catalogued) in FEDERATIONS.items():
        for setting, value in federation_settings(name).items():
            if setting in catalogued:
                assert catalogued[setting] == value
            elif setting == "clients":
                assert name in ("emnist", "digit5")  # as many writers or domains as there are
            else:
                assert setting == "model" or COMMON[setting] == value
    assert set(FEDERATION_SETTINGS) == set(FEDERATIONS)
    for name, settings in FEDERATION_SETTINGS.items():  # each is held once
        assert not set(settings) & set(FEDERATIONS[name][1])


def test_a_column_differs_from_its_neighbour_in_what_its_key_says() -> None:
    whole, quarter = federation_settings("cifar10-s@100"), federation_settings("cifar10-s@25")
    assert quarter == whole | {"train_fraction": 0.25}
    mild, strong = federation_settings("cifar100@100"), federation_settings("cifar100-dir0.1@100")
    assert strong == mild | {"alpha": 0.1}
    assert federation_settings("cifar100-dir0.5@100") == mild
    assert federation_settings("emnist@100")["clients"] == 1000


def test_hyper_parameters_are_the_defaults_of_the_methods() -> None:
    """Of those that the paper compares; there are others."""
    plain = {name for name, method in all_methods().items() if not method.is_preset}
    assert set(METHOD_SETTINGS) == set(TABLE_SETTINGS["table1"].methods) < plain
    for name, settings in METHOD_SETTINGS.items():
        assert find_method(name)(**settings) == find_method(name)()


def test_chosen_hyper_parameters_are_among_those_tried() -> None:
    for name, tried in TUNED_OVER.items():
        for setting, values in tried.items():
            assert METHOD_SETTINGS[name][setting] in values
            assert setting in {f.name for f in dataclasses.fields(find_method(name))}


def test_every_table_but_the_counted_one_can_be_run() -> None:
    assert set(TABLE_SETTINGS) == set(TABLES) - {"table8"}
    for key, settings in TABLE_SETTINGS.items():
        if settings.variants:
            assert list(settings.variants) == list(TABLES[key].rows)
            for variant in settings.variants.values():
                find_method(*settings.methods)(**variant)
        elif TABLES[key].row_kind == "method":
            assert list(settings.methods) == list(TABLES[key].rows)
        else:
            assert [f.split("@")[0] for f in settings.federations] == list(TABLES[key].rows)
    with pytest.raises(InputError, match=r"table8 needs no run: choose from table1,"):
        table_settings("table8")
    with pytest.raises(InputError, match=r"Unknown table 'table0'"):
        table_settings("table0")


def test_wrong_keys_are_refused() -> None:
    with pytest.raises(InputError, match=r"Unknown federation 'cifar11'.*mean 'cifar10'\?"):
        federation_settings("cifar11@25")
    with pytest.raises(InputError, match=r"Unknown federation ''"):
        federation_settings("")
    with pytest.raises(InputError, match=r"emnist is not split by Dirichlet"):
        federation_settings("emnist-dir0.1@100")
