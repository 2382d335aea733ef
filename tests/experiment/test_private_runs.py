"""Private runs from the first round to the page."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pfedfda import FederationConfig, InputError, RunStoppedError, compare, resume, run
from pfedfda.cli import main
from pfedfda.experiment.rounds import draw_participants
from pfedfda.methods import all_methods
from pfedfda.methods.fedavg import FedAvg
from pfedfda.report import write_report
from pfedfda.runs import load_run
from pfedfda.runs.aggregation_config import AggregationConfig
from tests.experiment.files import comparable_files, final_state
from tests.methods.toy import same

SETTINGS: dict[str, Any] = {
    "rounds": 2,
    "epochs": 1,
    "batch_size": 4,
    "model": "linear",
    "participation": 0.5,
    "dp_epsilon": 8.0,
    "quiet": True,
    "workers": 0,
}
ADDITIVE = [name for name, method in all_methods().items() if method.additive]


@pytest.mark.parametrize("name", ADDITIVE)
def test_every_method_that_sums_runs_privately(
    name: str, tiny_config: FederationConfig, tmp_path: Path
) -> None:
    result = run(name, tiny_config, output=tmp_path, **SETTINGS | {"dp_epsilon": 100.0})
    told = result.summary["privacy"]
    assert result.summary["status"] == "complete"
    assert result.summary["failures"] == 0
    assert 97 < told["epsilon"] <= told["epsilon_budget"] == 100


def test_what_was_spent_is_in_the_summary_the_page_and_the_last_line(
    tiny_config: FederationConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [
        "run", "--method", "fedavg", "--partition", "client-dirichlet", "--clients", "6",
        "--samples", "8", "--rounds", "3", "--model", "linear", "--workers", "0",
        "--participation", "0.5", "--dp-epsilon", "4", "--dp-delta", "0.01", "--dp-clip", "0.5",
        "--output", str(tmp_path),
    ]  # fmt: skip
    assert main(words) == 0
    printed = capsys.readouterr()
    lines = (printed.out + printed.err).splitlines()
    (line,) = [line for line in lines if "differential privacy" in line]
    folder = tmp_path / "digits-fedavg"
    told = load_run(folder).summary["privacy"]
    assert told["unit"] == "client"
    assert told["epsilon_budget"] == 4
    assert told["delta"] == 0.01
    assert told["clip"] == 0.5
    assert 3.9 < told["epsilon"] <= 4
    noise = told["noise_multiplier"]
    assert f"of 4 spent at δ = 0.01, with clip 0.5 and noise multiplier {noise:g}" in line
    page = (folder / "report.html").read_text()
    assert "Differential privacy" in page
    assert f"{noise:.4f}" in page
    assert f"{told['epsilon']:.2f}" in page
    # Its settings are its promise, and a file of settings repeats it.
    assert main(["run", "--config", str(folder / "config.toml"), "--output", str(tmp_path)]) == 0
    assert same(final_state(folder), final_state(tmp_path / "digits-fedavg-2"))


def test_a_run_without_a_promise_says_nothing_of_one(
    tiny_config: FederationConfig, tmp_path: Path
) -> None:
    plain = run("fedavg", tiny_config, output=tmp_path, **SETTINGS | {"dp_epsilon": None})
    assert "privacy" not in plain.summary
    manifest = json.loads((plain.folder / "checkpoint" / "manifest.json").read_text())
    assert "commitment" not in manifest["about"]
    page = write_report([plain.folder], tmp_path / "report").read_text()
    assert "Differential privacy" not in page


def test_the_budget_is_for_all_clients_that_train(
    tiny_config: FederationConfig, tmp_path: Path
) -> None:
    """By default δ is 1 / n^1.1; newcomers do not train."""
    settings = SETTINGS | {"new_clients": 0.34, "rounds": 1}
    told = run("fedavg", tiny_config, output=tmp_path, **settings).summary["privacy"]
    assert told["clients"] == 4
    assert told["delta"] == pytest.approx(4**-1.1)


@pytest.mark.parametrize("name", ["fedavg-ft", "pfedfda"])
def test_workers_change_nothing(name: str, tiny_config: FederationConfig, tmp_path: Path) -> None:
    folders = [
        run(name, tiny_config, output=tmp_path / str(n), **SETTINGS | {"workers": n}).folder
        for n in (0, 2)
    ]
    assert comparable_files(folders[0]) == comparable_files(folders[1])


def stopped_run(
    config: FederationConfig, folder: Path, monkeypatch: pytest.MonkeyPatch, **settings: Any
) -> Path:
    """Return the folder of a run that was interrupted in its third round of four."""
    calls = FedAvg.finish

    def interrupted(self: FedAvg, state: Any, total: Any) -> Any:
        counter["rounds"] += 1
        if counter["rounds"] == 3:
            raise KeyboardInterrupt
        return calls(self, state, total)

    counter = {"rounds": 0}
    with monkeypatch.context() as patched:
        patched.setattr(FedAvg, "finish", interrupted)
        with pytest.raises(RunStoppedError):
            run("fedavg", config, output=folder, **SETTINGS | {"rounds": 4} | settings)
    return folder / "digits-fedavg"


def test_a_stopped_run_goes_on_with_the_same_noise(
    tiny_config: FederationConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = run("fedavg", tiny_config, output=tmp_path / "whole", **SETTINGS | {"rounds": 4})
    folder = stopped_run(tiny_config, tmp_path / "stopped", monkeypatch)
    half = json.loads((folder / "summary.json").read_text())["privacy"]
    told = whole.summary["privacy"]
    assert 0 < half["epsilon"] < told["epsilon"] <= half["epsilon_budget"]
    resume(folder, workers=0, quiet=True)
    assert comparable_files(folder) == comparable_files(whole.folder)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("dp_epsilon = 8.0", "dp_epsilon = 80.0"),
        ("dp_epsilon = 8.0", "dp_epsilon = 8.0\ndp_clip = 0.5"),
        ("dp_epsilon = 8.0", "dp_epsilon = 8.0\ndp_delta = 0.5"),
        ("dp_epsilon = 8.0", ""),
        ("participation = 0.5", "participation = 0.9"),
        ("rounds = 4", "rounds = 40"),
    ],
)
def test_a_promise_cannot_be_changed_afterwards(
    before: str,
    after: str,
    tiny_config: FederationConfig,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = stopped_run(tiny_config, tmp_path, monkeypatch)
    text = (folder / "config.toml").read_text()
    assert before in text
    (folder / "config.toml").write_text(text.replace(before, after))
    with pytest.raises(InputError, match="promise of privacy|another task"):
        resume(folder, workers=0, quiet=True)


def test_a_plain_run_cannot_become_private(
    tiny_config: FederationConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = stopped_run(tiny_config, tmp_path, monkeypatch, dp_epsilon=None)
    text = (folder / "config.toml").read_text()
    (folder / "config.toml").write_text(text + "\n[aggregation]\ndp_epsilon = 8.0\n")
    with pytest.raises(InputError, match="promise of privacy"):
        resume(folder, workers=0, quiet=True)


def test_a_run_with_secret_noise_is_not_resumed(
    tiny_config: FederationConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = stopped_run(tiny_config, tmp_path, monkeypatch, dp_randomness="system")
    with pytest.raises(InputError, match="cannot be resumed"):
        resume(folder, workers=0, quiet=True)


def test_secret_noise_cannot_be_repeated(tiny_config: FederationConfig, tmp_path: Path) -> None:
    settings = SETTINGS | {"dp_randomness": "system"}
    states = [
        final_state(run("fedavg", tiny_config, output=tmp_path / name, **settings).folder)
        for name in "ab"
    ]
    assert not same(*states)


def test_in_a_private_run_a_round_may_be_empty(
    tiny_config: FederationConfig, tmp_path: Path
) -> None:
    """Whoever stood in for nobody would not take part by its own coin alone."""
    assert draw_participants(5, 1e-9, 0, 1, 101, may_be_empty=True) == []
    assert len(draw_participants(5, 1e-9, 0, 1, 101)) == 1
    assert draw_participants(6, 0.05, 0, 1, 2, may_be_empty=True) == []
    settings = SETTINGS | {"participation": 0.05, "eval_every": 1}
    result = run("fedavg", tiny_config, output=tmp_path, **settings)
    empty, full = (line["participants"] for line in result.metrics)
    assert (empty, full) == (0, 6)
    # Noise is added all the same: an empty round must look like any other.
    chance = run("fedavg", tiny_config, output=tmp_path, **settings | {"lr": 1e-9})
    assert chance.metrics[0]["test_loss"] > 2.31  # more than that of ten equal probabilities


def test_each_seed_has_its_own_noise(tiny_config: FederationConfig, tmp_path: Path) -> None:
    settings = SETTINGS | {"rounds": 1, "seeds": [0, 1]}
    comparison = compare(["fedncm"], tiny_config, output=tmp_path, **settings)
    first, second = (final_state(result.folder) for result in comparison.results)
    assert not same(first, second)
    page = write_report([comparison.folder], tmp_path / "report").read_text()
    assert "a budget of its own" in page


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"dp_epsilon": 0.0}, "dp-epsilon is 0.0; it must be above 0"),
        ({"dp_epsilon": -1.0}, "dp-epsilon is -1.0"),
        ({"dp_epsilon": 1e6}, "at most 100"),
        ({"dp_epsilon": 1.0, "dp_delta": 1.0}, "dp-delta is 1.0; it must lie between 0 and 1"),
        ({"dp_epsilon": 1.0, "dp_clip": 0.0}, "dp-clip is 0.0; it must be finite and above 0"),
        ({"dp_delta": 1e-3}, "dp-delta is 0.001; it needs dp-epsilon"),
        ({"dp_clip": 1.0}, "dp-clip is 1.0; it needs dp-epsilon"),
    ],
)
def test_settings_that_promise_nothing_are_refused(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        replace(AggregationConfig(), **settings)


def test_a_method_that_looks_at_single_updates_is_refused(
    tiny_config: FederationConfig, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match="FedPAC looks at single updates"):
        run("fedpac", tiny_config, output=tmp_path, **SETTINGS)
