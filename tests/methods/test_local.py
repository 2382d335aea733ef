from pfedfda.methods.fedavg import FedAvg
from pfedfda.methods.local import Local
from tests.methods.toy import TASK, make_client, same

LABELS = [0, 1, 2, 3, 0, 1]


def test_nothing_crosses() -> None:
    method = Local()
    assert method.message(method.init(TASK), 0) == {}
    assert method.train(make_client(LABELS), {}).tensors == {}


def test_goes_on_from_where_it_was() -> None:
    """Two rounds of Local are two rounds of FedAvg with a single client."""
    first = make_client(LABELS)
    Local().train(first, {})
    second = make_client(LABELS, state=first.state)
    Local().train(second, {})
    state = FedAvg().init(TASK)
    for _ in range(2):
        state = FedAvg().train(make_client(LABELS), state).tensors
    assert same(second.state, state)


def test_a_client_that_never_trained_has_the_common_start() -> None:
    model = Local().personalize(make_client(LABELS), {}).model
    tensors = {name: t.contiguous() for name, t in model.state_dict().items()}
    assert same(tensors, TASK.initial_tensors())
