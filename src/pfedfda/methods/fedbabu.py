"""FedBABU: body aggregation and body update.

J. Oh, S. Kim and S.-Y. Yun, "FedBABU: Toward Enhanced Representation for Federated Image
Classification", ICLR 2022.

All clients share one random head, which is never trained: it only gives the bodies a common goal.
It follows from the seed, so it need not be sent.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from torch import nn

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
from pfedfda.methods.space import Choices, Search
from pfedfda.methods.training import cross_entropy, sgd
from pfedfda.models import model_tensors


@register
@dataclass(frozen=True)
class FedBABU(Method):
    """A shared body, trained under a random head that stays frozen; heads are tuned at the end.

    Parameters
    ----------
    fine_tune
        What a client fine-tunes before use: the head, or all parameters.
    fine_tune_epochs
        Passes over the client's training samples for that.
    """

    name: ClassVar[str] = "fedbabu"
    title: ClassVar[str] = "FedBABU"
    paper: ClassVar[str] = "Oh et al., ICLR 2022"
    year: ClassVar[int] = 2022

    fine_tune: Annotated[Literal["head", "all"], Choices("head", "all")] = "head"
    fine_tune_epochs: Annotated[int, Search(1, 10)] = 5

    def __post_init__(self) -> None:
        if self.fine_tune_epochs < 0:
            raise InputError(f"fine-tune-epochs is {self.fine_tune_epochs}; it must be 0 or more.")

    def init(self, task: Task) -> Tensors:
        """Return the initial body."""
        return part(task.initial_tensors(), "body")

    def message(self, state: Tensors, client_id: int) -> Tensors:
        """Send the body."""
        return state

    def train(self, client: Client, message: Tensors) -> Update:
        """Train the body under the common random head."""
        model = self.shared_model(client, message)
        loss = sgd(client, client.model.body.parameters(), cross_entropy(model))
        sent = part(model_tensors(client.model), "body")
        return Update(sent, client.num_samples, {"train_loss": loss})

    def personalize(self, client: Client, message: Tensors) -> Personal:
        """Fine-tune the head, or everything, in the scratch model."""
        model = self.shared_model(client, message)
        tuned = client.model.head if self.fine_tune == "head" else client.model
        sgd(client, tuned.parameters(), cross_entropy(model), epochs=self.fine_tune_epochs)
        return Personal(client.model)

    def shared_model(self, client: Client, message: Tensors) -> nn.Module:
        """Return the body under the random head."""
        load(client.model, message | part(client.task.initial_tensors(), "head"))
        return client.model
