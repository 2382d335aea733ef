"""Local training: every client on its own.

A client trains in the rounds in which it is drawn, as in every other method, so that all methods of
a comparison do the same number of local epochs. With participation q over R rounds that is about
q·R + 1 times the local epochs; ``--participation 1`` gives every client all R rounds.
"""

from dataclasses import dataclass
from typing import ClassVar

from pfedfda.methods.base import Client, Method, Personal, Task, Tensors, Update
from pfedfda.methods.registry import register
from pfedfda.methods.training import cross_entropy, sgd
from pfedfda.models import model_tensors


@register
@dataclass(frozen=True)
class Local(Method):
    """Every client trains a model of its own from the common start; nothing is ever sent."""

    name: ClassVar[str] = "local"
    title: ClassVar[str] = "Local"
    paper: ClassVar[str] = "no federation"
    year: ClassVar[int] = 0

    def init(self, task: Task) -> Tensors:
        """Return nothing: the server has no state."""
        return {}

    def message(self, state: Tensors, client_id: int) -> Tensors:
        """Send nothing."""
        return {}

    def train(self, client: Client, message: Tensors) -> Update:
        """Go on from where this client was, and keep the model here."""
        client.model.load_state_dict(client.state or client.task.initial_tensors())
        loss = sgd(client, client.model.parameters(), cross_entropy(client.model))
        client.state = model_tensors(client.model)
        return Update({}, client.num_samples, {"train_loss": loss})

    def personalize(self, client: Client, message: Tensors) -> Personal:
        """Use the client's own model, or the common start if it has never trained."""
        client.model.load_state_dict(client.state or client.task.initial_tensors())
        return Personal(client.model)
