"""FedProx: FedAvg whose clients are held near the model that they received.

T. Li, A. K. Sahu, M. Zaheer, M. Sanjabi, A. Talwalkar and V. Smith, "Federated Optimization in
Heterogeneous Networks", MLSys 2020.
"""

from dataclasses import dataclass
from typing import ClassVar

from pfedfda.errors import InputError
from pfedfda.methods.base import Client, Tensors, Update
from pfedfda.methods.fedavg import FedAvg
from pfedfda.methods.registry import register
from pfedfda.methods.training import cross_entropy, sgd
from pfedfda.models import model_tensors


@register
@dataclass(frozen=True)
class FedProx(FedAvg):
    """FedAvg with the penalty μ/2 · ‖w - w_received‖² on the way that a client moves.

    Parameters
    ----------
    mu
        Strength μ of the penalty; 0 is FedAvg. The paper chooses among 0.001, 0.01, 0.1 and 1 for
        each dataset.
    """

    name: ClassVar[str] = "fedprox"
    title: ClassVar[str] = "FedProx"
    paper: ClassVar[str] = "Li et al., MLSys 2020"
    year: ClassVar[int] = 2020

    mu: float = 0.1

    def __post_init__(self) -> None:
        if not self.mu >= 0:
            raise InputError(f"mu is {self.mu}; it must be 0 or more.")

    def train(self, client: Client, message: Tensors) -> Update:
        """Train the received model with the penalty and send it back."""
        client.model.load_state_dict(message)
        received = [p.detach().clone() for p in client.model.parameters()]
        loss = sgd(
            client,
            client.model.parameters(),
            cross_entropy(client.model),
            anchor=received,
            pull=self.mu,
        )
        return Update(model_tensors(client.model), client.num_samples, {"train_loss": loss})
