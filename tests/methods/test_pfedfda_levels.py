"""pFedFDA with three levels, features before the activation, and a last pass for statistics."""

import csv
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from pfedfda.data import FederationConfig
from pfedfda.experiment import run
from pfedfda.gaussian import (
    GRID,
    GaussianStatistics,
    Strengths,
    adapt_levels,
    class_moments,
    merge_moments,
    pack_symmetric,
    unpack_symmetric,
)
from pfedfda.methods import Tensors, Update, find_method, to_input
from pfedfda.methods.pfedfda import PFedFDA
from tests.methods.toy import TASK, make_client, same, snapshot

LABELS = [0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1]
LAST = replace(TASK, rounds=2)
METHOD: PFedFDA = find_method("pfedfda-levels")()  # type: ignore[assignment]


def sums(counts: list[float], mean: float, spread: float = 1.0) -> Update:
    """Return the update of a client with the same mean in every class and coordinate."""
    tensors = {
        "body.w": torch.full((3,), mean),
        "means": torch.full((4, 2), mean),
        "covariance": pack_symmetric(torch.eye(2) * spread),
        "counts": torch.tensor(counts),
    }
    return Update(tensors, sum(counts))


def start(mass: list[float]) -> Tensors:
    return {
        "body.w": torch.zeros(3),
        "means": torch.tensor([[1.0], [2.0], [3.0], [4.0]]).expand(4, 2).contiguous(),
        "covariance": pack_symmetric(torch.eye(2) * 5),
        "seen": (torch.tensor(mass) > 0).float(),
        "mass": torch.tensor(mass),
    }


def test_accumulated_means_are_those_of_all_samples_ever_seen() -> None:
    """Without forgetting, any number of rounds gives the means of one big round."""
    method = PFedFDA(statistics="accumulated", keep=1 - 1e-12)
    rounds = [sums([6, 0, 2, 0], 1.0), sums([2, 2, 0, 0], 5.0), sums([1, 0, 0, 3], 3.0)]
    state = start([0, 0, 0, 0])
    for update in rounds:
        state = method.aggregate(state, [update])
    once = method.aggregate(start([0, 0, 0, 0]), rounds)
    torch.testing.assert_close(state["means"], once["means"])
    torch.testing.assert_close(state["covariance"], once["covariance"])
    assert state["mass"].tolist() == pytest.approx([9, 2, 2, 3])


def test_a_class_moves_as_far_as_it_has_new_samples() -> None:
    method = PFedFDA(statistics="accumulated", keep=0.5)
    state = start([20, 20, 20, 0])
    after = method.aggregate(state, [sums([10, 1, 0, 0], 7.0)])
    assert after["means"][:, 0].tolist() == pytest.approx(
        [(10 * 1 + 10 * 7) / 20, (10 * 2 + 1 * 7) / 11, 3.0, 7.0]
    )
    assert after["mass"].tolist() == [20, 11, 10, 0]
    share = 30 / 41  # half of 60 old samples against eleven new ones
    expected = torch.eye(2) * (share * 5 + (1 - share) * 1)
    torch.testing.assert_close(unpack_symmetric(after["covariance"]), expected)
    assert "mass" not in method.message(after, 0)


def test_a_mass_that_fades_to_nothing_leaves_the_mean_in_place() -> None:
    method = PFedFDA(statistics="accumulated", keep=0.1)
    state = method.aggregate(start([9, 9, 9, 9]), [sums([8, 0, 0, 0], 1.0)])
    for _ in range(60):
        state = method.aggregate(state, [sums([8, 0, 0, 0], 1.0)])
    assert float(state["mass"][1]) == 0
    assert state["means"][1].tolist() == [2.0, 2.0]


def final_state(method: PFedFDA) -> tuple[Tensors, list[Tensors]]:
    """Return the state after two rounds, of which the second is the last, and its updates."""
    state = method.init(LAST)
    clients = [make_client(LABELS, 0, task=LAST), make_client([0, 1, 3, 3, 3], 1, task=LAST)]
    for number in (1, 2):
        updates = []
        for client in clients:
            client.model = LAST.build_model()
            client.round = number
            message = method.message(state, client.client_id)
            updates.append(method.train(client, message))
        before, state = state, method.aggregate(state, updates)
    assert same({k: v for k, v in before.items() if k.startswith("body")}, {
        k: v for k, v in state.items() if k.startswith("body")
    })  # fmt: skip
    return state, [update.tensors for update in updates]


