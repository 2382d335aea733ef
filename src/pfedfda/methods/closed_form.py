"""What the training-free methods share: one round of moments, and a linear head from their sums.

Nothing is trained. A client sends moments of its features, the server adds them up and solves for a
linear head, and the body stays as it starts: a pretrained one, or none where the inputs are the
features of a frozen backbone. One round in which all clients take part says everything. A further
round gives the same head again; one with fewer participants replaces it by theirs, because sums
over rounds would count a client as often as it is drawn. The last round of a run has all clients.
"""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from pfedfda.gaussian import (
    LOG_OF_ZERO,
    LinearClassifier,
    class_moments,
    is_positive_semidefinite,
    pack_symmetric,
    unpack_symmetric,
)
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
from pfedfda.methods.generative import put_head
from pfedfda.methods.private_moments import mended_moments, units
from pfedfda.methods.rare_classes import without_rare
from pfedfda.methods.summands import Summand
from pfedfda.methods.training import extract_features

# Added to a client's class shares, so that a class it has not seen stays possible.
_SMOOTHING = 1e-4


@dataclass(frozen=True)
class ClosedForm(Method):
    """A linear head in closed form on features that nobody trains."""

    training_free: ClassVar[bool] = True
    summands: ClassVar[Mapping[str, Summand]] = {
        "sums": Summand(per="counts"),
        "squares": Summand(per="counts", about="sums"),
    }

    def init(self, task: Task) -> Tensors:
        """Return a head that finds all classes equally likely."""
        classes, dimension = task.initial_tensors()["head.weight"].shape
        return {
            "weight": torch.zeros(classes, dimension, dtype=torch.float64),
            "bias": torch.zeros(classes, dtype=torch.float64),
        }

    def message(self, state: Tensors, client_id: int) -> Tensors:
        """Send the head."""
        return dict(state)

    def train(self, client: Client, message: Tensors) -> Update:
        """Send moments of the client's features."""
        load(client.model, part(client.task.initial_tensors(), "body"))
        with client.timer("network"):
            features = extract_features(client)
        with client.timer("statistics"):
            sent = self.moments(client, features)
        return Update(sent, client.num_samples)

    @abstractmethod
    def moments(self, client: Client, features: Tensor) -> Tensors:
        """Return what a client sends: ``counts``, ``means``, and ``squares`` if need be."""

    @abstractmethod
    def head(self, total: Tensors) -> LinearClassifier:
        """Return the head from the sums over clients: ``counts``, ``sums`` and ``squares``."""

    @abstractmethod
    def personal_bias(self, counts: Tensor) -> Tensor:
        """Return what a client with these class counts adds to the bias of the head."""

    def contribution(self, update: Update, total: Tensors | None = None) -> Tensors:
        """Turn means into sums, which can be added up."""
        counts = update.tensors["counts"].double()
        summands = {
            "counts": counts,
            "sums": counts[..., None] * update.tensors["means"].double(),
            WEIGHT: torch.tensor(update.weight, dtype=torch.float64),
        }
        if "squares" in update.tensors:
            summands["squares"] = counts.sum(-1, keepdim=True) * update.tensors["squares"]
        total = {} if total is None else total
        add(total, summands)
        return total

    def finish(self, state: Tensors, total: Tensors) -> Tensors:
        """Solve for the head; what earlier rounds gave is replaced."""
        if not bool(total["counts"].any()):  # no client has enough samples of any class
            return dict(state)
        head = self.head(total)
        return {"weight": head.weight, "bias": head.bias}

    def private_contribution(self, state: Tensors, update: Update) -> Tensors:
        """Return moments per sample, in units that suit one noise."""
        moments = super().private_contribution(state, update)
        unit = units(moments["sums"].shape[-1])._asdict()
        return {name: tensor / unit[name] for name, tensor in moments.items()}

    def private_total(
        self, state: Tensors, noisy: Tensors, clients: float, noise: float
    ) -> Tensors:
        """Return moments that samples can have, of each fold if there are several."""
        if noisy["counts"].ndim == 1:
            return mended_moments(noisy, noise)
        folds = range(len(noisy["counts"]))
        parts = [mended_moments({n: t[fold] for n, t in noisy.items()}, noise) for fold in folds]
        return {name: torch.stack([mended[name] for mended in parts]) for name in noisy}

    def fault(self, update: Update) -> str | None:
        """Refuse class counts, and moments that no samples can have together."""
        counts, means = update.tensors["counts"], update.tensors["means"]
        squares = update.tensors.get("squares")
        wrong = wrong_counts(counts, update.weight)
        if wrong is None and squares is not None:
            size, classes = means.shape[-1], counts.shape[-1]
            parts = counts.reshape(-1, classes), means.reshape(-1, classes, size)
            for part_of in zip(*parts, squares.reshape(-1, squares.shape[-1]), strict=True):
                if not is_positive_semidefinite(joint_moments(*part_of)):
                    return "its class means and second moments are not positive semi-definite"
        return wrong

    def personalize(self, client: Client, message: Tensors) -> Personal:
        """Use the head with the bias of the client's own classes."""
        labels = client.samples.labels.cpu()
        counts = torch.bincount(labels, minlength=client.task.num_classes)
        return Personal(_with_head(client, message, self.personal_bias(counts)))

    def shared_model(self, client: Client, message: Tensors) -> nn.Module:
        """Return the initial body under the server's head."""
        return _with_head(client, message, torch.zeros_like(message["bias"]))


