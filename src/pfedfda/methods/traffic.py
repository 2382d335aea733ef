"""What a method sends, found by letting it train on made-up samples."""

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from pfedfda.errors import InputError
from pfedfda.methods.base import WEIGHT, Client, Method, Samples, Task, Tensors
from pfedfda.seeding import torch_generator

SAMPLES = 2


class Sent(NamedTuple):
    """What goes down to a client and what comes up: tensors on torch's ``meta`` device.

    They have names, shapes and types, and no values.
    """

    down: Tensors
    up: Tensors


def dry_run(method: Method, task: Task, state: Tensors) -> Sent:
    """Return what a client receives and what it sends, from one short training.

    Nothing that a run sees is changed, random generators included.

    Parameters
    ----------
    method
        The method with its hyper-parameters, which may decide what is sent.
    task
        What server and clients know beforehand.
    state
        The server's state before the first round.
    """
    # One small step: names and shapes do not depend on it, and it cannot diverge.
    training = replace(task.training, epochs=1, batch_size=SAMPLES, lr=1e-3)
    task = replace(task, training=training)
    nobody = task.num_clients  # a method of clients that fail or lie by number is not disturbed
    generator = torch_generator("dry-run")
    with torch.random.fork_rng(devices=[]):  # a network may have dropout
        client = Client(
            client_id=nobody,
            round=1,
            task=task,
            samples=Samples(
                _made_up_inputs(task, generator),
                torch.arange(SAMPLES) % task.num_classes,
            ),
            state={},
            model=task.build_model(),
            generator=generator,
        )
        message = {name: t.clone() for name, t in method.message(state, nobody).items()}
        update = method.train(client, message)
    if WEIGHT in update.tensors:
        raise InputError(
            f"The method {method.name} sends a tensor called {WEIGHT!r}, a name that is kept for "
            f"the weights of updates: choose another."
        )
    return Sent(_layout(message), _layout(update.tensors))


def parts(tensors: Tensors) -> list[str]:
    """Return the first parts of the tensors' names, e.g. ``body``, each once."""
    return list(dict.fromkeys(name.split(".")[0] for name in tensors))


def _made_up_inputs(task: Task, generator: torch.Generator) -> Tensor:
    shape = (SAMPLES, *task.input_shape)
    if task.input_type == "uint8":
        return torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)
    if task.input_type == "int64":
        return torch.zeros(shape, dtype=torch.int64)  # an index that every table of embeddings has
    return torch.randn(shape, generator=generator)


def _layout(tensors: Tensors) -> Tensors:
    return {name: torch.empty_like(tensor, device="meta") for name, tensor in tensors.items()}
