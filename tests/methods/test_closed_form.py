"""Training-free methods, against the same classifier on the pooled features."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.special import log_softmax
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import Ridge
from sklearn.neighbors import NearestCentroid

from pfedfda.data import FederationConfig
from pfedfda.errors import InputError
from pfedfda.experiment import run
from pfedfda.gaussian import LOG_OF_ZERO, pack_symmetric
from pfedfda.methods import Client, Method, Samples, Task, Tensors, Update, all_methods
from pfedfda.methods.fed3r import Fed3R, cross_validated_ridge
from pfedfda.methods.fedcgs import FedCGS
from pfedfda.methods.fedcof import FedCOF, covariance_of_means
from pfedfda.methods.fedncm import FedNCM
from pfedfda.models import ModelConfig
from tests.methods.toy import same

METHODS = [name for name, method in all_methods().items() if method.training_free]
EVERY = pytest.mark.parametrize("name", METHODS)
DIMENSION, CLASSES = 6, 4


def make_task(dimension: int = DIMENSION, classes: int = CLASSES) -> Task:
    """Return a task whose inputs are features: the model is its head."""
    return Task(ModelConfig("linear"), (dimension,), classes, 9, input_type="float32")


def make_client(features: torch.Tensor, labels: torch.Tensor, client_id: int = 0) -> Client:
    task = make_task(features.shape[1])
    return Client(
        client_id=client_id,
        round=1,
        task=task,
        samples=Samples(features.float(), labels),
        state={},
        model=task.build_model(),
        generator=torch.Generator(),
    )


def make_clients(
    sizes: tuple[int, ...] = (30, 1, 47, 12, 25), classes: int = CLASSES
) -> list[Client]:
    """Return clients with different class shares and different means."""
    rng = np.random.default_rng(0)
    means = 2 * rng.normal(size=(CLASSES, DIMENSION)) + 3
    mixing = rng.normal(size=(DIMENSION, DIMENSION))
    clients = []
    for i, size in enumerate(sizes):
        labels = rng.choice(classes, size, p=rng.dirichlet(np.ones(classes)))
        features = means[labels] + rng.normal(size=(size, DIMENSION)) @ mixing
        features += 0.3 * rng.normal(size=DIMENSION)
        clients.append(make_client(torch.from_numpy(features), torch.from_numpy(labels), i))
    return clients


def pooled(clients: list[Client]) -> tuple[np.ndarray, np.ndarray]:
    """Return all samples, in the double precision in which everything is computed."""
    features = torch.cat([client.samples.inputs for client in clients]).double().numpy()
    return features, torch.cat([client.samples.labels for client in clients]).numpy()


def play(method: Method, clients: list[Client], state: Tensors | None = None) -> Tensors:
    """Return the server's state after a round."""
    state = method.init(clients[0].task) if state is None else state
    updates = []
    for client in clients:
        update = method.train(client, method.message(state, client.client_id))
        assert method.fault(update) is None
        updates.append(replace(update, client_id=client.client_id))
    return method.aggregate(state, updates)


def scores(state: Tensors, features: np.ndarray) -> np.ndarray:
    return features @ state["weight"].numpy().T + state["bias"].numpy()


def predicted(method: Method, client: Client, state: Tensors, features: np.ndarray) -> np.ndarray:
    model = method.personalize(client, method.message(state, client.client_id)).model
    return model(torch.from_numpy(features).float()).argmax(1).numpy()


def test_fedncm_is_the_nearest_centroid_of_all_samples() -> None:
    clients = make_clients()
    method = FedNCM(classes="all")
    state = play(method, clients)
    features, labels = pooled(clients)
    oracle = NearestCentroid().fit(features, labels)
    np.testing.assert_allclose(
        state["weight"], oracle.centroids_ - features.mean(0), rtol=1e-5, atol=1e-6
    )
    points = np.random.default_rng(1).normal(3, 3, size=(500, DIMENSION))
    assert (predicted(method, clients[1], state, points) == oracle.predict(points)).all()


