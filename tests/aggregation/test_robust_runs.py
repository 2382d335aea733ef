"""Whole runs with rules that let some clients lie."""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from pfedfda import (
    FederationConfig,
    InputError,
    RunStoppedError,
    all_methods,
    compare,
    resume,
    run,
)
from pfedfda.cli import main
from pfedfda.methods import Client, Method, Tensors, Update
from pfedfda.methods.fedavg import FedAvg
from pfedfda.runs.config import make_config, read_config
from tests.experiment.files import comparable_files, final_state
from tests.methods.toy import same

RULES = ("median", "trimmed-mean", "multi-krum", "clipped")
SETTINGS: dict[str, Any] = {
    "rounds": 2,
    "participation": 1.0,
    "eval_every": 0,
    "epochs": 1,
    "batch_size": 4,
    "workers": 0,
    "quiet": True,
    "assumed_liars": 0.16,  # one of the six clients
}
ADDITIVE = [name for name, method in all_methods().items() if method.additive]


@pytest.mark.parametrize("name", ADDITIVE)
def test_every_method_that_is_a_sum_runs_with_every_rule(
    name: str, tiny_config: FederationConfig, tmp_path: Path
) -> None:
    for rule in RULES:
        result = run(name, tiny_config, aggregation=rule, output=tmp_path / rule, **SETTINGS)
        assert result.summary["status"] == "complete"
        assert result.summary["aggregation"] == rule
        assert all(bool(torch.isfinite(t).all()) for t in final_state(result.folder).values())


@dataclass(frozen=True)
class Stopping(FedAvg):
    """FedAvg that the user interrupts in the third round, the first time."""

    name: ClassVar[str] = "stopping"
    stops: ClassVar[bool] = True

    def train(self, client: Client, message: Tensors) -> Update:
        if client.round == 3 and self.stops:
            raise KeyboardInterrupt
        return super().train(client, message)


