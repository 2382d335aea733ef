from dataclasses import replace

import pytest

from pfedfda.errors import InputError
from pfedfda.methods.apfl import APFL
from pfedfda.methods.fedavg import FedAvg
from pfedfda.methods.local import Local
from tests.methods.steps import DECAY, LR, ONE_STEP, assert_close, gradient, random_weights
from tests.methods.toy import TASK, make_client, parameters_of, same

LABELS = [0, 1, 2, 3, 0, 1, 2]


def served(method: APFL, client_state: dict, message: dict) -> dict:
    model = method.personalize(make_client(LABELS, state=client_state), message).model
    return {name: t.contiguous() for name, t in parameters_of(model).items()}


def test_the_shared_weights_are_those_of_fedavg_for_every_alpha() -> None:
    start = TASK.initial_tensors()
    expected = FedAvg().train(make_client(LABELS), start).tensors
    for alpha in (0.0, 0.25, 1.0):
        assert same(APFL(alpha=alpha).train(make_client(LABELS), start).tensors, expected)


def test_alpha_zero_serves_the_global_weights() -> None:
    method = APFL(alpha=0.0)
    client = make_client(LABELS)
    method.train(client, TASK.initial_tensors())
    received = random_weights(1, TASK.initial_tensors())
    assert same(served(method, client.state, received), received)


def test_alpha_one_serves_local_training() -> None:
    method = APFL(alpha=1.0)
    alone = make_client(LABELS)
    Local().train(alone, {})
    client = make_client(LABELS)
    received = random_weights(1, TASK.initial_tensors())
    method.train(client, received)
    assert_close(client.state, alone.state)
    assert same(served(method, client.state, received), client.state)


def test_the_personal_gradient_is_taken_at_the_mixture() -> None:
    alpha = 0.3
    w = random_weights(1, TASK.initial_tensors())
    v = random_weights(2, TASK.initial_tensors())
    client = make_client(LABELS, state=dict(v), task=ONE_STEP)
    APFL(alpha=alpha).train(client, w)
    mixture = {n: alpha * v[n] + (1 - alpha) * w[n] for n in v}
    at_mixture = gradient(make_client(LABELS, task=ONE_STEP), mixture)
    # ∂/∂v of the loss at αv + (1-α)w is α times the gradient there.
    assert_close(client.state, {n: v[n] - LR * (alpha * at_mixture[n] + DECAY * v[n]) for n in v})


def test_the_mixture_of_weights_serves() -> None:
    v, w = (random_weights(seed, TASK.initial_tensors()) for seed in (1, 2))
    assert_close(served(APFL(alpha=0.25), v, w), {n: 0.25 * v[n] + 0.75 * w[n] for n in v})


def test_alpha_is_a_share() -> None:
    with pytest.raises(InputError, match="alpha is 1.5"):
        APFL(alpha=1.5)


def test_the_mixture_follows_the_trained_shared_weights() -> None:
    """In the second step the mixture has the w of that moment, not the received one."""
    two_steps = replace(ONE_STEP, training=replace(ONE_STEP.training, epochs=2))
    alpha = 0.3
    w, v = (random_weights(seed, TASK.initial_tensors()) for seed in (1, 2))
    client = make_client(LABELS, state=dict(v), task=two_steps)
    APFL(alpha=alpha).train(client, w)
    other = make_client(LABELS, task=two_steps)
    for _ in range(2):
        mixture = {n: alpha * v[n] + (1 - alpha) * w[n] for n in v}
        at_mixture, at_w = gradient(other, mixture), gradient(other, w)
        v = {n: v[n] - LR * (alpha * at_mixture[n] + DECAY * v[n]) for n in v}
        w = {n: w[n] - LR * (at_w[n] + DECAY * w[n]) for n in w}
    assert_close(client.state, v)
