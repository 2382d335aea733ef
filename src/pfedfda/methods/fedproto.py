"""FedProto: own models, of which only class prototypes travel.

Y. Tan, G. Long, L. Liu, T. Zhou, Q. Lu, J. Jiang and C. Zhang, "FedProto: Federated Prototype
Learning across Heterogeneous Clients", AAAI 2022.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from pfedfda.errors import InputError
from pfedfda.gaussian import LOG_OF_ZERO
from pfedfda.methods.base import (
    WEIGHT,
    Client,
    Method,
    Personal,
    Task,
    Tensors,
    Update,
    add,
    wrong_counts,
)
from pfedfda.methods.fedpac import class_averages
from pfedfda.methods.private_moments import mended_moments, units
from pfedfda.methods.rare_classes import rare_classes
from pfedfda.methods.registry import register
from pfedfda.methods.summands import Summand
from pfedfda.methods.training import Batch, sgd
from pfedfda.models import model_tensors


@register
@dataclass(frozen=True)
class FedProto(Method):
    """Every client trains a model of its own whose features are drawn to global prototypes.

    A prototype is the mean feature of a class. The loss is the cross-entropy of the client's own
    head plus λ times the mean squared difference between a sample's feature and the prototype of
    its class. The server's prototypes are means over clients weighted by their class counts.

    Parameters
    ----------
    lam
        Strength λ of the pull to the prototypes; 0 trains as Local does.
    serve
        What classifies: prototypes (the nearest one among the classes that the client has, as in
        the paper) or head (the client's own).
    """

    name: ClassVar[str] = "fedproto"
    title: ClassVar[str] = "FedProto"
    paper: ClassVar[str] = "Tan et al., AAAI 2022"
    year: ClassVar[int] = 2022
    reveals: ClassVar[str] = "class counts and class means; a class's only sample is its mean"
    summands: ClassVar[Mapping[str, Summand]] = {"prototypes": Summand(per="counts")}

    lam: float = 1.0
    serve: Literal["prototypes", "head"] = "prototypes"

    def __post_init__(self) -> None:
        if not self.lam >= 0:
            raise InputError(f"lam is {self.lam}; it must be 0 or more.")

    def init(self, task: Task) -> Tensors:
        """Start without prototypes."""
        classes, dimension = task.initial_tensors()["head.weight"].shape
        return {"prototypes": torch.zeros(classes, dimension), "known": torch.zeros(classes)}

    def message(self, state: Tensors, client_id: int) -> Tensors:
        """Send the prototypes, and of which classes there are any."""
        return state

    def train(self, client: Client, message: Tensors) -> Update:
        """Train the client's own model, keep it, and send its prototypes."""
        loss = self._train_own(client, message)
        with client.timer("statistics"):
            counts, prototypes, _ = class_averages(client, to_send=True)
        client.state = model_tensors(client.model)
        sent = {"prototypes": prototypes.float(), "counts": counts.float()}
        return Update(sent, client.num_samples, {"train_loss": loss})

    def contribution(self, update: Update, total: Tensors | None = None) -> Tensors:
        """Add up prototypes by class counts."""
        total = {} if total is None else total
        counts = update.tensors["counts"].double()
        prototypes = counts[:, None] * update.tensors["prototypes"]
        weight = torch.tensor(update.weight, dtype=torch.float64)
        add(total, {"prototypes": prototypes, "counts": counts, WEIGHT: weight})
        return total

    def private_contribution(self, state: Tensors, update: Update) -> Tensors:
        """Return class shares and sums, in units that suit one noise."""
        sent = super().private_contribution(state, update)
        unit = units(sent["prototypes"].shape[1])
        return {
            "counts": sent["counts"] / unit.counts,
            "prototypes": sent["prototypes"] / unit.sums,
        }

    def private_total(
        self, state: Tensors, noisy: Tensors, clients: float, noise: float
    ) -> Tensors:
        """Return sums without the classes that noise alone could have made."""
        moments = {"counts": noisy["counts"], "sums": noisy["prototypes"]}
        mended = mended_moments(moments, noise)
        return {"counts": mended["counts"], "prototypes": mended["sums"]}

    def finish(self, state: Tensors, total: Tensors) -> Tensors:
        """Form the prototypes; a class that nobody of the round holds keeps its own."""
        held = total["counts"] > 0
        fresh = (total["prototypes"] / total["counts"].clamp(min=1)[:, None]).float()
        return {
            "prototypes": torch.where(held[:, None], fresh, state["prototypes"]),
            "known": torch.maximum(state["known"], held.float()),
        }

    def fault(self, update: Update) -> str | None:
        """Refuse class counts that cannot be."""
        return wrong_counts(update.tensors["counts"], update.weight)

    def personalize(self, client: Client, message: Tensors) -> Personal:
        """Use the client's own model; a client without one trains it now, from the start."""
        if client.state:
            client.model.load_state_dict(client.state)
        else:
            self._train_own(client, message)
        if self.serve == "prototypes":
            _classify_by_prototypes(client, message)
        return Personal(client.model)

    def _train_own(self, client: Client, message: Tensors) -> float:
        """Train the client's model with its features drawn to the prototypes."""
        model = client.model
        model.load_state_dict(client.state or client.task.initial_tensors())
        prototypes = message["prototypes"].to(client.device)
        known = message["known"].to(client.device)
        pulls = self.lam > 0 and bool(message["known"].any())

        def loss(batch: Batch) -> Tensor:
            features = model.body(batch.inputs)
            value = F.cross_entropy(model.head(features), batch.labels)
            if pulls:
                distances = (features - prototypes[batch.labels]).square().mean(1)
                value = value + self.lam * (distances * known[batch.labels]).mean()
            return value

        return sgd(client, model.parameters(), loss)


def _classify_by_prototypes(client: Client, message: Tensors) -> None:
    """Replace the head by one whose largest logit is that of the nearest prototype.

    Up to ‖z‖²/2, which all classes have in common, -‖z - p‖²/2 is linear in z. Classes that the
    client does not have, or that have no prototype, are ruled out. Where none is left, before the
    first round, the head stays. A rare class that no client has sent has the client's own.
    """
    labels = client.samples.labels.cpu()
    own = torch.bincount(labels, minlength=client.task.num_classes) > 0
    prototypes, known = message["prototypes"], message["known"] > 0
    kept_home = rare_classes(labels, client.task) & ~known
    if bool(kept_home.any()):
        mine = class_averages(client)[1].to(prototypes.dtype)
        prototypes = torch.where(kept_home[:, None], mine, prototypes)
    allowed = own & (known | kept_home)
    if not bool(allowed.any()):
        return
    bias = torch.where(allowed, -prototypes.square().sum(1) / 2, LOG_OF_ZERO)
    with torch.no_grad():
        client.model.head.weight.copy_(prototypes)
        client.model.head.bias.copy_(bias)
