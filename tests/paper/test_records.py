"""Records: what they keep of every client, and what can be computed from it."""

import importlib.util
import json
import math
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from pfedfda.methods.pfedfda import PFedFDA
from pfedfda.paper.records import (
    difference,
    make_record,
    need_of,
    read_records,
    valid,
    write_record,
)
from pfedfda.paper.suites import Need, differences
from pfedfda.runs import RunResult
from pfedfda.runs.accuracy import Accuracy

ROOT = Path(__file__).parent.parent.parent
TESTED = [3, 7, 10, 49, 1000]


def result_of(folder: Path, correct: list[int], tested: list[int] = TESTED) -> RunResult:
    """Write the clients of a run and return it."""
    folder.mkdir(parents=True)
    lines = ["client,name,train_samples,test_samples,classes,accuracy"]
    lines += [
        f"{client},{client},20,{size},3,{right / size}"
        for client, (right, size) in enumerate(zip(correct, tested, strict=True))
    ]
    (folder / "clients.csv").write_text("\n".join(lines) + "\n")
    accuracies = Accuracy.of(correct, tested).as_dict()
    machine = {"cores": 2, "system": "Linux", "python": "3.12", "torch": "2"}
    summary = {"status": "complete", "rounds": 200, **accuracies, "machine": machine}
    by_round = [{"round": 200, "seconds": 1.0, **accuracies}]
    return RunResult(folder, "pfedfda", summary, by_round)


def record_of(
    folder: Path, correct: list[int], method: str = "pfedfda", **settings: Any
) -> dict[str, Any]:
    need = Need("cifar10-s@25", method)
    config = need.config()
    config = replace(config, federation=replace(config.federation, **settings))
    return make_record(need, config, result_of(folder, correct))


def without_clients(record: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in record.items() if name != "by_client"}


def test_accuracies_come_back_to_the_bit(tmp_path: Path) -> None:
    correct = [1, 5, 0, 48, 333]
    record = record_of(tmp_path / "run", correct)
    path = write_record(tmp_path / "kept", Need("cifar10-s@25", "pfedfda"), record)
    (kept,) = read_records(tmp_path / "kept")
    assert kept == record
    counts = kept["by_client"]
    assert counts == {"client": [0, 1, 2, 3, 4], "tested": TESTED, "correct": correct}
    accuracies = np.array(counts["correct"]) / np.array(counts["tested"])
    assert accuracies.mean() == kept["mean_accuracy"]
    assert accuracies.std() == kept["std_accuracy"]
    text = path.read_text()
    assert '  "correct": [1, 5, 0, 48, 333]\n' in text  # a line, not one for each client
    assert json.loads(text) == record


def test_a_difference_is_paired_where_both_have_their_clients(tmp_path: Path) -> None:
    first = record_of(tmp_path / "a", [3, 6, 9, 40, 900])
    second = record_of(tmp_path / "b", [2, 5, 8, 30, 880], "fedavg-ft")
    differences = np.subtract([3, 6, 9, 40, 900], [2, 5, 8, 30, 880]) / np.array(TESTED)
    found = difference(first, second)
    assert found.paired
    assert found.mean == pytest.approx(first["mean_accuracy"] - second["mean_accuracy"])
    assert found.standard_error == pytest.approx(np.std(differences, ddof=1) / math.sqrt(5))
    assert difference(second, first).mean == -found.mean
    # Without the clients of one, the errors of both means are all there is.
    for pair in ((first, without_clients(second)), (without_clients(first), second)):
        apart = difference(*pair)
        assert not apart.paired
        assert apart.mean == pytest.approx(found.mean)
        variances = first["std_accuracy"] ** 2 + second["std_accuracy"] ** 2
        assert apart.standard_error == pytest.approx(math.sqrt(variances / 5))


def test_other_clients_are_not_paired(tmp_path: Path) -> None:
    first = record_of(tmp_path / "a", [3, 6, 9, 40, 900])
    assert difference(first, record_of(tmp_path / "b", [2, 6, 9, 40, 900])).paired
    for number, setting in enumerate(({"partition_seed": 1}, {"shift": "none"}, {"alpha": 0.1})):
        other = record_of(tmp_path / f"c{number}", [2, 6, 9, 40, 900], **setting)
        assert not difference(first, other).paired
    fewer = {**first, "by_client": {name: v[:4] for name, v in first["by_client"].items()}}
    assert not difference(first, fewer).paired


def test_committed_records_are_readable() -> None:
    records = read_records(ROOT / "results")
    assert len(records) > 40
    assert not difference(records[0], records[1]).paired  # they were made without


def test_committed_records_count_and_their_shift_is_told() -> None:
    """Old ones were made when training and test images were corrupted from one stream."""
    records = read_records(ROOT / "results")
    for record in records:
        need = need_of(record)
        assert record in valid(need, records)
        told = [note for note in differences(need, record) if "shift version 1" in note]
        version = record["split"].get("shift_version", 1)
        assert bool(told) == (record["split"]["shift"] != "none" and version == 1)
    versions = {record["split"].get("shift_version", 1) for record in records}
    assert versions == {1, 2}


