"""FedAvgFT that leaves out the last incomplete batch of every epoch, as the authors' program does.

A method of its own, to see how much of the difference to the paper's FedAvgFT this explains:

    pfedfda run --method experiments/drop_last.py --federation cifar10-s --train-fraction 0.25
"""

from dataclasses import dataclass
from typing import ClassVar

from pfedfda.methods.base import Client, Personal, Tensors, Update
from pfedfda.methods.fedavg import FedAvgFT
from pfedfda.methods.registry import register
from pfedfda.methods.training import cross_entropy, sgd
from pfedfda.models import model_tensors


@register
@dataclass(frozen=True)
class DropLast(FedAvgFT):
    """FedAvgFT without incomplete batches, except for clients that have no other."""

    name: ClassVar[str] = "fedavg-ft-drop-last"
    title: ClassVar[str] = "FedAvgFT, whole batches"

    def train(self, client: Client, message: Tensors) -> Update:
        """Train the received model on whole batches and send it back."""
        client.model.load_state_dict(message)
        loss = sgd(client, client.model.parameters(), cross_entropy(client.model), drop_last=True)
        return Update(model_tensors(client.model), client.num_samples, {"train_loss": loss})

    def personalize(self, client: Client, message: Tensors) -> Personal:
        """Fine-tune on whole batches; the message stays as it is."""
        client.model.load_state_dict(message)
        sgd(
            client,
            client.model.parameters(),
            cross_entropy(client.model),
            epochs=self.fine_tune_epochs,
            drop_last=True,
        )
        return Personal(client.model)
