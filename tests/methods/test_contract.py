"""What holds for every method; a new one is tested here by being registered."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from pfedfda.data import FederationConfig
from pfedfda.errors import InputError
from pfedfda.experiment import run
from pfedfda.experiment.check_method import CHECKS, CheckFunction, find
from pfedfda.gaussian import LOG_OF_ZERO
from pfedfda.methods import WEIGHT, Client, Method, Tensors, Update, all_methods, dry_run, part
from pfedfda.methods.fedavg import FedAvg
from pfedfda.methods.lg_fedavg import LGFedAvg
from pfedfda.methods.pfedfda import PFedFDA
from pfedfda.models import model_tensors
from tests.methods.toy import TASK, make_client, same, snapshot

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


@pytest.mark.parametrize("name", [name for name in all_methods() if name != "fedas"])
def test_bodies_and_heads_are_averaged_by_samples(name: str) -> None:
    """What is shared of the network is the mean weighted by training samples.

    FedAS weights by Fisher information; its own tests check that.
    """
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


ADDITIVE = [name for name, method in all_methods().items() if method.additive]


def some_updates(method: Method, state: Tensors) -> list[Update]:
    clients = [
        make_client([0, 1], 0),
        make_client([0, 1, 2, 3, 0, 1], 1),
        make_client([2, 2, 1], 2),
    ]
    return [
        replace(method.train(c, method.message(state, c.client_id)), client_id=c.client_id)
        for c in clients
    ]


def test_only_fedpac_and_fedcof_must_see_single_updates() -> None:
    assert set(all_methods()) - set(ADDITIVE) == {"fedpac", "fedcof"}


@pytest.mark.parametrize("name", ADDITIVE)
def test_the_server_needs_nothing_but_the_sum(name: str) -> None:
    """Two rounds: whoever adds up the contributions, the state is the same to the bit."""
    method = make(name)
    state = method.init(TASK)
    for _ in range(2):
        updates = some_updates(method, state)
        sent = [snapshot(update.tensors) for update in updates]
        contributions = [method.contribution(update) for update in updates]
        assert all(same(u.tensors, t) for u, t in zip(updates, sent, strict=True))
        for contribution, update in zip(contributions, updates, strict=True):
            assert contribution[WEIGHT].item() == update.weight
            assert all(t.dtype == torch.float64 for t in contribution.values())
        total = {}
        for key in contributions[0]:
            first, second, third = (c[key] for c in contributions)
            total[key] = first + second + third
        before = snapshot(total)
        after = method.finish(state, total)
        assert same(total, before)
        assert same(after, method.aggregate(state, iter(updates)))
        assert {n: t.dtype for n, t in after.items()} == {n: t.dtype for n, t in state.items()}
        state = after


@pytest.mark.parametrize("name", ADDITIVE)
def test_the_sum_may_be_one_of_whole_numbers(name: str) -> None:
    """What a secure aggregation adds up: contributions in fixed point, modulo 2^64."""
    method = make(name)
    state = method.init(TASK)
    updates = some_updates(method, state)
    unit = 2.0**-30
    sums: Tensors = {}
    for update in updates:
        for key, tensor in method.contribution(update).items():
            mask = torch.randint(-(2**62), 2**62, tensor.shape)
            masked = (tensor / unit).round().long() + mask  # wraps around
            sums[key] = sums.get(key, 0) + masked - mask
    after = method.finish(state, {key: value.double() * unit for key, value in sums.items()})
    for key, tensor in method.aggregate(state, updates).items():
        # A head is solved for: with fewer samples than features that amplifies the rounding.
        atol = (
            5e-3 * float(tensor[tensor > LOG_OF_ZERO].abs().max()) if method.training_free else 1e-6
        )
        torch.testing.assert_close(after[key], tensor, rtol=1e-5, atol=atol)


def test_overriding_aggregate_means_that_the_sum_is_not_enough() -> None:
    class Median(type(make("fedavg"))):  # type: ignore[misc]
        def aggregate(self, state: Tensors, updates: object) -> Tensors:
            return state

    class Logged(type(make("fedavg"))):  # type: ignore[misc]
        additive = True

        def aggregate(self, state: Tensors, updates: object) -> Tensors:
            return super().aggregate(state, updates)

    assert not Median.additive
    assert Logged.additive


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
    once = [] if method.training_free else ["_local_scalar_dense"]  # without a loop no loss either
    assert all(asked == once for asked in loops)


def kinds(tensors: Tensors) -> dict[str, tuple[torch.Size, torch.dtype]]:
    return {name: (tensor.shape, tensor.dtype) for name, tensor in tensors.items()}


@pytest.mark.parametrize(
    "method",
    [
        *(method() for method in all_methods().values()),
        LGFedAvg(shared="dense"),
        PFedFDA(statistics="interpolated"),
    ],
    ids=lambda method: f"{method.name}-{getattr(method, 'shared', '')}",
)
@pytest.mark.parametrize("labels", [[3], [0, 1, 2, 3, 0], [1] * 12])
def test_a_dry_run_tells_what_crosses(method: Method, labels: list[int]) -> None:
    """Whatever a client holds, also in a later round; nothing that a run sees is changed."""
    state = method.init(TASK)
    before, randomness = snapshot(state), torch.get_rng_state()
    sent = dry_run(method, TASK, state)
    assert same(state, before)
    assert same(TASK.initial_tensors(), model_tensors(TASK.build_model()))
    assert torch.equal(torch.get_rng_state(), randomness)
    client = make_client(labels)
    for number in (1, 2):
        client.round = number
        message = method.message(state, 0)
        update = method.train(client, message)
        assert kinds(message) == kinds(sent.down)
        assert kinds(update.tensors) == kinds(sent.up)
        state = method.aggregate(state, [replace(update, client_id=0)])


def test_a_dry_run_leaves_the_randomness_of_a_run_alone() -> None:
    class Noisy(FedAvg):
        def train(self, client: Client, message: Tensors) -> Update:
            torch.rand(3)  # as dropout does
            for tensor in message.values():
                tensor.zero_()  # which is forbidden, and must not reach the state
            return super().train(client, message)

    state = Noisy().init(TASK)
    before, randomness = snapshot(state), torch.get_rng_state()
    dry_run(Noisy(), TASK, state)
    assert same(state, before)
    assert torch.equal(torch.get_rng_state(), randomness)


def test_the_name_of_the_weight_is_reserved() -> None:
    class Clash(FedAvg):
        def train(self, client: Client, message: Tensors) -> Update:
            update = super().train(client, message)
            return replace(update, tensors=update.tensors | {WEIGHT: torch.ones(1)})

    with pytest.raises(InputError, match="'update_weight', a name that is kept"):
        dry_run(Clash(), TASK, Clash().init(TASK))


@EVERY_METHOD
def test_a_federation_of_one_client(name: str, tmp_path: Path) -> None:
    federation = FederationConfig(partition="client-dirichlet", clients=1, samples=40, alpha=5.0)
    result = run(name, federation, rounds=6, batch_size=8, workers=0, output=tmp_path, quiet=True)
    assert result.summary["status"] == "complete"
    assert result.mean_accuracy == result.summary["weighted_accuracy"]
    assert result.metrics[-1]["train_loss"] < 2.4  # no worse than guessing among ten