def test_new_records_have_the_new_shift(tmp_path: Path) -> None:
    record = record_of(tmp_path / "run", [1, 5, 0, 48, 333])
    assert record["split"]["shift_version"] == 2
    need = need_of(record)
    assert valid(need, [record]) == [record]
    assert not [note for note in differences(need, record) if "shift version" in note]


@pytest.fixture(scope="module")
def script() -> ModuleType:
    path = ROOT / "tools" / "write_reproduction.py"
    spec = importlib.util.spec_from_file_location("write_reproduction", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_has_paired_differences_where_records_have_clients(
    tmp_path: Path, script: ModuleType
) -> None:
    records = {
        "pfedfda": record_of(tmp_path / "a", [3, 6, 9, 40, 900]),
        "fedavg-ft": record_of(tmp_path / "b", [2, 5, 8, 30, 880], "fedavg-ft"),
        "local": without_clients(record_of(tmp_path / "c", [1, 5, 9, 41, 900], "local")),
    }
    for method, record in records.items():
        write_record(tmp_path / "kept", Need("cifar10-s@25", method), record)
    page = script.page(tmp_path / "kept")
    for method, kind in (("fedavg-ft", "paired"), ("local", "unpaired")):
        found = difference(records["pfedfda"], records[method])
        text = f"{found.mean:+.3f}"
        text = f"**{text}**" if abs(found.mean) > 2 * found.standard_error else text
        assert f"| {method} | {text} | {found.standard_error:.3f} | {kind} |" in page
    assert "pfedfda less the others" not in script.page(ROOT / "results")


@pytest.mark.parametrize("method", ["pfedfda", "pfedfda-released"])
def test_hyper_parameters_that_were_removed_count_at_the_value_that_holds(
    method: str, tmp_path: Path
) -> None:
    need = Need("cifar10-s@25", method)
    record = record_of(tmp_path / "run", [1, 5, 0, 48, 333], method)
    old = {"relative_ridge": False, "scatter": "within"}
    for change, counts in (({}, True), (old, True), ({"scatter": "total"}, False)):
        then = record | {"hyperparameters": record["hyperparameters"] | change}
        assert (valid(need, [then]) == [then]) == counts


@pytest.mark.parametrize("method", ["pfedfda-released", "pfedfda-pooled"])
def test_hyper_parameters_that_came_later_count_at_the_value_of_then(
    method: str, tmp_path: Path
) -> None:
    need = Need("cifar10-s@25", method)
    record = record_of(tmp_path / "run", [1, 5, 0, 48, 333], method)
    old = {n: v for n, v in record["hyperparameters"].items() if n not in PFedFDA.added}
    assert len(old) < len(record["hyperparameters"])
    for change, counts in (({}, True), ({"adaptation": "levels"}, False)):
        then = record | {"hyperparameters": old | change}
        assert (valid(need, [then]) == [then]) == counts


def test_every_committed_record_of_our_methods_counts() -> None:
    records = read_records(ROOT / "results")
    assert len(records) > 40
    for record in records:
        assert record in valid(need_of(record), records)


@pytest.mark.parametrize(
    ("correct", "verdict"),
    [([1, 3, 4, 20, 500], "1 | 0 | 0"), ([3, 6, 8, 40, 910], "0 | 1 | 0"), (TESTED, "0 | 0 | 1")],
)
def test_a_column_is_led_tied_or_lost(
    tmp_path: Path, script: ModuleType, correct: list[int], verdict: str
) -> None:
    for method, counts in (("pfedfda", [3, 6, 9, 40, 900]), ("fedavg-ft", correct)):
        record = record_of(tmp_path / method, counts, method)
        write_record(tmp_path / "kept", Need("cifar10-s@25", method), record)
    assert f"| 1 | 96 | 2 | 1 | {verdict} |" in script.page(tmp_path / "kept")


def test_measures_of_all_methods_stand_side_by_side(tmp_path: Path, script: ModuleType) -> None:
    quality = {"test_loss": 1e28, "pooled_brier": 0.4, "pooled_ece": 0.05}
    for method, right in (("pfedfda", 900), ("fedavg-ft", 950), ("fedproto", 100)):
        record = record_of(tmp_path / method, [3, 6, 9, 40, right], method)
        record |= quality | {"mean_balanced_accuracy": 0.5, "seed": 1}
        write_record(tmp_path / "kept", Need("cifar10-s@25", method), record)
    page = script.page(tmp_path / "kept")
    table = page[page.index("## Every method on cifar10-s@25") :]
    places = [table.index(f"| {title} | 0.") for title in ("FedAvgFT", "pFedFDA", "FedProto")]
    assert places == sorted(places)
    assert "| 0.500 | 1e+28 | 0.400 | 0.050 |" in table
