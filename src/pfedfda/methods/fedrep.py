"""FedRep: a shared representation and local heads.

L. Collins, H. Hassani, A. Mokhtari and S. Shakkottai, "Exploiting Shared Representations for
Personalized Federated Learning", ICML 2021.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from pfedfda.errors import InputError
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
from pfedfda.methods.space import Search
from pfedfda.methods.training import cross_entropy, sgd
from pfedfda.models import model_tensors


@register
@dataclass(frozen=True)
class FedRep(Method):
    """A shared body; every client keeps a head of its own and trains it before the body.

    Parameters
    ----------
    head_epochs
        Passes over the training samples for the head, with the body frozen; then the body is
        trained for the ordinary number of epochs, with the head frozen.
    """

    name: ClassVar[str] = "fedrep"
    title: ClassVar[str] = "FedRep"
    paper: ClassVar[str] = "Collins et al., ICML 2021"
    year: ClassVar[int] = 2021

    head_epochs: Annotated[int, Search(1, 10)] = 5

    def __post_init__(self) -> None:
        if self.head_epochs < 1:
            raise InputError(f"head-epochs is {self.head_epochs}; it must be at least 1.")

    def init(self, task: Task) -> Tensors:
        """Return the initial body."""
        return part(task.initial_tensors(), "body")

    def message(self, state: Tensors, client_id: int) -> Tensors:
        """Send the body."""
        return state

    def train(self, client: Client, message: Tensors) -> Update:
        """Train the head, then the body; keep the head, send the body."""
        self._train_head(client, message)
        loss = sgd(client, client.model.body.parameters(), cross_entropy(client.model))
        tensors = model_tensors(client.model)
        client.state = part(tensors, "head")
        return Update(part(tensors, "body"), client.num_samples, {"train_loss": loss})

    def personalize(self, client: Client, message: Tensors) -> Personal:
        """Use the global body with the client's head; a client without one trains it now."""
        if client.state:
            load(client.model, message | client.state)
        else:
            self._train_head(client, message)
        return Personal(client.model)

    def _train_head(self, client: Client, message: Tensors) -> None:
        """Train the client's head on the received body."""
        head = client.state or part(client.task.initial_tensors(), "head")
        load(client.model, message | head)
        head_parameters = client.model.head.parameters()
        sgd(client, head_parameters, cross_entropy(client.model), epochs=self.head_epochs)
