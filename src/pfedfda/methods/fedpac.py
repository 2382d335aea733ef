"""FedPAC: feature alignment and classifier collaboration.

J. Xu, X. Tong and S.-L. Huang, "Personalized Federated Learning with Feature Alignment and
Classifier Collaboration", ICLR 2023.

Bodies are averaged as in FedAvg. Features are aligned by a penalty on their distance to global
class prototypes. Heads are personal: after every round the server gives each participant the convex
combination of all participants' heads that a bound on its test loss says is best.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from pfedfda.errors import InputError
from pfedfda.methods.base import (
    WEIGHT,
    Client,
    Method,
    Personal,
    Task,
    Tensors,
    Update,
    add,
    load,
    part,
    wrong_counts,
)
from pfedfda.methods.rare_classes import without_rare
from pfedfda.methods.registry import register
from pfedfda.methods.space import Search
from pfedfda.methods.training import Batch, cross_entropy, extract_features, sgd
from pfedfda.models import model_tensors

Matrix = NDArray[np.float64]
Indices = NDArray[np.int64]

EXCHANGES = 20  # of partners at most, for one client; as a rule two or three suffice
TOLERANCE = 1e-6  # of the objective, relatively


@register
@dataclass(frozen=True)
class FedPAC(Method):
    """A shared body with aligned features; personal heads combined from those of similar clients.

    Parameters
    ----------
    lam
        Strength λ of the penalty on the mean squared distance of features to the global prototype
        of their class; it begins in the second round, when there are prototypes.
    head_epochs
        Passes over the training samples for the head, before the body is trained.
    head_lr
        Learning rate of the head.
    smallest_weight
        Weights below this are left out of a combination of heads.
    partners
        In rounds with more participants than this, a client's combination has at most this many
        heads: those of its nearest, of which such as get no weight make room for others that
        lower the bound.
    serve
        What a client uses: tuned (its model after local training on the received body and head,
        like the second of the two accuracies that the authors' program reports) or combined (the
        received body and head as they are).
    """

    name: ClassVar[str] = "fedpac"
    title: ClassVar[str] = "FedPAC"
    paper: ClassVar[str] = "Xu et al., ICLR 2023"
    year: ClassVar[int] = 2023
    reveals: ClassVar[str] = (
        "weights trained on its samples, class counts and class means; "
        "a class's only sample is its mean"
    )
    additive: ClassVar[bool] = False

    lam: Annotated[float, Search(0.01, 10.0, log=True)] = 1.0
    head_epochs: int = 1
    head_lr: Annotated[float, Search(0.01, 0.5, log=True)] = 0.1
    smallest_weight: float = 1e-3
    partners: int = 300
    serve: Literal["tuned", "combined"] = "tuned"

    def __post_init__(self) -> None:
        if not self.lam >= 0:
            raise InputError(f"lam is {self.lam}; it must be 0 or more.")
        if self.head_epochs < 0:
            raise InputError(f"head-epochs is {self.head_epochs}; it must be 0 or more.")
        if not self.head_lr > 0:
            raise InputError(f"head-lr is {self.head_lr}; it must be above 0.")
        if not 0 <= self.smallest_weight < 1:
            raise InputError(f"smallest-weight is {self.smallest_weight}; it must lie in [0, 1).")
        if self.partners < 1:
            raise InputError(f"partners is {self.partners}; it must be at least 1.")

    def init(self, task: Task) -> Tensors:
        """Start with the initial model, the same head for everybody, and no prototypes."""
        tensors = task.initial_tensors()
        classes, dimension = tensors["head.weight"].shape
        return {
            **part(tensors, "body"),
            "heads.weight": tensors["head.weight"].expand(task.num_clients, -1, -1).contiguous(),
            "heads.bias": tensors["head.bias"].expand(task.num_clients, -1).contiguous(),
            "heads.seen": torch.zeros(task.num_clients),
            "prototypes": torch.zeros(classes, dimension),
            "known": torch.zeros(classes),
        }

    def message(self, state: Tensors, client_id: int) -> Tensors:
        """Send the body, the client's own head, and the prototypes of the classes known so far."""
        seen = state["heads.seen"] > 0
        has_own = client_id < len(seen) and bool(seen[client_id])
        head = {}
        for name in ("weight", "bias"):
            heads = state[f"heads.{name}"]
            if has_own:
                head[f"head.{name}"] = heads[client_id].clone()
            else:  # who has never taken part gets the mean of those who have, if there are any
                head[f"head.{name}"] = (heads[seen] if bool(seen.any()) else heads[:1]).mean(0)
        return part(state, "body", "prototypes", "known") | head

    def train(self, client: Client, message: Tensors) -> Update:
        """Measure the features of the received body, train, and measure the prototypes."""
        load(client.model, part(message, "body", "head"))
        with client.timer("statistics"):
            counts, means, squares = class_averages(client, to_send=True)
            class_features, variance = combination_statistics(counts, means, squares)
        loss = self._train_locally(client, message)
        with client.timer("statistics"):
            _, prototypes, _ = class_averages(client, to_send=True)
        sent = model_tensors(client.model) | {
            "prototypes": prototypes.float(),
            "counts": counts.float(),
            "class_features": class_features.float(),
            "variance": variance.float(),
        }
        return Update(sent, client.num_samples, {"train_loss": loss})

    def contribution(self, update: Update, total: Tensors | None = None) -> Tensors:
        """Add up bodies by samples and prototypes by class counts; heads are no part of a sum."""
        body = replace(update, tensors=part(update.tensors, "body"))
        total = super().contribution(body, total)
        counts = update.tensors["counts"].double()
        prototypes = counts[:, None] * update.tensors["prototypes"]
        add(total, {"prototypes": prototypes, "counts": counts})
        return total

    def finish(self, state: Tensors, total: Tensors) -> Tensors:
        """Form the shared body and prototypes; a class that nobody holds keeps its own."""
        held = total["counts"] > 0
        fresh = (total["prototypes"] / total["counts"].clamp(min=1)[:, None]).float()
        return {
            **part(state, "heads"),
            **super().finish(state, part(total, "body", WEIGHT)),
            "prototypes": torch.where(held[:, None], fresh, state["prototypes"]),
            "known": torch.maximum(state["known"], held.float()),
        }

    def fault(self, update: Update) -> str | None:
        """Refuse class counts that cannot be, and class features and a variance unlike them."""
        counts, features = update.tensors["counts"], update.tensors["class_features"].double()
        if bool(features[counts == 0].any()):
            return "it has features of a class of which it has no sample"
        variance = float(update.tensors["variance"])
        # A difference of equal numbers may come out below 0 by its rounding.
        if variance < -1e-9 * float(features.square().sum()):
            return f"its variance is {variance:g}"
        return wrong_counts(counts, update.weight)

    def aggregate(self, state: Tensors, updates: Iterable[Update]) -> Tensors:
        """Form what is shared from a sum; combine the heads, which needs those of all clients."""
        total: Tensors = {}
        personal: dict[int, Tensors] = {}
        for update in updates:
            total = self.contribution(update, total)
            kept = part(update.tensors, "head", "class_features", "variance")
            personal[update.client_id] = {name: t.clone() for name, t in kept.items()}
        heads = self._combine_heads(state, dict(sorted(personal.items())))
        return self.finish(state, total) | heads

    def personalize(self, client: Client, message: Tensors) -> Personal:
        """Use the received body and head, as a rule after local training on a copy."""
        load(client.model, part(message, "body", "head"))
        if self.serve == "tuned":
            self._train_locally(client, message)
        return Personal(client.model)

    def _train_locally(self, client: Client, message: Tensors) -> float:
        """Train the head, then the body with its features drawn to the prototypes."""
        model = client.model
        if self.head_epochs:
            sgd(
                client,
                model.head.parameters(),
                cross_entropy(model),
                epochs=self.head_epochs,
                lr=self.head_lr,
            )
        prototypes = message["prototypes"].to(client.device)
        known = message["known"].to(client.device)
        aligns = self.lam > 0 and bool(message["known"].any())

        def loss(batch: Batch) -> Tensor:
            features = model.body(batch.inputs)
            value = F.cross_entropy(model.head(features), batch.labels)
            if aligns:
                distances = (features - prototypes[batch.labels]).square().mean(1)
                value = value + self.lam * (distances * known[batch.labels]).mean()
            return value

        return sgd(client, model.body.parameters(), loss)

    def _combine_heads(self, state: Tensors, personal: dict[int, Tensors]) -> Tensors:
        """Give every participant its best combination of the participants' heads."""
        clients = list(personal)
        if min(clients) < 0:
            raise ValueError("an update does not say which client it is from")
        features = torch.stack([t["class_features"] for t in personal.values()]).double().numpy()
        variances = torch.stack([t["variance"] for t in personal.values()]).double().numpy()
        weights = torch.from_numpy(
            combination_weights(features, variances.ravel(), self.smallest_weight, self.partners)
        )
        seen = state["heads.seen"].clone()
        seen[clients] = 1.0
        heads = {"heads.seen": seen}
        for name in ("weight", "bias"):
            sent = torch.stack([t[f"head.{name}"] for t in personal.values()]).double()
            combined = torch.tensordot(weights, sent, dims=1)
            heads[f"heads.{name}"] = state[f"heads.{name}"].clone()
            heads[f"heads.{name}"][clients] = combined.float()
        return heads


