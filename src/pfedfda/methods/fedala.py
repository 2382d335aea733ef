"""FedALA: adaptive local aggregation.

J. Zhang, Y. Hua, H. Wang, T. Song, Z. Xue, R. Ma and H. Guan, "FedALA: Adaptive Local Aggregation
for Personalized Federated Learning", AAAI 2023.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from pfedfda.errors import InputError
from pfedfda.methods.base import Client, Personal, Samples, Tensors, Update, load
from pfedfda.methods.fedavg import FedAvg
from pfedfda.methods.registry import register
from pfedfda.methods.training import Batch, cross_entropy, sgd
from pfedfda.models import model_tensors


@register
@dataclass(frozen=True)
class FedALA(FedAvg):
    """FedAvg whose clients start from a learned mixture of their own and the global model.

    The lower layers of the mixture are the global ones. The upper ones are
    own + (global - own) ⊙ W, where W has a weight in [0, 1] for each parameter. W starts at ones,
    which is FedAvg, is learned by gradient descent on a part of the client's samples, and stays at
    the client.

    Parameters
    ----------
    layer_idx
        How many of the model's last parameter tensors are mixed; a layer's weight and bias count
        singly, so that 2 is the head. 0 mixes all.
    rand_percent
        Percentage of the client's samples from which W is learned, drawn anew in every round.
    eta
        Learning rate of W.
    threshold
        The first time, W is learned until the last losses have a smaller standard deviation than
        this; later, for one pass over the samples.
    num_pre_loss
        The number of these losses, one for each pass.
    most_epochs
        No more passes than this are made; with 0, W stays at ones.
    """

    name: ClassVar[str] = "fedala"
    title: ClassVar[str] = "FedALA"
    paper: ClassVar[str] = "Zhang et al., AAAI 2023"
    year: ClassVar[int] = 2023

    layer_idx: int = 2
    rand_percent: float = 80.0
    eta: float = 1.0
    threshold: float = 0.1
    num_pre_loss: int = 10
    most_epochs: int = 100

    def __post_init__(self) -> None:
        if self.layer_idx < 0:
            raise InputError(f"layer-idx is {self.layer_idx}; it must be 0 or more.")
        if not 0 < self.rand_percent <= 100:
            raise InputError(f"rand-percent is {self.rand_percent}; it must lie in (0, 100].")
        if not self.eta > 0:
            raise InputError(f"eta is {self.eta}; it must be above 0.")
        if not self.threshold >= 0:
            raise InputError(f"The threshold is {self.threshold}; it must be 0 or more.")
        if self.num_pre_loss < 1:
            raise InputError(f"num-pre-loss is {self.num_pre_loss}; it must be at least 1.")
        if self.most_epochs < 0:
            raise InputError(f"most-epochs is {self.most_epochs}; it must be 0 or more.")

    def train(self, client: Client, message: Tensors) -> Update:
        """Mix, train the mixture, keep it with W, and send it."""
        order = client.generator.get_state()
        weights, learned = self._mix(client, message)
        client.generator.set_state(order)  # batches come in FedAvg's order
        loss = sgd(client, client.model.parameters(), cross_entropy(client.model))
        tensors = model_tensors(client.model)
        client.state = {
            **{f"own.{name}": tensors[name] for name in weights},
            **{f"weights.{name}": w.detach().cpu().contiguous() for name, w in weights.items()},
            "learned": torch.tensor([float(learned)]),
        }
        return Update(tensors, client.num_samples, {"train_loss": loss})

    def personalize(self, client: Client, message: Tensors) -> Personal:
        """Use the mixture; a client without a model of its own has the global one."""
        self._mix(client, message)
        return Personal(client.model)

    def _mix(self, client: Client, message: Tensors) -> tuple[dict[str, nn.Parameter], bool]:
        """Load the mixture into the scratch model; return W, and whether it has been learned."""
        client.model.load_state_dict(message)
        received = self._upper(client.model)
        kept = client.state
        weights = {}
        for name, tensor in received.items():
            start = torch.ones_like(tensor)
            weights[name] = nn.Parameter(start.copy_(kept[f"weights.{name}"]) if kept else start)
        if not kept or not weights:
            return weights, False
        own = {name: torch.empty_like(t).copy_(kept[f"own.{name}"]) for name, t in received.items()}
        change = {name: received[name] - own[name] for name in own}
        learned = bool(kept["learned"])
        epochs = min(1, self.most_epochs) if learned else self.most_epochs
        if epochs:
            self._learn(client, own, change, weights, epochs)
        client.model.load_state_dict(message)  # learning may have moved buffers
        with torch.no_grad():
            # Where W is one, this is the received model to the bit, which own + change is not.
            load(
                client.model,
                {name: received[name] - change[name] * (1 - w) for name, w in weights.items()},
            )
        return weights, learned or epochs > 0

    def _upper(self, model: nn.Module) -> Tensors:
        """Return copies of the parameters that are mixed, by name."""
        named = list(model.named_parameters())[-self.layer_idx :]
        return {n: p.detach().clone() for n, p in named if not getattr(p, "frozen", False)}

    def _learn(
        self,
        client: Client,
        own: Tensors,
        change: Tensors,
        weights: dict[str, nn.Parameter],
        most: int,
    ) -> None:
        """Learn W on a part of the client's samples, until the loss settles."""
        share = int(self.rand_percent / 100 * client.num_samples)
        count = max(share, min(2, client.num_samples))  # batch norm needs two
        rows = torch.randperm(client.num_samples, generator=client.generator)[:count]
        rows = rows.to(client.device)
        partial = replace(client, samples=Samples(*(t[rows] for t in client.samples)))

        def loss(batch: Batch) -> Tensor:
            mixture = {name: own[name] + change[name] * w for name, w in weights.items()}
            logits = functional_call(client.model, mixture, (batch.inputs,))
            return F.cross_entropy(logits, batch.labels)

        @torch.no_grad()
        def clamp() -> None:
            for w in weights.values():
                w.clamp_(0, 1)

        losses: list[float] = []
        for _ in range(most):
            value = sgd(
                partial,
                weights.values(),
                loss,
                epochs=1,
                lr=self.eta,
                momentum=0.0,
                weight_decay=0.0,
                after_batch=clamp,
            )
            losses.append(value)
            recent = losses[-self.num_pre_loss :]
            if len(losses) > self.num_pre_loss and np.std(recent) < self.threshold:
                return
