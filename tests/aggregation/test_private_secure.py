"""Noise in shares: clients add it, and the server sees the noisy sum alone."""

import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from pfedfda import FederationConfig, InputError, RunStoppedError, resume, run
from pfedfda.aggregation import AbandonedRoundError, OutOfRangeError, choose_aggregation
from pfedfda.aggregation import private_secure as module
from pfedfda.aggregation.private_secure import PrivateSecureSum, lacking
from pfedfda.aggregation.secure import LOSS, SUMMAND
from pfedfda.experiment import rounds
from pfedfda.methods import WEIGHT, Method, Tensors, Update, all_methods, dry_run
from pfedfda.methods.fedavg import FedAvg
from pfedfda.report import write_report
from pfedfda.runs.config import make_config
from tests.aggregation.test_private import (
    EVERY_ADDITIVE,
    LABELS,
    Numbers,
    norm,
    private,
    updates_of,
    without_limits,
)
from tests.experiment.files import comparable_files, final_state
from tests.methods.toy import TASK

BOTH: dict[str, Any] = {"secure_aggregation": True, "dp_epsilon": 8.0}
SETTINGS: dict[str, Any] = BOTH | {
    "rounds": 2,
    "epochs": 1,
    "batch_size": 4,
    "model": "linear",
    "participation": 0.8,
    "eval_every": 1,
    "quiet": True,
    "workers": 0,
}


def secured(method: Method, state: Tensors, clients: int, **settings: object) -> PrivateSecureSum:
    given = BOTH | {"rounds": 1, "participation": 1.0} | settings
    config = make_config({method.name: method}, **given)
    mechanism = choose_aggregation(config, method, clients)
    assert isinstance(mechanism, PrivateSecureSum)
    mechanism.prepare(clients, state, dry_run(method, TASK, state).up)
    return mechanism


def begin(mechanism: PrivateSecureSum, method: Method, state: Tensors, clients: int) -> None:
    sizes = np.full(clients, 6)
    mechanism.begin(method, state, dry_run(method, TASK, state).up, sizes)


def one_round(
    mechanism: PrivateSecureSum,
    method: Method,
    state: Tensors,
    updates: list[Update],
    number: int = 1,
    asked: int | None = None,
) -> Tensors:
    """Return the state after a round in which so many were asked and these arrived."""
    begin(mechanism, method, state, asked or len(updates))
    taken = [mechanism.take(method, update, number) for update in updates]
    return mechanism.aggregate(method, state, iter(taken), number)


class Watched(Numbers):
    """Notes what noise the server is told that there is."""

    told: ClassVar[list[float]] = []

    def private_total(
        self, state: Tensors, noisy: Tensors, clients: float, noise: float
    ) -> Tensors:
        self.told.append(noise)
        return super().private_total(state, noisy, clients, noise)


@pytest.mark.parametrize("randomness", ["seed", "system"])
@pytest.mark.parametrize("arrived", [4, 6])
def test_the_sum_has_the_promised_noise_and_never_less(randomness: str, arrived: int) -> None:
    """Of six clients four must arrive; what four add is what was promised, and six add more."""
    method, clip = Watched(), 0.5
    state = method.init(TASK)
    mechanism = secured(method, state, 6, dp_clip=clip, dp_randomness=randomness, rounds=40)
    told = mechanism.summary(40)["privacy"]
    promised = told["noise_multiplier"] * told["clip"]
    updates = [Update({"numbers": torch.ones(40, 50)}, 1.0, {}, n) for n in range(arrived)]
    sums = [
        one_round(mechanism, method, state, updates, number, asked=6)["numbers"]
        for number in range(1, 41)
    ]
    exact = arrived * clip / math.sqrt(2000)  # 2,000 ones each, shortened to the clip
    noise = (torch.stack(sums) - exact).flatten()
    deviation = promised * math.sqrt(arrived / 4)
    assert len(noise) == 80_000
    # The relative standard error of a deviation from n normal numbers is 1 / √2n.
    assert float(noise.std()) == pytest.approx(deviation, rel=4 / math.sqrt(2 * len(noise)))
    assert abs(float(noise.mean())) < 4 * deviation / math.sqrt(len(noise))
    assert Watched.told[-1] == pytest.approx(deviation)
    in_rounds = torch.stack(sums).flatten(1)
    assert float(torch.corrcoef(in_rounds[:2])[0, 1].abs()) < 0.1  # each round draws anew


def test_with_fewer_than_the_threshold_there_is_no_sum() -> None:
    method = Numbers()
    state = method.init(TASK)
    updates = [Update({"numbers": torch.ones(40, 50)}, 1.0, {}, n) for n in range(3)]
    with pytest.raises(AbandonedRoundError, match="3 of 6 clients contributed"):
        one_round(secured(method, state, 6), method, state, updates, asked=6)


