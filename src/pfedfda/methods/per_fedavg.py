"""Per-FedAvg: a start from which one step of gradient descent personalises.

A. Fallah, A. Mokhtari and A. Ozdaglar, "Personalized Federated Learning with Theoretical
Guarantees: A Model-Agnostic Meta-Learning Approach", NeurIPS 2020. This is its first-order variant,
Per-FedAvg (FO).
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call

from pfedfda.errors import InputError
from pfedfda.methods.base import Client, Personal, Samples, Tensors, Update
from pfedfda.methods.fedavg import FedAvg
from pfedfda.methods.registry import register
from pfedfda.methods.training import Batch, cross_entropy, sgd, to_input
from pfedfda.models import model_tensors
from pfedfda.seeding import torch_generator


@register
@dataclass(frozen=True)
class PerFedAvg(FedAvg):
    """FedAvg that trains the model for its loss after a step of gradient descent at the client.

    Every step takes two random batches. The first gives w̃ = w - α ∇f(w), the second the gradient
    ∇f(w̃), along which w moves. The second derivative that the exact gradient has is left out.

    Parameters
    ----------
    alpha
        Learning rate α of the step to the personal model, in training and before use. With 0 this
        is FedAvg.
    beta
        Learning rate β of w; by default the ordinary one. Programs that follow the paper
        have 0.001.
    adapt_steps
        Steps at rate α before use, each on a random batch of the client.
    """

    name: ClassVar[str] = "per-fedavg"
    title: ClassVar[str] = "Per-FedAvg"
    paper: ClassVar[str] = "Fallah et al., NeurIPS 2020"
    year: ClassVar[int] = 2020

    alpha: float = 0.01
    beta: float | None = None
    adapt_steps: int = 1

    def __post_init__(self) -> None:
        if not self.alpha >= 0:
            raise InputError(f"alpha is {self.alpha}; it must be 0 or more.")
        if self.beta is not None and not self.beta > 0:
            raise InputError(f"beta is {self.beta}; it must be above 0.")
        if self.adapt_steps < 0:
            raise InputError(f"adapt-steps is {self.adapt_steps}; it must be 0 or more.")

    def train(self, client: Client, message: Tensors) -> Update:
        """Train the received model with gradients taken after a step."""
        model = client.model
        model.load_state_dict(message)
        # A stream of its own: the second batches are those of FedAvg whatever is drawn here.
        generator = torch_generator("per-fedavg", client.generator.initial_seed())

        def loss(batch: Batch) -> Tensor:
            w = {name: p for name, p in model.named_parameters() if p.requires_grad}
            first = _random_samples(client, len(batch.labels), generator)
            # Averages of batch norm follow the second batches alone, as in FedAvg.
            averages = {name: buffer.clone() for name, buffer in model.named_buffers()}
            logits = functional_call(model, averages, (to_input(first.inputs),))
            before = F.cross_entropy(logits, first.labels)
            # Without a graph of their own these gradients are constants: the first-order variant.
            gradients = torch.autograd.grad(before, list(w.values()))
            stepped = {
                name: p - self.alpha * g for (name, p), g in zip(w.items(), gradients, strict=True)
            }
            return F.cross_entropy(functional_call(model, stepped, (batch.inputs,)), batch.labels)

        mean_loss = sgd(client, model.parameters(), loss, lr=self.beta)
        return Update(model_tensors(model), client.num_samples, {"train_loss": mean_loss})

    def personalize(self, client: Client, message: Tensors) -> Personal:
        """Take the step, or some, from the global model on a copy."""
        client.model.load_state_dict(message)
        size = client.task.batch_size
        for _ in range(self.adapt_steps):
            batch = replace(client, samples=_random_samples(client, size, client.generator))
            sgd(
                batch,
                client.model.parameters(),
                cross_entropy(client.model),
                epochs=1,
                lr=self.alpha,
                momentum=0.0,
                weight_decay=0.0,
            )
        return Personal(client.model)


def _random_samples(client: Client, count: int, generator: torch.Generator) -> Samples:
    """Return so many of the client's samples, or all if it has fewer."""
    rows = torch.randperm(client.num_samples, generator=generator)[:count].to(client.device)
    return Samples(*(torch.index_select(t, 0, rows) for t in client.samples))