@pytest.mark.parametrize("shrinkage", [0.0, 0.1])
def test_fedcgs_is_linear_discriminant_analysis_of_all_samples(shrinkage: float) -> None:
    clients = make_clients()
    state = play(FedCGS(priors="global", shrinkage=shrinkage), clients)
    features, labels = pooled(clients)
    oracle = LinearDiscriminantAnalysis(solver="lsqr", shrinkage=shrinkage).fit(features, labels)
    # scikit-learn divides the scatter by n, the paper by n - 1.
    share = len(labels) / (len(labels) - 1)
    weight = oracle.coef_ / share
    bias = -0.5 * (weight * oracle.means_).sum(1) + np.log(oracle.priors_)
    posteriors = log_softmax(scores(state, features), axis=1)
    expected = log_softmax(features @ weight.T + bias, axis=1)
    np.testing.assert_allclose(posteriors, expected, rtol=0, atol=1e-8)


def test_fedcgs_with_the_total_scatter_has_the_covariance_of_everything() -> None:
    clients = make_clients()
    state = play(FedCGS(priors="uniform", shrinkage=0.0, scatter="total"), clients)
    features, labels = pooled(clients)
    means = np.stack([features[labels == c].mean(0) for c in range(CLASSES)])
    weight = np.linalg.solve(np.cov(features.T), means.T).T
    differences = state["weight"].numpy()[1:] - state["weight"].numpy()[:1]
    np.testing.assert_allclose(differences, weight[1:] - weight[:1], rtol=0, atol=1e-8)


def test_large_means_cost_fedcgs_no_digits() -> None:
    clients = make_clients()
    moved = [make_client(c.samples.inputs + 1000, c.samples.labels) for c in clients]
    method = FedCGS(priors="global", shrinkage=0.0)
    states = play(method, clients), play(method, moved)
    torch.testing.assert_close(states[0]["weight"], states[1]["weight"], rtol=1e-3, atol=1e-2)
    models = [method.personalize(clients[0], states[0]).model(clients[0].samples.inputs).detach()]
    models += [method.personalize(moved[0], states[1]).model(moved[0].samples.inputs).detach()]
    posteriors = [logits.softmax(1) for logits in models]
    torch.testing.assert_close(*posteriors, rtol=0, atol=0.01)  # in single precision


@pytest.mark.parametrize("normalize", [False, True])
def test_fed3r_is_ridge_regression_of_all_samples(normalize: bool) -> None:
    clients = make_clients()
    state = play(Fed3R(ridge=0.7, normalize=normalize), clients)
    features, labels = pooled(clients)
    # As in the paper's program, the constant is a feature like the others.
    augmented = np.column_stack([features, np.ones(len(features))])
    oracle = Ridge(alpha=0.7, fit_intercept=False).fit(augmented, np.eye(CLASSES)[labels])
    weight = oracle.coef_
    if normalize:
        weight = weight / np.linalg.norm(weight[:, :-1], axis=1, keepdims=True)
    np.testing.assert_allclose(state["weight"], weight[:, :-1], rtol=0, atol=1e-8)
    np.testing.assert_allclose(state["bias"], weight[:, -1], rtol=0, atol=1e-8)


def test_fed3r_validates_its_ridge_without_looking_at_samples() -> None:
    """The squared error from sums is that of scikit-learn's predictions, for the same folds."""
    rng = np.random.default_rng(3)
    folds = []
    truth = rng.normal(size=(20, 3))
    for _ in range(2):
        inputs = rng.normal(size=(25, 20))
        folds.append((inputs, inputs @ truth + 5 * rng.normal(size=(25, 3))))
    grams = torch.stack([torch.from_numpy(z.T @ z) for z, _ in folds])
    targets = torch.stack([torch.from_numpy(z.T @ y) for z, y in folds])
    chosen = cross_validated_ridge(grams, targets)

    def error(ridge: float) -> float:
        total = 0.0
        for (z, y), (other_z, other_y) in (folds, folds[::-1]):
            model = Ridge(alpha=ridge, fit_intercept=False).fit(z, y)
            total += ((model.predict(other_z) - other_y) ** 2).sum()
        return total

    candidates = float(grams.sum(0).trace()) / 20 * np.logspace(2, -6, 33)
    errors = [error(ridge) for ridge in candidates]
    assert chosen == pytest.approx(candidates[int(np.argmin(errors))])
    assert 0 < int(np.argmin(errors)) < 32  # the best is not at an end


