"""The script behind docs/robust.md."""

import math
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from experiments import attacks
from experiments.attacks import (
    Cell,
    LyingEngine,
    draw_liars,
    flip_labels,
    honest_accuracy,
    made_covariance,
    measure,
    read,
    write,
)

from pfedfda import run
from pfedfda.data import Federation, FederationConfig
from pfedfda.engine import Step
from pfedfda.gaussian import is_positive_semidefinite, pack_symmetric, unpack_symmetric
from pfedfda.methods import Tensors, Update, find_method
from pfedfda.runs import ClientStates, Outcome
from tests.methods.toy import TASK


class Telling:
    """An engine whose clients send what they were told to."""

    task = TASK

    def __init__(self, federation: Federation, sent: list[Tensors]) -> None:
        self.federation = federation
        self.sent = sent

    def run(self, step: Step, state: Tensors, client_ids: object):
        for number, tensors in enumerate(self.sent):
            yield Outcome(number, update=Update(tensors, 3.0, {"train_loss": 1.0}, number))

    def close(self) -> None:
        pass


def lies(tiny: Federation, tmp_path: Path, attack: str, sent: list[Tensors], state: Tensors):
    engine = LyingEngine(Telling(tiny, sent), frozenset({0}), attack)
    method = find_method("pfedfda")()
    step = Step("train", method, 1, ClientStates(tmp_path))
    return [outcome.update for outcome in engine.run(step, state, range(len(sent)))]


def test_liars_say_what_the_attack_says_and_others_what_they_did(
    tiny: Federation, tmp_path: Path
) -> None:
    state = {"body.w": torch.full((4,), 2.0)}
    sent = [
        {"body.w": torch.full((4,), value), "counts": torch.ones(2)} for value in (3.0, 5.0, 9.0)
    ]
    said = {}
    for attack in (*attacks.ATTACKS, "none"):
        updates = lies(tiny, tmp_path, attack, sent, state)
        assert [u.tensors["body.w"].tolist() for u in updates[1:]] == [[5.0] * 4, [9.0] * 4]
        assert all(u.tensors["counts"].tolist() == [1.0, 1.0] for u in updates)
        assert all(u.weight == 3.0 for u in updates)
        said[attack] = updates[0].tensors["body.w"]
    assert said["sign flip x10"].tolist() == [-8.0] * 4  # 2 - 10 (3 - 2)
    assert said["a little is enough"].tolist() == [7.0 - 1.5 * 2.0] * 4
    assert said["label flip"].tolist() == said["none"].tolist() == [3.0] * 4  # on disk, not here
    noise = said["noise x10"] - 3.0
    assert 2 < float(noise.abs().max()) < 60


def test_lying_covariances_pass_the_check(tiny: Federation, tmp_path: Path) -> None:
    state = {"covariance": pack_symmetric(torch.eye(3))}
    sent = [{"covariance": pack_symmetric(4 * torch.eye(3) + 1)} for _ in range(3)]
    for attack in attacks.ATTACKS:
        updates = lies(tiny, tmp_path, attack, sent, state)
        assert is_positive_semidefinite(unpack_symmetric(updates[0].tensors["covariance"]))
    same = pack_symmetric(4 * torch.eye(3) + 1)
    torch.testing.assert_close(made_covariance(same), same)


def test_liars_turn_their_training_labels_round_and_nothing_else(
    tiny: Federation, tmp_path: Path
) -> None:
    shutil.copytree(tiny.folder, tmp_path / "copy")
    flip_labels(Federation(tmp_path / "copy"), frozenset({1, 4}))
    flipped = Federation(tmp_path / "copy")
    for client in range(len(tiny)):
        before, after = tiny.client(client), flipped.client(client)
        turned = len(tiny.class_names) - 1 - np.asarray(before.train_labels)
        expected = turned if client in (1, 4) else before.train_labels
        assert np.array_equal(after.train_labels, expected)
        assert np.array_equal(after.test_labels, before.test_labels)


def test_who_lies_at_a_larger_share_includes_who_lies_at_a_smaller() -> None:
    assert draw_liars(20, 0.1, 0) < draw_liars(20, 0.2, 0)
    assert len(draw_liars(20, 0.2, 0)) == 4
    assert draw_liars(20, 0.0, 0) == frozenset()
    assert draw_liars(20, 0.2, 0) != draw_liars(20, 0.2, 1)


@pytest.mark.parametrize("attack", ["sign flip x10", "label flip"])
def test_a_cell_is_a_run_and_a_median_withstands(
    attack: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same engine without liars gives what a run gives; with them, the sum suffers more."""
    name = "digits, α = 1"
    small = attacks.FEDERATIONS[name] | {"clients": 10, "train_fraction": 0.3, "rounds": 3}
    monkeypatch.setitem(attacks.FEDERATIONS, name, small)
    found = {}
    for rule, liars in (("sum", 0.0), ("sum", 0.2), ("median", 0.2)):
        folder = tmp_path / f"{rule}-{liars}"
        folder.mkdir()
        cell = Cell(name, "fedavg", attack if liars else "none", liars, rule, 0)
        found[rule, liars] = measure(cell, 0, folder).accuracy
    if attack == "sign flip x10":
        assert not found["sum", 0.2] >= found["sum", 0.0] - 0.2
        assert found["median", 0.2] > 0.2 + np.nan_to_num(found["sum", 0.2])
    assert found["sum", 0.0] > 0.5


def test_accuracies_are_those_of_the_honest(tiny_config: FederationConfig, tmp_path: Path) -> None:
    result = run("local", tiny_config, rounds=1, workers=0, output=tmp_path, quiet=True)
    own = [row.accuracy for row in result.clients]
    assert honest_accuracy(result, frozenset({0, 4})) == np.mean([*own[1:4], own[5]])
    assert honest_accuracy(result, frozenset(range(5))) == own[5] != np.mean(own)


def test_rows_are_read_as_they_were_written(tmp_path: Path) -> None:
    cells = {
        Cell("digits, α = 1", "fedavg", "none", 0.0, "sum", 0): attacks.Found(0.5, 0),
        Cell("cifar10-s", "pfedfda", "label flip", 0.2, "median", 1): attacks.Found(math.nan, 3),
    }
    write(tmp_path / "table.csv", cells)
    back = read(tmp_path / "table.csv")
    assert list(back) == list(cells)
    assert [found.refused for found in back.values()] == [0, 3]
    first, second = (found.accuracy for found in back.values())
    assert first == 0.5
    assert math.isnan(second)
    assert read(tmp_path / "none.csv") == {}
