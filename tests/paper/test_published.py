"""What can be known of the published numbers without copying them a second time.

The paper marks the best and the second best of most columns, states some leads in words, repeats
some cells, and prints sums and differences of others. Each is a check on the transcription.
"""

import re

import pytest

from pfedfda.data import FEDERATIONS
from pfedfda.data.corruptions import CORRUPTIONS
from pfedfda.errors import InputError
from pfedfda.methods import find_method
from pfedfda.models import BODIES
from pfedfda.paper import FIGURES, TABLES, PublishedTable, published_table

ACCURACY_TABLES = ("table1", "table2", "table3", "table4", "table5")


def means(table: PublishedTable, column: str) -> dict[str, float]:
    return {row: cells[column].mean for row, cells in table.rows.items() if column in cells}


@pytest.mark.parametrize(
    ("key", "rows", "columns", "cells"),
    [
        ("table1", 12, 8, 96),
        ("table2", 12, 7, 84),
        ("table3", 8, 2, 16),
        ("table4", 5, 12, 60),
        ("table5", 3, 7, 21),
        ("table6", 7, 2, 14),
        ("table7", 6, 9, 49),  # local training has no gain over itself, five times
        ("table8", 4, 4, 16),
        ("table9", 3, 3, 9),
    ],
)
def test_size(key: str, rows: int, columns: int, cells: int) -> None:
    table = published_table(key)
    assert (len(table.rows), len(table.columns)) == (rows, columns)
    assert sum(map(len, table.rows.values())) == cells
    assert table.key == f"table{table.number}" == key


@pytest.mark.parametrize(
    ("key", "sum_of_means", "sum_of_deviations"),
    [  # summed by a program that read the paper's source
        ("table1", 35.727, 9.610),
        ("table2", 41.954, 6.860),
        ("table3", 8.454, 2.540),
        ("table4", 39.992, 5.140),
        ("table5", 65.430, 1.310),
        ("table6", 766.910, 0),
        ("table7", 2192.210, 0),
        ("table8", 15_875_529.984, 0),
        ("table9", 299.993, 29.339),
    ],
)
def test_sums(key: str, sum_of_means: float, sum_of_deviations: float) -> None:
    cells = [cell for row in TABLES[key].rows.values() for cell in row.values()]
    assert sum(cell.mean for cell in cells) == pytest.approx(sum_of_means, abs=5e-4)
    assert sum(cell.std or 0 for cell in cells) == pytest.approx(sum_of_deviations, abs=5e-4)


@pytest.mark.parametrize("key", ACCURACY_TABLES)
def test_accuracies_have_three_digits_and_their_deviations_two(key: str) -> None:
    table = TABLES[key]
    for row in table.rows.values():
        for column, cell in row.items():
            if table.units[column] == "fraction correct":
                assert re.fullmatch(r"\.\d{3}\(\.\d{2}\)", cell.printed)
                assert 0.09 <= cell.mean <= 0.91
                assert cell.std is not None
                assert 0.03 <= cell.std <= 0.23
                # Accuracies lie in [0, 1], which limits how far they can spread around a mean.
                assert cell.std**2 <= cell.mean * (1 - cell.mean)


def test_rows_and_columns_are_names_that_the_package_knows() -> None:
    for table in TABLES.values():
        for row in table.rows:
            if table.row_kind == "method":
                assert find_method(row).name == row
            elif table.row_kind == "federation":
                assert row in FEDERATIONS
            elif table.row_kind == "network":
                assert row in BODIES or row == "mobilenetv3-small"
            else:
                find_method("pfedfda")(betas=row)  # type: ignore[call-arg]
    assert set(TABLES["table4"].columns) == {"original", "clean", *CORRUPTIONS}


PFEDFDA_IS_BEST = [(k, c) for k in ("table1", "table3", "table4") for c in TABLES[k].columns]


@pytest.mark.parametrize(("key", "column"), PFEDFDA_IS_BEST)
def test_pfedfda_is_best_where_the_paper_prints_it_bold(key: str, column: str) -> None:
    accuracy = means(TABLES[key], column)
    lead = accuracy.pop("pfedfda")
    assert lead > max(accuracy.values())


@pytest.mark.parametrize(
    ("key", "column", "best", "second"),
    [
        ("table2", "emnist@100", "fedpac", {"fedavg-ft", "pfedfda"}),
        ("table2", "cifar10-dir0.1@100", "fedpac", {"fedavg-ft", "pfedfda"}),
        ("table2", "cifar10@100", "fedpac", {"pfedfda"}),
        ("table2", "cifar100-dir0.1@100", "fedpac", {"pfedfda"}),
        ("table2", "cifar100@100", "pfedfda", {"fedpac"}),
        ("table2", "tiny-imagenet-dir0.1@100", "pfedme", {"ditto"}),
        ("table2", "tiny-imagenet@100", "pfedme", {"pfedfda"}),
        ("table7", "digit5@25", "pfedfda", {"fedavg-ft"}),
        ("table7", "digit5@50", "pfedfda", {"fedavg-ft"}),
        ("table7", "digit5@75", "fedpac", {"fedavg-ft", "pfedfda"}),
        ("table7", "digit5@100", "fedavg-ft", {"pfedfda"}),
        ("table7", "gain", "pfedfda", {"fedavg-ft"}),
        ("table1", "cifar10-s@100", "pfedfda", {"fedavg-ft"}),
        *(("table1", c, "pfedfda", {"fedpac"}) for c in TABLES["table1"].columns[1:]),
        *(("table3", c, "pfedfda", {"fedpac"}) for c in TABLES["table3"].columns),
        *(("table4", c, "pfedfda", {"fedpac"}) for c in TABLES["table4"].columns[:-1]),
        ("table4", "contrast", "pfedfda", {"fedavg-ft"}),
    ],
)
def test_bold_and_underlined(key: str, column: str, best: str, second: set[str]) -> None:
    accuracy = means(TABLES[key], column)
    first = accuracy.pop(best)
    runner_up = max(accuracy.values())
    assert first > runner_up
    assert {row for row, value in accuracy.items() if value == runner_up} == second


