"""pFedMe: personalisation with Moreau envelopes.

C. T. Dinh, N. H. Tran and T. D. Nguyen, "Personalized Federated Learning with Moreau Envelopes",
NeurIPS 2020.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch

from pfedfda.errors import InputError
from pfedfda.methods.base import Client, Personal, Tensors, Update, as_type, load
from pfedfda.methods.fedavg import FedAvg
from pfedfda.methods.registry import register
from pfedfda.methods.space import Search
from pfedfda.methods.training import cross_entropy, sgd
from pfedfda.models import model_tensors


@register
@dataclass(frozen=True)
class PFedMe(FedAvg):
    """Clients solve for θ near w on every batch, and w follows: w ← w - ηλ(w - θ).

    Parameters
    ----------
    lam
        Strength λ of the penalty λ/2 · ‖θ - w‖² that holds θ near w.
    inner_steps
        Gradient steps K for θ on each batch.
    personal_lr
        Learning rate of these steps, which have no momentum, as in the authors' program. Theirs is
        0.09, with which training diverges on CIFAR100-S. The η of w is the ordinary one.
    mixing
        The server moves by this share β from the old w to the average of the clients'.
    """

    name: ClassVar[str] = "pfedme"
    title: ClassVar[str] = "pFedMe"
    paper: ClassVar[str] = "Dinh et al., NeurIPS 2020"
    year: ClassVar[int] = 2020

    lam: Annotated[float, Search(0.1, 50.0, log=True)] = 5.0
    inner_steps: int = 5
    personal_lr: Annotated[float, Search(1e-3, 0.1, log=True)] = 0.01
    mixing: float = 1.0

    def __post_init__(self) -> None:
        if not self.lam >= 0:
            raise InputError(f"lam is {self.lam}; it must be 0 or more.")
        if self.inner_steps < 1:
            raise InputError(f"inner-steps is {self.inner_steps}; it must be at least 1.")
        if not self.personal_lr > 0:
            raise InputError(f"personal-lr is {self.personal_lr}; it must be above 0.")
        if not 0 < self.mixing <= 1:
            raise InputError(f"mixing is {self.mixing}; it must lie in (0, 1].")

    def train(self, client: Client, message: Tensors) -> Update:
        """Alternate between θ and w on every batch; keep θ, send w."""
        followed, loss = self._solve(client, message)
        client.state = model_tensors(client.model)
        load(client.model, followed)
        return Update(model_tensors(client.model), client.num_samples, {"train_loss": loss})

    def finish(self, state: Tensors, total: Tensors) -> Tensors:
        """Move the global model towards the average of the clients' w."""
        average = super().finish(state, total)
        return {
            name: as_type((1 - self.mixing) * state[name] + self.mixing * average[name], t.dtype)
            for name, t in state.items()
        }

    def personalize(self, client: Client, message: Tensors) -> Personal:
        """Use θ; a client that has none solves for it now."""
        if client.state:
            client.model.load_state_dict(client.state)
        else:
            self._solve(client, message)
        return Personal(client.model)

    def _solve(self, client: Client, message: Tensors) -> tuple[Tensors, float]:
        """Leave θ in the scratch model, and return w with the mean loss."""
        client.model.load_state_dict(message)
        names = [name for name, _ in client.model.named_parameters()]
        theta = list(client.model.parameters())
        w = [p.detach().clone() for p in theta]

        @torch.no_grad()
        def follow() -> None:
            for v, t in zip(w, theta, strict=True):
                v.lerp_(t, client.task.training.lr * self.lam)  # w ← w - ηλ(w - θ)

        mean_loss = sgd(
            client,
            theta,
            cross_entropy(client.model),
            lr=self.personal_lr,
            momentum=0.0,
            anchor=w,
            pull=self.lam,
            steps=self.inner_steps,
            after_batch=follow,
        )
        return dict(zip(names, w, strict=True)), mean_loss
