from dataclasses import replace

import pytest
import torch

from pfedfda.errors import InputError
from pfedfda.methods import Update
from pfedfda.methods.pfedme import PFedMe
from tests.methods.steps import DECAY, LR, ONE_STEP, assert_close, gradient, random_weights
from tests.methods.toy import TASK, make_client, parameters_of, same

LABELS = [0, 1, 2, 3, 0, 1, 2]


def test_one_inner_step_is_the_closed_form() -> None:
    method = PFedMe(lam=5.0, inner_steps=1, personal_lr=0.2)
    w = random_weights(1, TASK.initial_tensors())
    client = make_client(LABELS, task=ONE_STEP)
    update = method.train(client, w)
    g = gradient(make_client(LABELS, task=ONE_STEP), w)
    theta = {n: w[n] - 0.2 * (g[n] + DECAY * w[n]) for n in w}  # the penalty is 0 at θ = w
    assert_close(client.state, theta)
    assert_close(update.tensors, {n: w[n] - LR * 5.0 * (w[n] - theta[n]) for n in w})


def test_the_second_inner_step_feels_the_penalty() -> None:
    method = PFedMe(lam=5.0, inner_steps=2, personal_lr=0.05)
    w = random_weights(1, TASK.initial_tensors())
    client = make_client(LABELS, task=ONE_STEP)
    method.train(client, w)
    other = make_client(LABELS, task=ONE_STEP)
    g = gradient(other, w)
    theta = {n: w[n] - 0.05 * (g[n] + DECAY * w[n]) for n in w}
    g = gradient(other, theta)
    pull = {n: 5.0 * (theta[n] - w[n]) + DECAY * theta[n] for n in w}
    assert_close(client.state, {n: theta[n] - 0.05 * (g[n] + pull[n]) for n in w})


def test_the_stored_theta_serves() -> None:
    theta, w = (random_weights(seed, TASK.initial_tensors()) for seed in (1, 2))
    model = PFedMe().personalize(make_client(LABELS, state=theta), w).model
    assert same({n: t.contiguous() for n, t in parameters_of(model).items()}, theta)


def test_the_server_moves() -> None:
    state = {"w": torch.zeros(2)}
    updates = [Update({"w": torch.full((2,), 3.0)}, 1), Update({"w": torch.full((2,), 6.0)}, 2)]
    assert PFedMe().aggregate(state, updates)["w"].tolist() == [5.0, 5.0]
    assert PFedMe(mixing=0.5).aggregate(state, updates)["w"].tolist() == [2.5, 2.5]
    start = TASK.initial_tensors()
    sent = PFedMe().train(make_client(LABELS), start).tensors
    assert not same(PFedMe().aggregate(start, [Update(sent, 7)]), start)


@pytest.mark.parametrize(
    "fields", [{"lam": -1.0}, {"inner_steps": 0}, {"personal_lr": 0.0}, {"mixing": 0.0}]
)
def test_bad_hyper_parameters(fields: dict[str, float]) -> None:
    with pytest.raises(InputError, match="must"):
        PFedMe(**fields)  # type: ignore[arg-type]


def test_two_passes_by_hand() -> None:
    """θ goes on from where it was, w follows after each batch, and inner steps have no momentum."""
    training = replace(ONE_STEP.training, epochs=2, momentum=0.5)
    task = replace(ONE_STEP, training=training)
    method = PFedMe(lam=5.0, inner_steps=2, personal_lr=0.05)
    w = random_weights(1, TASK.initial_tensors())
    client = make_client(LABELS, task=task)
    sent = method.train(client, w).tensors
    theta, other = dict(w), make_client(LABELS, task=task)
    for _ in range(2):
        for _ in range(2):
            g = gradient(other, theta)
            theta = {n: t - 0.05 * (g[n] + 5.0 * (t - w[n]) + DECAY * t) for n, t in theta.items()}
        w = {n: w[n] - LR * 5.0 * (w[n] - theta[n]) for n in w}
    assert_close(client.state, theta)
    assert_close(sent, w)
