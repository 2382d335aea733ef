from dataclasses import replace

import pytest

from pfedfda.errors import InputError
from pfedfda.methods import TrainingConfig
from pfedfda.methods.ditto import Ditto
from pfedfda.methods.fedavg import FedAvg
from pfedfda.methods.local import Local
from tests.methods.steps import (
    DECAY,
    LR,
    ONE_STEP,
    assert_close,
    distance,
    gradient,
    random_weights,
)
from tests.methods.toy import TASK, make_client, parameters_of, same

LABELS = [0, 1, 2, 3, 0, 1, 2]


def test_without_penalty_it_is_local_training() -> None:
    method = Ditto(mu=0.0, personal_epochs=TASK.training.epochs)
    ours, alone = make_client(LABELS), make_client(LABELS)
    received = random_weights(1, TASK.initial_tensors())
    for _ in range(2):
        method.train(ours, received)
        Local().train(alone, {})
    assert same(ours.state, alone.state)


def test_the_global_model_is_that_of_fedavg() -> None:
    received = random_weights(1, TASK.initial_tensors())
    expected = FedAvg().train(make_client(LABELS), received).tensors
    assert same(Ditto(mu=3.0).train(make_client(LABELS), received).tensors, expected)


def test_the_penalty_pulls_to_the_received_model() -> None:
    """One step by hand: the prox point is what was received, not what was trained from it."""
    w = random_weights(1, TASK.initial_tensors())
    v = random_weights(2, TASK.initial_tensors())
    client = make_client(LABELS, state=dict(v), task=ONE_STEP)
    Ditto(mu=2.0, personal_epochs=1).train(client, w)
    g = gradient(make_client(LABELS, task=ONE_STEP), v)
    expected = {n: v[n] - LR * (g[n] + 2.0 * (v[n] - w[n]) + DECAY * v[n]) for n in v}
    assert_close(client.state, expected)


def test_a_very_large_penalty_keeps_v_at_the_received_model() -> None:
    training = TrainingConfig(epochs=1, batch_size=5, lr=1e-4, momentum=0.0, weight_decay=0.0)
    task = replace(TASK, training=training)
    received = random_weights(1, TASK.initial_tensors())
    away = distance(TASK.initial_tensors(), received)
    client = make_client(LABELS, task=task)
    Ditto(mu=1e4).train(client, received)  # lr · μ = 1: each step lands on w, less lr · gradient
    assert distance(client.state, received) < 1e-3 * away


def test_v_serves_and_a_newcomer_starts_from_w() -> None:
    v, w = (random_weights(seed, TASK.initial_tensors()) for seed in (1, 2))
    model = Ditto().personalize(make_client(LABELS, state=v), w).model
    assert same({n: t.contiguous() for n, t in parameters_of(model).items()}, v)
    tuned = parameters_of(Ditto().personalize(make_client(LABELS), w).model)
    assert 0 < distance(tuned, w) < distance(tuned, TASK.initial_tensors())


def test_bad_hyper_parameters() -> None:
    with pytest.raises(InputError, match="mu is -1"):
        Ditto(mu=-1.0)
    with pytest.raises(InputError, match="personal-epochs"):
        Ditto(personal_epochs=0)


def test_the_personal_model_has_its_own_number_of_epochs() -> None:
    client = make_client(LABELS)
    passes = []
    client.model.register_forward_pre_hook(lambda *_: passes.append(1))
    Ditto(personal_epochs=3).train(client, TASK.initial_tensors())
    assert len(passes) == (3 + TASK.training.epochs) * 2  # two batches an epoch