def test_what_a_client_adds_is_noisy_by_itself_and_known_to_it_alone() -> None:
    """Noise of clients is independent, and so is that of one client in two rounds."""
    method = Numbers()
    state = method.init(TASK)
    mechanism = secured(method, state, 6, dp_clip=1.0)
    begin(mechanism, method, state, 6)
    assert mechanism.summation is not None
    assert mechanism.budget is not None

    def share(client: int, number: int) -> torch.Tensor:
        update = Update({"numbers": torch.zeros(40, 50)}, 1.0, {}, client)
        words = mechanism.take(method, update, number).tensors[SUMMAND]
        assert mechanism.summation is not None
        return mechanism.summation.fixed.decode(words)["numbers"].flatten()

    shares = torch.stack([share(0, 1), share(1, 1), share(0, 2)])
    assert torch.equal(shares[0], share(0, 1))
    correlations = torch.corrcoef(shares) - torch.eye(3)
    assert float(correlations.abs().max()) < 4 / math.sqrt(2000)
    deviation = mechanism.budget.noise_multiplier / 2  # of four that must arrive, each a share
    assert float(shares.std()) == pytest.approx(deviation, rel=4 / math.sqrt(2 * 6000))


@EVERY_ADDITIVE
def test_without_noise_and_limit_it_is_the_private_sum_without_them(name: str) -> None:
    """Which is the plain sum, as the tests of the private sum hold."""
    method = all_methods()[name]()
    state = method.init(TASK)
    updates = updates_of(method, state, LABELS)
    # A limit as low as can be makes units as fine as doubles are, which some solutions need.
    longest = max(norm(method.private_contribution(state, update)) for update in updates)
    mechanism = secured(method, state, 3, dp_clip=2 * longest + 1)
    assert mechanism.budget is not None
    mechanism.budget = replace(mechanism.budget, noise_multiplier=0.0)
    found = one_round(mechanism, method, state, updates)
    plain = without_limits(private(method, state)).aggregate(method, state, iter(updates), 1)
    assert found.keys() == plain.keys()
    for key, tensor in plain.items():
        torch.testing.assert_close(found[key], tensor, rtol=1e-4, atol=1e-5)


@EVERY_ADDITIVE
def test_nothing_is_summed_but_numbers_with_noise_and_how_many_there_are(name: str) -> None:
    method = all_methods()[name]()
    state = method.init(TASK)
    mechanism = secured(method, state, 3)
    begin(mechanism, method, state, 3)
    assert mechanism.summation is not None
    update = replace(updates_of(method, state, LABELS)[0], metrics={"train_loss": 3.0})
    first, second = (
        mechanism.summation.fixed.decode(mechanism.take(method, update, n).tensors[SUMMAND])
        for n in (1, 2)
    )
    assert LOSS not in first
    without_noise = {key for key in first if torch.equal(first[key], second[key])}
    assert without_noise == {WEIGHT}
    assert float(first[WEIGHT]) == 1


def test_masks_that_do_not_cancel_are_noticed() -> None:
    """Even of a method that sends nothing: the number of contributions must come out."""
    method = all_methods()["local"]()
    state = method.init(TASK)
    mechanism = secured(method, state, 3)
    begin(mechanism, method, state, 3)
    updates = updates_of(method, state, LABELS)
    taken = [mechanism.take(method, update, 1) for update in updates]
    assert mechanism.aggregate(method, state, iter(taken), 1) == {}
    for added in (2**20, -(2**20), 2**40, -(2**60)):
        begin(mechanism, method, state, 3)
        wrong = [
            *taken[:2],
            replace(taken[2], tensors={SUMMAND: taken[2].tensors[SUMMAND] + added}),
        ]
        with pytest.raises(AbandonedRoundError, match="masks do not cancel"):
            mechanism.aggregate(method, state, iter(wrong), 1)


def test_a_share_beyond_its_range_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """No honest client draws it in the lifetime of the world; nothing is clipped in silence."""
    method = Numbers()
    state = method.init(TASK)
    mechanism = secured(method, state, 6)
    begin(mechanism, method, state, 6)
    update = Update({"numbers": torch.zeros(40, 50)}, 1.0, {}, 0)
    for deviations, refused in ((39.0, False), (200.0, True)):
        monkeypatch.setattr(
            module,
            "noise_like",
            lambda like, deviation, draw, times=deviations: {
                name: torch.full(t.shape, times * deviation, dtype=torch.float64)
                for name, t in like.items()
            },
        )
        if refused:
            with pytest.raises(OutOfRangeError, match="its contribution to numbers reaches"):
                mechanism.take(method, update, 1)
        else:
            mechanism.take(method, update, 1)


def test_chance_is_not_counted_as_hiding_anybody() -> None:
    """An abandoned round tells that few took part."""
    method = FedAvg()
    state = method.init(TASK)
    some = secured(method, state, 50, rounds=20, participation=0.1)
    everybody = private(method, state, 50, rounds=20, participation=1.0)
    assert some.budget == everybody.budget
    assert not some.fills_empty_rounds


