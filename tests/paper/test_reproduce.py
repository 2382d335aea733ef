"""Reproducing a suite, on digits in place of the paper's images."""

import csv
import json
import re
from pathlib import Path
from typing import Any

import pytest

from pfedfda.cli import main
from pfedfda.methods import Client, Tensors, Update, all_methods, registry
from pfedfda.methods.fedavg import FedAvgFT
from pfedfda.paper import published_table, suites
from pfedfda.paper.records import matching, read_records
from pfedfda.paper.reproduce import tables_of_records
from pfedfda.runs import load_run
from pfedfda.runs.statistics import mean_interval, paired_difference
from tests.conftest import write_image

WORDS = ["reproduce", "table1", "--columns", "cifar10-s@25", "--rounds", "2", "--workers", "0"]


@pytest.fixture(autouse=True)
def digits(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Put digits in the place of every federation of the paper."""
    real = suites.federation_settings

    def settings(key: str) -> dict[str, Any]:
        ours = {"source": "digits", "partition": "client-dirichlet", "clients": 6, "samples": 12}
        return real(key) | ours | {"model": "auto", "shift": "none", "min_samples": None}

    monkeypatch.setattr(suites, "federation_settings", settings)
    monkeypatch.chdir(tmp_path)


def test_the_papers_numbers_beside_ours(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*WORDS, "--methods", "fedavg-ft", "pfedfda"]) == 0
    printed = capsys.readouterr().out
    runs = {
        f.name.split("--")[1]: load_run(f) for f in (tmp_path / "runs" / "reproduced").iterdir()
    }
    assert set(runs) == {"fedavg-ft", "pfedfda"}
    for method, run in runs.items():
        paper = published_table("table1").cell(method, "cifar10-s@25")
        assert f"ours  {run.mean_accuracy:.3f} ({run.summary['std_accuracy']:.3f})" in printed
        assert f"paper {paper.mean:.3f} ({paper.std:.3f})" in printed
        assert f"diff. {run.mean_accuracy - paper.mean:+.3f}" in printed
    assert "2 rounds instead of 200: all cells." in printed
    assert "Our default pFedFDA, which is not the paper's Algorithm 1: pfedfda on" in printed
    page = Path(re.search(r"report: (.*)", printed)[1])  # type: ignore[index]
    text = page.read_text()
    assert f"{published_table('table1').cell('pfedfda', 'cifar10-s@25').mean:.3f}" in text
    record = json.loads(next((tmp_path / "runs/results").glob("*pfedfda*")).read_text())
    assert record["mean_accuracy"] == runs["pfedfda"].mean_accuracy
    assert record["federation"]["clients"] == 6
    assert record["federation"]["frost"] is None  # nothing is corrupted here
    rows = csv.DictReader((runs["pfedfda"].folder / "clients.csv").read_text().splitlines())
    betas = [float(row["beta"]) for row in rows]
    assert record["betas"]["clean"]["mean"] == pytest.approx(sum(betas) / 6)


def test_an_interrupted_suite_goes_on_and_runs_nothing_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*WORDS, "--methods", "local", "fedavg-ft"]
    train = FedAvgFT.train

    def interrupted(self: FedAvgFT, client: Client, message: Tensors) -> Update:
        if client.round == 2:
            raise KeyboardInterrupt
        return train(self, client, message)

    with monkeypatch.context() as patched:
        patched.setattr(FedAvgFT, "train", interrupted)
        assert main(words) == 130
    assert "1 of 2 rounds are complete" in (said := capsys.readouterr().err)
    assert "To go on: the same command again." in said
    folders = {f.name.split("--")[1]: f for f in (tmp_path / "runs" / "reproduced").iterdir()}
    before = (folders["local"] / "summary.json").stat().st_mtime_ns
    assert main([*words, "--dry-run"]) == 0
    listed = capsys.readouterr().out
    assert re.search(r"local--r2\S* *│ complete", listed)
    assert re.search(r"fedavg-ft--r2\S* *│ about \d+ s", listed)
    assert "1 of 2 runs to make" in listed
    assert not (folders["fedavg-ft"] / "clients.csv").exists()  # a dry run runs nothing
    assert main(words) == 0
    assert load_run(folders["fedavg-ft"]).summary["status"] == "complete"
    assert (folders["local"] / "summary.json").stat().st_mtime_ns == before
    # Other rounds and other seeds are other runs; a mean over seeds says so.
    assert main([*words, "--seeds", "0", "1", "--quiet"]) == 0
    assert "A mean over 2 seeds: all cells." in capsys.readouterr().out
    assert len(list((tmp_path / "runs" / "reproduced").iterdir())) == 4


def test_a_run_that_diverges_is_told_and_the_others_go_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def failing(self: FedAvgFT, client: Client, message: Tensors) -> Update:
        raise ZeroDivisionError("nothing works")

    monkeypatch.setattr(FedAvgFT, "train", failing)
    assert main([*WORDS, "--rounds", "9", "--methods", "fedavg-ft", "local"]) == 1
    printed = capsys.readouterr()
    assert "nothing works" in printed.err
    assert "1 of 2 runs stopped early" in printed.err
    assert printed.out.count("ours  -") == 1
    assert printed.out.count("ours  0.") == 1


def test_tables_come_back_from_the_records_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["--columns", "cifar100-s@25", "--rounds", "1", "--workers", "0", "--results", "kept"]
    for suite, rows in (
        ("table1", ["local", "pfedfda-paper"]),
        ("table5", ["none", "pfedfda/single"]),
    ):
        assert main(["reproduce", suite, "--methods", *rows, *words, "--quiet"]) == 0
    found = tables_of_records(Path("kept"), suites.SUITES.values())
    tables = {suite.key: table for suite, table in found}
    assert set(tables) == {"table1", "table5"}
    assert [row.label for row in tables["table1"].rows] == ["local", "pfedfda-paper"]
    assert list(tables["table1"].columns) == ["cifar100-s@25"]
    assert [row.label for row in tables["table5"].rows] == ["none", "pfedfda/single"]
    cell = tables["table1"].rows[1].cells[0]
    assert cell.paper_mean == published_table("table1").cell("pfedfda", "cifar100-s@25").mean
    (record,) = [r for r in read_records(Path("kept")) if r["need"]["method"] == "local"]
    assert tables["table1"].rows[0].cells[0].ours_mean == record["mean_accuracy"]
    # A run with other settings than it would have now does not count.
    need = suites.SUITES["table1"].shown("pfedfda-paper", "cifar100-s@25").need
    records = read_records(Path("kept"))
    assert len(matching(need, records)) == 1
    changed = [{**r, "hyperparameters": {**r["hyperparameters"], "ridge": 9.0}} for r in records]
    assert matching(need, changed) == []
    changed = [{**r, "model": {**r["model"], "init": "he"}} for r in records]
    assert matching(need, changed) == []
    for other in ({"participation": 0.5}, {"train_share": 0.7}, {"partition_seed": 1}):
        with monkeypatch.context() as patched:
            settings = suites.federation_settings
            patched.setattr(suites, "federation_settings", lambda key: settings(key) | other)  # noqa: B023
            assert matching(need, records) == []
    assert len(matching(need, records)) == 1


def test_seeds_that_are_left_out_are_named(tmp_path: Path) -> None:
    words = ["--columns", "cifar100-s@25", "--workers", "0", "--results", "kept", "--quiet"]
    for seed, rounds in (("0", "2"), ("1", "1")):
        asked = ["--methods", "local", "--seeds", seed, "--rounds", rounds]
        assert main(["reproduce", "table1", *asked, *words]) == 0
    ((_, table),) = tables_of_records(Path("kept"), [suites.SUITES["table1"]])
    assert "Seed 1 ended after round 1 and is left out: all cells." in table.notes
    of_seed_0 = [r for r in read_records(Path("kept")) if r["seed"] == 0]
    assert table.rows[0].cells[0].ours_mean == of_seed_0[0]["mean_accuracy"]


def test_a_method_of_ones_own_in_a_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(registry, "_registry", all_methods())  # it is forgotten afterwards
    file = tmp_path / "mine" / "own.py"
    file.parent.mkdir()
    source = (
        "from dataclasses import dataclass\nfrom pfedfda.methods.local import Local\n"
        "from pfedfda.methods.registry import register\n@register\n@dataclass(frozen=True)\n"
        "class Own(Local):\n    name = 'own'\n"
    )
    file.write_text(source)
    for added, runs in (("", 1), ("", 1), ("# another\n", 2)):  # another file is another run
        file.write_text(source + added)
        assert main([*WORDS, "--methods", "local", "mine/own.py", "--quiet"]) == 0
        of_local, own = re.findall(r"ours  (0\.\d+)", capsys.readouterr().out)
        assert own == of_local
        assert len(list((tmp_path / "runs" / "reproduced").glob("*--own--*"))) == runs
    assert (tmp_path / "runs" / "results" / "cifar10-s@25--own--r2-s0.json").exists()


def test_the_data_folder_may_be_written_in_many_ways(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "data").mkdir()
    ways = ["--data-dir", "data"], ["--data-dir", str(tmp_path / "data")], []
    for words in ways:
        if not words:
            monkeypatch.setenv("PFEDFDA_DATA", str(tmp_path / "data"))
        assert main([*WORDS, "--methods", "local", "--quiet", *words]) == 0
    assert len(list((tmp_path / "runs" / "reproduced").iterdir())) == 1


def test_records_tell_where_the_frost_of_their_run_came_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PFEDFDA_DATA", raising=False)
    settings = suites.federation_settings
    shifted = {"shift": "paper", "clients": 20}
    monkeypatch.setattr(suites, "federation_settings", lambda key: settings(key) | shifted)
    write_image(tmp_path / "data" / "frost" / "frost1.png", size=(300, 300), mode="RGB")
    for words, expected in (["--data-dir", "data"], "photographs"), ([], "drawn"):
        assert main([*WORDS, "--methods", "local", "--quiet", "--rounds", "1", *words]) == 0
        (record,) = read_records(tmp_path / "runs" / "results")
        assert record["federation"]["frost"] == expected


def test_what_needs_no_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "table8"]) == 0
    printed = capsys.readouterr().out
    assert printed.count("= paper") == 16  # all four rows, to the digit
    assert main(["reproduce", "theorem1"]) == 0
    assert "bound" in capsys.readouterr().out
    assert main(["reproduce"]) == 0
    assert "table1" in capsys.readouterr().out
    assert main(["reproduce", "table11"]) == 2
    assert main(["reproduce", "table1", "--seeds"]) == 2


def test_report_of_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tiny = ["--partition", "client-dirichlet", "--clients", "6", "--samples", "8", "--rounds", "1"]
    for method in ("local", "fedavg"):
        assert main(["run", *tiny, "--method", method, "--workers", "0"]) == 0
    printed = capsys.readouterr().out
    assert "report: runs/digits-fedavg/report.html" in printed
    assert Path("runs/digits-fedavg/figures/classes.svg").exists()
    assert main(["report", "runs/digits-local", "runs/digits-fedavg"]) == 0
    assert capsys.readouterr().out.strip() == "report/report.html"
    assert "FedAvg" in Path("report/report.html").read_text()
    assert main(["report", "runs"]) == 2
    assert main(["report"]) == 2


def test_several_seeds_are_compared_from_runs_and_from_records(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*WORDS, "--methods", "local", "fedavg-ft", "--seeds", "0", "1", "2"]
    assert main(words) == 0
    printed = capsys.readouterr().out
    records = read_records(tmp_path / "runs" / "results")
    means = [r["mean_accuracy"] for r in records if r["need"]["method"] == "local"]
    interval = mean_interval(means)
    assert f"ours  {interval.mean:.3f}" in printed
    assert f"95 % {interval.low:.3f} to {interval.high:.3f}" in printed
    table = printed[printed.index("cifar10-s@25: Test accuracy") :].split("report: ")[0]
    assert "means over seeds 0, 1, 2" in table
    by_method = [
        [
            [n / size for n, size in zip(r["by_client"]["correct"], r["by_client"]["tested"],
                                         strict=True)]
            for r in records
            if r["need"]["method"] == method
        ]
        for method in ("local", "fedavg-ft")
    ]  # fmt: skip
    difference = paired_difference(*by_method)
    assert f"{difference.mean:+.3f} [{difference.low:+.3f}, {difference.high:+.3f}]" in table
    # The same from the records alone, after the runs are gone.
    (tmp_path / "runs" / "reproduced").rename(tmp_path / "gone")
    assert main([*words[:-4], "--from-results"]) == 0
    again = capsys.readouterr().out
    assert again[again.index("cifar10-s@25: Test accuracy") :].strip() == table.strip()
