"""Several seeds in one command: the same runs as alone, and the same bytes after a stop."""

import csv
import statistics
from pathlib import Path
from typing import Any

import pytest

import pfedfda
from pfedfda import FederationConfig, InputError, RunStoppedError, compare, run
from pfedfda.cli import main
from pfedfda.report.groups import read_groups
from pfedfda.runs.statistics import paired_difference
from tests.experiment.files import comparable_files
from tests.experiment.test_resume import interrupted_ditto

SETTINGS: dict[str, Any] = {"rounds": 6, "epochs": 1, "eval_every": 3, "quiet": True, "workers": 0}
TABLES = ("seeds.csv", "pairs.csv")


def table(folder: Path, name: str = "seeds.csv") -> list[dict[str, str]]:
    return list(csv.DictReader((folder / name).read_text().splitlines()))


def tables(folder: Path) -> list[bytes]:
    return [(folder / name).read_bytes() for name in TABLES]


def test_each_run_is_that_of_its_seed_alone(tiny_config: FederationConfig, tmp_path: Path) -> None:
    done = compare(["local", "ditto"], tiny_config, seeds=[3, 1], output=tmp_path, **SETTINGS)
    assert [(r.method, r.setting("schedule", "seed")) for r in done.results] == [
        ("local", 3), ("ditto", 3), ("local", 1), ("ditto", 1),
    ]  # fmt: skip
    alone = run("ditto", tiny_config, seed=1, output=tmp_path / "alone", **SETTINGS)
    files = comparable_files(alone.folder)
    del files["federation.json"]  # a comparison has it once, for all methods
    assert comparable_files(done.folder / "seed-1" / "ditto") == files

    rows = {row["method"]: row for row in table(done.folder)}
    means = [result.mean_accuracy for result in done.results if result.method == "ditto"]
    assert rows["ditto"]["seeds"] == "3 1"
    assert float(rows["ditto"]["mean_accuracy"]) == pytest.approx(statistics.fmean(means))
    by_method = {
        name: [[c.accuracy for c in r.clients] for r in done.results if r.method == name]
        for name in rows
    }
    expected = paired_difference(by_method["ditto"], by_method["local"])
    assert float(rows["ditto"]["difference"]) == pytest.approx(expected.mean)
    assert float(rows["ditto"]["p"]) == pytest.approx(expected.p)
    assert "seeds 1, 3" in str(done)
    assert "one partition" in str(done)


def test_stopped_within_a_seed_it_goes_on_to_the_same_bytes(
    tiny_config: FederationConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = SETTINGS | {"seeds": [0, 1, 2]}
    methods = ["local", "ditto"]
    whole = compare(methods, tiny_config, output=tmp_path / "whole", **settings)
    with (
        interrupted_ditto(monkeypatch),
        pytest.raises(RunStoppedError, match="pfedfda compare --resume"),
    ):
        compare(methods, tiny_config, output=tmp_path, **settings)
    folder = tmp_path / "digits-compare"
    first = (folder / "seed-0" / "local" / "summary.json").stat().st_mtime_ns
    words = ["compare", "--resume", str(folder), "--workers", "1", "--quiet"]
    with interrupted_ditto(monkeypatch):  # in the next seed; the first is complete by now
        assert main([*words[:-3], "--workers", "0", "--quiet"]) == 130
    assert main([*words, "--seeds", "0", "1"]) == 2  # other seeds are another comparison
    assert main(words) == 0
    assert (folder / "seed-0" / "local" / "summary.json").stat().st_mtime_ns == first
    assert tables(folder) == tables(whole.folder)
    for seed in (0, 1, 2):
        for method in methods:
            part = Path(f"seed-{seed}") / method
            assert comparable_files(folder / part) == comparable_files(whole.folder / part)
    # Once it is complete, the same command starts a new one.
    again = compare(methods, tiny_config, output=tmp_path, **settings)
    assert again.folder.name == "digits-compare-2"
    assert tables(again.folder) == tables(whole.folder)


def test_the_same_command_goes_on_by_itself(
    tiny_config: FederationConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = SETTINGS | {"seeds": [0, 1], "output": tmp_path}
    with interrupted_ditto(monkeypatch), pytest.raises(RunStoppedError):
        compare(["ditto"], tiny_config, **settings)
    assert compare(["ditto"], tiny_config, **settings).folder.name == "digits-compare"
    assert [p.name for p in tmp_path.iterdir()] == ["digits-compare"]


def test_run_takes_seeds_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["run", "--method", "local", "--seeds", "0", "1", "--rounds", "1", "--workers", "0"]
    words += ["--clients", "4", "--train-fraction", "0.05", "--output", str(tmp_path)]
    assert main(words) == 0
    out = capsys.readouterr().out
    folder = tmp_path / "digits-local-seeds"
    assert out.splitlines()[-1] == str(folder)
    assert "95 % interval" in out
    assert main(["run", "--resume", str(folder), "--quiet"]) == 0
    assert main(["report", str(folder)]) == 0
    assert "95 % interval" in capsys.readouterr().out
    with pytest.raises(InputError, match="compare"):
        pfedfda.run("local", seeds=[0, 1])


def test_a_seed_can_have_a_partition_of_its_own(
    tiny_config: FederationConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = SETTINGS | {"rounds": 1, "seeds": [0, 1, 2], "output": tmp_path}
    done = compare(["local", "fedavg"], tiny_config, partition_seeds=[5, 6, 7], **settings)
    counts = [(done.folder / f"seed-{n}" / "federation.json").read_bytes() for n in range(3)]
    assert len(set(counts)) == 3
    assert "and the partition" in str(done)
    (group,) = read_groups([done.folder])
    assert [entry.seeds for entry in group.entries] == [3, 3]
    assert len(group.entries[0].clients) == 3 * 6  # they are others with every seed
    first = [
        [r.mean_accuracy for r in done.results if r.method == name] for name in ("fedavg", "local")
    ]
    expected = paired_difference(*([[value] for value in of] for of in first), same_clients=False)
    assert float(table(done.folder)[1]["p"]) == pytest.approx(expected.p)
    assert main(["report", str(done.folder)]) == 0
    assert "and the partition" in capsys.readouterr().out


def test_a_seed_in_which_a_method_diverges_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["compare", "--methods", "pfedme", "local", "--pfedme.personal-lr", "1e6"]
    words += ["--train-fraction", "0.1", "--epochs", "1", "--rounds", "1", "--workers", "0"]
    assert main([*words, "--seeds", "0", "1", "--output", str(tmp_path)]) == 1
    assert capsys.readouterr().err.endswith("pfedfda: 2 of 4 runs diverged.\n")
    assert [row["method"] for row in table(tmp_path / "digits-compare")] == ["local"]
