"""FedRoD: one body with a generic and a personal head.

H.-Y. Chen and W.-L. Chao, "On Bridging Generic and Personalized Federated Learning for Image
Classification", ICLR 2022.
"""

import copy
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pfedfda.gaussian import LOG_OF_ZERO
from pfedfda.methods.base import Client, Personal, Tensors, Update
from pfedfda.methods.fedavg import FedAvg
from pfedfda.methods.registry import register
from pfedfda.methods.training import Batch, sgd
from pfedfda.models import model_tensors


@register
@dataclass(frozen=True)
class FedRoD(FedAvg):
    """A generic head trained with balanced softmax, to which every client adds a head of its own.

    The body and the generic head are shared and learn from the balanced loss alone. The personal
    head starts at zero; its loss is that of the sum of both heads' logits, and it sends no gradient
    to the body or the generic head. The sum serves.
    """

    name: ClassVar[str] = "fedrod"
    title: ClassVar[str] = "FedRoD"
    paper: ClassVar[str] = "Chen and Chao, ICLR 2022"
    year: ClassVar[int] = 2022

    def train(self, client: Client, message: Tensors) -> Update:
        """Train the body and both heads together; keep the personal head."""
        client.model.load_state_dict(message)
        personal = self._personal_head(client)
        log_counts = _log_counts(client)
        body, head = client.model.body, client.model.head

        def loss(batch: Batch) -> Tensor:
            features = body(batch.inputs)
            generic = head(features)
            summed = generic.detach() + personal(features.detach())
            balanced = balanced_softmax_loss(generic, batch.labels, log_counts)
            return balanced + F.cross_entropy(summed, batch.labels)

        parameters = [*client.model.parameters(), *personal.parameters()]
        # Half of the sum of both losses is comparable with the loss of other methods.
        mean_loss = sgd(client, parameters, loss) / 2
        client.state = {f"personal.{n}": t for n, t in model_tensors(personal).items()}
        return Update(model_tensors(client.model), client.num_samples, {"train_loss": mean_loss})

    def personalize(self, client: Client, message: Tensors) -> Personal:
        """Use the sum of both heads, which is a linear head again."""
        client.model.load_state_dict(message)
        personal = self._personal_head(client)
        if not client.state:
            self._fit_personal_head(client, personal)
        with torch.no_grad():
            client.model.head.weight.add_(personal.weight)
            client.model.head.bias.add_(personal.bias)
        return Personal(client.model)

    def _fit_personal_head(self, client: Client, personal: nn.Linear) -> None:
        """Train a personal head for a client that has none, on the received body."""

        def loss(batch: Batch) -> Tensor:
            features = client.model.body(batch.inputs)
            return F.cross_entropy(client.model.head(features) + personal(features), batch.labels)

        sgd(client, personal.parameters(), loss)

    def _personal_head(self, client: Client) -> nn.Linear:
        """Return the client's own head."""
        personal = copy.deepcopy(client.model.head)
        for name, parameter in personal.named_parameters():
            kept = client.state.get(f"personal.{name}")
            with torch.no_grad():
                parameter.copy_(torch.zeros_like(parameter) if kept is None else kept)
        return personal


def balanced_softmax_loss(logits: Tensor, labels: Tensor, log_counts: Tensor) -> Tensor:
    """Return the cross-entropy of the posterior n_c exp(s_c) / Σ n_k exp(s_k).

    It makes up for the client's class counts n_c, so that the logits fit a balanced world. Classes
    that the client does not have get no gradient.
    """
    return F.cross_entropy(logits + log_counts, labels)


def _log_counts(client: Client) -> Tensor:
    counts = torch.bincount(client.samples.labels, minlength=client.task.num_classes)
    return counts.float().log().clamp(min=LOG_OF_ZERO)
