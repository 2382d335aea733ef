"""APFL: adaptive personalised federated learning.

Y. Deng, M. M. Kamani and M. Mahdavi, "Adaptive Personalized Federated Learning", arXiv 2003.13461,
2020. The mixing weight α is fixed, as in the paper that this project follows.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from pfedfda.errors import InputError
from pfedfda.methods.base import Client, Personal, Tensors, Update, load
from pfedfda.methods.fedavg import FedAvg
from pfedfda.methods.registry import register
from pfedfda.methods.space import Search
from pfedfda.methods.training import Batch, cross_entropy, sgd
from pfedfda.models import model_tensors


@register
@dataclass(frozen=True)
class APFL(FedAvg):
    """Every client mixes the global weights w with weights v of its own: α v + (1 - α) w.

    In each step w moves along the gradient of its own loss, as in FedAvg, and v along that of the
    loss of the mixture. The mixture is of weights, not of outputs, and v is never overwritten by
    it.

    Parameters
    ----------
    alpha
        The share α of the client's own weights: 0 is FedAvg, 1 is local training.
    """

    name: ClassVar[str] = "apfl"
    title: ClassVar[str] = "APFL"
    paper: ClassVar[str] = "Deng et al., 2020"
    year: ClassVar[int] = 2020

    alpha: Annotated[float, Search(0.05, 0.95)] = 0.25

    def __post_init__(self) -> None:
        if not 0 <= self.alpha <= 1:
            raise InputError(f"alpha is {self.alpha}; it must lie in [0, 1].")

    def train(self, client: Client, message: Tensors) -> Update:
        """Train w and v together; send w, keep v."""
        client.model.load_state_dict(message)
        own = self._own(client)
        own_names = [name for name, _ in client.model.named_parameters()]
        own_parameters = [own[name] for name in own_names]
        of_w = cross_entropy(client.model)

        def loss(batch: Batch) -> Tensor:
            mixture = {
                name: self.alpha * own[name] + (1 - self.alpha) * w.detach()
                for name, w in client.model.named_parameters()
            }
            logits = functional_call(client.model, mixture, (batch.inputs,))
            return of_w(batch) + F.cross_entropy(logits, batch.labels)

        mean_loss = sgd(client, [*client.model.parameters(), *own_parameters], loss)
        client.state = {name: _plain(own[name]) for name in own_names}
        # Half of the sum of both losses is comparable with the loss of other methods.
        metrics = {"train_loss": mean_loss / 2}
        return Update(model_tensors(client.model), client.num_samples, metrics)

    def personalize(self, client: Client, message: Tensors) -> Personal:
        """Use the mixture of v with the received w; a client without v trains it from the start."""
        if not client.state:
            self.train(client, message)
        own = client.state
        mixture = {name: self.alpha * own[name] + (1 - self.alpha) * message[name] for name in own}
        client.model.load_state_dict(message)  # buffers, such as those of batch norm, are shared
        load(client.model, mixture)
        return Personal(client.model)

    def _own(self, client: Client) -> dict[str, nn.Parameter]:
        """Return v as parameters in the layout of the model; it starts where w started."""
        start = client.state or client.task.initial_tensors()
        own = {}
        for name, parameter in client.model.named_parameters():
            own[name] = nn.Parameter(parameter.detach().clone().copy_(start[name]))
            own[name].frozen = getattr(parameter, "frozen", False)  # type: ignore[attr-defined]
        return own


def _plain(parameter: Tensor) -> Tensor:
    return parameter.detach().cpu().contiguous().clone()
