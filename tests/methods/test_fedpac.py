import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from benchmarks.combination import make_clients
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from pfedfda.errors import InputError
from pfedfda.methods import Update, load, part, to_input
from pfedfda.methods.fedpac import (
    FedPAC,
    class_averages,
    combination_statistics,
    combination_weights,
    minimize_on_simplex,
)
from tests.methods.steps import DECAY, ONE_STEP, gradient
from tests.methods.toy import TASK, make_client, parameters_of, same

LABELS = [0, 1, 1, 2, 0, 1, 2]


def random_problem(seed: int, clients: int = 7, classes: int = 3, features: int = 5):
    random = np.random.default_rng(seed)
    return random.normal(size=(clients, classes, features)), random.uniform(0.01, 1, clients)


def objective(class_features: np.ndarray, variances: np.ndarray, client: int) -> np.ndarray:
    """The quadratic form of a client by loops over pairs of clients and classes."""
    count, classes, _ = class_features.shape
    matrix = np.diag(variances).astype(float)
    for j in range(count):
        for k in range(count):
            for c in range(classes):
                first = class_features[client, c] - class_features[j, c]
                second = class_features[client, c] - class_features[k, c]
                matrix[j, k] += first @ second
    return matrix


@pytest.mark.parametrize("seed", range(6))
def test_weights_match_a_general_solver(seed: int) -> None:
    class_features, variances = random_problem(seed)
    weights = combination_weights(class_features, variances)
    assert (weights >= 0).all()
    np.testing.assert_allclose(weights.sum(1), 1)
    for client, ours in enumerate(weights):
        matrix = objective(class_features, variances, client)
        found = minimize(
            lambda a, m=matrix: a @ m @ a,
            np.full(len(ours), 1 / len(ours)),
            jac=lambda a, m=matrix: 2 * m @ a,
            method="SLSQP",
            bounds=[(0, 1)] * len(ours),
            constraints={"type": "eq", "fun": lambda a: a.sum() - 1},
            options={"ftol": 1e-14, "maxiter": 500},
        )
        assert ours @ matrix @ ours <= found.fun + 1e-9
        np.testing.assert_allclose(ours, found.x, atol=1e-4)


def test_identical_clients_get_equal_weights() -> None:
    class_features = np.repeat(np.random.default_rng(0).normal(size=(1, 3, 5)), 4, axis=0)
    weights = combination_weights(class_features, np.full(4, 0.3))
    np.testing.assert_allclose(weights, 0.25, atol=1e-6)


def test_a_client_far_from_all_others_relies_on_itself() -> None:
    class_features, variances = random_problem(0)
    class_features[2] += 100
    weights = combination_weights(class_features, variances)
    assert weights[2, 2] > 0.999
    assert weights[[0, 1, 3, 4, 5, 6], 2].max() < 1e-3


def test_noisy_clients_count_less() -> None:
    class_features = np.zeros((3, 2, 4))
    weights = combination_weights(class_features, np.array([1.0, 2.0, 4.0]))
    np.testing.assert_allclose(weights[0], np.array([4, 2, 1]) / 7, atol=1e-6)  # ∝ 1/V


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10_000), clients=st.integers(1, 8))
def test_order_of_clients_does_not_matter(seed: int, clients: int) -> None:
    class_features, variances = random_problem(seed, clients)
    order = np.random.default_rng(seed).permutation(clients)
    weights = combination_weights(class_features, variances)
    shuffled = combination_weights(class_features[order], variances[order])
    np.testing.assert_allclose(shuffled, weights[np.ix_(order, order)], atol=1e-6)


@pytest.mark.parametrize(
    "matrix",
    [
        np.array([[1.0, 2.0], [2.0, 1.0]]),  # an eigenvalue of -1
        np.zeros((3, 3)),
        np.eye(2) * 1e-30,
        np.array([[1e12, 0.0], [0.0, 1e-12]]),
        np.array([[1.0, 1.0 + 1e-12], [1.0 + 1e-12, 1.0]]),
        np.array([[0.5]]),
    ],
)
def test_imperfect_matrices_give_points_of_the_simplex(matrix: np.ndarray) -> None:
    weights = minimize_on_simplex(matrix)
    assert np.isfinite(weights).all()
    assert (weights >= 0).all()
    assert weights.sum() == pytest.approx(1)


def test_tiny_weights_are_dropped() -> None:
    class_features, variances = random_problem(3)
    weights = combination_weights(class_features, variances, smallest_weight=0.2)
    assert ((weights == 0) | (weights >= 0.2)).all()
    np.testing.assert_allclose(weights.sum(1), 1)


