from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pfedfda.data import FederationConfig
from pfedfda.errors import InputError
from pfedfda.methods import find_method
from pfedfda.methods.fedavg import FedAvg, FedAvgFT
from pfedfda.runs.config import (
    Config,
    OutputConfig,
    ScheduleConfig,
    make_config,
    read_config,
    write_config,
)


def test_round_trip(tmp_path: Path) -> None:
    config = make_config(
        {"fedavg": FedAvg(), "fedavg-ft": FedAvgFT(fine_tune_epochs=2)},
        source='C:\\odd "name"',
        alpha=0.3,
        clients=7,
        rounds=3,
        lr=1e-7,
        workers=0,
    )
    path = tmp_path / "config.toml"
    path.write_text(write_config(config))
    assert read_config(path) == config


@settings(max_examples=50, deadline=None)
@given(
    alpha=st.floats(1e-6, 1e6),
    seed=st.integers(0, 2**32 - 1),
    source=st.text(st.characters(exclude_categories=["Cs"]), min_size=1),
)
def test_any_value_survives(
    tmp_path_factory: pytest.TempPathFactory, alpha: float, seed: int, source: str
) -> None:
    config = make_config({}, alpha=alpha, partition_seed=seed, source=source)
    path = tmp_path_factory.mktemp("config") / "config.toml"
    path.write_text(write_config(config), encoding="utf-8")
    assert read_config(path) == config


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[federation]\nalhpa = 1", r"Unknown field in \[federation\]: 'alhpa'.*'alpha'"),
        ("[federaton]\nalpha = 1", "Unknown table.*'federaton'.*'federation'"),
        ("[schedule]\nrounds = 2.5", "schedule.rounds is 2.5; it must be a whole number"),
        ("[schedule]\nrounds = true", "must be a whole number"),
        ("[schedule]\nrounds = 0", "it must lie between 1 and 1,000,000"),
        ("[training]\nlr = nan", "training.lr is nan; it must be a number"),
        ("[training]\nlr = 'fast'", "must be a number"),
        ("[federation]\npartition = 'dirac'", "'iid' or 'dirichlet'"),
        ("[federation]\nclients = '3'", "must be a whole number"),
        ("[methods.fedavgg]", "Unknown method 'fedavgg'"),
        ("[methods.fedavg]\nx = 1", "Unknown field"),
        ("[methods]\nfedavg = 1", "it must be a table"),
        ("rounds = 1", "Unknown table"),
        ("schedule = 1", "it must be a table"),
        ("[schedule", "cannot be read"),
    ],
)
def test_bad_files_are_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "config.toml"
    path.write_text(text)
    with pytest.raises(InputError, match=message) as caught:
        read_config(path)
    assert "\n" not in str(caught.value).strip()


def test_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="There is no configuration file"):
        read_config(tmp_path / "absent.toml")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="cannot be read"):
        read_config(tmp_path / "binary.toml")
    with pytest.raises(InputError, match="cannot be read"):
        read_config(tmp_path)


def test_settings_find_their_group() -> None:
    config = make_config({}, FederationConfig(alpha=0.1), clients=9, rounds=4, epochs=2)
    assert (config.federation.alpha, config.federation.clients) == (0.1, 9)
    assert (config.schedule.rounds, config.training.epochs) == (4, 2)
    with pytest.raises(InputError, match="Unknown setting 'round'.*Did you mean 'rounds'"):
        make_config({}, round=4)
    with pytest.raises(InputError, match=r"schedule\.rounds is 'x'"):
        make_config({}, rounds="x")


def test_names_of_settings_are_unique() -> None:
    """On the command line and in Python settings have no group before their name."""
    import dataclasses

    from pfedfda.runs.config import GROUPS

    names = [f.name for group in GROUPS.values() for f in dataclasses.fields(group)]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("q", [0.0, -0.1, 1.01, float("nan")])
def test_participation_is_a_probability(q: float) -> None:
    with pytest.raises(InputError, match="participation"):
        ScheduleConfig(participation=q)


@pytest.mark.parametrize("name", ["", "a/b", ".", "..", "../x", "/tmp"])
def test_run_name_is_a_plain_name(name: str) -> None:
    with pytest.raises(InputError, match="plain folder name"):
        OutputConfig(name=name)


def test_new_clients_are_at_least_one_and_leave_one_to_train() -> None:
    assert ScheduleConfig().trained_clients(3) == 3
    trained = [ScheduleConfig(new_clients=s).trained_clients(3) for s in (0.1, 0.4, 0.6, 0.99)]
    assert trained == [2, 2, 1, 1]


def test_evaluated_rounds() -> None:
    schedule = ScheduleConfig(rounds=7, eval_every=3)
    assert [r for r in range(1, 8) if schedule.evaluates(r)] == [3, 6, 7]
    assert [r for r in range(1, 8) if ScheduleConfig(rounds=7, eval_every=0).evaluates(r)] == [7]


def test_defaults_are_those_of_the_paper() -> None:
    config = Config({})
    assert (config.training.lr, config.training.momentum) == (0.01, 0.5)
    assert config.training.weight_decay == 5e-4
    assert config.task((28, 28, 1), 10, 100).batch_size == 50
    assert (config.training.epochs, config.schedule.rounds) == (5, 200)
    assert config.schedule.participation == 0.3
    assert config.federation.train_share == 0.8


OLD = '[methods.{name}]\nridge = 0.5\nrelative_ridge = {relative}\nscatter = "{scatter}"\n'


@pytest.mark.parametrize("name", ["pfedfda", "pfedfda-paper"])
def test_settings_that_were_removed_are_read_at_the_value_that_holds(
    name: str, tmp_path: Path
) -> None:
    path = tmp_path / "config.toml"
    path.write_text(OLD.format(name=name, relative="false", scatter="within"))
    assert read_config(path).methods == {name: find_method(name)(ridge=0.5)}
    path.write_text(OLD.format(name=name, relative="false", scatter="total"))
    with pytest.raises(InputError, match="scatter in .* is 'total', and this setting was removed"):
        read_config(path)
    path.write_text(OLD.format(name=name, relative="true", scatter="within"))
    with pytest.raises(InputError, match="only False is still accepted"):
        read_config(path)
    path.write_text(f'[methods.{name}]\nfeatures = "before"\n')
    with pytest.raises(InputError, match="features is 'before'; it must be 'all' or 'first'"):
        read_config(path)
