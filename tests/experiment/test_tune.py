"""A search: equal budgets, validation samples alone, and the same end after any stop."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest

import pfedfda
from pfedfda import FederationConfig, InputError, RunStoppedError, tune
from pfedfda.cli import main
from pfedfda.experiment import tune as tuning_module
from pfedfda.experiment.tuning import MethodSearch, plan_search, tuned_config
from pfedfda.methods import Method, TrainingConfig, all_methods, find_method
from pfedfda.methods.space import Choices, Search, declared_space, parse_space
from pfedfda.runs.config import make_config, read_config
from pfedfda.runs.trials import Trial, best_trial, read_trials, write_trials
from tests.experiment.test_resume import interrupted_ditto

pytest.importorskip("optuna")
SETTINGS: dict[str, Any] = {"rounds": 6, "epochs": 1, "eval_every": 2, "quiet": True, "workers": 0}
FEDERATION = FederationConfig(clients=5, alpha=0.5, train_fraction=0.3, min_samples=5)


def content(folder: Path) -> dict[str, bytes]:
    """Return what a search has found, without runs and their seconds."""
    names = ("tuning.csv", "search.json", "trials.jsonl", "config.toml")
    paths = [path for path in sorted(folder.rglob("*")) if path.name in names]
    paths = [path for path in paths if "test-" not in path.parent.name]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def test_every_declared_space_is_accepted_by_its_method() -> None:
    for name, kind in all_methods().items():
        config = make_config({name: kind()})
        for setting, space in declared_space(kind).items():
            for end in space.ends:
                tuned_config(config, name, {setting: end})
            if not kind.is_preset:
                assert getattr(kind(), setting) in space, (name, setting)
    assert TrainingConfig().lr in declared_space(TrainingConfig)["lr"]


def test_a_search_is_as_good_as_the_default_and_is_tested_once(tmp_path: Path) -> None:
    done = tune(["local", "ditto"], FEDERATION, trials=5, output=tmp_path, **SETTINGS)
    assert [method.method for method in done.methods] == ["local", "ditto"]
    assert [method.trials for method in done.methods] == [5, 5]  # the same budget
    for method in done.methods:
        assert method.tuned_validation >= method.default_validation
        folder = done.folder / method.method
        trials = read_trials(folder)
        assert trials[0].settings == method.default
        assert method.tuned == best_trial(trials).settings
        assert not list(folder.glob("trial-*"))
    assert set(done.methods[0].default) == {"lr"}  # it has no hyper-parameters
    # The test is a run with the settings found, on the whole training set.
    ditto = done.methods[1]
    config = read_config(done.folder / "ditto" / "config.toml")
    assert config.federation.validation_share == 0
    assert config.methods["ditto"].mu == ditto.tuned["mu"]  # type: ignore[attr-defined]
    assert config.training.lr == ditto.tuned["lr"]
    again = pfedfda.run(
        config.methods["ditto"], FEDERATION, lr=config.training.lr, output=tmp_path / "again",
        **SETTINGS,
    )  # fmt: skip
    assert again.mean_accuracy == ditto.tuned_test
    first = tune(["ditto"], FEDERATION, trials=1, output=tmp_path / "one", **SETTINGS)
    assert first.methods[0].tuned == first.methods[0].default


def test_trials_see_validation_samples_and_never_test_samples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shares = []
    real = tuning_module.run_rounds

    def noting(method: Any, config: Any, engine: Any, folder: Path, observer: Any) -> Any:
        shares.append((folder.name, config.federation.validation_share))
        return real(method, config, engine, folder, observer)

    monkeypatch.setattr(tuning_module, "run_rounds", noting)
    tune(["local"], FEDERATION, trials=3, output=tmp_path, **SETTINGS)
    assert shares[:3] == [(f"trial-{n}", 0.2) for n in range(3)]
    assert {share for name, share in shares[3:]} == {0.0}
    assert {name for name, _ in shares[3:]} <= {"test-default", "test-tuned"}


def test_interrupted_it_goes_on_to_the_same_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = SETTINGS | {"checkpoint_every": 2}
    whole = tune(["local", "ditto"], FEDERATION, 5, output=tmp_path / "whole", **settings)
    with interrupted_ditto(monkeypatch), pytest.raises(RunStoppedError, match="tune --resume"):
        tune(["local", "ditto"], FEDERATION, 5, output=tmp_path, **settings)
    folder = tmp_path / "digits-tune"
    assert len(read_trials(folder / "local")) == 5
    assert (folder / "ditto" / "trial-0" / "checkpoint").is_dir()
    words = ["tune", "--resume", str(folder), "--workers", "0", "--quiet"]
    assert main([*words, "--space", "lr=0.1,0.2"]) == 2
    assert "keeps its space" in capsys.readouterr().err
    assert main(words) == 0
    assert content(folder) == content(whole.folder)
    assert (folder / "search.svg").exists()


@pytest.mark.parametrize("trials", [1, 3])
def test_the_same_command_goes_on_wherever_it_was_killed(
    trials: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kill leaves the lines of the trials that have ended, and the files of the next one."""
    whole = tune(["ditto"], FEDERATION, 5, output=tmp_path / "whole", **SETTINGS)
    real = MethodSearch._try
    calls = []

    def killed(self: MethodSearch, number: int, *rest: Any) -> Trial:
        calls.append(number)
        if number == trials:
            raise SystemExit
        return real(self, number, *rest)

    with monkeypatch.context() as patched:
        patched.setattr(MethodSearch, "_try", killed)
        with pytest.raises(SystemExit):
            tune(["ditto"], FEDERATION, 5, output=tmp_path, **SETTINGS)
    torn = tmp_path / "digits-tune" / "ditto" / f"trial-{trials}"
    torn.mkdir()
    (torn / "metrics.jsonl").write_text('{"round": 2, "mean_acc')
    again = tune(["ditto"], FEDERATION, 5, output=tmp_path, **SETTINGS)
    assert again.folder == tmp_path / "digits-tune"
    assert content(again.folder) == content(whole.folder)


