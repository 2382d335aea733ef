"""A round of two small clients, for comparison with one that is computed by hand."""

from collections.abc import Sequence
from dataclasses import replace

from pfedfda.methods import Client, Method, Task, Tensors
from tests.methods.steps import ONE_STEP
from tests.methods.toy import make_client

# One batch, two epochs and no momentum: two steps of gradient descent on all samples.
TWO_STEPS = replace(ONE_STEP, training=replace(ONE_STEP.training, epochs=2))
LABELS = ([0, 1, 2, 0, 1], [3, 3, 1])


def two_clients(
    states: Sequence[Tensors] = ({}, {}), task: Task = TWO_STEPS, round_number: int = 1
) -> list[Client]:
    """Return two clients with five and three samples."""
    return [
        make_client(labels, number, dict(state), task, round_number)
        for number, (labels, state) in enumerate(zip(LABELS, states, strict=True))
    ]


def play_round(
    method: Method, state: Tensors, states: Sequence[Tensors] = ({}, {}), task: Task = TWO_STEPS
) -> tuple[Tensors, list[Client]]:
    """Let both clients train; return the server's next state and the clients after training."""
    clients = two_clients(states, task)
    updates = [
        replace(method.train(c, method.message(state, c.client_id)), client_id=c.client_id)
        for c in clients
    ]
    return method.aggregate(state, updates), clients


def averaged(tensors: Sequence[Tensors], clients: Sequence[Client]) -> Tensors:
    """Return the mean weighted by the clients' samples."""
    weights = [client.num_samples for client in clients]
    return {
        name: sum(w * t[name] for w, t in zip(weights, tensors, strict=True)) / sum(weights)
        for name in tensors[0]
    }
