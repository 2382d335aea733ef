"""Noise in shares over messages: what sites are told, refuse and send."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from pfedfda import InputError

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'pfedfda[flower]'")
pytest.importorskip("opacus", reason="opacus is not installed: pip install 'pfedfda[privacy]'")

from pfedfda.flower import secure_round
from pfedfda.flower.app_settings import read_run_config
from pfedfda.flower.secure_messages import STATE, read_noise, with_state, without_state
from pfedfda.flower.wire import MalformedError, tensors_of
from pfedfda.runs.config import read_config
from tests.experiment.files import final_state
from tests.flower.test_secure import Told, go, make_grid
from tests.methods.toy import same

PRIVATE: dict[str, Any] = {"method": "fedncm", "rounds": 1, "dp_epsilon": 20.0}


def test_by_default_nobody_can_repeat_the_noise(tmp_path: Path) -> None:
    states = []
    for name in ("one", "two"):
        told, grid = Told(), make_grid(tmp_path / name)
        result = go(grid, tmp_path / name, told, **PRIVATE)
        assert read_config(result.folder / "config.toml").aggregation.dp_randomness == "system"
        assert result.summary["privacy"]["participation"] == 1
        assert not any("this is a trial" in line for line in told.lines)
        states.append(final_state(result.folder))
        for message in grid.sent_up:
            if message.metadata.message_type == "train":
                assert set(message.content) == {"arrays"}
                assert set(tensors_of(message.content)) == {"masked"}
    assert not same(*states)


def test_noise_from_the_seed_is_called_a_trial(tmp_path: Path) -> None:
    told = Told()
    go(make_grid(tmp_path), tmp_path, told, **PRIVATE, **{"dp-randomness": "seed"})
    assert any("this is a trial" in line for line in told.lines)


def test_without_masks_the_noise_is_always_secret(tmp_path: Path) -> None:
    changes = PRIVATE | {"secure_aggregation": False, "dp-randomness": "seed"}
    result = go(make_grid(tmp_path), tmp_path, **changes)
    assert read_config(result.folder / "config.toml").aggregation.dp_randomness == "system"


def test_a_run_without_a_promise_has_no_such_setting() -> None:
    aggregation = read_run_config({"secure-aggregation": True}).config.aggregation
    assert aggregation.dp_randomness == "seed"


@pytest.mark.parametrize("noise", [0.0, -1.0, float("nan"), float("inf"), None, "1.0", [1.0]])
def test_a_site_refuses_noise_that_promises_nothing(noise: Any) -> None:
    assert read_noise({"secure.noise": 0.7}) == 0.7
    with pytest.raises(MalformedError, match="The noise of the round is"):
        read_noise({} if noise is None else {"secure.noise": noise})


def test_sites_that_are_told_no_noise_contribute_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = secure_round.summation_settings

    def without_noise(*args: Any) -> dict[str, Any]:
        return {name: value for name, value in settings(*args).items() if name != "secure.noise"}

    monkeypatch.setattr(secure_round, "summation_settings", without_noise)
    grid = make_grid(tmp_path)
    with pytest.raises(Exception, match="Every round was abandoned|No client could be trained"):
        go(grid, tmp_path, **PRIVATE)
    lines = (tmp_path / "run" / "failures.jsonl").read_text().splitlines()
    assert len(lines) == 4
    assert all("The noise of the round is None" in json.loads(line)["reason"] for line in lines)
    assert not any(
        "arrays" in m.content for m in grid.sent_up if m.metadata.message_type == "train"
    )


def test_the_state_arrives_whole_and_the_message_as_it_was() -> None:
    state = {"a": torch.ones(2), "b": torch.arange(3), "c": torch.zeros(1)}
    message = {"a": state["a"], "c": torch.ones(1), "other": torch.ones(4)}
    sent = with_state(message, state)
    found, known = without_state(sent, {STATE: list(state)})
    assert same(found, message)
    assert list(known) == list(state)
    assert same(known, state)
    # Nothing is added where the message says it all.
    assert with_state(state, state).keys() == state.keys()
    assert without_state(message, {}) == (message, {})


@pytest.mark.parametrize("names", [["a", "gone"], 3, [["a"]]])
def test_a_state_that_cannot_be_read_is_refused(names: Any) -> None:
    with pytest.raises(MalformedError, match="The server's state cannot be read"):
        without_state({"a": torch.ones(1)}, {STATE: names})


def test_what_cannot_work_is_refused_before_a_site_is_asked_to_train(tmp_path: Path) -> None:
    grid = make_grid(tmp_path)
    with pytest.raises(InputError, match="looks at the update of each client"):
        go(grid, tmp_path, **PRIVATE | {"method": "fedpac"})
    assert {kind for _, kind in grid.asked} <= {"query"}
