"""Ditto: a personal model held near the global one.

T. Li, S. Hu, A. Beirami and V. Smith, "Ditto: Fair and Robust Federated Learning Through
Personalization", ICML 2021.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from pfedfda.errors import InputError
from pfedfda.methods.base import Client, Personal, Tensors, Update
from pfedfda.methods.fedavg import FedAvg
from pfedfda.methods.registry import register
from pfedfda.methods.space import Search
from pfedfda.methods.training import cross_entropy, sgd
from pfedfda.models import model_tensors


@register
@dataclass(frozen=True)
class Ditto(FedAvg):
    """FedAvg, beside which every client trains a model v with the penalty μ/2 · ‖v - w‖².

    The w of the penalty is the global model as it was received, not the one that the client then
    trains for the server. The two trainings do not depend on each other, and both see the client's
    samples in the same order: with μ = 0, v is exactly local training.

    Parameters
    ----------
    mu
        Strength μ of the penalty.
    personal_epochs
        Passes over the training samples for v.
    """

    name: ClassVar[str] = "ditto"
    title: ClassVar[str] = "Ditto"
    paper: ClassVar[str] = "Li et al., ICML 2021"
    year: ClassVar[int] = 2021

    mu: Annotated[float, Search(0.01, 10.0, log=True)] = 1.0
    personal_epochs: int = 5

    def __post_init__(self) -> None:
        if not self.mu >= 0:
            raise InputError(f"mu is {self.mu}; it must be 0 or more.")
        if self.personal_epochs < 1:
            raise InputError(f"personal-epochs is {self.personal_epochs}; it must be at least 1.")

    def train(self, client: Client, message: Tensors) -> Update:
        """Train v at the client, then w for the server as FedAvg does."""
        order = client.generator.get_state()
        self._train_personal(client, message, client.state or client.task.initial_tensors())
        client.state = model_tensors(client.model)
        client.generator.set_state(order)
        return super().train(client, message)

    def personalize(self, client: Client, message: Tensors) -> Personal:
        """Use v; a client that has none trains it now, from the received model."""
        if client.state:
            client.model.load_state_dict(client.state)
        else:
            self._train_personal(client, message, message)
        return Personal(client.model)

    def _train_personal(self, client: Client, message: Tensors, start: Tensors) -> None:
        """Train v in the scratch model with the penalty to the received model."""
        client.model.load_state_dict(message)
        received = [p.detach().clone() for p in client.model.parameters()]
        client.model.load_state_dict(start)
        sgd(
            client,
            client.model.parameters(),
            cross_entropy(client.model),
            epochs=self.personal_epochs,
            anchor=received,
            pull=self.mu,
        )
