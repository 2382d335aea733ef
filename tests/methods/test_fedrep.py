import itertools

import pytest

from pfedfda.errors import InputError
from pfedfda.methods import part
from pfedfda.methods.fedrep import FedRep
from tests.methods.steps import random_weights
from tests.methods.toy import TASK, make_client, parameters_of, same, snapshot

LABELS = [0, 1, 2, 3, 0, 1, 2]


def test_head_and_body_take_turns() -> None:
    """At every step one part is as it was, to the bit: first the body, then the head."""
    client = make_client(LABELS)
    history = []
    client.model.register_forward_pre_hook(
        lambda model, _: history.append((parameters_of(model.body), parameters_of(model.head)))
    )
    FedRep(head_epochs=3).train(client, FedRep().init(TASK))
    history.append((parameters_of(client.model.body), parameters_of(client.model.head)))
    body_moves = [not same(a[0], b[0]) for a, b in itertools.pairwise(history)]
    head_moves = [not same(a[1], b[1]) for a, b in itertools.pairwise(history)]
    head_steps, body_steps = 3 * 2, 2 * 2  # two batches an epoch
    assert head_moves == [True] * head_steps + [False] * body_steps
    assert body_moves == [False] * head_steps + [True] * body_steps


def test_only_the_body_is_sent_and_the_head_persists() -> None:
    method = FedRep()
    client = make_client(LABELS)
    update = method.train(client, method.init(TASK))
    assert all(name.startswith("body.") for name in update.tensors)
    assert client.state.keys() == {"head.weight", "head.bias"}
    assert not same(client.state, part(TASK.initial_tensors(), "head"))
    # The next round goes on with this head: one that differs gives another result.
    again = method.train(make_client(LABELS, state=snapshot(client.state)), method.init(TASK))
    assert not same(again.tensors, update.tensors)


def test_the_global_body_and_the_own_head_serve() -> None:
    method = FedRep()
    body = part(random_weights(1, TASK.initial_tensors()), "body")
    head = part(random_weights(2, TASK.initial_tensors()), "head")
    model = method.personalize(make_client(LABELS, state=head), body).model
    assert same({n: t.contiguous() for n, t in parameters_of(model).items()}, body | head)


def test_bad_hyper_parameters() -> None:
    with pytest.raises(InputError, match="head-epochs"):
        FedRep(head_epochs=0)
