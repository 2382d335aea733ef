"""LG-FedAvg: local representations and a global model on top.

P. P. Liang et al., "Think Locally, Act Globally: Federated Learning with Local and Global
Representations", NeurIPS 2019 workshop on federated learning (arXiv 2001.01523, 2020).

It is the other way round than FedRep: the lower layers, which see the images, stay at the client,
and the upper layers are averaged. All start from the common initial weights; the authors start from
a model that FedAvg has trained.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from torch import nn

from pfedfda.methods.base import (
    Client,
    Method,
    Personal,
    Task,
    Tensors,
    Update,
    load,
)
from pfedfda.methods.registry import register
from pfedfda.methods.space import Choices
from pfedfda.methods.training import cross_entropy, sgd
from pfedfda.models import model_tensors


@register
@dataclass(frozen=True)
class LGFedAvg(Method):
    """Local lower layers under shared upper layers.

    Parameters
    ----------
    shared
        Which layers are shared: head (the last one alone, as in other comparisons on these
        networks) or dense (all fully connected ones).
    """

    name: ClassVar[str] = "lg-fedavg"
    title: ClassVar[str] = "LG-FedAvg"
    paper: ClassVar[str] = "Liang et al., 2020"
    year: ClassVar[int] = 2020

    shared: Annotated[Literal["head", "dense"], Choices("head", "dense")] = "head"

    def init(self, task: Task) -> Tensors:
        """Return the initial upper layers."""
        return self._upper(task.build_model(), task.initial_tensors())

    def message(self, state: Tensors, client_id: int) -> Tensors:
        """Send the upper layers."""
        return state

    def train(self, client: Client, message: Tensors) -> Update:
        """Train all layers; keep the lower ones, send the upper ones."""
        self._load(client, message)
        loss = sgd(client, client.model.parameters(), cross_entropy(client.model))
        tensors = model_tensors(client.model)
        upper = self._upper(client.model, tensors)
        client.state = {name: t for name, t in tensors.items() if name not in upper}
        return Update(upper, client.num_samples, {"train_loss": loss})

    def personalize(self, client: Client, message: Tensors) -> Personal:
        """Use the client's lower layers; a client without them trains a copy of all layers."""
        self._load(client, message)
        if not client.state:
            sgd(client, client.model.parameters(), cross_entropy(client.model))
        return Personal(client.model)

    def _load(self, client: Client, message: Tensors) -> None:
        """Put the received upper layers on the client's own lower ones, or on the common start."""
        load(client.model, client.task.initial_tensors() | client.state | message)

    def _upper(self, model: nn.Module, tensors: Tensors) -> Tensors:
        """Return the tensors of the shared layers."""
        names = ["head"]
        if self.shared == "dense":
            names = [n for n, module in model.named_modules() if isinstance(module, nn.Linear)]
        return {n: tensor for n, tensor in tensors.items() if n.rsplit(".", 1)[0] in names}
