from pfedfda.methods import part
from pfedfda.methods.fedavg import FedAvg
from pfedfda.methods.fedper import FedPer
from pfedfda.methods.local import Local
from tests.methods.rounds import LABELS as TWO_CLIENTS
from tests.methods.rounds import averaged, play_round
from tests.methods.steps import DECAY, LR, assert_close, gradient, random_weights
from tests.methods.toy import TASK, make_client, parameters_of, same, snapshot

LABELS = [0, 1, 2, 3, 0, 1, 2]


def test_a_round_by_hand() -> None:
    """Two steps on all parameters; bodies are averaged, each head stays with its client."""
    body = part(random_weights(1, TASK.initial_tensors()), "body")
    heads = [part(random_weights(seed, TASK.initial_tensors()), "head") for seed in (2, 3)]
    after, clients = play_round(FedPer(), body, heads)
    trained = []
    for client, head in zip(clients, heads, strict=True):
        w = body | head
        for _ in range(2):
            g = gradient(client, w)
            w = {n: w[n] - LR * (g[n] + DECAY * w[n]) for n in w}
        trained.append(w)
        assert_close(client.state, part(w, "head"))
    assert_close(after, averaged([part(w, "body") for w in trained], clients))


def test_alone_it_is_local_training() -> None:
    """A federation of one client: body and head go on from where they were, to the bit."""
    method, ours, alone = FedPer(), make_client(LABELS), make_client(LABELS)
    state = method.init(TASK)
    for _ in range(3):
        state = method.aggregate(state, [method.train(ours, state)])
        Local().train(alone, {})
        assert same(state | ours.state, alone.state)


def test_the_first_round_of_a_client_is_that_of_fedavg() -> None:
    """Head and body move in the same steps, unlike FedRep's: only where the head goes differs."""
    ours, plain = (make_client(TWO_CLIENTS[0]) for _ in range(2))
    sent = FedPer().train(ours, FedPer().init(TASK)).tensors
    assert same(sent | ours.state, FedAvg().train(plain, TASK.initial_tensors()).tensors)


def test_the_received_body_and_the_own_head_are_used() -> None:
    body = part(random_weights(1, TASK.initial_tensors()), "body")
    head = part(random_weights(2, TASK.initial_tensors()), "head")
    model = FedPer().personalize(make_client(LABELS, state=head), body).model
    assert same({n: t.contiguous() for n, t in parameters_of(model).items()}, body | head)


def test_a_new_client_trains_a_copy() -> None:
    body = part(random_weights(1, TASK.initial_tensors()), "body")
    before = snapshot(body)
    model = FedPer().personalize(make_client(LABELS), body).model
    used = {n: t.contiguous() for n, t in parameters_of(model).items()}
    client = make_client(LABELS)
    sent = FedPer().train(client, body).tensors
    assert same(used, sent | client.state)
    assert same(body, before)