def _with_head(client: Client, message: Tensors, added: Tensor) -> nn.Module:
    load(client.model, part(client.task.initial_tensors(), "body"))
    put_head(client.model, LinearClassifier(message["weight"], message["bias"] + added))
    return client.model


def first_moments(features: Tensor, labels: Tensor, task: Task) -> Tensors:
    """Return class counts and class means, zero for a class without samples or with too few."""
    features, labels = without_rare(features, labels, task)
    if not len(labels):
        means = torch.zeros(task.num_classes, features.shape[1], dtype=torch.float64)
        return {"counts": torch.zeros(task.num_classes), "means": means}
    moments = class_moments(features, labels, task.num_classes)
    return {"counts": moments.counts.float(), "means": moments.means}


def second_moments(features: Tensor, labels: Tensor, task: Task) -> Tensor:
    """Return the mean of zzᵀ over the same samples, packed, in double precision.

    Covariances come out of differences of such sums: single precision would leave few digits where
    means are large against deviations.
    """
    features, _ = without_rare(features, labels, task)
    matrix = features.detach().cpu().double()
    return pack_symmetric(matrix.T @ matrix / max(len(matrix), 1))


def joint_moments(counts: Tensor, means: Tensor, squares: Tensor) -> Tensor:
    """Return the second moments of features beside one-hot classes.

    As those of any samples they are positive semi-definite. That says more than it does of the
    features alone: large means have large squares.

    Parameters
    ----------
    counts : Tensor of shape (C,)
        Samples of each class.
    means : Tensor of shape (C, d)
        Class means of features.
    squares : Tensor of shape (d (d + 1) / 2,)
        The mean of zzᵀ, packed.
    """
    shares = counts.double() / counts.double().sum().clamp(min=1)
    with_classes = shares[:, None] * means.double()
    upper = torch.cat([unpack_symmetric(squares).double(), with_classes.T], dim=1)
    return torch.cat([upper, torch.cat([with_classes, shares.diag()], dim=1)])


def solved(gram: Tensor, target: Tensor) -> Tensor:
    """Solve normal equations; where rounding leaves no inverse, with least norm."""
    factor, info = torch.linalg.cholesky_ex(gram)
    if int(info) == 0:
        return torch.cholesky_solve(target, factor)
    solution: Tensor = torch.linalg.lstsq(gram, target, driver="gelsd").solution
    return solution


def class_means(total: Tensors) -> tuple[Tensor, Tensor]:
    """Return the means of all classes, about the mean of everything, and the latter."""
    counts, sums = total["counts"], total["sums"]
    mean = sums.sum(0) / counts.sum()
    means = sums / counts.clamp(min=1)[:, None]
    return torch.where(counts[:, None] > 0, means - mean, 0.0), mean


def moved(head: LinearClassifier, origin: Tensor) -> LinearClassifier:
    """Return a head for features, given the one for their differences to an origin.

    Posteriors do not change when features and means move together. About the mean of everything
    weights are small, and the model's single precision has digits enough.
    """
    return LinearClassifier(head.weight, head.bias - head.weight @ origin)


def without_unseen(head: LinearClassifier, counts: Tensor) -> LinearClassifier:
    """Return a head that never predicts a class of which no client has a sample."""
    return LinearClassifier(head.weight, head.bias.masked_fill(counts == 0, LOG_OF_ZERO))


def log_shares(counts: Tensor) -> Tensor:
    """Return the logarithms of a client's class shares, smoothed."""
    return (counts.double() / counts.sum() + _SMOOTHING).log()


def only_held(counts: Tensor) -> Tensor:
    """Return a bias that rules out the classes of which a client has no sample."""
    return torch.zeros(len(counts)).double().masked_fill(counts == 0, LOG_OF_ZERO)
