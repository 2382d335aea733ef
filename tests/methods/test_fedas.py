from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from pfedfda.errors import InputError
from pfedfda.methods import Tensors, Update, part, to_input
from pfedfda.methods.fedas import FedAS, fisher_trace
from pfedfda.methods.fedper import FedPer
from tests.methods.rounds import play_round, two_clients
from tests.methods.steps import DECAY, LR, assert_close, gradient, random_weights
from tests.methods.toy import TASK, make_client, parameters_of, same

LABELS = [0, 1, 2, 3, 0, 1, 2]
BODY = part(random_weights(1, TASK.initial_tensors()), "body")


def squared_norm(tensors: Tensors) -> float:
    return sum(float(t.double().square().sum()) for t in tensors.values())


def test_a_round_by_hand() -> None:
    """Two steps of alignment, two of training, and the mean by the squared gradients."""
    align_lr = 0.3
    models = [random_weights(seed, TASK.initial_tensors()) for seed in (2, 3)]
    after, clients = play_round(FedAS(align_epochs=2, align_lr=align_lr), BODY, models)
    trained, traces = [], []
    for fresh, own, client in zip(two_clients(), models, clients, strict=True):
        images, labels = to_input(fresh.samples.inputs), fresh.samples.labels
        model = fresh.task.build_model()
        model.load_state_dict(own)
        with torch.no_grad():
            features = model.body(images)
            prototypes = {int(c): features[labels == c].mean(0) for c in labels.unique()}
        body = BODY
        for _ in range(2):
            model.load_state_dict(body | part(own, "head"))
            features = model.body(images)
            value = sum(
                F.mse_loss(features[labels == c], p.expand(int((labels == c).sum()), -1))
                for c, p in prototypes.items()
            )
            names, parameters = zip(*model.body.named_parameters(), strict=True)
            gradients = torch.autograd.grad(value, parameters)
            body = {
                f"body.{n}": body[f"body.{n}"] - align_lr * g
                for n, g in zip(names, gradients, strict=True)
            }
        w = body | part(own, "head")
        for _ in range(2):
            g = gradient(fresh, w)
            w = {n: w[n] - LR * (g[n] + DECAY * w[n]) for n in w}
        trained.append(w)
        traces.append(squared_norm(gradient(fresh, w)))
        assert_close(client.state, w)
    expected = {
        n: sum(t * w[n] for t, w in zip(traces, trained, strict=True)) / sum(traces) for n in BODY
    }
    assert_close(after, expected)
    assert max(traces) > 1.2 * min(traces)


def test_without_alignment_a_client_trains_as_in_fedper() -> None:
    head = part(random_weights(2, TASK.initial_tensors()), "head")
    plain = make_client(LABELS, state=head)
    expected = FedPer().train(plain, BODY).tensors
    ours = make_client(LABELS, state=random_weights(3, TASK.initial_tensors()) | head)
    update = FedAS(align_epochs=0).train(ours, BODY)
    assert same(part(update.tensors, "body"), expected)
    assert same(part(ours.state, "head"), plain.state)


def test_with_equal_information_bodies_are_averaged_plainly() -> None:
    first, second = (part(random_weights(s, TASK.initial_tensors()), "body") for s in (2, 3))
    for fisher in (1e-3, 1e3):
        updates = [
            Update(body | {"fisher": torch.tensor([fisher])}, weight)
            for body, weight in ((first, 1.0), (second, 50.0))
        ]
        after = FedAS().aggregate(BODY, updates)
        assert_close(after, {n: (first[n] + second[n]) / 2 for n in first})


def test_without_any_information_the_body_stays() -> None:
    nothing = Update(
        part(random_weights(2, TASK.initial_tensors()), "body") | {"fisher": torch.zeros(1)}, 3.0
    )
    assert same(FedAS().aggregate(BODY, [nothing, nothing]), BODY)


def test_the_first_round_of_a_client_has_nothing_to_align_to() -> None:
    ours, plain = make_client(LABELS), make_client(LABELS)
    sent = FedAS().train(ours, BODY).tensors
    assert same(part(sent, "body"), FedPer().train(plain, BODY).tensors)


def test_the_trace_is_the_sum_of_squared_gradients_of_batches() -> None:
    """With one sample a batch it is the empirical Fisher information times the samples."""
    single = replace(TASK, training=replace(TASK.training, batch_size=1))
    weights = random_weights(1, TASK.initial_tensors())
    client = make_client(LABELS, task=single)
    client.model.load_state_dict(weights)
    expected = 0.0
    for row in range(len(LABELS)):
        images, labels = client.samples
        alone = make_client([0], task=single)
        alone.samples = type(client.samples)(images[row : row + 1], labels[row : row + 1])
        expected += squared_norm(gradient(alone, weights))
    assert float(fisher_trace(client)) == pytest.approx(expected, rel=1e-4)


def test_alignment_brings_features_nearer_to_the_own_prototypes() -> None:
    own = random_weights(2, TASK.initial_tensors())
    client = make_client(LABELS, state=own)
    labels = client.samples.labels

    def features(model: torch.nn.Module) -> torch.Tensor:
        with torch.no_grad():
            return model.body(to_input(client.samples.inputs))

    client.model.load_state_dict(own)
    before = features(client.model)
    prototypes = torch.stack([before[labels == c].mean(0) for c in range(4)])[labels]
    distances = []
    for epochs in (0, 1, 10):
        method = FedAS(align_epochs=epochs, align_lr=0.1)
        model = method.personalize(make_client(LABELS, state=own), BODY).model
        distances.append(float((features(model) - prototypes).square().sum()))
        head = part(parameters_of(model), "head")
        assert same(head, part(own, "head"))
    assert distances[0] > distances[1] > distances[2]


def test_a_new_client_trains_a_copy() -> None:
    models = [m.personalize(make_client(LABELS), BODY).model for m in (FedAS(), FedPer())]
    assert same(*(parameters_of(model) for model in models))


def test_a_negative_trace_is_a_fault() -> None:
    update = FedAS().train(make_client(LABELS), BODY)
    assert FedAS().fault(update) is None
    update.tensors["fisher"] = torch.tensor([-1.0])
    assert FedAS().fault(update) == "its Fisher information is -1"


def test_bad_hyper_parameters() -> None:
    with pytest.raises(InputError, match="align-epochs is -1"):
        FedAS(align_epochs=-1)
    with pytest.raises(InputError, match="align-lr is 0"):
        FedAS(align_lr=0.0)