def values(class_features: np.ndarray, variances: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """The objective of each client: variance plus squared bias of its combination."""
    flat = class_features.reshape(len(class_features), -1)
    return weights**2 @ variances + ((flat - weights @ flat) ** 2).sum(1)


@pytest.mark.parametrize("partners", [7, 8, 1000])
def test_enough_partners_change_no_bit(partners: int) -> None:
    class_features, variances = random_problem(1)
    free = combination_weights(class_features, variances, 1e-3)
    assert np.array_equal(
        combination_weights(class_features, variances, 1e-3, partners=partners), free
    )


def test_all_clients_are_partners_in_the_committed_runs() -> None:
    assert 100 <= FedPAC().partners <= 500


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10_000), clients=st.integers(2, 30), partners=st.integers(1, 29))
def test_a_bounded_combination_is_one(seed: int, clients: int, partners: int) -> None:
    class_features, variances = random_problem(seed, clients, classes=2, features=2)
    free = combination_weights(class_features, variances)
    bounded = combination_weights(class_features, variances, partners=partners)
    assert (bounded >= 0).all()
    np.testing.assert_allclose(bounded.sum(1), 1)
    assert ((bounded > 0).sum(1) <= partners).all()
    best, found = (values(class_features, variances, w) for w in (free, bounded))
    alone = values(class_features, variances, np.eye(clients))
    assert (found >= best * (1 - 1e-6)).all()
    assert (found <= alone * (1 + 1e-6)).all()  # a client is a partner of its own


def test_one_partner_is_oneself() -> None:
    class_features, variances = random_problem(2)
    assert np.array_equal(combination_weights(class_features, variances, partners=1), np.eye(7))


def test_identical_clients_share_with_as_many_as_they_may() -> None:
    class_features = np.repeat(np.random.default_rng(0).normal(size=(1, 3, 5)), 20, axis=0)
    weights = combination_weights(class_features, np.full(20, 0.3), partners=8)
    assert ((weights > 0).sum(1) == 8).all()
    np.testing.assert_allclose(weights[weights > 0], 1 / 8, atol=1e-6)
    assert (weights.diagonal() > 0).all()


@pytest.mark.parametrize("alpha", [0.1, 0.5])
def test_few_partners_suffice_on_digits(alpha: float) -> None:
    """Far below the number of clients, the objective is the optimum over all of them."""
    class_features, variances = make_clients(240, alpha)
    free = combination_weights(class_features, variances)
    bounded = combination_weights(class_features, variances, partners=100)
    best, found = (values(class_features, variances, w) for w in (free, bounded))
    assert (found >= best * (1 - 1e-6)).all()
    assert (found <= best * 1.001).all()