def test_what_is_known_of_a_killed_trial_counts(tmp_path: Path) -> None:
    """Rounds that were evaluated before the kill are in its line, and stop it if they would."""
    config = make_config({"ditto": find_method("ditto")()}, FEDERATION, **_without_quiet())
    search = MethodSearch(plan_search(config, 9, {}), "ditto", tmp_path)
    search.trials = [
        Trial(n, {"lr": 0.01 + n / 1000, "mu": 1.0}, "complete", {2: 0.8, 4: 0.9}) for n in range(6)
    ]
    folder = tmp_path / "trial-6"
    folder.mkdir()
    lines = [{"round": 2, "mean_accuracy": 0.85}, {"round": 4, "mean_accuracy": 0.2}]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    ran = []
    settings, pruning = search._next(6)
    trial = search._try(6, settings, pruning, folder, lambda *words: ran.append(words))  # type: ignore[arg-type, return-value]
    assert trial.status == "pruned"
    assert trial.accuracies == {2: 0.85, 4: 0.2}
    assert not ran


def _without_quiet() -> dict[str, Any]:
    return {name: value for name, value in SETTINGS.items() if name != "quiet"}


def test_a_trial_that_diverges_is_the_worst(tmp_path: Path) -> None:
    space = {"lr": "0.01,1e30"}
    done = tune(["fedavg"], FEDERATION, 6, space=space, output=tmp_path, **SETTINGS)
    (method,) = done.methods
    assert method.diverged
    assert method.tuned["lr"] == 0.01
    rows = list(csv.DictReader((done.folder / "tuning.csv").read_text().splitlines()))
    assert int(rows[0]["diverged"]) == method.diverged


def test_a_default_outside_of_the_space_is_still_compared(tmp_path: Path) -> None:
    space = {"lr": "0.05:0.1"}
    done = tune(["local"], FEDERATION, 3, space=space, output=tmp_path, **SETTINGS)
    trials = read_trials(done.folder / "local")
    assert trials[0].settings["lr"] == 0.01
    assert all(0.05 <= trial.settings["lr"] <= 0.1 for trial in trials[1:])


def test_more_trials_begin_like_fewer(tmp_path: Path) -> None:
    few = tune(["fedavg-ft"], FEDERATION, 3, output=tmp_path / "few", **SETTINGS)
    more = tune(["fedavg-ft"], FEDERATION, 5, output=tmp_path / "more", **SETTINGS)
    first, second = (read_trials(t.folder / "fedavg-ft") for t in (few, more))
    assert second[:3] == first
    assert all(type(trial.settings["fine_tune_epochs"]) is int for trial in second)


def test_spaces() -> None:
    assert parse_space("0.1:1:log") == Search(0.1, 1, log=True)
    assert parse_space("1:10") == Search(1, 10)
    assert parse_space("a,2,true") == Choices("a", 2, True)
    for space in (Search(0.1, 1, log=True), Search(1, 10), Choices("a", 2, True), Choices(0.5)):
        assert parse_space(str(space)) == space

    with pytest.raises(InputError, match="must be finite"):
        Search(0.0, float("inf"))


def test_files_of_trials_from_outside_are_refused_in_a_sentence(tmp_path: Path) -> None:
    write_trials(tmp_path, [Trial(0, {"lr": 0.1}, "complete", {2: 0.5})])
    assert read_trials(tmp_path) == [Trial(0, {"lr": 0.1}, "complete", {2: 0.5})]
    good = (tmp_path / "trials.jsonl").read_text()
    for bad in ("[]", "nothing", good.replace("complete", "odd"), good.replace("0.5", '"x"'),
                good.replace('"number": 0', '"number": 7'), good.replace("{", "[")):  # fmt: skip
        (tmp_path / "trials.jsonl").write_text(bad)
        with pytest.raises(InputError):
            read_trials(tmp_path)


def test_every_method_is_told_by_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["tune", "local", "--trials", "2", "--clients", "4", "--train-fraction", "0.05"]
    words += ["--rounds", "1", "--workers", "0", "--output", str(tmp_path)]
    assert main(words) == 0
    printed = capsys.readouterr()
    assert "Local, trial 2 of 2: lr" in printed.err
    assert "validation" in printed.out
    assert printed.out.splitlines()[-1] == str(tmp_path / "digits-tune")
    assert isinstance(find_method("local")(), Method)
