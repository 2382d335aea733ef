import pytest
import torch

from pfedfda.errors import InputError
from pfedfda.methods.fedavg import FedAvg
from pfedfda.methods.fedprox import FedProx
from tests.methods.rounds import averaged, play_round
from tests.methods.steps import DECAY, LR, assert_close, distance, gradient, random_weights
from tests.methods.toy import TASK, make_client, same

LABELS = [0, 1, 2, 3, 0, 1, 2]


def test_without_penalty_it_is_fedavg() -> None:
    state = random_weights(1, TASK.initial_tensors())
    for _ in range(2):
        ours = FedProx(mu=0.0).train(make_client(LABELS), state)
        plain = FedAvg().train(make_client(LABELS), state)
        assert same(ours.tensors, plain.tensors)
        assert ours.metrics == plain.metrics
        state = FedProx(mu=0.0).aggregate(state, [ours])


def test_a_round_by_hand() -> None:
    """Two steps of gradient descent on the penalised loss at two clients, then the mean."""
    mu = 3.0
    method = FedProx(mu=mu)
    start = random_weights(1, TASK.initial_tensors())
    after, clients = play_round(method, start)
    trained = []
    for client in clients:
        w = start
        for _ in range(2):
            g = gradient(client, w)
            w = {n: w[n] - LR * (g[n] + mu * (w[n] - start[n]) + DECAY * w[n]) for n in w}
        trained.append(w)
    assert_close(after, averaged(trained, clients))


def test_a_larger_penalty_holds_the_client_nearer() -> None:
    start = TASK.initial_tensors()
    moved = [
        distance(FedProx(mu=mu).train(make_client(LABELS), start).tensors, start)
        for mu in (0.0, 0.1, 1.0, 10.0)
    ]
    assert moved == sorted(moved, reverse=True)
    assert moved[-1] < 0.5 * moved[0]


def test_the_global_model_is_used() -> None:
    received = random_weights(1, TASK.initial_tensors())
    model = FedProx().personalize(make_client(LABELS), received).model
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, received[name])


def test_bad_hyper_parameters() -> None:
    with pytest.raises(InputError, match="mu is -1"):
        FedProx(mu=-1.0)
