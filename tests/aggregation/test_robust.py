"""What holds for the rules that let some clients lie, with every method."""

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

from pfedfda.aggregation.base import Aggregation
from pfedfda.aggregation.client_values import ClientValues
from pfedfda.aggregation.robust import (
    Clipped,
    Median,
    MultiKrum,
    TrimmedMean,
    krum_scores,
    squared_distances,
)
from pfedfda.errors import InputError
from pfedfda.gaussian import pack_symmetric, unpack_symmetric
from pfedfda.methods import WEIGHT, Method, Samples, Task, Tensors, Update, all_methods
from pfedfda.methods.fedcgs import FedCGS
from pfedfda.methods.fedproto import FedProto
from pfedfda.methods.pfedfda import PFedFDA
from pfedfda.models import ModelConfig
from tests.methods.toy import TASK, make_client, same, snapshot

Rule = Callable[[Method], Aggregation]
RULES: dict[str, Rule] = {
    "median": Median,
    "trimmed-mean": lambda method: TrimmedMean(method, 0.2),
    "multi-krum": lambda method: MultiKrum(method, 0.2),
    "clipped": lambda method: Clipped(method, 1.0),
}
NO_LIARS: dict[str, Rule] = {
    "trimmed-mean": lambda method: TrimmedMean(method, 0.0),
    "multi-krum": lambda method: MultiKrum(method, 0.0),
    "clipped": lambda method: Clipped(method, math.inf),
}
ADDITIVE = [name for name, method in all_methods().items() if method.additive]
LABELS = ([0, 1, 2, 0], [1, 1, 2, 3, 0, 2], [3, 3, 1, 0, 2], [2, 0, 1], [0, 0, 3, 1, 1, 2, 3])


def updates_of(method: Method, state: Tensors, labels=LABELS) -> list[Update]:
    clients = [make_client(list(own), number) for number, own in enumerate(labels)]
    return [
        replace(method.train(c, method.message(state, c.client_id)), client_id=c.client_id)
        for c in clients
    ]


