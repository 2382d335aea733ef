from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pfedfda.errors import InputError
from pfedfda.methods import Client, Tensors, to_input
from pfedfda.methods.fedavg import FedAvg
from pfedfda.methods.per_fedavg import PerFedAvg
from pfedfda.models import ModelConfig
from tests.methods.rounds import averaged, play_round, two_clients
from tests.methods.steps import DECAY, LR, ONE_STEP, assert_close, gradient, random_weights
from tests.methods.toy import TASK, make_client, parameters_of, same

LABELS = [0, 1, 2, 3, 0, 1, 2]


def test_without_a_step_it_is_fedavg() -> None:
    method, state = PerFedAvg(alpha=0.0), random_weights(1, TASK.initial_tensors())
    for _ in range(2):
        ours = method.train(make_client(LABELS), state)
        plain = FedAvg().train(make_client(LABELS), state)
        assert same(ours.tensors, plain.tensors)
        assert ours.metrics == plain.metrics
        state = method.aggregate(state, [ours])
    model = method.personalize(make_client(LABELS), state).model
    assert same({n: t.contiguous() for n, t in parameters_of(model).items()}, state)


class Normed(nn.Module):
    """Batch norm on pixels."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(shape[0])

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.norm(images)[:, :, ::4, ::4].flatten(1)


def test_without_a_step_the_averages_of_batch_norm_are_those_of_fedavg() -> None:
    task = replace(TASK, model=ModelConfig("tests.methods.test_per_fedavg:Normed"))
    ours, plain = (
        method.train(make_client(LABELS, task=task), task.initial_tensors())
        for method in (PerFedAvg(alpha=0.0), FedAvg())
    )
    assert "body.norm.num_batches_tracked" in plain.tensors
    assert same(ours.tensors, plain.tensors)


def test_a_round_by_hand() -> None:
    """Where a batch has all samples, both batches are the same, and nothing is left to chance."""
    alpha, beta = 0.4, 0.02
    start = random_weights(1, TASK.initial_tensors())
    after, clients = play_round(PerFedAvg(alpha=alpha, beta=beta), start)
    trained = []
    for fresh in two_clients():
        w = start
        for _ in range(2):
            g = gradient(fresh, w)
            g = gradient(fresh, {n: w[n] - alpha * g[n] for n in w})
            w = {n: w[n] - beta * (g[n] + DECAY * w[n]) for n in w}
        trained.append(w)
    assert_close(after, averaged(trained, clients))


def exact_gradient(client: Client, weights: Tensors, alpha: float) -> Tensors:
    """Return the gradient of the loss after a step, with its second derivatives."""
    w = {name: tensor.clone().requires_grad_() for name, tensor in weights.items()}
    model = client.task.build_model()

    def value(at: Tensors) -> torch.Tensor:
        logits = torch.func.functional_call(model, at, (to_input(client.samples.inputs),))
        return F.cross_entropy(logits, client.samples.labels)

    inner = torch.autograd.grad(value(w), list(w.values()), create_graph=True)
    stepped = {n: p - alpha * g for (n, p), g in zip(w.items(), inner, strict=True)}
    return dict(zip(w, torch.autograd.grad(value(stepped), list(w.values())), strict=True))


def test_the_second_derivative_is_left_out_and_matters_little_for_small_steps() -> None:
    """The first-order gradient differs from the exact one by a term of order α."""
    start = random_weights(1, TASK.initial_tensors())

    def error(alpha: float) -> float:
        sent = PerFedAvg(alpha=alpha).train(make_client(LABELS, task=ONE_STEP), start).tensors
        exact = exact_gradient(make_client(LABELS), start, alpha)
        ours = {n: (start[n] - sent[n]) / LR - DECAY * start[n] for n in start}
        return sum(float((ours[n] - exact[n]).square().sum()) for n in start) ** 0.5

    assert error(0.2) > 2 * error(0.05) > 2 * error(0.0)


def test_both_batches_of_a_step_are_drawn_apart() -> None:
    seen: list[torch.Tensor] = []
    client = make_client(list(range(4)) * 5)
    client.model.body.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].clone()))
    PerFedAvg().train(client, TASK.initial_tensors())
    firsts, seconds = seen[0::2], seen[1::2]
    assert len(firsts) == len(seconds) == TASK.training.epochs * 4
    assert all(a.shape == b.shape for a, b in zip(firsts, seconds, strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(firsts, seconds, strict=True))


def test_a_client_takes_plain_steps_before_use() -> None:
    received = random_weights(1, TASK.initial_tensors())
    whole = replace(TASK, training=replace(TASK.training, batch_size=100))
    for steps in (0, 1, 3):
        client = make_client(LABELS, task=whole)
        model = PerFedAvg(alpha=0.3, adapt_steps=steps).personalize(client, received).model
        w = received
        for _ in range(steps):
            g = gradient(make_client(LABELS), w)
            w = {n: w[n] - 0.3 * g[n] for n in w}
        assert_close(parameters_of(model), w)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"alpha": -1.0}, "alpha is -1"),
        ({"beta": 0.0}, "beta is 0"),
        ({"adapt_steps": -1}, "adapt-steps is -1"),
    ],
)
def test_bad_hyper_parameters(values: dict[str, float], message: str) -> None:
    with pytest.raises(InputError, match=message):
        PerFedAvg(**values)  # type: ignore[arg-type]
