import pytest

from pfedfda.errors import InputError
from pfedfda.methods import part
from pfedfda.methods.fedbabu import FedBABU
from tests.methods.steps import random_weights
from tests.methods.toy import TASK, make_client, parameters_of, same, snapshot

LABELS = [0, 1, 2, 3, 0, 1, 2]


def plain(module) -> dict:
    return {name: t.contiguous() for name, t in parameters_of(module).items()}


def test_the_head_does_not_move_by_one_bit_in_training() -> None:
    assert TASK.training.weight_decay > 0
    method = FedBABU()
    state = method.init(TASK)
    client = make_client(LABELS)
    before = snapshot(part(TASK.initial_tensors(), "head"))
    for _ in range(3):
        state = method.aggregate(state, [method.train(client, state)])
        head = {f"head.{n}": t for n, t in plain(client.model.head).items()}
        assert same(head, before)
    assert not same(state, method.init(TASK))
    assert all(name.startswith("body.") for name in state)


@pytest.mark.parametrize("what", ["head", "all"])
def test_fine_tuning_happens_on_a_copy(what: str) -> None:
    method = FedBABU(fine_tune=what)  # type: ignore[arg-type]
    body = part(random_weights(1, TASK.initial_tensors()), "body")
    before = snapshot(body)
    model = method.personalize(make_client(LABELS), body).model
    assert same(body, before)
    tuned = {f"body.{n}": t for n, t in plain(model.body).items()}
    assert same(tuned, body) == (what == "head")
    head = {f"head.{n}": t for n, t in plain(model.head).items()}
    assert not same(head, part(TASK.initial_tensors(), "head"))


def test_bad_hyper_parameters() -> None:
    with pytest.raises(InputError, match="fine-tune-epochs"):
        FedBABU(fine_tune_epochs=-1)


def test_fine_tuning_has_its_own_number_of_epochs() -> None:
    client = make_client(LABELS)
    passes = []
    client.model.register_forward_pre_hook(lambda *_: passes.append(1))
    FedBABU(fine_tune_epochs=3).personalize(client, FedBABU().init(TASK))
    assert len(passes) == 3 * 2  # two batches an epoch