def test_what_a_message_lacks_of_the_state_is_found() -> None:
    state = {"a": torch.ones(2), "b": torch.ones(2), "c": torch.ones(2)}
    message = {"a": state["a"], "b": torch.zeros(2), "other": torch.ones(1)}
    assert lacking(message, state).keys() == {"b", "c"}
    assert lacking(dict(state), state) == {}


@pytest.mark.parametrize(
    ("method", "changes", "sentence"),
    [
        ("fedpac", {}, "looks at the update of each client"),
        ("fedcof", {}, "looks at the update of each client"),
        ("fedavg", {"clients": 2}, "2 clients are trained; secure aggregation needs"),
        ("fedavg", {"participation": 0.1}, "0.6 of 6 clients take part"),
        ("fedavg", {"aggregation": "median"}, "looks at single updates"),
        ("fedavg", {"dp_epsilon": 0.0}, "dp-epsilon is 0.0"),
    ],
)
def test_what_cannot_work_is_refused_before_anybody_trains(
    method: str,
    changes: dict[str, Any],
    sentence: str,
    tiny_config: FederationConfig,
    tmp_path: Path,
) -> None:
    with pytest.raises(InputError, match=sentence):
        run(method, tiny_config, output=tmp_path / "runs", **SETTINGS | changes)
    assert not (tmp_path / "runs").exists()


def test_only_who_counts_needs_the_accountant(monkeypatch: pytest.MonkeyPatch) -> None:
    """A site adds noise as it is told, without opacus."""
    monkeypatch.setitem(sys.modules, "opacus.accountants", None)
    method = FedAvg()
    config = make_config({"fedavg": method}, **BOTH)
    assert isinstance(choose_aggregation(config, method), PrivateSecureSum)
    with pytest.raises(InputError, match="dp-epsilon needs an accountant"):
        choose_aggregation(config, method, 6)


def test_workers_change_nothing(tiny_config: FederationConfig, tmp_path: Path) -> None:
    folders = [
        run("pfedfda", tiny_config, output=tmp_path / str(n), **SETTINGS | {"workers": n}).folder
        for n in (0, 2)
    ]
    assert comparable_files(folders[0]) == comparable_files(folders[1])


def test_without_noise_and_limit_a_run_is_the_plain_secure_run(
    tiny_config: FederationConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All clients have eight samples, so that each counts as one in both."""
    plain = run(
        "fedavg", tiny_config, output=tmp_path, name="plain", **SETTINGS | {"dp_epsilon": None}
    )
    monkeypatch.setattr("pfedfda.aggregation.private.noise_for", lambda *_: 0.0)
    monkeypatch.setattr("pfedfda.aggregation.private.spent", lambda *_: 0.0)
    bare = run("fedavg", tiny_config, output=tmp_path, name="bare", **SETTINGS | {"dp_clip": 1e4})
    expected = final_state(plain.folder)
    for name, tensor in final_state(bare.folder).items():
        torch.testing.assert_close(tensor, expected[name], rtol=1e-5, atol=1e-7)
    assert all(line["train_loss"] > 0 for line in plain.metrics)
    assert all(line["train_loss"] == 0 for line in bare.metrics)  # as without any loss


def test_the_budget_is_in_the_summary_and_on_the_page(
    tiny_config: FederationConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An abandoned round is counted like any other."""
    draw = rounds.draw_participants
    monkeypatch.setattr(
        rounds, "draw_participants", lambda *args: [0, 1] if args[3] == 1 else draw(*args)
    )
    result = run("fedavg", tiny_config, output=tmp_path, **SETTINGS)
    assert result.summary["abandoned_rounds"] == [1]
    told = result.summary["privacy"]
    assert 7.9 < told["epsilon"] <= told["epsilon_budget"] == 8
    assert told["participation"] == 1
    page = write_report([result.folder], tmp_path / "report").read_text()
    assert "Differential privacy" in page
    assert f"{told['noise_multiplier']:.4f}" in page


def test_a_stopped_run_goes_on_with_the_same_noise(
    tiny_config: FederationConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = run("fedavg", tiny_config, output=tmp_path, name="whole", **SETTINGS)
    draw = rounds.draw_participants

    def interrupt(*args: Any) -> list[int]:
        if args[3] == 2:
            raise KeyboardInterrupt
        return draw(*args)

    with monkeypatch.context() as patched:
        patched.setattr(rounds, "draw_participants", interrupt)
        for randomness in ("seed", "system"):
            settings = SETTINGS | {"dp_randomness": randomness, "name": randomness}
            with pytest.raises(RunStoppedError):
                run("fedavg", tiny_config, output=tmp_path, **settings)
    again = resume(tmp_path / "seed", quiet=True)
    assert comparable_files(again.folder) == comparable_files(whole.folder)
    with pytest.raises(InputError, match="secret noise cannot be resumed"):
        resume(tmp_path / "system", quiet=True)