@pytest.mark.parametrize("rule", RULES)
def test_resumed_or_with_workers_the_bytes_are_the_same(
    rule: str,
    tiny_config: FederationConfig,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from pfedfda.methods import register

    register(Stopping)
    settings = SETTINGS | {"rounds": 4, "participation": 0.9, "aggregation": rule}
    with pytest.raises(RunStoppedError) as stopped:
        run(Stopping(), tiny_config, output=tmp_path / "one", name="run", **settings)
    assert "To go on" in str(stopped.value)
    monkeypatch.setattr(Stopping, "stops", False)
    whole = run(Stopping(), tiny_config, output=tmp_path / "two", name="run", **settings)
    resumed = resume(tmp_path / "one" / "run", workers=0, quiet=True)
    settings["workers"] = 2
    workers = run(Stopping(), tiny_config, output=tmp_path / "three", name="run", **settings)
    assert comparable_files(resumed.folder) == comparable_files(whole.folder)
    assert comparable_files(workers.folder) == comparable_files(whole.folder)


@dataclass(frozen=True)
class Lying(FedAvg):
    """FedAvg in which one client sends what is not a number, and one what is far off."""

    name: ClassVar[str] = "lying"

    def train(self, client: Client, message: Tensors) -> Update:
        update = super().train(client, message)
        value = {1: float("nan"), 4: 1e3}.get(client.client_id)
        if value is None:
            return update
        return replace(
            update, tensors={n: torch.full_like(t, value) for n, t in update.tensors.items()}
        )


@pytest.mark.parametrize("rule", RULES)
def test_what_is_no_number_is_left_out_and_named_as_ever(rule: str, tmp_path: Path) -> None:
    federation = FederationConfig(partition="client-dirichlet", clients=8, samples=8, alpha=5.0)
    settings = SETTINGS | {"aggregation": rule}
    result = run(Lying(), federation, output=tmp_path, name="run", **settings)
    lines = (result.folder / "failures.jsonl").read_text().splitlines()
    failures = [json.loads(line) for line in lines]
    assert [failure["client"] for failure in failures] == [1, 1]
    assert all("not finite" in failure["reason"] for failure in failures)
    # The other liar is somewhere in the federation, and nowhere in the model.
    assert all(float(t.abs().max()) < 5 for t in final_state(result.folder).values())
    plain = run(Lying(), federation, output=tmp_path, name="sum", **SETTINGS)
    assert max(float(t.abs().max()) for t in final_state(plain.folder).values()) > 20


def test_without_the_option_a_run_is_what_it_was(
    tiny_config: FederationConfig, tmp_path: Path
) -> None:
    settings = {name: value for name, value in SETTINGS.items() if name != "assumed_liars"}
    plain = run("pfedfda", tiny_config, output=tmp_path, name="plain", **settings)
    asked = run("pfedfda", tiny_config, output=tmp_path, name="sum", aggregation="sum", **settings)
    assert comparable_files(plain.folder) == comparable_files(asked.folder)
    assert "aggregation" not in (plain.folder / "config.toml").read_text()
    assert "aggregation" not in plain.summary
    median = run("pfedfda", tiny_config, output=tmp_path, aggregation="median", **settings)
    assert not same(final_state(median.folder), final_state(plain.folder))
    assert read_config(median.folder / "config.toml").aggregation.aggregation == "median"


@pytest.mark.parametrize(
    ("method", "settings", "said"),
    [
        ("fedpac", {"aggregation": "median"}, r"FedPAC .* --aggregation median .*: use sum"),
        ("fedcof", {"aggregation": "clipped"}, r"FedCOF .* --aggregation clipped .*: use sum"),
        (
            "fedavg",
            {"aggregation": "multi-krum", "assumed_liars": 0.2},
            r"About 6 clients .* multi-krum needs 7: .* a smaller --assumed-liars\.$",
        ),
        (
            "fedavg",
            {"aggregation": "median", "participation": 0.3},
            r"About 1\.8 clients .* median needs 3: .* larger --participation\.$",
        ),
        ("fedavg", {"assumed_liars": 0.5}, r"assumed-liars is 0\.5; it must lie in \[0, 0\.5\)"),
        ("fedavg", {"clip_norm": 0.0}, r"clip-norm is 0\.0; it must be above 0\."),
        ("fedavg", {"aggregation": "mean"}, r"aggregation.* is 'mean'; it must be 'sum' or "),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(
    method: str,
    settings: dict[str, Any],
    said: str,
    tiny_config: FederationConfig,
    tmp_path: Path,
) -> None:
    with pytest.raises(InputError, match=said) as refused:
        run(method, tiny_config, output=tmp_path, **(SETTINGS | settings))
    assert "\n" not in str(refused.value)
    assert not list(tmp_path.iterdir())


def test_a_comparison_is_refused_before_its_first_run(
    tiny_config: FederationConfig, tmp_path: Path
) -> None:
    settings = SETTINGS | {"aggregation": "median"}
    with pytest.raises(InputError, match="FedPAC"):
        compare(["fedavg", "fedpac"], tiny_config, output=tmp_path, **settings)
    assert not list(tmp_path.iterdir())


def test_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = "run --method fedavg --clients 8 --rounds 1 --epochs 1 --participation 1 --quiet"
    more = "--aggregation trimmed-mean --assumed-liars 0.3 --train-fraction 0.1"
    assert main([*words.split(), *more.split(), "--output", str(tmp_path)]) == 0
    folder = Path(capsys.readouterr().out.strip())
    config = read_config(folder / "config.toml").aggregation
    assert (config.aggregation, config.assumed_liars) == ("trimmed-mean", 0.3)


def test_a_method_of_ones_own_needs_to_say_nothing(
    tiny_config: FederationConfig, tmp_path: Path
) -> None:
    """Whose contributions are tensors times weights."""

    class Own(FedAvg):
        name = "own"

    method: Method = Own()
    settings = SETTINGS | {"aggregation": "median"}
    own, known = (
        run(m, tiny_config, output=tmp_path, name=n, **settings)
        for n, m in (("own", method), ("known", "fedavg"))
    )
    assert same(final_state(own.folder), final_state(known.folder))
    assert make_config({"own": method}, aggregation="median").aggregation.assumed_liars == 0.2