def test_the_last_round_moves_no_bit_of_the_body_and_has_exact_moments() -> None:
    state, sent = final_state(METHOD)
    assert int(state["rounds_left"]) == 0
    parts = []
    for labels, client_id in ((LABELS, 0), ([0, 1, 3, 3, 3], 1)):
        client = make_client(labels, client_id, task=LAST)
        body = LAST.build_model().body
        body.load_state_dict(
            {k.removeprefix("body."): v for k, v in state.items() if k.startswith("body.")}
        )
        features = body(to_input(client.samples.inputs)).detach()
        before = torch.where(features < 0, features / 0.01, features)  # undoes the LeakyReLU
        parts.append(class_moments(before, client.samples.labels, 4))
    merged = merge_moments(parts)
    torch.testing.assert_close(state["means"].double(), merged.means, rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(state["mass"].double(), merged.counts.double())
    assert all("train_loss" not in tensors for tensors in sent)


def test_a_single_round_trains() -> None:
    method, task = METHOD, replace(TASK, rounds=1)
    state = method.init(task)
    update = method.train(make_client(LABELS, task=task), method.message(state, 0))
    assert update.metrics["train_loss"] > 0
    assert not torch.equal(update.tensors["body.conv1.weight"], state["body.conv1.weight"])


def test_the_body_is_trained_on_features_before_the_activation() -> None:
    plain = replace(METHOD, gaussian_features=False)
    state = METHOD.init(TASK)
    before, after = (
        method.train(make_client(LABELS), method.message(state, 0)).tensors
        for method in (METHOD, plain)
    )
    assert not torch.equal(before["means"], after["means"])
    # Means of features of either sign: without the activation they are further below zero.
    own = [float(t["means"][:3].min()) for t in (before, after)]  # of classes that are there
    assert own[0] < own[1] < 0


def test_clients_use_posterior_means_at_the_strengths_with_the_lowest_loss() -> None:
    state, _ = final_state(METHOD)
    chosen = GRID.index(Strengths(8.0, 64.0, 256.0))
    state["losses"] = torch.ones(len(GRID))
    state["losses"][chosen] = 0.5
    client = make_client(LABELS, task=LAST)
    personal = METHOD.personalize(client, METHOD.message(state, 0))
    features = personal.model.body(to_input(client.samples.inputs)).detach()
    covariance = unpack_symmetric(state["covariance"]).double()
    variance = float(covariance.diagonal().mean()) - METHOD.ridge
    covariance += (METHOD.personal_ridge * variance - METHOD.ridge) * torch.eye(128).double()
    shared = GaussianStatistics(state["means"], covariance)
    priors = torch.bincount(client.samples.labels, minlength=4) / len(LABELS)
    priors = (priors + METHOD.prior_smoothing) / (1 + 4 * METHOD.prior_smoothing)
    fit = adapt_levels(features, client.samples.labels, shared, GRID[chosen], priors=priors)
    found = personal.model.head
    torch.testing.assert_close(found.weight.double(), fit.classifier.weight, rtol=1e-4, atol=1e-4)
    assert personal.metrics == fit.weights()
    assert personal.metrics["offset_weight"] > 0


def test_without_strength_for_the_client_everybody_uses_the_global_classifier() -> None:
    state, _ = final_state(METHOD)
    state["losses"] = torch.ones(len(GRID))
    state["losses"][0] = 0.5
    client = make_client(LABELS, task=LAST)
    personal = METHOD.personalize(client, METHOD.message(state, 0))
    logits = personal.model(to_input(client.samples.inputs))
    covariance = unpack_symmetric(state["covariance"]).double()
    covariance += (
        METHOD.personal_ridge * (float(covariance.diagonal().mean()) - METHOD.ridge) - METHOD.ridge
    ) * torch.eye(128).double()
    features = personal.model.body(to_input(client.samples.inputs)).detach().double()
    difference = features[:, None] - state["means"].double()
    distance = torch.einsum("ncd,de,nce->nc", difference, covariance.inverse(), difference)
    priors = torch.bincount(client.samples.labels, minlength=4).double() / len(LABELS)
    priors = (priors + METHOD.prior_smoothing) / (1 + 4 * METHOD.prior_smoothing)
    expected = F.softmax(priors.log() - distance / 2, dim=1)
    torch.testing.assert_close(logits.softmax(1).double(), expected, rtol=1e-3, atol=1e-4)


def test_losses_of_the_first_round_are_forgotten_and_later_ones_add_up() -> None:
    method = replace(METHOD, final_pass=False, keep=0.5)
    state = method.init(TASK)
    clients = [make_client(LABELS, 4), make_client([0, 1, 2, 3, 0, 1] * 2, 9)]
    clients.append(make_client(LABELS, 5))  # not asked in round 1
    updates = [method.train(c, method.message(state, c.client_id)) for c in clients]
    first = method.aggregate(state, updates)
    assert not first["losses"].any()
    updates = [method.train(c, method.message(first, c.client_id)) for c in clients]
    second = method.aggregate(first, updates)
    assert [bool(update.tensors["losses"].any()) for update in updates] == [True, True, False]
    total = sum(update.tensors["losses"] for update in updates)
    torch.testing.assert_close(second["losses"], total / (len(LABELS) + 12))
    assert float(second["losses"].min()) > 0
    after = method.aggregate(second, updates[2:])  # nobody who was asked: they stay as they are
    assert torch.equal(after["losses"], second["losses"])


@pytest.mark.parametrize("labels", [[3], [1, 1], [0, 1, 2]])
def test_clients_with_few_samples_get_finite_models(labels: list[int]) -> None:
    state, _ = final_state(METHOD)
    before = snapshot(state)
    client = make_client(labels, 7, task=LAST)
    update = METHOD.train(client, METHOD.message(state, 7))
    assert all(bool(torch.isfinite(t).all()) for t in update.tensors.values())
    personal = METHOD.personalize(make_client(labels, 7, task=LAST), METHOD.message(state, 7))
    assert bool(torch.isfinite(personal.model(to_input(client.samples.inputs))).all())
    assert same(before, state)


def test_learns_the_digits_and_says_what_is_the_clients_own(tmp_path: Path) -> None:
    config = FederationConfig(clients=20, alpha=0.3)
    settings = {"rounds": 8, "batch_size": 10, "quiet": True, "output": tmp_path}
    result = run("pfedfda-levels", config, **settings)  # type: ignore[arg-type]
    assert result.mean_accuracy > 0.9
    rows = list(csv.DictReader((result.folder / "clients.csv").read_text().splitlines()))
    assert all(0 <= float(row["offset_weight"]) <= 1 for row in rows)
    again = run("pfedfda-levels", config, workers=0, **settings)  # type: ignore[arg-type]
    assert again.mean_accuracy == result.mean_accuracy
