"""One step of plain SGD, computed with autograd on a copy: what methods are checked against."""

import torch
import torch.nn.functional as F

from pfedfda.methods import Client, Task, Tensors, TrainingConfig, to_input
from tests.methods.toy import TASK

LR, DECAY = 0.05, 0.01
# One batch and one epoch without momentum: a single step.
ONE_STEP = Task(
    TASK.model,
    TASK.input_shape,
    TASK.num_classes,
    TASK.num_clients,
    TrainingConfig(epochs=1, batch_size=100, lr=LR, momentum=0.0, weight_decay=DECAY),
)


def gradient(client: Client, weights: Tensors) -> Tensors:
    """Return the gradient of the cross-entropy over all of the client's samples."""
    model = client.task.build_model()
    model.load_state_dict(weights)
    loss = F.cross_entropy(model(to_input(client.samples.inputs)), client.samples.labels)
    names, parameters = zip(*model.named_parameters(), strict=True)
    return dict(zip(names, torch.autograd.grad(loss, parameters), strict=True))


def random_weights(seed: int, like: Tensors) -> Tensors:
    """Return weights of the same shapes, away from the common start."""
    generator = torch.Generator().manual_seed(seed)
    return {n: t + 0.05 * torch.randn(t.shape, generator=generator) for n, t in like.items()}


def assert_close(first: Tensors, second: Tensors) -> None:
    assert first.keys() == second.keys()
    for name in first:
        torch.testing.assert_close(first[name], second[name], rtol=1e-4, atol=1e-6)


def distance(first: Tensors, second: Tensors) -> float:
    return sum(float((first[n] - second[n]).square().sum()) for n in first) ** 0.5
