"""FedDBE: domain bias eliminator on FedAvg.

J. Zhang, Y. Hua, J. Cao, H. Wang, T. Song, Z. Xue, R. Ma and H. Guan, "Eliminating Domain Bias for
Federated Learning in Representation Space", NeurIPS 2023.

The consensus mean needs a round of ordinary training before the others. Here it is the first round
of the run: plain FedAvg, in which the clients also send the mean of their features.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pfedfda.errors import InputError
from pfedfda.methods.base import Client, Personal, Task, Tensors, Update, load, part
from pfedfda.methods.fedavg import FedAvg
from pfedfda.methods.private_moments import units
from pfedfda.methods.registry import register
from pfedfda.methods.training import Batch, cross_entropy, extract_features, sgd
from pfedfda.models import model_tensors


@register
@dataclass(frozen=True)
class FedDBE(FedAvg):
    """FedAvg whose clients add a vector of their own to the features and align their mean.

    The vector (personal representation bias memory) is learned with the model and stays at the
    client. The mean regularisation adds κ/2 times the mean squared difference between the running
    mean of the features, without the vector, and the consensus mean of all clients. The consensus
    is found in the first round, which is one of FedAvg, and is the same from then on.

    Parameters
    ----------
    kappa
        Strength κ of the regularisation; 50 as in the authors' command for a small network.
    momentum
        Share of the current batch in the running mean, which starts at zero in every round; 1 is
        the mean of the batch alone, as in that command.
    """

    name: ClassVar[str] = "feddbe"
    title: ClassVar[str] = "FedDBE"
    paper: ClassVar[str] = "Zhang et al., NeurIPS 2023"
    year: ClassVar[int] = 2023
    reveals: ClassVar[str] = "weights trained on its samples, and the mean of its features"

    kappa: float = 50.0
    momentum: float = 1.0

    def __post_init__(self) -> None:
        if not self.kappa >= 0:
            raise InputError(f"kappa is {self.kappa}; it must be 0 or more.")
        if not 0 <= self.momentum <= 1:
            raise InputError(f"The momentum is {self.momentum}; it must lie in [0, 1].")

    def init(self, task: Task) -> Tensors:
        """Return the initial model, without a consensus."""
        tensors = task.initial_tensors()
        dimension = tensors["head.weight"].shape[1]
        return {**tensors, "consensus": torch.zeros(dimension), "known": torch.zeros(1)}

    def train(self, client: Client, message: Tensors) -> Update:
        """Train the model and the client's vector; in the first round measure the mean feature."""
        model = self.shared_model(client, message)
        bias = _bias(client)
        mean = torch.zeros_like(message["consensus"])  # what is known is not sent again
        if bool(message["known"]):
            loss = self._train_with_bias(client, message, bias)
        else:
            loss = sgd(client, model.parameters(), cross_entropy(model))
            with client.timer("statistics"):
                mean = extract_features(client).mean(0).cpu()
        client.state = {"bias": bias.detach().cpu().clone()}
        sent = model_tensors(model) | {"consensus": mean}
        return Update(sent, client.num_samples, {"train_loss": loss})

    def private_contribution(self, state: Tensors, update: Update) -> Tensors:
        """Return differences; the consensus counts only in the first round."""
        sent = super().private_contribution(state, update)
        unit = units(len(sent["consensus"])).sums
        known = bool(state["known"])
        return sent | {"consensus": sent["consensus"] * (0.0 if known else 1 / unit)}

    def private_total(
        self, state: Tensors, noisy: Tensors, clients: float, noise: float
    ) -> Tensors:
        """Return sums, with the consensus in its own units."""
        consensus = noisy["consensus"] * units(len(noisy["consensus"])).sums
        return super().private_total(state, noisy | {"consensus": consensus}, clients, noise)

    def finish(self, state: Tensors, total: Tensors) -> Tensors:
        """Average the models, and in the first round the mean features."""
        after = super().finish(state, total)
        if bool(state["known"]):
            after["consensus"] = state["consensus"]
        return {**after, "known": torch.ones(1)}

    def personalize(self, client: Client, message: Tensors) -> Personal:
        """Use the global model with the client's vector; a client without one fits it now."""
        model = self.shared_model(client, message)
        bias = _bias(client)
        if not client.state and bool(message["known"]):
            _fit_bias(client, bias)
        with torch.no_grad():  # W(z + b) + c is the head with the intercept c + Wb
            client.model.head.bias.add_(client.model.head.weight @ bias)
        return Personal(model)

    def shared_model(self, client: Client, message: Tensors) -> nn.Module:
        """Return the global model, without a vector."""
        load(client.model, part(message, "body", "head"))
        return client.model

    def _train_with_bias(self, client: Client, message: Tensors, bias: nn.Parameter) -> float:
        """Train the model and the vector, with the running mean drawn to the consensus."""
        body, head = client.model.body, client.model.head
        consensus = message["consensus"].to(client.device)
        running = torch.zeros_like(consensus)

        def loss(batch: Batch) -> Tensor:
            nonlocal running
            features = body(batch.inputs)
            mean = (1 - self.momentum) * running + self.momentum * features.mean(0)
            running = mean.detach()
            value = F.cross_entropy(head(features + bias), batch.labels)
            deviation: Tensor = (mean - consensus).square().mean()
            return value + self.kappa / 2 * deviation

        return sgd(client, [*client.model.parameters(), bias], loss)


def _bias(client: Client) -> nn.Parameter:
    """Return the client's vector, which starts at zero."""
    kept = client.state.get("bias")
    start = torch.zeros(client.model.head.in_features) if kept is None else kept.clone()
    return nn.Parameter(start.to(client.device))


def _fit_bias(client: Client, bias: nn.Parameter) -> None:
    """Train the vector alone, under the global model."""
    features = extract_features(client)
    head = client.model.head

    def loss(batch: Batch) -> Tensor:
        rows = batch.rows.to(client.device)
        return F.cross_entropy(head(features[rows] + bias), batch.labels)

    sgd(client, [bias], loss)
