"""FedAS: FedPer with bodies that are aligned before training and weighted by Fisher information.

X. Yang, W. Huang and M. Ye, "FedAS: Bridging Inconsistency in Personalized Federated Learning",
CVPR 2024.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from pfedfda.errors import InputError
from pfedfda.methods.base import (
    WEIGHT,
    Client,
    Personal,
    Tensors,
    Update,
    add,
    as_type,
    differences,
    from_differences,
    load,
    part,
)
from pfedfda.methods.fedpac import class_averages
from pfedfda.methods.fedper import FedPer
from pfedfda.methods.registry import register
from pfedfda.methods.summands import Summand
from pfedfda.methods.training import Batch, batches, cross_entropy, sgd
from pfedfda.models import model_tensors


@register
@dataclass(frozen=True)
class FedAS(FedPer):
    """A shared body and own heads; the received body first learns the client's own prototypes.

    The prototypes are the client's class means of features under the body that it trained last. The
    server weights the bodies by the trace of the clients' Fisher information, in which the
    paper sees how much a client has learned.

    Parameters
    ----------
    align_epochs
        Passes over the training samples in which the received body is aligned, with plain steps.
        0 leaves it as it is.
    align_lr
        Learning rate of these steps.
    """

    name: ClassVar[str] = "fedas"
    title: ClassVar[str] = "FedAS"
    paper: ClassVar[str] = "Yang et al., CVPR 2024"
    year: ClassVar[int] = 2024
    reveals: ClassVar[str] = "weights trained on its samples, and how much the loss depends on them"
    summands: ClassVar[Mapping[str, Summand]] = {"body": Summand(per="fisher")}

    align_epochs: int = 1
    align_lr: float = 0.01

    def __post_init__(self) -> None:
        if self.align_epochs < 0:
            raise InputError(f"align-epochs is {self.align_epochs}; it must be 0 or more.")
        if not self.align_lr > 0:
            raise InputError(f"align-lr is {self.align_lr}; it must be above 0.")

    def train(self, client: Client, message: Tensors) -> Update:
        """Align the received body, train it with the head, and measure the Fisher information."""
        self._align(client, message)
        loss = sgd(client, client.model.parameters(), cross_entropy(client.model))
        with client.timer("statistics"):
            trace = fisher_trace(client)
        client.state = model_tensors(client.model)
        sent = part(client.state, "body") | {"fisher": trace.cpu().reshape(1)}
        return Update(sent, client.num_samples, {"train_loss": loss})

    def contribution(self, update: Update, total: Tensors | None = None) -> Tensors:
        """Add up bodies by Fisher information, and that."""
        total = {} if total is None else total
        fisher = update.tensors["fisher"]
        add(total, part(update.tensors, "body"), float(fisher))
        add(total, {"fisher": fisher, WEIGHT: torch.tensor(update.weight, dtype=torch.float64)})
        return total

    def private_contribution(self, state: Tensors, update: Update) -> Tensors:
        """Return the information, and the difference from the state times it."""
        fisher = update.tensors["fisher"].double()
        moved = differences(part(update.tensors, "body"), state)
        return {name: fisher * tensor for name, tensor in moved.items()} | {"fisher": fisher}

    def private_total(
        self, state: Tensors, noisy: Tensors, clients: float, noise: float
    ) -> Tensors:
        """Return the sums; information that noise alone could have made is none."""
        fisher = torch.where(noisy["fisher"] > noise, noisy["fisher"], 0.0)
        return from_differences(part(noisy, "body"), state, float(fisher)) | {"fisher": fisher}

    def finish(self, state: Tensors, total: Tensors) -> Tensors:
        """Form the mean body; without any information the old one stays."""
        fisher = float(total["fisher"])
        if not fisher > 0:
            return dict(state)
        return {name: as_type(total[name] / fisher, old.dtype) for name, old in state.items()}

    def fault(self, update: Update) -> str | None:
        """Refuse a trace that cannot be."""
        fisher = float(update.tensors["fisher"])
        return None if fisher >= 0 else f"its Fisher information is {fisher:g}"

    def personalize(self, client: Client, message: Tensors) -> Personal:
        """Use the aligned body with the client's head; a client without one trains a copy."""
        if client.state:
            self._align(client, message)
        else:
            self._train_together(client, message)
        return Personal(client.model)

    def _align(self, client: Client, message: Tensors) -> None:
        """Load the received body and the client's head, and draw features to the prototypes."""
        body = client.model.body
        if not client.state:
            load(client.model, message | part(client.task.initial_tensors(), "head"))
            return
        load(client.model, client.state)
        with client.timer("statistics"):
            prototypes = class_averages(client)[1].float().to(client.device)
        load(client.model, message)

        def loss(batch: Batch) -> Tensor:
            distances: Tensor = (body(batch.inputs) - prototypes[batch.labels]).square().mean(1)
            # The mean within each class of the batch, summed over its classes.
            counts = (batch.labels[:, None] == batch.labels).sum(1)
            return (distances / counts).sum()

        sgd(
            client,
            body.parameters(),
            loss,
            epochs=self.align_epochs,
            lr=self.align_lr,
            momentum=0.0,
            weight_decay=0.0,
        )


def fisher_trace(client: Client) -> Tensor:
    """Return the sum over batches of the squared norm of the gradient of the scratch model's loss.

    As in the authors' program this is the empirical Fisher information with a batch for a sample,
    so that it grows with the number of batches.
    """
    model = client.model
    parameters = [p for p in model.parameters() if not getattr(p, "frozen", False)]
    trace = torch.zeros((), device=client.device)
    model.eval()
    for batch in batches(client):
        value = F.cross_entropy(model(batch.inputs), batch.labels)
        for g in torch.autograd.grad(value, parameters):
            trace += g.square().sum()
    model.train()
    return trace