def test_the_folds_of_fed3r_add_up_to_all_samples() -> None:
    clients = make_clients()
    chosen, fixed = Fed3R(), Fed3R(ridge=1.0)
    for client in clients:
        split, whole = (
            method.contribution(method.train(client, method.init(client.task)))
            for method in (chosen, fixed)
        )
        for name in ("counts", "sums", "squares"):
            torch.testing.assert_close(split[name].sum(0), whole[name].sum(0))
    singles = [make_client(torch.ones(1, DIMENSION), torch.tensor([0]), i) for i in range(4)]
    counts = [method_counts(chosen.train(client, {})) for client in singles]
    assert np.sum(counts, axis=0).tolist() == [2, 2]  # not all in the same fold


def method_counts(update: Update) -> list[float]:
    return update.tensors["counts"].sum(1).tolist()


def test_the_covariance_of_fedcof_is_unbiased() -> None:
    """Over many federations of clients that draw alike, it is the covariance within the class."""
    rng = np.random.default_rng(0)
    mixing = rng.normal(size=(3, 3))
    truth = mixing @ mixing.T
    counts = np.array([1, 2, 5, 9, 20])
    estimates = []
    for _ in range(4000):
        means = np.stack([(rng.normal(size=(n, 3)) @ mixing.T + 7).mean(0) for n in counts])
        estimates.append(covariance_of_means(torch.from_numpy(counts), torch.from_numpy(means)))
    error = torch.stack(estimates).std(0) / 4000**0.5
    difference = torch.stack(estimates).mean(0) - torch.from_numpy(truth)
    assert (difference.abs() < 4 * error).all()
    assert (error.numpy().diagonal() < 0.05 * truth.diagonal()).all()


def test_a_round_of_fedcof_by_hand() -> None:
    """Two clients hold class 0, one holds class 1."""
    clients = [
        make_client(torch.tensor([[1.0, 0.0], [3.0, 0.0], [0.0, 2.0]]), torch.tensor([0, 0, 1]), 0),
        make_client(torch.tensor([[5.0, 6.0]]), torch.tensor([0]), 1),
    ]
    state = play(FedCOF(shrinkage=0.5, normalize=False), clients)
    # Class 0: means (2, 0) of two and (5, 6) of one, together (3, 2). The spread is
    # 2 (-1, -2)(-1, -2)ᵀ + (2, 4)(2, 4)ᵀ over K - 1 = 1, times n - 1 = 2, with γ on the diagonal.
    scatter = 2 * (np.array([[6.0, 12.0], [12.0, 24.0]]) + 0.5 * np.eye(2))
    mean = np.array([9.0, 8.0]) / 4
    gram = scatter + 4 * np.outer(mean, mean)
    sums = np.array([[9.0, 6.0], [0.0, 2.0]])
    np.testing.assert_allclose(state["weight"][:2], np.linalg.solve(gram, sums.T).T, rtol=1e-6)


def test_a_round_of_fedncm_by_hand() -> None:
    clients = [
        make_client(torch.tensor([[1.0, 0.0], [3.0, 2.0]]), torch.tensor([0, 0]), 0),
        make_client(torch.tensor([[2.0, 4.0], [0.0, 1.0]]), torch.tensor([0, 1]), 1),
    ]
    state = play(FedNCM(), clients)
    # Means (2, 2) and (0, 1): half the squared distances of the point (1, 1) are 1 and 0.5.
    logits = scores(state, np.array([[1.0, 1.0]]))[0]
    assert logits[0] - logits[1] == pytest.approx(-0.5)
    assert state["bias"][2:].tolist() == [LOG_OF_ZERO, LOG_OF_ZERO]