def class_averages(client: Client, to_send: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    """Return each class's count, mean feature, and mean squared norm of features.

    They are those of the client's training samples under the model as it is, on the CPU in double
    precision; zero for absent classes, and for rare ones if they are to be sent.
    """
    features = extract_features(client).cpu().double()
    labels = client.samples.labels.cpu()
    if to_send:
        features, labels = without_rare(features, labels, client.task)
    counts = torch.bincount(labels, minlength=client.task.num_classes)
    divisor = counts.clamp(min=1)
    sums = features.new_zeros(len(counts), features.shape[1]).index_add_(0, labels, features)
    squares = features.new_zeros(len(counts)).index_add_(0, labels, features.square().sum(1))
    return counts, sums / divisor[:, None], squares / divisor


def combination_statistics(counts: Tensor, means: Tensor, squares: Tensor) -> tuple[Tensor, Tensor]:
    """Return what the bound of FedPAC needs to know of a client.

    With class shares p and mean features m, these are the vectors p_c m_c, and the variance
    (Σ_c p_c E[‖f‖² | c] - p_c² ‖m_c‖²) / n of their estimate. As in the authors' program it is the
    plain one, which is 0 for a single sample.
    """
    samples = counts.sum().clamp(min=1)
    shares = counts.double() / samples
    class_features = shares[:, None] * means
    variance = (shares * squares).sum() - class_features.square().sum()
    return class_features, (variance / samples).reshape(1)


def combination_weights(
    class_features: Matrix,
    variances: Matrix,
    smallest_weight: float = 0.0,
    partners: int | None = None,
) -> Matrix:
    """Return the weights with which each client should combine all clients' heads.

    Client i's weights α minimise Σ_j α_j² V_j + ‖Σ_j α_j (H_i - H_j)‖² over the simplex: the
    variance of the combination, and its bias for client i.

    Parameters
    ----------
    class_features
        H, of shape (clients, classes, features).
    variances
        V, of shape (clients,).
    smallest_weight
        Smaller weights become 0; the others are scaled to sum to 1 again.
    partners
        How many weights of a client may be above 0; by default all. The time grows with the cube
        of this number instead of that of clients.

    Returns
    -------
    ndarray of shape (clients, clients)
        Row i has the weights of client i.
    """
    flat = class_features.reshape(len(class_features), -1)
    flat = flat - flat.mean(axis=0)  # differences do not change, but keep their digits
    gram = flat @ flat.T
    everybody = np.arange(len(flat))
    weights = np.empty_like(gram)
    for i in range(len(flat)):
        if partners is None or partners >= len(flat):
            weights[i] = minimize_on_simplex(_quadratic_form(gram, variances, i, everybody))
        else:
            weights[i] = _weights_of_partners(gram, variances, i, partners)
    # The largest weight of a row stays, however small: many similar clients share it out thinly.
    kept = (weights >= smallest_weight) | (weights == weights.max(axis=1, keepdims=True))
    weights[~kept] = 0.0
    result: Matrix = weights / weights.sum(axis=1, keepdims=True)
    return result


def _quadratic_form(gram: Matrix, variances: Matrix, i: int, among: Indices) -> Matrix:
    """Return the matrix P of client i's objective αᵀPα, of the rows and columns of some clients."""
    # ⟨H_i - H_j, H_i - H_k⟩ for all pairs, out of one matrix of inner products.
    own = gram[i, among]
    bias = gram[i, i] - own[:, None] - own[None, :] + gram[np.ix_(among, among)]
    result: Matrix = np.diag(variances[among]) + bias
    return result


def _weights_of_partners(gram: Matrix, variances: Matrix, i: int, partners: int) -> Matrix:
    """Return the weights of client i, of which few may be above 0.

    The nearest clients alone are not the best partners: a combination of clients on all sides can
    lie nearer than any of them. So begin with the nearest, and let those without a weight make room
    for others with which the objective falls. Where the optimum over all clients has room, this
    ends there.
    """
    squared_distances = gram[i, i] - 2 * gram[i] + gram.diagonal()
    squared_distances[i] = -np.inf  # the client itself, whatever rounding says of its copies
    nearest = np.argsort(squared_distances, kind="stable")
    among = np.sort(nearest[: max(partners // 2, 1)])
    weights, lowest = np.zeros(len(gram)), np.inf
    for _ in range(EXCHANGES):
        form = _quadratic_form(gram, variances, i, among)
        shares = minimize_on_simplex(form)
        value = float(shares @ form @ shares)
        if not value < lowest * (1 - TOLERANCE):
            break
        weights[:], lowest = 0.0, value
        weights[among] = shares
        held = among[(shares > 0) | (among == i)]
        # Half the derivative of the objective by each weight. At the optimum over all clients none
        # is below the objective.
        mixture = weights[held] @ gram[held]
        slopes = variances * weights + gram[i, i] - gram[i] - mixture[i] + mixture
        slopes[held] = np.inf
        steepest = np.argsort(slopes, kind="stable")[: partners - len(held)]
        helpful = steepest[slopes[steepest] < value * (1 - TOLERANCE)]
        if not len(helpful):
            break
        among = np.sort(np.concatenate([held, helpful]))
    return weights


def minimize_on_simplex(matrix: Matrix) -> Matrix:
    """Return the α >= 0 with Σ α = 1 of least αᵀPα.

    A matrix that is not quite positive definite is made so by raising its eigenvalues. The optimum
    is that of min xᵀPx/2 - Σ x over x >= 0 up to scale, which is a least-squares problem with
    non-negative unknowns.
    """
    from scipy.optimize import nnls

    size = len(matrix)
    values, vectors = np.linalg.eigh((matrix + matrix.T) / 2)
    floor = max(1e-10 * float(np.abs(values).max(initial=0.0)), 1e-300)
    roots = np.sqrt(np.maximum(values, floor))
    # With P = AᵀA and A = diag(roots) Vᵀ, the problem is min ‖Ax - b‖ with Aᵀb = 1.
    scale = 1 / np.sqrt(np.mean(roots**2))  # keeps the tolerances of the solver meaningful
    solution, _ = nnls(
        scale * roots[:, None] * vectors.T, (vectors.T @ np.ones(size)) / (scale * roots)
    )
    total = solution.sum()
    uniform: Matrix = np.full(size, 1 / size)
    result: Matrix = solution / total if total > 0 else uniform
    return result
