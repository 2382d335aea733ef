import pytest
import torch
import torch.nn.functional as F

from pfedfda.errors import InputError
from pfedfda.methods import Tensors, part, to_input
from pfedfda.methods.fedavg import FedAvg
from pfedfda.methods.feddbe import FedDBE
from tests.methods.rounds import averaged, play_round, two_clients
from tests.methods.steps import DECAY, LR, ONE_STEP, assert_close, random_weights
from tests.methods.toy import TASK, make_client, parameters_of, same

LABELS = [0, 1, 2, 3, 0, 1, 2]


def later_state() -> Tensors:
    """Return a state of the server after its first round."""
    weights = random_weights(1, TASK.initial_tensors())
    dimension = weights["head.weight"].shape[1]
    consensus = torch.randn(dimension, generator=torch.Generator().manual_seed(3))
    return {**weights, "consensus": consensus, "known": torch.ones(1)}


def some_bias(seed: int) -> Tensors:
    size = later_state()["consensus"].shape
    return {"bias": 0.3 * torch.randn(size, generator=torch.Generator().manual_seed(seed))}


def test_the_first_round_is_fedavg_and_finds_the_consensus() -> None:
    """The consensus is the mean feature of all samples, each under its client's trained model."""
    after, clients = play_round(FedDBE(), FedDBE().init(TASK))
    plain, others = play_round(FedAvg(), FedAvg().init(TASK))
    assert same(part(after, "body", "head"), plain)
    means = []
    for client, other in zip(clients, others, strict=True):
        with torch.no_grad():  # the scratch model is as training has left it
            means.append({"mean": other.model.body(to_input(client.samples.inputs)).mean(0)})
        assert not client.state["bias"].any()
    expected = averaged(means, clients)["mean"]
    torch.testing.assert_close(after["consensus"], expected, rtol=1e-5, atol=1e-6)
    assert after["known"].tolist() == [1]


def test_the_consensus_stays_and_is_not_measured_again() -> None:
    state = later_state()
    after, _ = play_round(FedDBE(), state)
    assert torch.equal(after["consensus"], state["consensus"])
    assert not FedDBE().train(make_client(LABELS), state).tensors["consensus"].any()


def test_a_round_by_hand() -> None:
    kappa, share = 4.0, 0.3
    state = later_state()
    biases = [some_bias(seed) for seed in (5, 6)]
    after, clients = play_round(FedDBE(kappa=kappa, momentum=share), state, biases)
    trained = []
    for fresh, start, client in zip(two_clients(), biases, clients, strict=True):
        w, b = part(state, "body", "head"), start["bias"]
        running = torch.zeros_like(b)
        for _ in range(2):
            model = fresh.task.build_model()
            model.load_state_dict(w)
            b = b.clone().requires_grad_()
            z = model.body(to_input(fresh.samples.inputs))
            running = (1 - share) * running.detach() + share * z.mean(0)
            value = F.cross_entropy(model.head(z + b), fresh.samples.labels)
            value = value + kappa * F.mse_loss(running, state["consensus"]) / 2
            names, parameters = zip(*model.named_parameters(), strict=True)
            *gradients, of_b = torch.autograd.grad(value, [*parameters, b])
            g = dict(zip(names, gradients, strict=True))
            w = {n: w[n] - LR * (g[n] + DECAY * w[n]) for n in w}
            b = (b - LR * (of_b + DECAY * b)).detach()
        trained.append(w)
        assert_close(client.state, {"bias": b})
    assert_close(part(after, "body", "head"), averaged(trained, clients))


def test_the_first_step_of_a_new_vector_is_that_of_fedavg() -> None:
    """Without regularisation only the vector differs, and it starts at zero."""
    state = later_state()
    ours = FedDBE(kappa=0.0).train(make_client(LABELS, task=ONE_STEP), state)
    plain = FedAvg().train(make_client(LABELS, task=ONE_STEP), part(state, "body", "head"))
    assert same(part(ours.tensors, "body", "head"), plain.tensors)


def test_a_running_mean_that_does_not_move_has_no_gradient() -> None:
    state = later_state()
    still = FedDBE(momentum=0.0).train(make_client(LABELS), state).tensors
    without = FedDBE(kappa=0.0).train(make_client(LABELS), state).tensors
    assert_close(still, without)


def test_the_mean_feature_comes_nearer_to_the_consensus() -> None:
    state = later_state()
    distances = []
    for kappa in (0.0, 50.0):
        client = make_client(LABELS)
        FedDBE(kappa=kappa).train(client, state)
        with torch.no_grad():
            mean = client.model.body(to_input(client.samples.inputs)).mean(0)
        distances.append(float((mean - state["consensus"]).square().sum()))
    assert distances[1] < distances[0]


def test_the_own_vector_is_added_to_the_features() -> None:
    state, bias = later_state(), some_bias(5)
    client = make_client(LABELS, state=bias)
    model = FedDBE().personalize(client, state).model
    images = to_input(client.samples.inputs)
    plain = TASK.build_model()
    plain.load_state_dict(part(state, "body", "head"))
    with torch.no_grad():
        expected = plain.head(plain.body(images) + bias["bias"])
        torch.testing.assert_close(model(images), expected, rtol=1e-4, atol=1e-5)


def test_a_new_client_fits_its_vector_alone() -> None:
    state = later_state()
    client = make_client(LABELS)
    before = F.cross_entropy(shared_logits(state), client.samples.labels)
    model = FedDBE().personalize(client, state).model
    changed = {
        name
        for name, tensor in parameters_of(model).items()
        if not torch.equal(tensor, state[name])
    }
    assert changed == {"head.bias"}
    with torch.no_grad():
        after = F.cross_entropy(model(to_input(client.samples.inputs)), client.samples.labels)
    assert after < before


def shared_logits(state: Tensors) -> torch.Tensor:
    client = make_client(LABELS)
    with torch.no_grad():
        return FedDBE().shared_model(client, state)(to_input(client.samples.inputs))


def test_bad_hyper_parameters() -> None:
    with pytest.raises(InputError, match="kappa is -1"):
        FedDBE(kappa=-1.0)
    with pytest.raises(InputError, match="momentum is 2"):
        FedDBE(momentum=2.0)
