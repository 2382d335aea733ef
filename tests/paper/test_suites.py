"""The suites ask for what the paper has, and no more."""

from dataclasses import asdict

import pytest

from pfedfda.errors import InputError
from pfedfda.paper import METHOD_SETTINGS, TABLES, federation_settings
from pfedfda.paper.suites import COMPUTED, SUITES, differences, find_suite

NOT_FROM_A_RUN = {
    "table5": {"overhead"},
    "table7": {f"gain@{p}" for p in (25, 50, 75, 100)} | {"gain"},
}


def test_every_table_and_figure_has_a_suite() -> None:
    wanted = {f"table{number}" for number in range(1, 10)}
    wanted |= {"figure2", "figure3", "figure4", "theorem1"}
    assert set(SUITES) | set(COMPUTED) == wanted


@pytest.mark.parametrize("key", [key for key in SUITES if key.startswith("table")])
def test_every_published_number_has_a_cell(key: str) -> None:
    suite, table = SUITES[key], TABLES[key]
    assert [suite.row_of(row) for row in suite.rows] == list(table.rows)
    missing = set(table.columns) - set(suite.columns)
    assert missing == NOT_FROM_A_RUN.get(key, set())


@pytest.mark.parametrize("key", list(SUITES))
def test_every_run_has_the_papers_settings(key: str) -> None:
    suite = SUITES[key]
    for need in suite.needs(suite.rows, suite.columns):
        config = need.config()
        assert config.schedule.rounds == 200
        assert (config.training.lr, config.training.momentum) == (0.01, 0.5)
        assert config.model.init == "torch"
        assert config.federation.train_share == 0.8
        ((name, method),) = config.methods.items()
        assert name == need.method
        for setting, value in METHOD_SETTINGS.get(name, {}).items():
            if setting not in dict(need.hyperparameters):
                assert getattr(method, setting) == value
        assert need.config(rounds=3, seed=7).schedule.rounds == 3
        assert need.config(rounds=3, seed=7).schedule.seed == 7


def test_runs_are_shared_between_cells() -> None:
    table4 = SUITES["table4"]
    assert len(table4.needs(table4.rows, table4.columns)) == len(table4.rows) == 5
    table1 = SUITES["table1"]
    assert len(table1.needs(table1.rows, table1.columns)) == 12 * 8
    figure4 = SUITES["figure4"]
    epochs = {n.config().training.epochs for n in figure4.needs(figure4.rows, figure4.columns)}
    assert 1 in epochs
    assert 5 in epochs


def test_what_differs_from_the_papers_setting_is_noted() -> None:
    def notes(
        suite: str, clients: int, frost: str | None = None, method: str = "fedavg"
    ) -> list[str]:
        need = SUITES[suite].needs([method], SUITES[suite].columns[-1:])[0]
        federation = {"clients": clients, "domains": [], "frost": frost}
        split = asdict(need.config().federation)
        record = {"rounds": 200, "status": "complete", "federation": federation, "split": split}
        return differences(need, record)

    assert notes("table1", 100, "photographs") == []
    assert notes("table1", 90) == ["90 clients instead of 100"]
    assert len(notes("table1", 100, "drawn")) == 1
    assert notes("table4", 50) == []  # the other half is new after training
    assert notes("table4", 100) == ["100 clients instead of 50"]
    for method in ("fedbabu", "fedpac"):
        assert notes("table1", 100, method=method) == []
        assert notes("table4", 50, method=method) == [
            "one way to fine-tune, where the paper has the better of two"
        ]
    assert notes("table7", 20) == []  # DIGIT-5, whose number of clients follows from its domains


def test_rows_of_presets_stand_beside_the_papers_pfedfda() -> None:
    table1 = SUITES["table1"]
    assert table1.choose_rows(["pfedfda-released"]) == ("pfedfda-released",)
    assert table1.row_of("pfedfda-released") == "pfedfda"
    table5 = SUITES["table5"]
    need = table5.shown("pfedfda/multiple", "cifar100-s@25").need
    assert (need.method, dict(need.hyperparameters)) == ("pfedfda", {"betas": "multiple"})
    assert table5.row_of("pfedfda/multiple") == "multiple"


def test_what_is_not_there_is_refused() -> None:
    with pytest.raises(InputError, match="Unknown suite 'table10'"):
        find_suite("table10")
    with pytest.raises(InputError, match="Unknown method 'fedsgd'"):
        SUITES["table1"].choose_rows(["fedsgd"])
    with pytest.raises(InputError, match="Unknown federation 'cifar11'"):
        SUITES["table1"].choose_columns(["cifar11@25"])
    with pytest.raises(InputError, match="Unknown column of table4: 'snow'"):
        SUITES["table4"].choose_columns(["snow"])
    with pytest.raises(InputError, match="row of table5"):
        SUITES["table5"].choose_rows(["fedavg"])
    assert SUITES["table5"].choose_columns(["cifar100-s@25"]) == ("cifar100-s@25",)
    assert federation_settings("cifar100-s@25")["train_fraction"] == 0.25
