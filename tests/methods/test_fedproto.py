import pytest
import torch
import torch.nn.functional as F

from pfedfda.errors import InputError
from pfedfda.methods import Client, Tensors, Update, to_input
from pfedfda.methods.fedproto import FedProto
from pfedfda.methods.local import Local
from tests.methods.rounds import LABELS as TWO_CLIENTS
from tests.methods.rounds import play_round, two_clients
from tests.methods.steps import DECAY, LR, assert_close, random_weights
from tests.methods.toy import TASK, make_client, parameters_of, same

LABELS = [0, 1, 2, 3, 0, 1, 2]
EMPTY = FedProto().init(TASK)


def features_of(client: Client, weights: Tensors) -> torch.Tensor:
    model = client.task.build_model()
    model.load_state_dict(weights)
    with torch.no_grad():
        return model.body(to_input(client.samples.inputs))


def some_prototypes() -> Tensors:
    """Return prototypes of classes 0, 1 and 2; there is none of class 3."""
    prototypes = torch.randn(EMPTY["prototypes"].shape, generator=torch.Generator().manual_seed(5))
    return {"prototypes": prototypes, "known": torch.tensor([1.0, 1.0, 1.0, 0.0])}


def test_without_pull_it_is_local_training() -> None:
    method, ours, alone = FedProto(lam=0.0), make_client(LABELS), make_client(LABELS)
    state = EMPTY
    for _ in range(3):
        update = method.train(ours, state)
        state = method.aggregate(state, [update])
        assert update.metrics == Local().train(alone, {}).metrics
        assert same(ours.state, alone.state)


def test_the_first_round_has_nothing_to_be_pulled_to() -> None:
    ours, alone = make_client(LABELS), make_client(LABELS)
    FedProto(lam=5.0).train(ours, EMPTY)
    Local().train(alone, {})
    assert same(ours.state, alone.state)


def test_a_round_by_hand() -> None:
    lam = 2.0
    models = [random_weights(seed, TASK.initial_tensors()) for seed in (1, 2)]
    received = some_prototypes()
    after, clients = play_round(FedProto(lam=lam), received, models)
    sums = torch.zeros(4, received["prototypes"].shape[1])
    counts = torch.zeros(4)
    for fresh, weights, trained in zip(two_clients(), models, clients, strict=True):
        labels = fresh.samples.labels
        w = weights
        for _ in range(2):
            model = fresh.task.build_model()
            model.load_state_dict(w)
            features = model.body(to_input(fresh.samples.inputs))
            value = F.cross_entropy(model.head(features), labels)
            for feature, label in zip(features, labels, strict=True):
                if label != 3:  # it has no prototype
                    distance = F.mse_loss(feature, received["prototypes"][label])
                    value = value + lam * distance / len(labels)
            names, parameters = zip(*model.named_parameters(), strict=True)
            g = dict(zip(names, torch.autograd.grad(value, parameters), strict=True))
            w = {n: w[n] - LR * (g[n] + DECAY * w[n]) for n in w}
        assert_close(trained.state, w)
        sums.index_add_(0, labels, features_of(fresh, w))
        counts += torch.bincount(labels, minlength=4)
    # Weighted by class counts, the mean over clients is that over all of their samples.
    assert counts.tolist() == [2, 3, 1, 2]
    torch.testing.assert_close(after["prototypes"], sums / counts[:, None], rtol=1e-4, atol=1e-6)
    assert after["known"].tolist() == [1, 1, 1, 1]


def test_prototypes_are_weighted_by_class_counts_and_others_stay() -> None:
    state = some_prototypes()
    updates = [
        Update(
            {"prototypes": torch.full_like(state["prototypes"], value), "counts": counts},
            float(counts.sum()),
        )
        for value, counts in (
            (1.0, torch.tensor([3.0, 0.0, 0.0, 1.0])),
            (5.0, torch.tensor([1.0, 2.0, 0.0, 0.0])),
        )
    ]
    after = FedProto().aggregate(state, updates)
    assert after["prototypes"][[0, 1, 3], 0].tolist() == [2.0, 5.0, 1.0]
    assert torch.equal(after["prototypes"][2], state["prototypes"][2])
    assert after["known"].tolist() == [1, 1, 1, 1]


def test_the_nearest_prototype_of_the_own_classes_classifies() -> None:
    message = some_prototypes()
    weights = random_weights(1, TASK.initial_tensors())
    client = make_client([0, 2, 3, 0], state=weights)  # of the known classes it lacks 1
    images = make_client(LABELS * 4, 9).samples
    model = FedProto().personalize(client, message).model
    features = features_of(make_client(LABELS * 4, 9), weights)
    distances = torch.cdist(features, message["prototypes"])
    distances[:, [1, 3]] = torch.inf
    with torch.no_grad():
        logits = model(to_input(images.inputs))
    assert torch.equal(logits.argmax(1), distances.argmin(1))
    assert torch.isfinite(logits).all()


def test_the_own_head_can_classify_and_does_before_the_first_round() -> None:
    weights = random_weights(1, TASK.initial_tensors())
    for method, message in ((FedProto(serve="head"), some_prototypes()), (FedProto(), EMPTY)):
        model = method.personalize(make_client(LABELS, state=weights), message).model
        assert same({n: t.contiguous() for n, t in parameters_of(model).items()}, weights)


def test_a_new_client_trains_a_model_of_its_own() -> None:
    message = some_prototypes()
    trained = make_client(TWO_CLIENTS[0])
    FedProto().train(trained, message)
    model = FedProto(serve="head").personalize(make_client(TWO_CLIENTS[0]), message).model
    assert same({n: t.contiguous() for n, t in parameters_of(model).items()}, trained.state)


def test_a_stronger_pull_brings_features_nearer() -> None:
    message = some_prototypes()
    message["known"] = torch.ones(4)
    distances = []
    for lam in (0.0, 1.0, 10.0):
        client = make_client(LABELS)
        FedProto(lam=lam).train(client, message)
        moved = features_of(client, client.state) - message["prototypes"][client.samples.labels]
        distances.append(float(moved.square().mean()))
    assert distances == sorted(distances, reverse=True)
    assert distances[-1] < 0.95 * distances[0]


def test_only_prototypes_and_counts_are_sent() -> None:
    update = FedProto().train(make_client([2, 2, 0]), EMPTY)
    assert update.tensors.keys() == {"prototypes", "counts"}
    assert not update.tensors["prototypes"][[1, 3]].any()
    assert FedProto().fault(update) is None
    update.tensors["counts"][1] = -1
    assert "class counts" in str(FedProto().fault(update))


def test_bad_hyper_parameters() -> None:
    with pytest.raises(InputError, match="lam is -1"):
        FedProto(lam=-1.0)