def test_a_round_of_fed3r_by_hand() -> None:
    """One feature: the normal equations of a line."""
    clients = [
        make_client(torch.tensor([[1.0]]), torch.tensor([0]), 0),
        make_client(torch.tensor([[3.0]]), torch.tensor([1]), 1),
    ]
    state = play(Fed3R(ridge=1.0, normalize=False), clients)
    # [[10 + 1, 4], [4, 2 + 1]] w = [1, 1] and [3, 1]; the determinant is 17.
    np.testing.assert_allclose(state["weight"][:2, 0], [-1 / 17, 5 / 17])
    np.testing.assert_allclose(state["bias"][:2], [7 / 17, -1 / 17])


def test_a_round_of_fedcgs_by_hand() -> None:
    clients = [
        make_client(torch.tensor([[0.0], [2.0]]), torch.tensor([0, 0]), 0),
        make_client(torch.tensor([[5.0], [9.0]]), torch.tensor([1, 1]), 1),
    ]
    state = play(FedCGS(priors="uniform", shrinkage=0.0), clients)
    # Means 1 and 7; the scatter is 2 + 8, over n - 1 = 3. About the mean 4: -3 and 3.
    np.testing.assert_allclose(state["weight"][:2, 0], [-0.9, 0.9])
    # Both are equally likely half-way.
    np.testing.assert_allclose(np.diff(scores(state, np.array([[4.0]]))[0][:2]), 0, atol=1e-12)


@EVERY
def test_a_class_that_nobody_holds_is_never_predicted(name: str) -> None:
    clients = make_clients(classes=3)
    method = all_methods()[name]()
    state = play(method, clients)
    points = np.random.default_rng(1).normal(0, 30, size=(400, DIMENSION))
    assert torch.isfinite(state["weight"]).all()
    for client in clients:
        assert 3 not in predicted(method, client, state, points)
    shared = method.shared_model(clients[0], method.message(state, 0))
    assert shared is not None
    assert 3 not in shared(torch.from_numpy(points).float()).argmax(1)


@EVERY
def test_a_second_round_changes_nothing(name: str) -> None:
    clients = make_clients()
    method = all_methods()[name]()
    once = play(method, clients)
    for client in clients:
        client.round = 2
        client.generator.manual_seed(5)
    assert same(once, play(method, clients, once))


@EVERY
def test_a_round_of_some_clients_is_forgotten_by_a_round_of_all(name: str) -> None:
    clients = make_clients()
    method = all_methods()[name]()
    some = play(method, clients[2:4])
    everybody = play(method, clients)
    assert not same(some, everybody)
    assert same(play(method, clients, some), everybody)


@EVERY
def test_features_are_split_over_clients_in_whatever_way(name: str) -> None:
    """All but FedCOF, which estimates from the split, give the head of the pooled samples."""
    if name == "fedcof":
        pytest.skip("its covariance is estimated from the spread between clients")
    clients = make_clients()
    features, labels = pooled(clients)
    alone = make_client(torch.from_numpy(features), torch.from_numpy(labels))
    options = {"ridge": 1.0} if name == "fed3r" else {}
    method = all_methods()[name](**options)
    one, many = play(method, [alone]), play(method, clients)
    torch.testing.assert_close(one["weight"], many["weight"], rtol=1e-5, atol=1e-6)


