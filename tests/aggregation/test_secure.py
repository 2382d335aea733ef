"""Secure aggregation as one machine simulates it."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from pfedfda import FederationConfig, InputError, RunResult, RunStoppedError, resume, run
from pfedfda.aggregation import SecureSum, choose_aggregation
from pfedfda.aggregation.secure import threshold
from pfedfda.experiment import rounds
from pfedfda.methods import Client, Tensors, Update, all_methods, find_method, registry
from pfedfda.methods.ditto import Ditto
from pfedfda.methods.fedavg import FedAvg
from pfedfda.runs.config import make_config, read_config, write_config
from tests.experiment.files import comparable_files, final_state
from tests.methods.toy import same

FEDERATION = FederationConfig(partition="client-dirichlet", clients=6, samples=20, alpha=5.0)
SETTINGS: dict[str, Any] = {
    "rounds": 3,
    "participation": 0.8,
    "epochs": 1,
    "batch_size": 10,
    "eval_every": 1,
    "workers": 0,
    "quiet": True,
}
SECURE = SETTINGS | {"secure_aggregation": True}


@dataclass(frozen=True)
class Fails(FedAvg):
    """FedAvg with clients that fail in the second round, and one that sends too much."""

    name: ClassVar[str] = "fails"
    fails: int = 0
    exceeds: int = -1

    def train(self, client: Client, message: Tensors) -> Update:
        if client.round == 2 and client.client_id < self.fails:
            raise ValueError("no power")
        update = super().train(client, message)
        if client.client_id != self.exceeds:
            return update
        spoiled = {name: tensor.clone() for name, tensor in update.tensors.items()}
        spoiled["head.bias"][0] = 9e5  # within max-update-norm, and far from what is in the state
        return Update(spoiled, update.weight, update.metrics)


def failures(result: RunResult) -> list[dict[str, Any]]:
    text = (result.folder / "failures.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


def test_results_are_those_of_a_plain_run_but_for_rounding(tmp_path: Path) -> None:
    plain = run("pfedfda", FEDERATION, output=tmp_path / "plain", **SETTINGS)
    secure = run("pfedfda", FEDERATION, output=tmp_path / "secure", **SECURE)
    states = [final_state(result.folder) for result in (plain, secure)]
    assert not same(*states)  # it did something
    for name, tensor in states[0].items():
        torch.testing.assert_close(states[1][name], tensor, rtol=1e-4, atol=1e-6)
    losses = [[line["train_loss"] for line in result.metrics] for result in (plain, secure)]
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)
    assert "secure" not in (plain.folder / "config.toml").read_text()
    assert "abandoned_rounds" not in secure.summary


def test_a_sum_of_whole_numbers_is_the_same_whoever_computes_it(tmp_path: Path) -> None:
    results = [
        run("ditto", FEDERATION, output=tmp_path, name=str(w), **SECURE | {"workers": w})
        for w in (0, 1, 3)
    ]
    first, *others = (comparable_files(result.folder) for result in results)
    assert len(first) > 5
    assert all(other == first for other in others)


def test_a_run_that_was_stopped_ends_as_if_it_had_not_been(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "_registry", {**all_methods(), "fails": Fails})
    method = Fails(fails=5)
    settings = SECURE | {"checkpoint_every": 1, "max_failures": 1.0, "participation": 1.0}
    whole = run(method, FEDERATION, output=tmp_path, name="whole", **settings)
    assert whole.summary["abandoned_rounds"] == [2]
    draw = rounds.draw_participants

    def interrupt(*args: Any) -> list[int]:
        if args[3] == 3:
            raise KeyboardInterrupt
        return draw(*args)

    with monkeypatch.context() as patched:
        patched.setattr(rounds, "draw_participants", interrupt)
        with pytest.raises(RunStoppedError):
            run(method, FEDERATION, output=tmp_path, name="parts", **settings)
    again = resume(tmp_path / "parts", quiet=True)
    assert comparable_files(again.folder) == comparable_files(whole.folder)


@pytest.mark.parametrize(("failing", "abandoned"), [(2, False), (3, True)])
def test_failures_up_to_the_threshold_cost_no_round(
    failing: int, abandoned: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of six clients two thirds are four."""
    settings = SECURE | {"participation": 1.0, "max_failures": 1.0, "quiet": False}
    result = run(Fails(fails=failing), FEDERATION, output=tmp_path, **settings)
    assert result.summary.get("abandoned_rounds") == ([2] if abandoned else None)
    assert {(line["round"], line["client"]) for line in failures(result)} == {
        (2, client) for client in range(failing)
    }
    printed = " ".join("".join(capsys.readouterr()).split())
    said = "round 2 is abandoned: 3 of 6 clients contributed, and secure-threshold needs 4"
    assert (said in printed) == abandoned