def close(found: Tensors, expected: Tensors, method: Method) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype
        # A head that is solved for amplifies rounding where samples are fewer than features.
        tolerance = 1e-4 if method.training_free else 1e-6
        torch.testing.assert_close(found[name], tensor, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", ADDITIVE)
def test_what_clients_are_compared_by_is_what_they_sent(name: str) -> None:
    """Bodies, class means, covariances: a method says what it has multiplied them by."""
    method = all_methods()[name]()
    state = method.init(TASK)
    updates = updates_of(method, state)
    clients = ClientValues(method, updates)
    for key in clients.names:
        sent_as = {"sums": "means"}.get(key, key)
        values, votes = clients.of(key)
        assert bool((votes >= 0).all())
        for number, update in enumerate(updates):
            sent = update.tensors[sent_as].double()
            if key == "losses":  # of all samples together
                sent /= update.weight
            says = votes[number].expand(sent.shape) > 0
            torch.testing.assert_close(values[number], torch.where(says, sent, 0.0))


@pytest.mark.parametrize("rule", NO_LIARS)
@pytest.mark.parametrize("name", ADDITIVE)
def test_without_liars_to_expect_a_rule_is_the_sum(name: str, rule: str) -> None:
    """Two rounds, to the rounding."""
    method = all_methods()[name]()
    aggregation = NO_LIARS[rule](method)
    state = method.init(TASK)
    for round_number in (1, 2):
        updates = updates_of(method, state)
        sent = [snapshot(update.tensors) for update in updates]
        before = snapshot(state)
        after = aggregation.aggregate(method, state, iter(updates), round_number)
        assert all(same(u.tensors, t) for u, t in zip(updates, sent, strict=True))
        assert same(state, before)
        summed = method.aggregate(state, updates)
        close(after, summed, method)
        state = summed


@pytest.mark.parametrize("rule", NO_LIARS)
def test_without_a_body_the_scatter_between_clients_is_kept(rule: str) -> None:
    """pFedFDA on features: its contributions then have second moments too."""
    task = Task(ModelConfig("linear"), (6,), 3, 4, input_type="float32")
    method = PFedFDA()
    state = method.init(task)
    generator = torch.Generator().manual_seed(0)
    updates = []
    for number in range(4):
        client = make_client([0, 1], number)
        labels = torch.tensor([0, 1, 2, number % 3, 0])
        inputs = torch.randn(5, 6, generator=generator) + 3 * labels[:, None] + number
        client = replace(
            client, task=task, samples=Samples(inputs, labels), model=task.build_model()
        )
        updates.append(method.train(client, method.message(state, number)))
    assert "squares" in method.contribution(updates[0])
    after = NO_LIARS[rule](method).aggregate(method, state, updates, 1)
    summed = method.aggregate(state, updates)
    close(after, summed, method)
    own = sum(5 * unpack_symmetric(u.tensors["covariance"]) for u in updates) / 20
    assert bool((covariance_of(after).diagonal() > own.diagonal() + 0.5).all())


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", ADDITIVE)
def test_where_all_say_the_same_every_rule_gives_it(name: str, rule: str) -> None:
    method = all_methods()[name]()
    state = method.init(TASK)
    update = updates_of(method, state)[1]
    updates = [replace(update, client_id=number) for number in range(5)]
    after = RULES[rule](method).aggregate(method, state, updates, 1)
    # How many they are is a number that Multi-Krum alone changes.
    kept = updates[:4] if rule == "multi-krum" else updates
    close(after, method.aggregate(state, kept), method)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", ADDITIVE)
def test_every_rule_gives_finite_states_of_the_right_kind(name: str, rule: str) -> None:
    method = all_methods()[name]()
    aggregation = RULES[rule](method)
    state = method.init(TASK)
    for round_number in (1, 2):
        updates = updates_of(method, state)
        after = aggregation.aggregate(method, state, iter(updates), round_number)
        again = aggregation.aggregate(method, state, iter(updates), round_number)
        assert same(after, again)
        for key, tensor in after.items():
            assert tensor.dtype == state[key].dtype
            assert tensor.shape == state[key].shape
            assert bool(torch.isfinite(tensor).all())
        state = after


@pytest.mark.parametrize("rule", RULES)
def test_one_of_eleven_who_sends_a_million_stays_without_effect(rule: str) -> None:
    """Clipped, it is as long as half of the others; by the other rules, within their range."""
    method = all_methods()["fedavg"]()
    state = {"body.w": torch.zeros(40), "head.w": torch.ones(7)}
    generator = torch.Generator().manual_seed(1)
    honest = [
        Update({n: t + torch.randn(t.shape, generator=generator) for n, t in state.items()}, 5 + k)
        for k in range(10)
    ]
    liar = Update({name: torch.full_like(t, 1e6) for name, t in state.items()}, 7)
    after = RULES[rule](method).aggregate(method, state, [*honest[:4], liar, *honest[4:]], 1)
    for name, start in state.items():
        sent = torch.stack([update.tensors[name] for update in honest])
        if rule == "clipped":
            median = (sent - start).flatten(1).norm(dim=1).quantile(0.6)
            assert float((after[name] - start).norm()) < float(median)
        else:
            assert bool((after[name] <= sent.amax(0)).all())
            assert bool((after[name] >= sent.amin(0)).all())
    summed = method.aggregate(state, [*honest, liar])
    assert float(summed["body.w"].min()) > 1e4


def test_multi_krum_chooses_whom_flower_chooses() -> None:
    aggregate = pytest.importorskip("flwr.server.strategy.aggregate")
    method = all_methods()["fedavg"]()
    state = {"body.w": torch.zeros(6, 2), "head.w": torch.zeros(3)}
    for seed in range(20):
        generator = torch.Generator().manual_seed(seed)
        updates = [
            Update(
                {n: torch.randn(t.shape, generator=generator).exp() for n, t in state.items()},
                int(torch.randint(1, 9, (), generator=generator)),
            )
            for _ in range(9)
        ]
        results = [([t.double().numpy() for t in u.tensors.values()], u.weight) for u in updates]
        expected = aggregate.aggregate_krum(results, num_malicious=2, to_keep=7)
        after = MultiKrum(method, 0.2).aggregate(method, state, updates, 1)
        for found, layer in zip(after.values(), expected, strict=True):
            np.testing.assert_allclose(found.numpy(), layer, rtol=1e-6)


def test_the_scores_of_krum_by_hand() -> None:
    """Clients at 0, 1, 3, 7 and 20: with one liar the two nearest others count."""
    places = torch.tensor([0.0, 1.0, 3.0, 7.0, 20.0]).double()
    distances = (places[:, None] - places).square()
    assert krum_scores(distances, 1).tolist() == [10.0, 5.0, 13.0, 52.0, 458.0]


def test_distances_are_those_between_updates() -> None:
    method = all_methods()["fedavg"]()
    state = method.init(TASK)
    updates = updates_of(method, state)
    vectors = torch.stack(
        [torch.cat([t.double().flatten() for t in u.tensors.values()]) for u in updates]
    )
    found = squared_distances(ClientValues(method, updates), state)
    torch.testing.assert_close(found, torch.cdist(vectors, vectors).square())


def covariance_of(state: Tensors) -> torch.Tensor:
    return unpack_symmetric(state["covariance"]).double()


def odd_covariance(size: int, number: int) -> torch.Tensor:
    """Return a covariance with strong correlations of its own, for each number another."""
    generator = torch.Generator().manual_seed(number)
    factor = torch.randn(size, 2, generator=generator)
    return 4 * factor @ factor.T + 0.01 * torch.eye(size)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("statistics", ["pooled", "interpolated", "accumulated"])
def test_the_covariance_stays_positive_definite(statistics, rule: str) -> None:
    """Entry by entry the median of these covariances has negative eigenvalues."""
    personal = "stored" if statistics == "interpolated" else "fresh"
    method = PFedFDA(statistics=statistics, personal=personal)
    state = method.init(TASK)
    updates = updates_of(method, state)
    size = state["means"].shape[1]
    sent = [odd_covariance(size, number) for number in range(len(updates))]
    updates = [
        replace(u, tensors=u.tensors | {"covariance": pack_symmetric(c)})
        for u, c in zip(updates, sent, strict=True)
    ]
    assert all(method.fault(update) is None for update in updates)
    entrywise = torch.stack(sent).median(0).values
    assert float(torch.linalg.eigvalsh(entrywise).min()) < -1
    after = RULES[rule](method).aggregate(method, state, updates, 1)
    assert float(torch.linalg.eigvalsh(covariance_of(after)).min()) > 0


@pytest.mark.parametrize("rule", [*RULES, "sum"])
def test_a_class_of_one_client_alone_is_what_it_says(rule: str) -> None:
    """Who lacks a class has no vote on it; Multi-Krum leaves the client out or keeps it."""
    method = FedProto()
    state = method.init(TASK)
    updates = updates_of(method, state, labels=([0, 1], [1, 0], [0, 0, 1], [3, 0, 1], [1, 0, 0]))
    aggregation = RULES[rule](method) if rule != "sum" else Aggregation()
    after = aggregation.aggregate(method, state, updates, 1)
    told = updates[3].tensors["prototypes"][3]
    left_out = not bool(after["known"][3])
    assert not left_out or rule == "multi-krum"
    expected = torch.zeros_like(told) if left_out else told
    if rule == "clipped":  # at most: its length is held against that of the other clients
        cosine = torch.cosine_similarity(after["prototypes"][3], told, dim=0)
        assert float(cosine) == pytest.approx(1.0)
    else:
        torch.testing.assert_close(after["prototypes"][3], expected)
    assert not bool(after["known"][2])
    assert not bool(after["prototypes"][2].any())


def test_class_means_are_medians_weighted_by_class_counts() -> None:
    """Class 0: 1 of 1 sample, 5 of 4 samples, 9 of 2 samples; the middle sample says 5."""
    method = FedProto()
    counts = ([1.0, 4.0], [4.0, 0.0], [2.0, 3.0])
    said = ([1.0, 2.0], [5.0, 77.0], [9.0, 3.0])
    updates = [
        Update({"prototypes": torch.tensor(v)[:, None], "counts": torch.tensor(n)}, sum(n))
        for v, n in zip(said, counts, strict=True)
    ]
    state = {"prototypes": torch.zeros(2, 1), "known": torch.zeros(2)}
    after = Median(method).aggregate(method, state, updates, 1)
    assert after["prototypes"].flatten().tolist() == [5.0, 2.0]
    total = Median(method).total(ClientValues(method, updates), state)
    assert total["counts"].tolist() == [7.0, 7.0]
    assert float(total[WEIGHT]) == 14.0


@pytest.mark.parametrize("rule", RULES)
def test_moments_remain_those_of_some_samples(rule: str) -> None:
    """Beside class means that are medians, second moments are still those of a population."""
    method = FedCGS()
    state = method.init(TASK)
    updates = updates_of(method, state)
    lying = {n: -10 * t if n == "means" else t for n, t in updates[0].tensors.items()}
    lying["squares"] = 100 * lying["squares"]
    updates[0] = replace(updates[0], tensors=lying)
    assert method.fault(updates[0]) is None
    total = RULES[rule](method).total(ClientValues(method, updates), state)  # type: ignore[attr-defined]
    counts, sums = total["counts"], total["sums"]
    within = unpack_symmetric(total["squares"]) - sums.T @ (sums / counts.clamp(min=1)[:, None])
    assert float(torch.linalg.eigvalsh(within).min()) > -1e-9 * float(within.diagonal().max())


@pytest.mark.parametrize("rule", RULES)
def test_counters_of_batch_norm_stay_whole_numbers(rule: str) -> None:
    method = all_methods()["fedavg"]()
    state = {"body.steps": torch.tensor(10), "body.w": torch.zeros(3)}
    steps = (12, 14, 14, 16, 1_000_000)
    updates = [
        Update({"body.steps": torch.tensor(n), "body.w": torch.full((3,), float(k))}, 4)
        for k, n in enumerate(steps)
    ]
    after = RULES[rule](method).aggregate(method, state, updates, 1)
    assert after["body.steps"].dtype == torch.int64
    if rule in ("median", "clipped"):
        assert int(after["body.steps"]) == 14
    if rule == "trimmed-mean":
        assert int(after["body.steps"]) == 15  # of 14, 14 and 16


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", ["fedpac", "fedcof"])
def test_methods_that_are_no_sums_are_refused(name: str, rule: str) -> None:
    method = all_methods()[name]()
    with pytest.raises(InputError, match=rf"{method.title} .*--aggregation {rule}.*use sum"):
        RULES[rule](method)
