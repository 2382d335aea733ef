"""A client without an engine, for tests of methods."""

from typing import Any

import torch

from pfedfda.methods import Client, Samples, Task, Tensors, TrainingConfig
from pfedfda.models import ModelConfig
from pfedfda.seeding import torch_generator

TASK = Task(
    model=ModelConfig(),
    image_shape=(28, 28, 1),
    num_classes=4,
    num_clients=3,
    training=TrainingConfig(epochs=2, batch_size=5, lr=0.05),
    seed=0,
)


def make_client(
    labels: list[int], client_id: int = 0, state: Tensors | None = None, task: Task = TASK
) -> Client:
    """Return a client whose images are noise that depends on the label."""
    generator = torch_generator("toy", client_id)
    base = torch.randint(0, 200, (task.num_classes, *task.image_shape), generator=generator)
    noise = torch.randint(0, 55, (len(labels), *task.image_shape), generator=generator)
    images = (base[labels] + noise).to(torch.uint8)
    return Client(
        client_id=client_id,
        round=1,
        task=task,
        samples=Samples(images, torch.tensor(labels)),
        state={} if state is None else state,
        model=task.build_model(),
        generator=torch_generator("train", 0, 1, client_id),
    )


def snapshot(tensors: Tensors) -> Tensors:
    return {name: tensor.clone() for name, tensor in tensors.items()}


def same(first: Tensors, second: Tensors) -> bool:
    """Tell whether two sets of tensors have the same names and bits."""
    if first.keys() != second.keys():
        return False
    return all(torch.equal(first[name], second[name]) for name in first)


def parameters_of(module: Any) -> Tensors:
    return {name: p.detach().clone() for name, p in module.state_dict().items()}
