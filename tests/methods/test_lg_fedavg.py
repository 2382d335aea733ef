import pytest

from pfedfda.methods.lg_fedavg import LGFedAvg
from tests.methods.toy import TASK, make_client, parameters_of, same

UPPER = {
    "dense": {"body.linear.weight", "body.linear.bias", "head.weight", "head.bias"},
    "head": {"head.weight", "head.bias"},
}


@pytest.mark.parametrize("shared", ["dense", "head"])
def test_only_the_upper_layers_cross(shared: str) -> None:
    method = LGFedAvg(shared=shared)  # type: ignore[arg-type]
    state = method.init(TASK)
    client = make_client([0, 1, 2, 3])
    update = method.train(client, state)
    assert state.keys() == UPPER[shared]
    assert update.tensors.keys() == UPPER[shared]
    everything = set(TASK.initial_tensors())
    assert set(client.state) == everything - UPPER[shared]


def test_lower_layers_differ_between_clients_and_upper_ones_do_not() -> None:
    method = LGFedAvg(shared="dense")
    state = method.init(TASK)
    clients = [make_client([0, 1, 0, 1], 0), make_client([2, 3, 2, 3], 1)]
    after = method.aggregate(state, [method.train(c, state) for c in clients])
    models = [
        parameters_of(method.personalize(make_client([0], i, state=c.state), after).model)
        for i, c in enumerate(clients)
    ]
    assert not same({"w": models[0]["body.conv1.weight"]}, {"w": models[1]["body.conv1.weight"]})
    for name in UPPER["dense"]:
        assert same({"w": models[0][name]}, {"w": models[1][name]})
        assert same({"w": models[0][name]}, {"w": after[name]})


def test_a_client_goes_on_with_its_lower_layers() -> None:
    method = LGFedAvg()
    state = method.init(TASK)
    client = make_client([0, 1, 2, 3])
    method.train(client, state)
    kept = client.state["body.conv1.weight"].clone()
    seen = []
    client.model.register_forward_pre_hook(
        lambda model, _: seen.append(model.body.conv1.weight.detach().clone().contiguous())
    )
    method.train(client, state)
    assert same({"w": seen[0]}, {"w": kept})
