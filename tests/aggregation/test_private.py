"""Clipped contributions, and noise on their sum."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest
import torch
from scipy.stats import kstest
from torch import Tensor

from pfedfda.aggregation.private import (
    PrivateSum,
    clipped,
    noise_like,
    secure_draw,
    seeded_draw,
)
from pfedfda.errors import InputError
from pfedfda.gaussian import is_positive_semidefinite, unpack_symmetric
from pfedfda.methods import WEIGHT, Client, Method, Tensors, Update, all_methods, dry_run
from pfedfda.methods.fedavg import FedAvg
from pfedfda.methods.pfedfda import PFedFDA
from pfedfda.methods.private_moments import denoised
from pfedfda.runs.config import make_config
from tests.methods.toy import TASK, make_client

ADDITIVE = [name for name, method in all_methods().items() if method.additive]
EVERY_ADDITIVE = pytest.mark.parametrize("name", ADDITIVE)
LABELS = ([0, 1, 2, 0, 1, 3], [3, 3, 1, 2, 0, 2], [1, 1, 2, 2, 3, 0])  # all of one size


def updates_of(method: Method, state: Tensors, labels: Sequence[list[int]]) -> list[Update]:
    clients = [make_client(own, number) for number, own in enumerate(labels)]
    return [method.train(c, method.message(state, c.client_id)) for c in clients]


def private(method: Method, state: Tensors, clients: int = 3, **settings: object) -> PrivateSum:
    settings = {"dp_epsilon": 8.0, "rounds": 1} | settings
    mechanism = PrivateSum(make_config({method.name: method}, **settings), method)
    mechanism.prepare(clients, state, dry_run(method, TASK, state).up)
    return mechanism


def without_limits(mechanism: PrivateSum) -> PrivateSum:
    assert mechanism.budget is not None
    mechanism.budget = replace(mechanism.budget, clip=1e12, noise_multiplier=0.0)
    return mechanism


def norm(tensors: Tensors) -> float:
    return math.sqrt(sum(float(tensor.double().square().sum()) for tensor in tensors.values()))


def difference(first: Tensors, second: Tensors) -> Tensors:
    return {name: first[name] - second[name] for name in first}


@EVERY_ADDITIVE
def test_without_noise_and_limit_it_is_the_plain_sum(name: str) -> None:
    """If all clients have the same number of samples: in a private run each counts as one."""
    method = all_methods()[name]()
    state = method.init(TASK)
    updates = updates_of(method, state, LABELS)
    total: Tensors = {}
    noisy: Tensors = {}
    for update in updates:
        total = method.contribution(update, total)
        for key, tensor in method.private_contribution(state, update).items():
            noisy[key] = noisy.get(key, torch.zeros(())) + tensor
    ours = method.private_total(state, noisy, len(updates), 0.0)
    plain = method.finish(state, total)
    after = without_limits(private(method, state)).aggregate(method, state, iter(updates), 1)
    assert after.keys() == plain.keys()
    for key in plain:
        if key == "losses":  # they stay at home
            continue
        if key == "mass":  # old samples, of which only ratios matter
            after[key] *= plain[key].sum() / after[key].sum()
        if name == "fedcgs":  # the covariance is that of n - 1 samples, and n differs
            continue
        torch.testing.assert_close(after[key], plain[key], rtol=1e-4, atol=1e-5)
    if name == "fedcgs":
        for key in ("counts", "sums", "squares"):
            share = ours[key] / ours["counts"].sum()
            torch.testing.assert_close(share, total[key] / total["counts"].sum())


@EVERY_ADDITIVE
@pytest.mark.parametrize("clip", [0.01, 1.0, 30.0])
def test_one_client_more_or_less_moves_the_sum_by_at_most_the_clip(name: str, clip: float) -> None:
    method = all_methods()[name]()
    state = method.init(TASK)
    updates = updates_of(method, state, LABELS)
    # A client may send anything that passes the checks, and has any number of samples.
    wild = {n: 1e4 * t if t.is_floating_point() else t for n, t in updates[0].tensors.items()}
    updates.append(Update(wild, 1e6))

    def total_of(chosen: Sequence[Update]) -> Tensors:
        total: Tensors = {}
        for update in chosen:
            for key, tensor in clipped(method, state, update, clip).items():
                total[key] = total.get(key, torch.zeros((), dtype=torch.float64)) + tensor
        return total

    everybody = total_of(updates)
    for left_out in range(len(updates)):
        others = total_of([u for place, u in enumerate(updates) if place != left_out])
        assert norm(difference(everybody, others)) <= clip * (1 + 1e-9)


def test_what_is_short_is_not_shortened() -> None:
    method = FedAvg()
    state = method.init(TASK)
    update = Update({name: t + 1e-6 for name, t in state.items()}, 5)
    parts = method.private_contribution(state, update)
    kept = clipped(method, state, update, 1.0)
    assert all(torch.equal(kept[name], parts[name].double()) for name in parts)
    assert norm(clipped(method, state, update, norm(parts) / 2)) == pytest.approx(norm(parts) / 2)


def test_an_update_that_is_no_number_adds_nothing() -> None:
    method = FedAvg()
    state = method.init(TASK)
    update = Update({name: t + math.inf for name, t in state.items()}, 5)
    assert norm(clipped(method, state, update, 1.0)) == 0


@dataclass(frozen=True)
class Numbers(Method):
    """A method whose state is the noisy sum."""

    name: ClassVar[str] = "numbers"
    title: ClassVar[str] = "Numbers"
    paper: ClassVar[str] = "none"
    year: ClassVar[int] = 2026

    def init(self, task: object) -> Tensors:
        return {"numbers": torch.zeros(40, 50)}

    def message(self, state: Tensors, client_id: int) -> Tensors:
        return state

    def train(self, client: Client, message: Tensors) -> Update:
        return Update({"numbers": torch.ones(40, 50)}, 1.0)

    def personalize(self, client: Client, message: Tensors) -> None:  # type: ignore[override]
        raise NotImplementedError

    def finish(self, state: Tensors, total: Tensors) -> Tensors:
        return {"numbers": total["numbers"]}


@pytest.mark.parametrize("randomness", ["seed", "system"])
@pytest.mark.parametrize("clip", [0.5, 4.0])
def test_the_noise_has_the_stated_deviation(randomness: str, clip: float) -> None:
    method = Numbers()
    state = method.init(TASK)
    mechanism = private(method, state, dp_clip=clip, dp_randomness=randomness, rounds=40)
    told = mechanism.summary(40)["privacy"]
    deviation = told["noise_multiplier"] * told["clip"]
    update = method.train(make_client([0]), state)
    sums = [
        mechanism.aggregate(method, state, iter([update, update]), number)["numbers"]
        for number in range(1, 41)
    ]
    exact = 2 * clip / math.sqrt(2000)  # two clients of 2,000 ones each, shortened to the clip
    noise = (torch.stack(sums) - exact).flatten()
    assert len(noise) == 80_000
    # The relative standard error of a deviation from n normal numbers is 1 / √2n.
    assert float(noise.std()) == pytest.approx(deviation, rel=4 / math.sqrt(2 * len(noise)))
    assert abs(float(noise.mean())) < 4 * deviation / math.sqrt(len(noise))
    assert kstest((noise / deviation).numpy(), "norm").pvalue > 1e-4
    rounds = torch.stack(sums).flatten(1)
    assert float(torch.corrcoef(rounds[:2])[0, 1].abs()) < 0.1  # each round draws anew


def test_shares_of_the_noise_add_up_to_it() -> None:
    """k clients that each add a k-th of the variance make the noise of one server."""
    like, deviation, k = {"a": torch.zeros(100, 100), "b": torch.zeros(7)}, 3.0, 8
    parts = [
        noise_like(like, deviation / math.sqrt(k), seeded_draw("share", number))
        for number in range(k)
    ]
    summed = torch.stack([share["a"] for share in parts]).sum(0)
    assert float(summed.std()) == pytest.approx(deviation, rel=0.03)
    assert parts[0]["b"].shape == (7,)


def test_seeded_noise_repeats_and_secure_noise_does_not() -> None:
    shape = torch.Size([50])
    assert torch.equal(seeded_draw("x", 1)(shape), seeded_draw("x", 1)(shape))
    assert not torch.equal(seeded_draw("x", 1)(shape), seeded_draw("x", 2)(shape))
    assert not torch.equal(secure_draw(shape), secure_draw(shape))
    assert secure_draw(torch.Size([3, 4])).shape == (3, 4)
    assert bool(torch.isfinite(secure_draw(torch.Size([100_000]))).all())


@pytest.mark.parametrize("name", ["pfedfda", "pfedfda-paper", "pfedfda-levels"])
@pytest.mark.parametrize("epsilon", [0.1, 8.0])
def test_a_noisy_covariance_is_a_covariance(name: str, epsilon: float) -> None:
    method = all_methods()[name]()
    state = method.init(TASK)
    updates = updates_of(method, state, LABELS)
    after = private(method, state, dp_epsilon=epsilon).aggregate(method, state, iter(updates), 1)
    covariance = unpack_symmetric(after["covariance"])
    assert is_positive_semidefinite(covariance)
    assert torch.equal(covariance, covariance.T)
    assert all(bool(torch.isfinite(tensor).all()) for tensor in after.values())


def random_covariance(dimension: int) -> Tensor:
    factor = torch.from_numpy(np.random.default_rng(0).normal(size=(dimension, dimension // 4)))
    return factor @ factor.T


def test_a_covariance_without_noise_is_left_alone() -> None:
    covariance = random_covariance(20)
    torch.testing.assert_close(denoised(covariance, 0.0), covariance)


@pytest.mark.parametrize("noise", [0.3, 3.0, 30.0])
def test_the_repair_brings_a_noisy_covariance_nearer(noise: float) -> None:
    covariance, random = random_covariance(40), np.random.default_rng(1)
    before, after, flat = 0.0, 0.0, 0.0
    for _ in range(20):
        upper = torch.from_numpy(random.normal(size=(40, 40))).triu() * noise
        noisy = covariance + upper + upper.triu(1).T
        repaired = denoised(noisy, noise)
        assert is_positive_semidefinite(repaired)
        before += float((noisy - covariance).square().sum())
        after += float((repaired - covariance).square().sum())
        sphere = torch.eye(40).double() * covariance.trace() / 40
        flat += float((sphere - covariance).square().sum())
    assert after < before
    assert after < 1.2 * flat  # no worse than to know the mean variance alone, but for its noise


def test_counters_stay_as_they_are() -> None:
    method = FedAvg()
    state = {"body.weight": torch.zeros(3), "body.steps": torch.tensor(7)}
    update = Update({"body.weight": torch.ones(3), "body.steps": torch.tensor(12)}, 1.0)
    sent = method.private_contribution(state, update)
    assert sent.keys() == {"body.weight"}
    after = method.finish(state, method.private_total(state, sent, 1.0, 0.0))
    assert torch.equal(after["body.steps"], torch.tensor(7))
    assert torch.equal(after["body.weight"], torch.ones(3))


def test_a_method_with_a_sum_of_its_own_needs_to_say_nothing() -> None:
    """It is private as it is; what it sends is divided by its weight."""

    class Own(FedAvg):
        def contribution(self, update: Update, total: Tensors | None = None) -> Tensors:
            own = {"sum": update.weight * update.tensors["x"].double()}
            own[WEIGHT] = torch.tensor(float(update.weight))
            return own

    method, update = Own(), Update({"x": torch.tensor([3.0, 4.0])}, 10.0)
    assert clipped(method, {}, update, 100.0)["sum"].tolist() == [3.0, 4.0]
    assert clipped(method, {}, update, 1.0)["sum"].tolist() == pytest.approx([0.6, 0.8])


@pytest.mark.parametrize("name", ["fedpac", "fedcof"])
def test_methods_that_look_at_single_updates_are_refused(name: str) -> None:
    method = all_methods()[name]()
    with pytest.raises(InputError, match="looks at single updates"):
        PrivateSum(make_config({name: method}, dp_epsilon=1.0), method)


def test_a_method_of_unknown_updates_is_refused() -> None:
    method = FedAvg()
    mechanism = PrivateSum(make_config({"fedavg": method}, dp_epsilon=1.0), method)
    with pytest.raises(InputError, match="before the first round"):
        mechanism.prepare(3, method.init(TASK), None)


def test_where_the_noise_is_secret_nothing_is_counted_as_amplified() -> None:
    """Sites know the seed of the run, and with it who takes part."""
    method = PFedFDA()
    state = method.init(TASK)
    seeded, secret = (
        private(method, state, rounds=20, participation=0.1, dp_randomness=randomness)
        for randomness in ("seed", "system")
    )
    assert seeded.budget is not None
    assert secret.budget is not None
    assert secret.budget.participation == 1
    assert secret.budget.noise_multiplier > seeded.budget.noise_multiplier
    with pytest.raises(InputError, match="cannot be resumed"):
        secret.refuse_resume()
    seeded.refuse_resume()


@pytest.mark.parametrize("name", ["pfedfda", "fedcgs", "fedncm", "fed3r", "fedproto"])
def test_where_noise_drowns_all_counts_nothing_breaks(name: str) -> None:
    method = all_methods()[name]()
    state = method.init(TASK)
    updates = updates_of(method, state, LABELS)
    for seed in range(5):
        drowned = private(method, state, dp_epsilon=0.02, dp_clip=0.01, seed=seed)
        after = drowned.aggregate(method, state, iter(updates), 1)
        assert all(bool(torch.isfinite(tensor).all()) for tensor in after.values())