def test_pfedfda_is_among_the_three_best_of_table_2() -> None:
    for column in TABLES["table2"].columns:
        accuracy = means(TABLES["table2"], column)
        assert sum(value > accuracy["pfedfda"] for value in accuracy.values()) <= 2


def test_leads_that_the_text_states() -> None:
    def lead(column: str, over: str) -> float:
        table = TABLES["table1"]
        return 100 * (table.cell("pfedfda", column).mean - table.cell(over, column).mean)

    assert lead("cifar10-s@100", "fedavg-ft") == pytest.approx(4.2)
    assert lead("cifar100-s@100", "fedpac") == pytest.approx(0.1)
    assert lead("cifar100-s@25", "fedpac") == pytest.approx(6.5)
    # The text's 6.9 is the lead over FedAvgFT, not over the second best; a remark says so.
    assert lead("cifar10-s@25", "fedavg-ft") == pytest.approx(6.9)
    assert lead("cifar10-s@25", "fedpac") == pytest.approx(6.2)


def test_repeated_cells_agree_but_for_one_deviation() -> None:
    """Table 5's single β is pFedFDA as in Tables 1 and 2; no other two tables share a column."""
    ablation = TABLES["table5"].rows["single"]
    shared = {
        column: (cell.printed, ablation[column].printed)
        for key in ("table1", "table2")
        for column, cell in TABLES[key].rows["pfedfda"].items()
        if column in ablation
    }
    assert shared == {
        "cifar100-s@100": (".361(.08)", ".361(.08)"),
        "cifar100-dir0.1@100": (".523(.08)", ".523(.08)"),
        "cifar100@100": (".385(.07)", ".385(.06)"),
    }
    assert any("Table 2" in remark for remark in TABLES["table5"].remarks)
    assert any("Table 5" in remark for remark in TABLES["table2"].remarks)
    others = [set(table.columns) for key, table in TABLES.items() if key != "table5"]
    own = {"overhead"}  # of Table 8 too, but of parameters
    assert all(not (a & b) - own for a in others for b in others if a is not b)


def test_gains_are_differences_to_local_training_but_for_one_sign() -> None:
    table = TABLES["table7"]
    wrong = []
    for row, cells in table.rows.items():
        if row == "local":
            continue
        gains = [cells[f"gain@{percent}"].mean for percent in (25, 50, 75, 100)]
        assert 0 <= sum(gains) / 4 - cells["gain"].mean < 0.01  # cut off to two digits
        for percent, gain in zip((25, 50, 75, 100), gains, strict=True):
            column = f"digit5@{percent}"
            difference = cells[column].mean - table.cell("local", column).mean
            if abs(difference - gain) > 1e-9:
                wrong.append((row, percent, gain))
                assert difference == pytest.approx(-gain)
    assert wrong == [("fedavg", 100, 0.32)]


def test_shares_of_the_local_training_time_sum_to_the_whole() -> None:
    for cells in TABLES["table9"].rows.values():
        assert sum(cell.mean for cell in cells.values()) == pytest.approx(100, abs=0.01)


def test_the_whole_run_takes_at_least_200_local_trainings() -> None:
    table = TABLES["table6"]
    for cells in table.rows.values():
        minutes = 200 * cells["local-training"].mean / 60
        assert cells["total"].mean >= minutes - 200 * 0.005 / 60 - 0.005  # what rounding can hide
    added = (
        table.cell("fedpac", "total").mean - 200 * table.cell("fedpac", "local-training").mean / 60
    )
    assert added == pytest.approx(34, abs=0.5)


def test_lookup() -> None:
    table = published_table("table1")
    cell = table.cell("pfedfda", "cifar10-s@25")
    assert (cell.mean, cell.std, cell.printed) == (0.595, 0.12, ".595(.12)")
    assert table.find("pfedfda", "cifar10-s@25") is cell
    assert table.find("pfedfda-released", "cifar10-s@25") is None
    assert TABLES["table7"].find("local", "gain@25") is None
    with pytest.raises(InputError, match=r"Unknown table 'table10': choose from table1, table2"):
        published_table("table10")
    with pytest.raises(InputError, match=r"Unknown method of table1: 'pfedfd'.*mean 'pfedfda'\?"):
        table.cell("pfedfd", "cifar10-s@25")
    with pytest.raises(InputError, match=r"Unknown column of table1: 'cifar10-s'"):
        table.cell("pfedfda", "cifar10-s")
    with pytest.raises(InputError, match=r"leaves gain@25 of local in table7 blank"):
        TABLES["table7"].cell("local", "gain@25")


def test_nothing_can_be_changed() -> None:
    with pytest.raises(TypeError):
        TABLES["table1"].rows["pfedfda"]["cifar10-s@25"] = None  # type: ignore[index]


def test_figures_are_described_and_only_described() -> None:
    assert list(FIGURES) == ["figure2", "figure3", "figure4"]
    assert all(figure.stated for figure in FIGURES.values())
