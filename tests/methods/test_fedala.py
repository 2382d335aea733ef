from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from pfedfda.errors import InputError
from pfedfda.methods import Tensors, part, to_input
from pfedfda.methods.fedala import FedALA
from pfedfda.methods.fedavg import FedAvg
from tests.methods.rounds import averaged, play_round, two_clients
from tests.methods.steps import DECAY, LR, assert_close, gradient, random_weights
from tests.methods.toy import TASK, make_client, parameters_of, same

LABELS = [0, 1, 2, 3, 0, 1, 2]
HEAD = ("head.weight", "head.bias")


def kept_by(seed: int, learned: float, weights: float | None = None) -> Tensors:
    """Return what a client has kept: a head of its own, and W, which is random if not given."""
    own = random_weights(seed, TASK.initial_tensors())
    generator = torch.Generator().manual_seed(seed)
    drawn = {name: torch.rand(own[name].shape, generator=generator) for name in HEAD}
    return {
        **{f"own.{name}": own[name] for name in HEAD},
        **{
            f"weights.{name}": drawn[name] if weights is None else torch.full_like(t, weights)
            for name, t in drawn.items()
        },
        "learned": torch.tensor([learned]),
    }


def test_without_learning_it_is_fedavg() -> None:
    method, ours, plain = FedALA(most_epochs=0), make_client(LABELS), make_client(LABELS)
    state = method.init(TASK)
    for _ in range(3):
        update, other = method.train(ours, state), FedAvg().train(plain, state)
        assert same(update.tensors, other.tensors)
        assert update.metrics == other.metrics
        state = random_weights(4, method.aggregate(state, [update]))
        personal = parameters_of(method.personalize(ours, state).model)
        assert same({n: t.contiguous() for n, t in personal.items()}, state)


def test_a_round_by_hand() -> None:
    """One step on W, clamped to [0, 1]; then two steps from the mixture."""
    eta = 100.0
    received = random_weights(1, TASK.initial_tensors())
    kept = [kept_by(2, learned=1.0), kept_by(3, learned=1.0)]
    after, clients = play_round(FedALA(rand_percent=100, eta=eta), received, kept)
    trained, clamped = [], 0
    for fresh, state, client in zip(two_clients(), kept, clients, strict=True):
        change = {n: received[n] - state[f"own.{n}"] for n in HEAD}

        def mixture(weights: Tensors, state: Tensors = state, change: Tensors = change) -> Tensors:
            return received | {n: state[f"own.{n}"] + change[n] * weights[n] for n in HEAD}

        before = {n: state[f"weights.{n}"] for n in HEAD}
        g = gradient(fresh, mixture(before))
        moved = {n: before[n] - eta * g[n] * change[n] for n in HEAD}
        weights = {n: w.clamp(0, 1) for n, w in moved.items()}
        clamped += sum(int((moved[n] != weights[n]).sum()) for n in HEAD)
        w = mixture(weights)
        for _ in range(2):
            g = gradient(fresh, w)
            w = {n: w[n] - LR * (g[n] + DECAY * w[n]) for n in w}
        trained.append(w)
        for name in HEAD:
            torch.testing.assert_close(
                client.state[f"weights.{name}"], weights[name], rtol=1e-3, atol=1e-4
            )
        assert_close({n: client.state[f"own.{n}"] for n in HEAD}, part(w, "head"))
    assert clamped > 0
    assert_close(after, averaged(trained, clients))


def test_the_first_round_of_a_client_has_nothing_to_mix() -> None:
    received = random_weights(1, TASK.initial_tensors())
    ours = make_client(LABELS)
    sent = FedALA().train(ours, received).tensors
    assert same(sent, FedAvg().train(make_client(LABELS), received).tensors)
    assert not ours.state["learned"]
    assert all(bool((ours.state[f"weights.{n}"] == 1).all()) for n in HEAD)


def mixtures_tried(method: FedALA, state: Tensors) -> int:
    """Return how many times a client with one batch has run the model before it is used."""
    task = replace(TASK, training=replace(TASK.training, batch_size=100))
    client = make_client(LABELS, state=state, task=task)
    passes = []
    client.model.register_forward_pre_hook(lambda *_: passes.append(1))
    method.personalize(client, random_weights(1, TASK.initial_tensors()))
    return len(passes)


def test_the_first_time_weights_are_learned_until_the_loss_settles() -> None:
    fresh = kept_by(2, learned=0.0)
    assert mixtures_tried(FedALA(threshold=1e9, num_pre_loss=4), fresh) == 5
    assert mixtures_tried(FedALA(threshold=0.0, most_epochs=13), fresh) == 13
    assert mixtures_tried(FedALA(threshold=0.0, most_epochs=13), kept_by(2, learned=1.0)) == 1


def test_learning_lowers_the_loss_of_the_mixture_below_that_of_the_global_model() -> None:
    received = random_weights(1, TASK.initial_tensors())
    received |= {n: -3 * received[n] for n in HEAD}
    state = kept_by(2, learned=0.0, weights=1.0)  # from ones, which is the global model
    losses = []
    for epochs in (0, 5, 50):
        client = make_client(LABELS, state=state)
        method = FedALA(rand_percent=100, threshold=0.0, most_epochs=epochs)
        model = method.personalize(client, received).model
        images, labels = client.samples
        with torch.no_grad():
            losses.append(float(F.cross_entropy(model(to_input(images)), labels)))
        assert same(part(parameters_of(model), "body"), part(received, "body"))
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < 0.9 * losses[0]


def test_more_layers_can_be_mixed() -> None:
    names = [name for name, _ in TASK.build_model().named_parameters()]
    for count, expected in ((3, names[-3:]), (0, names)):
        client = make_client(LABELS)
        FedALA(layer_idx=count).train(client, TASK.initial_tensors())
        assert [n[4:] for n in client.state if n.startswith("own.")] == expected
        FedALA(layer_idx=count).train(client, random_weights(1, TASK.initial_tensors()))
        assert client.state["learned"]


def test_a_new_client_uses_the_global_model() -> None:
    received = random_weights(1, TASK.initial_tensors())
    model = FedALA().personalize(make_client(LABELS), received).model
    assert same({n: t.contiguous() for n, t in parameters_of(model).items()}, received)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"layer_idx": -1}, "layer-idx is -1"),
        ({"rand_percent": 0.0}, "rand-percent is 0"),
        ({"eta": 0.0}, "eta is 0"),
        ({"threshold": -1.0}, "threshold is -1"),
        ({"num_pre_loss": 0}, "num-pre-loss is 0"),
        ({"most_epochs": -1}, "most-epochs is -1"),
    ],
)
def test_bad_hyper_parameters(values: dict[str, float], message: str) -> None:
    with pytest.raises(InputError, match=message):
        FedALA(**values)  # type: ignore[arg-type]
