import copy
import weakref
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from pfedfda.data import Federation
from pfedfda.engine import LocalEngine, Step
from pfedfda.errors import InputError
from pfedfda.methods import Task, Tensors, TrainingConfig, Update
from pfedfda.methods.fedavg import FedAvg, FedAvgFT
from pfedfda.models import ModelConfig
from pfedfda.runs import ClientStates, EngineConfig
from pfedfda.seeding import torch_generator
from tests.methods.toy import TASK, make_client, same, snapshot


def plain_sgd(task: Task, images: torch.Tensor, labels: torch.Tensor, generator) -> dict:
    """Ordinary training with torch's own optimiser, layout and data handling."""
    model = task.build_model().to(memory_format=torch.contiguous_format)
    optimizer = torch.optim.SGD(
        model.parameters(),
        lr=task.training.lr,
        momentum=task.training.momentum,
        weight_decay=task.training.weight_decay,
    )
    x = images.permute(0, 3, 1, 2).contiguous().float() / 127.5 - 1
    for _ in range(task.training.epochs):
        for rows in torch.randperm(len(x), generator=generator).split(task.training.batch_size):
            optimizer.zero_grad()
            F.cross_entropy(model(x[rows]), labels[rows]).backward()
            optimizer.step()
    return model.state_dict()


def test_one_client_and_one_round_is_plain_sgd(tiny: Federation, tmp_path) -> None:
    """The whole way, engine included, against a loop written separately."""
    training = TrainingConfig(epochs=3, batch_size=3, lr=0.05)
    task = Task(ModelConfig(), tiny.input_shape, len(tiny.class_names), len(tiny), training)
    method = FedAvg()
    states = ClientStates(tmp_path)
    with LocalEngine(tiny, task, EngineConfig(workers=1)) as engine:
        start = method.init(task)
        outcomes = engine.run(Step("train", method, 1, states), start, [4])
        state = method.aggregate(start, (o.update for o in outcomes if o.update))
    data = tiny.client(4)
    expected = plain_sgd(
        task,
        torch.from_numpy(np.array(data.train_inputs)),
        torch.from_numpy(np.array(data.train_labels)),
        torch_generator("train", 0, 1, 4),
    )
    assert state.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(state[name], tensor, rtol=1e-5, atol=1e-6)
    assert not same(state, task.initial_tensors())


START: Tensors = {"w": torch.zeros(1)}


def test_average_is_weighted_by_samples() -> None:
    updates = [Update({"w": torch.tensor([float(v)])}, weight) for v, weight in ((1, 10), (4, 30))]
    assert FedAvg().aggregate(START, iter(updates))["w"].item() == pytest.approx((10 + 120) / 40)


def test_average_of_one_is_itself_to_the_bit() -> None:
    tensors = {"w": torch.randn(1000, generator=torch_generator("w"))}
    for weight in (1, 3, 7, 1001):
        assert same(FedAvg().aggregate(START, [Update(tensors, weight)]), tensors)


def test_average_does_not_hold_on_to_updates() -> None:
    """Memory must not grow with the number of clients: all but the current update are freed."""
    given: list[weakref.ref[Update]] = []

    def updates() -> Iterator[Update]:
        for number in range(6):
            assert all(reference() is None for reference in given[:-1])
            update = Update({"w": torch.full((2,), float(number))}, 1)
            given.append(weakref.ref(update))
            yield update
            del update

    assert FedAvg().aggregate(START, updates())["w"].tolist() == [2.5, 2.5]


def test_fine_tuning_is_training_on_a_copy() -> None:
    method = FedAvgFT(fine_tune_epochs=2)
    state = method.init(TASK)
    before = snapshot(state)
    client = make_client([0, 1, 2, 3, 0, 1, 2])
    personal = method.personalize(client, method.message(state, 0))
    assert same(state, before)
    # The toy task trains two epochs too, so fine-tuning from the same start is the same training.
    trained = FedAvg().train(make_client([0, 1, 2, 3, 0, 1, 2]), state)
    tuned = {name: t.contiguous() for name, t in personal.model.state_dict().items()}
    assert same(tuned, trained.tensors)


def test_no_fine_tuning_is_fedavg() -> None:
    state = FedAvg().init(TASK)
    tuned = FedAvgFT(fine_tune_epochs=0).personalize(make_client([0, 1]), state).model
    tuned = copy.deepcopy(tuned)
    plain = FedAvg().personalize(make_client([0, 1]), state).model
    assert same(dict(tuned.state_dict()), dict(plain.state_dict()))
    with pytest.raises(InputError, match="fine-tune-epochs"):
        FedAvgFT(fine_tune_epochs=-1)


def test_more_epochs_fit_better() -> None:
    longer = replace(TASK, training=replace(TASK.training, epochs=20))
    labels = [0, 1, 2, 3] * 4
    short = FedAvg().train(make_client(labels), TASK.initial_tensors()).metrics["train_loss"]
    long = (
        FedAvg()
        .train(make_client(labels, task=longer), longer.initial_tensors())
        .metrics["train_loss"]
    )
    assert long < short