def test_own_priors_or_own_classes_make_it_personal() -> None:
    clients = make_clients()
    points = np.random.default_rng(1).normal(3, 3, size=(500, DIMENSION))
    lonely = clients[1]  # has one sample
    own = int(lonely.samples.labels[0])
    for method in (FedNCM(), Fed3R(), FedCOF()):
        assert set(predicted(method, lonely, play(method, clients), points)) == {own}
    for everything in (FedNCM(classes="all"), Fed3R(classes="all"), FedCOF(classes="all")):
        assert len(set(predicted(everything, lonely, play(everything, clients), points))) > 1
    client = clients[0]
    counts = torch.bincount(client.samples.labels, minlength=CLASSES).double()
    method, plain = FedCGS(priors="client"), FedCGS(priors="uniform")
    state = play(method, clients)
    assert same(state, play(plain, clients))
    biases = [
        m.personalize(client, m.message(state, 0)).model.head.bias.detach().double().clone()
        for m in (method, plain)
    ]
    expected = (counts / counts.sum() + 1e-4).log()
    torch.testing.assert_close(biases[0] - biases[1], expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("method", "options", "message"),
    [
        (FedNCM, {"classes": "most"}, "classes"),
        (FedCGS, {"priors": "none"}, "priors"),
        (FedCGS, {"shrinkage": 2.0}, "shrinkage is 2.0"),
        (FedCGS, {"scatter": "between"}, "scatter"),
        (Fed3R, {"ridge": -1.0}, "The ridge is -1.0"),
        (Fed3R, {"folds": 1}, "The number of folds is 1"),
        (FedCOF, {"shrinkage": 0.0}, "shrinkage is 0.0"),
        (FedCOF, {"classes": "some"}, "classes"),
    ],
)
def test_bad_hyper_parameters_are_refused(method: type, options: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        method(**options)


@EVERY
def test_impossible_moments_are_refused(name: str) -> None:
    client = make_clients()[0]
    method = all_methods()[name]()
    update = method.train(client, {})
    wrong = update.tensors | {"counts": update.tensors["counts"] + 1}
    assert "class counts sum to" in str(method.fault(replace(update, tensors=wrong)))
    if "squares" in update.tensors:
        squares = update.tensors["squares"].clone()
        squares[..., :] = pack_symmetric(-torch.eye(DIMENSION).double())
        wrong = update.tensors | {"squares": squares}
        assert "not positive semi-definite" in str(method.fault(replace(update, tensors=wrong)))


@pytest.mark.parametrize("name", ["fedcgs", "fed3r"])
def test_means_that_the_second_moments_rule_out_are_refused(name: str) -> None:
    """Were they added up, no factor of Fed3R's matrix might exist, which would end the run."""
    method = all_methods()[name]()
    for client in make_clients():
        update = method.train(client, {})
        wrong = update.tensors | {"means": 10 * update.tensors["means"]}
        assert "not positive semi-definite" in str(method.fault(replace(update, tensors=wrong)))


@pytest.mark.parametrize("name", ["fedcgs", "fed3r"])
def test_proper_moments_are_not_refused(name: str) -> None:
    """Single samples, features without variance or far from zero, as many features as you like."""
    method = all_methods()[name]()
    rng = torch.Generator().manual_seed(0)
    for offset in (0.0, 1e4):
        for samples in (1, 2, 3, 40):
            features = torch.randn(samples, 64, generator=rng).relu() + offset
            features[:, 0] = 0.0
            labels = torch.randint(CLASSES, (samples,), generator=rng)
            assert method.fault(method.train(make_client(features, labels), {})) is None


def test_a_ridge_lost_to_rounding_leaves_the_solution_of_least_norm() -> None:
    features = torch.tensor([[1.0, 1.0], [3.0, 3.0], [-2.0, -2.0]])
    clients = [make_client(f[None], torch.tensor([i % 2]), i) for i, f in enumerate(features)]
    weight = play(Fed3R(ridge=1e-30, normalize=False), clients)["weight"]
    augmented = np.column_stack([features, np.ones(3)])
    expected = np.linalg.pinv(augmented) @ np.eye(2)[[0, 1, 0]]
    np.testing.assert_allclose(weight[:2], expected[:2].T, rtol=0, atol=1e-8)


def test_more_rounds_than_one_are_pointed_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    federation = FederationConfig(partition="client-dirichlet", clients=3, samples=20, alpha=1.0)
    options = {"workers": 0, "output": tmp_path, "quiet": False}
    run("fedcgs", federation, rounds=2, name="two", **options)
    assert "one round is enough" in "".join(capsys.readouterr())
    run("fedcgs", federation, rounds=1, name="one", **options)
    assert "one round is enough" not in "".join(capsys.readouterr())
