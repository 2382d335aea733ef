"""FedAvg, with and without fine-tuning.

H. B. McMahan, E. Moore, D. Ramage, S. Hampson and B. Agüera y Arcas, "Communication-Efficient
Learning of Deep Networks from Decentralized Data", AISTATS 2017.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from torch import nn

from pfedfda.errors import InputError
from pfedfda.methods.base import Client, Method, Personal, Task, Tensors, Update
from pfedfda.methods.registry import register
from pfedfda.methods.space import Search
from pfedfda.methods.training import cross_entropy, sgd
from pfedfda.models import model_tensors


@register
@dataclass(frozen=True)
class FedAvg(Method):
    """One model for everybody: clients train it, the server averages it by sample counts."""

    name: ClassVar[str] = "fedavg"
    title: ClassVar[str] = "FedAvg"
    paper: ClassVar[str] = "McMahan et al., AISTATS 2017"
    year: ClassVar[int] = 2017

    def init(self, task: Task) -> Tensors:
        """Return the initial model."""
        return task.initial_tensors()

    def message(self, state: Tensors, client_id: int) -> Tensors:
        """Send the whole model."""
        return state

    def train(self, client: Client, message: Tensors) -> Update:
        """Train the received model and send it back."""
        client.model.load_state_dict(message)
        loss = sgd(client, client.model.parameters(), cross_entropy(client.model))
        return Update(model_tensors(client.model), client.num_samples, {"train_loss": loss})

    def personalize(self, client: Client, message: Tensors) -> Personal:
        """Use the global model as it is."""
        return Personal(self.shared_model(client, message))

    def shared_model(self, client: Client, message: Tensors) -> nn.Module:
        """Return the global model."""
        client.model.load_state_dict(message)
        return client.model


@register
@dataclass(frozen=True)
class FedAvgFT(FedAvg):
    """FedAvg whose clients fine-tune a copy of the global model before they use it.

    Parameters
    ----------
    fine_tune_epochs
        Passes over the client's training samples, over all parameters, with the ordinary settings.
    """

    name: ClassVar[str] = "fedavg-ft"
    title: ClassVar[str] = "FedAvgFT"

    fine_tune_epochs: Annotated[int, Search(1, 10)] = 5

    def __post_init__(self) -> None:
        if self.fine_tune_epochs < 0:
            raise InputError(f"fine-tune-epochs is {self.fine_tune_epochs}; it must be 0 or more.")

    def personalize(self, client: Client, message: Tensors) -> Personal:
        """Fine-tune the scratch model; the message stays as it is."""
        client.model.load_state_dict(message)
        sgd(
            client,
            client.model.parameters(),
            cross_entropy(client.model),
            epochs=self.fine_tune_epochs,
        )
        return Personal(client.model)
