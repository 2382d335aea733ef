"""FedPer: a shared body under a head of each client's own.

M. G. Arivazhagan, V. Aggarwal, A. K. Singh and S. Choudhary, "Federated Learning with
Personalization Layers", arXiv 1912.00818, 2019.
"""

from dataclasses import dataclass
from typing import ClassVar

from pfedfda.methods.base import (
    Client,
    Method,
    Personal,
    Task,
    Tensors,
    Update,
    load,
    part,
)
from pfedfda.methods.registry import register
from pfedfda.methods.training import cross_entropy, sgd
from pfedfda.models import model_tensors


@register
@dataclass(frozen=True)
class FedPer(Method):
    """A shared body; every client keeps a head of its own and trains both together."""

    name: ClassVar[str] = "fedper"
    title: ClassVar[str] = "FedPer"
    paper: ClassVar[str] = "Arivazhagan et al., 2019"
    year: ClassVar[int] = 2019

    def init(self, task: Task) -> Tensors:
        """Return the initial body."""
        return part(task.initial_tensors(), "body")

    def message(self, state: Tensors, client_id: int) -> Tensors:
        """Send the body."""
        return state

    def train(self, client: Client, message: Tensors) -> Update:
        """Train body and head together; keep the head, send the body."""
        loss = self._train_together(client, message)
        tensors = model_tensors(client.model)
        client.state = part(tensors, "head")
        return Update(part(tensors, "body"), client.num_samples, {"train_loss": loss})

    def personalize(self, client: Client, message: Tensors) -> Personal:
        """Use the received body with the client's head; a client without one trains a copy."""
        if client.state:
            load(client.model, message | client.state)
        else:
            self._train_together(client, message)
        return Personal(client.model)

    def _train_together(self, client: Client, message: Tensors) -> float:
        """Train the received body and the client's head in the scratch model."""
        head = client.state or part(client.task.initial_tensors(), "head")
        load(client.model, message | head)
        return sgd(client, client.model.parameters(), cross_entropy(client.model))