def test_an_abandoned_round_changes_nothing(tmp_path: Path) -> None:
    settings = SECURE | {"participation": 1.0, "max_failures": 1.0, "checkpoint_every": 1}
    one = run(Fails(), FEDERATION, output=tmp_path, name="one", **settings | {"rounds": 1})
    two = run(Fails(fails=6), FEDERATION, output=tmp_path, name="two", **settings | {"rounds": 2})
    assert two.summary["abandoned_rounds"] == [2]
    assert same(final_state(one.folder), final_state(two.folder))


def test_a_contribution_beyond_its_range_is_left_out_and_named(tmp_path: Path) -> None:
    """It is not clipped: the sum is that of the others, to the bit."""
    settings = SECURE | {"participation": 1.0, "max_failures": 1.0, "rounds": 1}
    exceeding = run(Fails(exceeds=2), FEDERATION, output=tmp_path, name="exceeds", **settings)
    (line,) = failures(exceeding)
    assert line["client"] == 2
    assert "its contribution to head.bias reaches" in line["reason"]
    assert "beyond the range of" in line["reason"]
    # In the plain sum the same update counts.
    plain = run(
        Fails(exceeds=2),
        FEDERATION,
        output=tmp_path,
        name="plain",
        **settings | {"secure_aggregation": False},
    )
    assert float(final_state(plain.folder)["head.bias"][0]) > 1e4
    assert float(final_state(exceeding.folder)["head.bias"].abs().max()) < 10


def test_a_round_of_two_clients_is_abandoned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = rounds.draw_participants
    monkeypatch.setattr(
        rounds,
        "draw_participants",
        lambda *args: [0, 1] if args[3] == 2 else draw(*args),
    )
    result = run("fedavg", FEDERATION, output=tmp_path, **SECURE)
    assert result.summary["abandoned_rounds"] == [2]


def test_a_run_without_any_sum_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "draw_participants", lambda *args: [0, 1])
    with pytest.raises(RunStoppedError, match="Every round was abandoned"):
        run("fedavg", FEDERATION, output=tmp_path, **SECURE)


NOT_ADDITIVE = sorted(name for name, method in all_methods().items() if not method.additive)


@pytest.mark.parametrize("method", NOT_ADDITIVE)
def test_methods_that_see_single_updates_are_refused_at_the_door(
    method: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match="looks at the update of each client"):
        run(method, FEDERATION, output=tmp_path / "runs", **SECURE)
    assert not (tmp_path / "runs").exists()
    instance = find_method(method)()
    config = make_config({method: instance}, secure_aggregation=True)
    with pytest.raises(InputError, match="looks at the update of each client"):
        choose_aggregation(config, instance)


def test_there_are_methods_to_refuse() -> None:
    assert {"fedpac", "fedcof"} <= set(NOT_ADDITIVE)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"clients": 2}, "2 clients are trained; secure aggregation needs at least 3"),
        ({"participation": 0.4}, "2.4 of 6 clients take part in a round on average"),
        ({"new_clients": 0.7}, "2 clients are trained"),
        ({"secure_threshold": 0.5}, "secure-threshold is 0.5; it must be above 0.5"),
        ({"secure_threshold": 1.1}, "secure-threshold is 1.1; it must be above 0.5"),
        ({"max_update_norm": 1e13}, "must be at most 5.5e[+]11, or numbers would be too coarse"),
    ],
)
def test_what_cannot_work_is_refused_before_anybody_trains(
    changes: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=sentence):
        run("fedavg", FEDERATION, output=tmp_path / "runs", **SECURE | changes)
    assert not (tmp_path / "runs").exists()


def test_the_settings_are_kept(tmp_path: Path) -> None:
    config = make_config({"ditto": Ditto()}, secure_aggregation=True, secure_threshold=0.9)
    (tmp_path / "config.toml").write_text(write_config(config))
    again = read_config(tmp_path / "config.toml")
    assert again.aggregation == config.aggregation
    assert isinstance(choose_aggregation(again, Ditto()), SecureSum)


@pytest.mark.parametrize(
    ("share", "asked", "needed"),
    [(2 / 3, 3, 2), (2 / 3, 4, 3), (2 / 3, 6, 4), (2 / 3, 9, 6), (0.55, 20, 11), (1.0, 7, 7)],
)
def test_thresholds_are_whole_clients(share: float, asked: int, needed: int) -> None:
    assert threshold(share, asked) == needed
    assert 2 * needed > asked