def test_no_problem_is_larger_than_the_number_of_partners(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []

    def watched(matrix: np.ndarray) -> np.ndarray:
        sizes.append(len(matrix))
        return minimize_on_simplex(matrix)

    monkeypatch.setattr("pfedfda.methods.fedpac.minimize_on_simplex", watched)
    combination_weights(*random_problem(0, clients=50), partners=12)
    assert max(sizes) <= 12


def test_statistics_are_moments_of_the_features() -> None:
    client = make_client(LABELS)
    counts, means, squares = class_averages(client)
    features = client.model.body(to_input(client.samples.inputs)).detach().double()
    labels = client.samples.labels
    assert counts.tolist() == [2, 3, 2, 0]
    for c in range(3):
        torch.testing.assert_close(means[c], features[labels == c].mean(0), rtol=1e-5, atol=1e-7)
    assert not means[3].any()
    class_features, variance = combination_statistics(counts, means, squares)
    # Σ_c 1[y = c] f has mean p_c m_c; the variance of its empirical mean is a trace over n.
    stacked = torch.zeros(7, 4, 128, dtype=torch.float64)
    stacked[torch.arange(7), labels] = features
    torch.testing.assert_close(class_features, stacked.mean(0), rtol=1e-5, atol=1e-7)
    spread = (stacked - stacked.mean(0)).square().sum() / 7
    assert variance.item() == pytest.approx(spread.item() / 7, rel=1e-4)


def make_updates(order: list[int]) -> tuple[dict, list[Update]]:
    method = FedPAC()
    state = method.init(TASK)
    labels = {0: [0, 0, 1], 1: [1, 2, 2, 2], 2: [0, 1, 2, 3]}
    updates = [
        replace(method.train(make_client(labels[i], i), method.message(state, i)), client_id=i)
        for i in order
    ]
    return state, updates


def test_aggregation_does_not_depend_on_the_order_of_clients() -> None:
    state, updates = make_updates([0, 1, 2])
    first = FedPAC().aggregate(state, updates)
    second = FedPAC().aggregate(state, updates[::-1])
    for name in ("heads.weight", "heads.bias"):
        assert torch.equal(first[name], second[name])  # matched by id, to the bit
    for name in first:
        torch.testing.assert_close(first[name], second[name])


def test_prototypes_are_weighted_by_class_counts() -> None:
    state, updates = make_updates([0, 1, 2])
    after = FedPAC().aggregate(state, updates)
    sent = [u.tensors["prototypes"] for u in updates]
    torch.testing.assert_close(after["prototypes"][0], (2 * sent[0][0] + sent[2][0]) / 3)
    torch.testing.assert_close(after["prototypes"][2], (3 * sent[1][2] + sent[2][2]) / 4)
    assert after["known"].tolist() == [1, 1, 1, 1]
    alone = FedPAC().aggregate(state, updates[:1])
    assert alone["known"].tolist() == [1, 1, 0, 0]


def test_each_participant_gets_its_own_combination() -> None:
    state, updates = make_updates([0, 2])
    after = FedPAC().aggregate(state, updates)
    features = torch.stack([u.tensors["class_features"] for u in updates]).double().numpy()
    variances = torch.cat([u.tensors["variance"] for u in updates]).double().numpy()
    weights = combination_weights(features, variances, 1e-3)
    for row, client in enumerate((0, 2)):
        expected = sum(float(weights[row, k]) * updates[k].tensors["head.weight"] for k in range(2))
        message = FedPAC().message(after, client)
        torch.testing.assert_close(message["head.weight"], expected)


def test_with_one_partner_everybody_keeps_its_head() -> None:
    state, updates = make_updates([0, 1, 2])
    after = FedPAC(partners=1).aggregate(state, updates)
    for update in updates:
        own = FedPAC().message(after, update.client_id)["head.weight"]
        assert torch.equal(own, update.tensors["head.weight"])


def test_alignment_begins_when_there_are_prototypes() -> None:
    method, without = FedPAC(lam=5.0), FedPAC(lam=0.0)
    state = method.init(TASK)
    message = method.message(state, 0)
    first = method.train(make_client(LABELS), message)
    assert same(first.tensors, without.train(make_client(LABELS), message).tensors)
    later = message | {"known": torch.ones(4), "prototypes": torch.zeros(4, 128)}
    drawn = method.train(make_client(LABELS), later).tensors["prototypes"]
    free = without.train(make_client(LABELS), later).tensors["prototypes"]
    assert drawn.norm() < free.norm()  # features are pulled to the prototypes at 0


@pytest.mark.parametrize(
    "fields",
    [
        {"lam": -1.0},
        {"head_epochs": -1},
        {"head_lr": 0.0},
        {"smallest_weight": 1.0},
        {"partners": 0},
    ],
)
def test_bad_hyper_parameters(fields: dict[str, float]) -> None:
    with pytest.raises(InputError, match="must"):
        FedPAC(**fields)  # type: ignore[arg-type]


def test_thinly_spread_weights_survive_the_threshold() -> None:
    weights = combination_weights(np.zeros((5, 1, 2)), np.ones(5), smallest_weight=0.3)
    assert np.isfinite(weights).all()
    np.testing.assert_allclose(weights.sum(1), 1)


def test_head_and_body_take_turns() -> None:
    client = make_client(LABELS)
    history = []
    record = lambda *_: history.append(  # noqa: E731
        (parameters_of(client.model.body), parameters_of(client.model.head))
    )
    method = FedPAC(head_epochs=2)
    message = method.message(method.init(TASK), 0)
    load(client.model, part(message, "body", "head"))
    client.model.body.register_forward_pre_hook(record)
    method._train_locally(client, message)
    record()
    body_moves = [not same(a[0], b[0]) for a, b in itertools.pairwise(history)]
    head_moves = [not same(a[1], b[1]) for a, b in itertools.pairwise(history)]
    assert head_moves == [True] * 4 + [False] * 4  # two batches an epoch, two epochs each
    assert body_moves == [False] * 4 + [True] * 4


def test_the_head_has_its_own_learning_rate() -> None:
    """One head step by hand; the body's step size is so small that it stays."""
    task = replace(ONE_STEP, training=replace(ONE_STEP.training, lr=1e-12))
    client = make_client(LABELS, task=task)
    method = FedPAC(head_lr=0.1)
    start = task.initial_tensors()
    method.train(client, method.message(method.init(task), 0))
    g = gradient(make_client(LABELS, task=task), start)["head.weight"]
    expected = start["head.weight"] - 0.1 * (g + DECAY * start["head.weight"])
    torch.testing.assert_close(client.model.head.weight.detach(), expected, rtol=1e-4, atol=1e-6)


def test_statistics_are_those_of_the_received_model() -> None:
    method = FedPAC()
    message = method.message(method.init(TASK), 0)
    sent = method.train(make_client(LABELS), message).tensors
    before = class_averages(make_client(LABELS))
    class_features, variance = combination_statistics(*before)
    torch.testing.assert_close(
        sent["class_features"].double(), class_features, rtol=1e-5, atol=1e-7
    )
    torch.testing.assert_close(sent["variance"].double(), variance, rtol=1e-5, atol=1e-9)
    assert not torch.allclose(
        sent["prototypes"].double(), before[1]
    )  # these are of the trained one


def test_the_penalty_is_the_mean_squared_distance() -> None:
    """The mean loss of a step that hardly moves is the cross-entropy plus λ times the distance."""
    task = replace(ONE_STEP, training=replace(ONE_STEP.training, lr=1e-12))
    known = torch.tensor([1.0, 0.0, 1.0, 1.0])  # class 1 has no prototype yet
    prototypes = torch.randn(4, 128)
    method = FedPAC(lam=3.0, head_epochs=0)
    message = method.message(method.init(task), 0) | {"known": known, "prototypes": prototypes}
    client = make_client(LABELS, task=task)
    loss = method.train(client, message).metrics["train_loss"]
    features = client.model.body(to_input(client.samples.inputs)).detach()
    labels = client.samples.labels
    ordinary = torch.nn.functional.cross_entropy(client.model.head(features), labels)
    squared = ((features - prototypes[labels]) ** 2).sum(1) / 128 * (labels != 1)
    assert loss == pytest.approx((ordinary + 3.0 * squared.mean()).item(), rel=1e-4)


def test_a_class_that_nobody_shows_keeps_its_prototype() -> None:
    state, updates = make_updates([0, 1, 2])
    first = FedPAC().aggregate(state, updates)
    second = FedPAC().aggregate(first, updates[:1])  # holds the classes 0 and 1 only
    assert torch.equal(second["prototypes"][2:], first["prototypes"][2:])
    assert second["known"].tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize("serve", ["combined", "tuned"])
def test_what_serves(serve: str) -> None:
    method = FedPAC(serve=serve)  # type: ignore[arg-type]
    message = method.message(method.init(TASK), 0)
    model = method.personalize(make_client(LABELS), message).model
    served = {name: t.contiguous() for name, t in parameters_of(model).items()}
    assert same(served, part(message, "body", "head")) == (serve == "combined")


def test_newcomers_get_the_mean_head_of_those_who_took_part() -> None:
    state, updates = make_updates([0, 2])
    after = FedPAC().aggregate(state, updates)
    expected = after["heads.weight"][[0, 2]].mean(0)
    for newcomer in (1, 99):
        torch.testing.assert_close(FedPAC().message(after, newcomer)["head.weight"], expected)


def test_updates_must_name_their_client() -> None:
    state, updates = make_updates([0])
    with pytest.raises(ValueError, match="which client"):
        FedPAC().aggregate(state, [replace(updates[0], client_id=-1)])


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("counts", [-3.0, 6.0, 3.0, 3.0], "class counts range from -3"),
        ("counts", [2.5, 2.5, 2.0, 2.0], "not whole numbers"),
        ("counts", [4.0, 3.0, 2.0, 1.0], "sum to 10, and its weight is 9"),
        ("variance", [-1.0], "its variance is -1"),
        ("class_features", [1.0, 1.0, 1.0, 1.0], "a class of which it has no sample"),
    ],
)
def test_statistics_that_cannot_be_are_a_fault(name: str, value: list[float], said: str) -> None:
    method = FedPAC()
    labels = [0, 1, 1, 2, 0, 1, 2, 2, 0]  # and none of class 3
    update = method.train(make_client(labels), method.message(method.init(TASK), 0))
    assert method.fault(update) is None
    tensor = update.tensors[name]
    lie = torch.tensor(value).reshape(-1, *(1 for _ in tensor.shape[1:])).expand_as(tensor)
    assert said in str(method.fault(replace(update, tensors=update.tensors | {name: lie})))
