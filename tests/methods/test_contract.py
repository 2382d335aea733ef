"""What holds for every method; a new one is tested here by being registered."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from pfedfda.data import FederationConfig
from pfedfda.experiment import run
from pfedfda.experiment.check_method import CHECKS, CheckFunction, find
from pfedfda.methods import Client, Method, all_methods, part
from tests.methods.toy import TASK, make_client

EVERY_METHOD = pytest.mark.parametrize("name", list(all_methods()))


def make(name: str) -> Method:
    return all_methods()[name]()


@EVERY_METHOD
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_contract(name: str, check: CheckFunction) -> None:
    assert find(check, make(name)).violation is None


@EVERY_METHOD
def test_the_weight_of_a_client_is_its_number_of_samples(name: str) -> None:
    method = make(name)
    update = method.train(make_client([0, 1, 1, 2]), method.message(method.init(TASK), 0))
    assert update.weight == 4


@EVERY_METHOD
def test_bodies_and_heads_are_averaged_by_samples(name: str) -> None:
    """What is shared of the network is the mean weighted by training samples."""
    method = make(name)
    state = method.init(TASK)
    clients = [make_client([0, 1], 0), make_client([0, 1, 2, 3, 0, 1], 1)]
    updates = [
        replace(method.train(c, method.message(state, c.client_id)), client_id=c.client_id)
        for c in clients
    ]
    after = method.aggregate(state, updates)
    for key in part(after, "body", "head"):
        first, second = (u.tensors[key].double() for u in updates)
        torch.testing.assert_close(after[key].double(), (2 * first + 6 * second) / 8)


class CountQuestions(TorchDispatchMode):
    """Counts operations for which an accelerator would have to stop and answer."""

    ASKING = ("_local_scalar_dense", "nonzero", "masked_select", "unique")

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):  # type: ignore
        name = function.overloadpacket.__name__
        if name.startswith(self.ASKING):
            self.asked.append(name)
        return function(*arguments, **(keywords or {}))


@EVERY_METHOD
def test_training_asks_the_device_once(name: str) -> None:
    """For the mean loss at the end of a training loop, and not on every batch."""
    loops = []

    class Watched(Client):
        @contextmanager
        def timer(self, component: str) -> Iterator[None]:
            with CountQuestions() as mode:
                yield
            if component == "network":
                loops.append(mode.asked)

    method = make(name)
    client = make_client([0, 1, 2, 3] * 4)
    watched = Watched(**{f.name: getattr(client, f.name) for f in fields(client)})
    method.train(watched, method.message(method.init(TASK), 0))
    assert loops
    assert all(asked == ["_local_scalar_dense"] for asked in loops)


@EVERY_METHOD
def test_a_federation_of_one_client(name: str, tmp_path: Path) -> None:
    federation = FederationConfig(partition="client-dirichlet", clients=1, samples=40, alpha=5.0)
    result = run(name, federation, rounds=6, batch_size=8, workers=0, output=tmp_path, quiet=True)
    assert result.summary["status"] == "complete"
    assert result.mean_accuracy == result.summary["weighted_accuracy"]
    assert result.metrics[-1]["train_loss"] < 2.4  # no worse than guessing among ten
