"""pFedFDA: personalisation by adapting a Gaussian model of the features.

C. J. McLaughlin and L. Su, "Personalized Federated Learning via Feature Distribution Adaptation",
NeurIPS 2024. Numbers of lines are those of its Algorithm 1.

The server holds a feature extractor φ and global class means μ_g and a covariance Σ_g of the
features. A client trains φ against the Bayes classifier of these Gaussians, estimates its own μ̂ and
Σ̂ from the features of its samples, and uses an interpolation β μ̂ + (1 - β) μ_g,
likewise for Σ, whose β it finds by cross-validation.

The paper leaves some choices open, and the authors' released program differs from the text in
others. Each is a hyper-parameter; four named presets fix them all:

- ``pfedfda-paper``: Algorithm 1 as written, with a ridge that trains;
- ``pfedfda-released``: what the released program does;
- ``pfedfda-pooled``: the server pools plain estimates, and β is fitted when a client personalises;
- ``pfedfda``: the default, pooled statistics of the features of a round's first epoch
  (docs/search.md says how it was chosen).
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pfedfda.errors import InputError
from pfedfda.gaussian import (
    Betas,
    GaussianStatistics,
    adapt,
    bayes_classifier,
    estimate_statistics,
    is_positive_semidefinite,
    pack_symmetric,
    unpack_symmetric,
)
from pfedfda.methods.base import (
    Client,
    Method,
    Personal,
    Task,
    Tensors,
    Update,
    load,
    part,
    weighted_mean,
    wrong_counts,
)
from pfedfda.methods.registry import register
from pfedfda.methods.training import Batch, extract_features, sgd
from pfedfda.models import Model, model_tensors
from pfedfda.seeding import torch_generator


@register
@dataclass(frozen=True)
class PFedFDA(Method):
    """A shared feature extractor; every client gets the Bayes classifier of its own Gaussians.

    Parameters
    ----------
    statistics
        How the global Gaussians are formed: interpolated (Algorithm 1: clients send what they
        interpolated, averaged by sample counts) or pooled (clients send plain estimates; means are
        averaged by class counts).
    keep
        For pooled statistics, the share of the old global ones that is kept in a round: a moving
        average. 0 replaces them.
    ridge
        The ε whose multiple of the identity is added to every estimated covariance. Too small, and
        training diverges from random initial means; too large, and it is slow.
    relative_ridge
        Measure the ridge in units of the mean variance of the features that the covariance is
        estimated from, so that it means the same for small features and for large ones.
    scatter
        For pooled statistics, what the global covariance holds: within (the mean of the clients'
        own covariances) or total (with the scatter of the clients' class means about the global
        ones: the covariance of all features about the global means).
    betas
        single (one β for means and covariance), multiple (one each) or none (β = 1, local only).
    folds
        Folds of the cross-validation that finds β.
    grouped_folds
        Keep the features that one image had in different epochs in one fold. Without, they leak
        from training to validation folds and drive β towards 1.
    solver
        spectral (exact), reference (L-BFGS-B) or clipped (ten steps of unbounded L-BFGS on the
        clipped β, as in the released program).
    features
        Which features of a round are used for estimates: those that passed by in all epochs, in the
        first or in the last, or those of one more pass, before or after training.
    personal
        What serves at a client: stored (Algorithm 1: the body and Gaussians of its last training)
        or fresh (the global body, and Gaussians from one pass over the training samples).
    rare_class
        Where a client is served with fresh statistics, a class of which it has at most this many
        samples takes the global mean, as a class that it lacks always does.
    initial_means
        Start of the global means: gaussian (normal around 0) or uniform from 0, at random, or
        estimated (in the first round clients do not train, but send their statistics of the random
        features).
    initial_scale
        Their standard deviation, or the end of their range. The covariance starts as the identity:
        at a scale of 1 the first classifier is very steep, and larger learning rates diverge.
    prior_smoothing
        Added to the class shares of a client, so that a class it has not seen stays possible.
    shrinkage
        Before a classifier is solved for, this share of the covariance is replaced by a multiple of
        the identity with the same trace.
    drop_last
        Leave out the last incomplete batch of an epoch.
    max_norm
        Shorten longer gradients to this norm, 0 for never. The classifier of tight classes is
        steep, and without a limit one odd sample can throw the body off at larger learning rates.
    """

    name: ClassVar[str] = "pfedfda"
    title: ClassVar[str] = "pFedFDA"
    paper: ClassVar[str] = "McLaughlin and Su, NeurIPS 2024"
    year: ClassVar[int] = 2024
    down: ClassVar[tuple[str, ...]] = ("body", "means", "covariance")
    up: ClassVar[tuple[str, ...]] = ("body", "means", "covariance", "counts")

    statistics: Literal["interpolated", "pooled"] = "pooled"
    keep: float = 0.2
    ridge: float = 0.1
    relative_ridge: bool = False
    scatter: Literal["within", "total"] = "within"
    betas: Literal["single", "multiple", "none"] = "single"
    folds: int = 2
    grouped_folds: bool = True
    solver: Literal["spectral", "reference", "clipped"] = "spectral"
    features: Literal["all", "first", "last", "before", "after"] = "first"
    personal: Literal["stored", "fresh"] = "fresh"
    rare_class: int = 0
    initial_means: Literal["gaussian", "uniform", "estimated"] = "gaussian"
    initial_scale: float = 0.3
    prior_smoothing: float = 1e-4
    shrinkage: float = 0.0
    drop_last: bool = False
    max_norm: float = 10.0

    def __post_init__(self) -> None:
        if not self.ridge >= 0:
            raise InputError(f"The ridge is {self.ridge}; it must be 0 or more.")
        if not self.initial_scale > 0:
            raise InputError(f"initial-scale is {self.initial_scale}; it must be above 0.")
        if not 0 <= self.keep < 1:
            raise InputError(f"keep is {self.keep}; it must lie in [0, 1).")
        if self.folds < 2:
            raise InputError(f"The number of folds is {self.folds}; it must be at least 2.")
        if self.rare_class < 0:
            raise InputError(f"rare-class is {self.rare_class}; it must be 0 or more.")
        if not self.prior_smoothing >= 0:
            raise InputError(f"prior-smoothing is {self.prior_smoothing}; it must be 0 or more.")
        if not self.max_norm >= 0:
            raise InputError(f"max-norm is {self.max_norm}; it must be 0 or more.")
        if not 0 <= self.shrinkage <= 1:
            raise InputError(f"shrinkage is {self.shrinkage}; it must lie in [0, 1].")
        if self.statistics == "interpolated" and self.initial_means == "estimated":
            raise InputError("Only pooled statistics can start from estimated means.")
        if self.statistics == "pooled" and self.personal == "stored":
            raise InputError(
                "Pooled statistics have no interpolated ones to store: use personal fresh."
            )

    def init(self, task: Task) -> Tensors:
        """Start with a random body, random means and the unit covariance (lines 1 and 2)."""
        tensors = task.initial_tensors()
        classes, dimension = tensors["head.weight"].shape
        generator = torch_generator("pfedfda", task.seed)
        draw = torch.randn if self.initial_means == "gaussian" else torch.rand
        state = {
            **part(tensors, "body"),
            "means": self.initial_scale * draw(classes, dimension, generator=generator),
            "covariance": pack_symmetric(torch.eye(dimension)),
        }
        return (
            state if self.statistics == "interpolated" else {**state, "seen": torch.zeros(classes)}
        )

    def message(self, state: Tensors, client_id: int) -> Tensors:
        """Send body, means and covariance (line 4)."""
        return {name: tensor for name, tensor in state.items() if name != "seen"}

    def train(self, client: Client, message: Tensors) -> Update:
        """Train the body against the global classifier, then estimate (lines 6 to 12)."""
        shared = _statistics_of(message)
        self._load(client.model, message, shared, self._priors(client))
        metrics: dict[str, float] = {}
        if self.initial_means == "estimated" and client.round == 1:
            features, labels, rows = self._extract(client)
        else:
            features, labels, rows, metrics["train_loss"] = self._train_body(client)
        if self.statistics == "pooled":
            with client.timer("statistics"):
                estimate = self._estimate(features, labels, shared)
                counts = torch.bincount(client.samples.labels.cpu(), minlength=len(shared.means))
            sent = _packed(estimate) | {"counts": counts.float()}
            return self._update(client, sent, metrics)
        betas, mixed = self._adapt(client, features, labels, rows, shared)
        client.state = _packed(mixed) | {"betas": torch.tensor([betas.means, betas.covariance])}
        if self.personal == "stored":
            client.state |= part(model_tensors(client.model), "body")
        return self._update(client, _packed(mixed), metrics | self._metrics(betas))

    def expects(self, state: Tensors) -> Tensors:
        """Expect class counts beside body, means and covariance if statistics are pooled."""
        counts = {"counts": state["seen"]} if self.statistics == "pooled" else {}
        return super().expects(state) | counts

    def fault(self, update: Update) -> str | None:
        """Refuse class counts that cannot be, and what is no covariance."""
        if not is_positive_semidefinite(unpack_symmetric(update.tensors["covariance"])):
            return "its covariance is not positive semi-definite"
        counts = update.tensors.get("counts")
        return None if counts is None else wrong_counts(counts, update.weight)

    def aggregate(self, state: Tensors, updates: Iterable[Update]) -> Tensors:
        """Average the bodies and form the global Gaussians (line 14)."""
        if self.statistics == "interpolated":
            return weighted_mean(updates)
        sums = torch.zeros(state["means"].shape, dtype=torch.float64)
        counts = torch.zeros(len(sums), dtype=torch.float64)
        squares = torch.zeros(sums.shape[1], sums.shape[1], dtype=torch.float64)

        def without_means() -> Iterator[Update]:
            for update in updates:
                tensors = dict(update.tensors)
                of_client = tensors.pop("counts").double()
                means = tensors.pop("means").double()
                sums.add_(of_client[:, None] * means)
                if self.scatter == "total":
                    squares.add_(means.T @ (of_client[:, None] * means))
                counts.add_(of_client)
                yield replace(update, tensors=tensors)

        average = weighted_mean(without_means())
        held, seen = counts > 0, state["seen"] > 0
        # A class is first seen as it is: its random start carries no information. Until then the
        # mean of everything stands in for it, and a class that nobody holds now keeps its mean.
        stand_in = torch.where(seen[:, None], state["means"], (sums.sum(0) / counts.sum()).float())
        means = sums / counts.clamp(min=1)[:, None]
        if self.scatter == "total":
            between = (squares - means.T @ (counts[:, None] * means)) / counts.sum()
            average["covariance"] += pack_symmetric(between).float()
        fresh = means.float()
        moved = torch.where(seen[:, None], self._moving(state["means"], fresh), fresh)
        average["means"] = torch.where(held[:, None], moved, stand_in)
        if seen.any():
            average["covariance"] = self._moving(state["covariance"], average["covariance"])
        average["seen"] = (held | seen).float()
        return average

    def _moving(self, old: Tensor, new: Tensor) -> Tensor:
        return self.keep * old + (1 - self.keep) * new

    def personalize(self, client: Client, message: Tensors) -> Personal:
        """Serve with the client's own Gaussians; without stored ones make them (lines 8 to 11)."""
        if self.personal == "stored" and client.state:
            betas = Betas(*client.state["betas"].tolist())
            mixed = _statistics_of(client.state)
            self._load(client.model, client.state, mixed, self._priors(client))
            return Personal(client.model, self._metrics(betas))
        shared = _statistics_of(message)
        self._load(client.model, message, shared, self._priors(client))
        features, labels, rows = self._extract(client)
        betas, mixed = self._adapt(client, features, labels, rows, shared)
        if self.rare_class:
            counts = torch.bincount(labels.cpu(), minlength=len(shared.means))
            rare = (counts <= self.rare_class)[:, None].to(mixed.means.device)
            means = torch.where(rare, shared.means.to(mixed.means), mixed.means)
            mixed = replace(mixed, means=means)
        self._load(client.model, message, mixed, self._priors(client))
        return Personal(client.model, self._metrics(betas))

    def shared_model(self, client: Client, message: Tensors) -> nn.Module:
        """Return the global classifier, with all classes equally likely."""
        shared = _statistics_of(message)
        self._load(client.model, message, shared, torch.ones(len(shared.means)))
        return client.model

    def _train_body(self, client: Client) -> tuple[Tensor, Tensor, Tensor, float]:
        """Train the body (line 7); return the features that passed by, their labels and rows."""
        body, head = client.model.body, client.model.head
        seen: list[tuple[Tensor, Tensor, Tensor]] = []

        def loss(batch: Batch) -> Tensor:
            features = body(batch.images)
            seen.append((features.detach(), batch.labels, batch.rows))
            return F.cross_entropy(head(features), batch.labels)

        if self.features == "before":
            before = self._extract(client)
        mean_loss = sgd(
            client, body.parameters(), loss, drop_last=self.drop_last, max_norm=self.max_norm
        )
        if self.features == "before":
            return *before, mean_loss
        if self.features == "after":
            return *self._extract(client), mean_loss
        steps = len(seen) // client.task.training.epochs
        if self.features == "last":
            seen = seen[-steps:]
        elif self.features == "first":
            seen = seen[:steps]
        features, labels, rows = (torch.cat(parts) for parts in zip(*seen, strict=True))
        return features, labels, rows, mean_loss

    def _extract(self, client: Client) -> tuple[Tensor, Tensor, Tensor]:
        """Return features, labels and rows of the training samples under the loaded body."""
        used = client.num_samples
        incomplete = used % client.task.training.batch_size
        if self.drop_last and incomplete < used:
            used -= incomplete
        with client.timer("network"):
            features = extract_features(client, used)
        return features, client.samples.labels[:used], torch.arange(used)

    def _estimate(
        self, features: Tensor, labels: Tensor, shared: GaussianStatistics
    ) -> GaussianStatistics:
        """Estimate means and covariance (line 8); absent classes take the global mean."""
        ridge = self._ridge(features, labels, len(shared.means))
        return estimate_statistics(
            features, labels, len(shared.means), prior_means=shared.means, ridge=ridge
        )

    def _ridge(self, features: Tensor, labels: Tensor, classes: int) -> float:
        """Return the ridge for covariances of these features."""
        if not self.relative_ridge:
            return self.ridge
        covariance = estimate_statistics(features, labels, classes).covariance
        return self.ridge * float(covariance.diagonal().mean())

    def _adapt(
        self,
        client: Client,
        features: Tensor,
        labels: Tensor,
        rows: Tensor | None,
        shared: GaussianStatistics,
    ) -> tuple[Betas, GaussianStatistics]:
        """Estimate, find β and interpolate (lines 8 to 11)."""
        adaptation = adapt(
            features,
            labels,
            shared,
            priors=self._priors(client),
            sample_ids=rows,
            betas=self.betas,
            n_folds=self.folds,
            ridge=self._ridge(features, labels, len(shared.means)),
            grouped=self.grouped_folds,
            solver=self.solver,
            generator=client.generator,
            timer=client.timer,
        )
        return adaptation.betas, adaptation.statistics

    def _load(
        self, model: Model, tensors: Tensors, statistics: GaussianStatistics, priors: Tensor
    ) -> None:
        """Put a body and the Bayes classifier of the statistics into a model."""
        load(model, part(tensors, "body"))
        covariance = statistics.covariance.double()
        spherical = covariance.trace() / len(covariance) * torch.eye(len(covariance)).double()
        covariance = (1 - self.shrinkage) * covariance + self.shrinkage * spherical
        classifier = bayes_classifier(replace(statistics, covariance=covariance), priors)
        with torch.no_grad():
            # Single precision first: not every device has double.
            model.head.weight.copy_(classifier.weight.float())
            model.head.bias.copy_(classifier.bias.float())

    def _priors(self, client: Client) -> Tensor:
        """Return the client's class shares, smoothed."""
        counts = torch.bincount(client.samples.labels.cpu(), minlength=client.task.num_classes)
        return counts.double() / counts.sum() + self.prior_smoothing

    def _update(self, client: Client, tensors: Tensors, metrics: dict[str, float]) -> Update:
        sent = part(model_tensors(client.model), "body") | tensors
        return Update(sent, client.num_samples, metrics)

    def _metrics(self, betas: Betas) -> dict[str, float]:
        if self.betas == "multiple":
            return {"beta": betas.means, "beta_covariance": betas.covariance}
        return {"beta": betas.means}


@register
@dataclass(frozen=True)
class PFedFDAPooled(PFedFDA):
    """pFedFDA whose server pools plain estimates; β is fitted when a client personalises."""

    name: ClassVar[str] = "pfedfda-pooled"
    title: ClassVar[str] = "pFedFDA (pooled)"
    is_preset: ClassVar[bool] = True

    keep: float = 0.2
    ridge: float = 0.1
    features: Literal["all", "first", "last", "before", "after"] = "all"
    initial_means: Literal["gaussian", "uniform", "estimated"] = "gaussian"
    initial_scale: float = 0.3


@register
@dataclass(frozen=True)
class PFedFDAPaper(PFedFDA):
    """Algorithm 1 of the paper as written, with a ridge that trains."""

    name: ClassVar[str] = "pfedfda-paper"
    title: ClassVar[str] = "pFedFDA (paper)"
    is_preset: ClassVar[bool] = True
    up: ClassVar[tuple[str, ...]] = ("body", "means", "covariance")

    statistics: Literal["interpolated", "pooled"] = "interpolated"
    ridge: float = 0.3
    features: Literal["all", "first", "last", "before", "after"] = "all"
    personal: Literal["stored", "fresh"] = "stored"
    initial_means: Literal["gaussian", "uniform", "estimated"] = "gaussian"
    initial_scale: float = 1.0
    prior_smoothing: float = 0.0
    max_norm: float = 0.0


@register
@dataclass(frozen=True)
class PFedFDAReleased(PFedFDA):
    """pFedFDA as the authors' released program has it."""

    name: ClassVar[str] = "pfedfda-released"
    title: ClassVar[str] = "pFedFDA (released)"
    is_preset: ClassVar[bool] = True
    up: ClassVar[tuple[str, ...]] = ("body", "means", "covariance")

    statistics: Literal["interpolated", "pooled"] = "interpolated"
    ridge: float = 1.0
    betas: Literal["single", "multiple", "none"] = "multiple"
    grouped_folds: bool = False
    solver: Literal["spectral", "reference", "clipped"] = "clipped"
    features: Literal["all", "first", "last", "before", "after"] = "all"
    rare_class: int = 2
    initial_means: Literal["gaussian", "uniform", "estimated"] = "uniform"
    initial_scale: float = 1.0
    shrinkage: float = 1e-4
    drop_last: bool = True
    max_norm: float = 0.0


def _packed(statistics: GaussianStatistics) -> Tensors:
    """Return statistics as they travel: the covariance as its upper triangle."""
    return {
        "means": statistics.means.float().contiguous(),
        "covariance": pack_symmetric(statistics.covariance).float(),
    }


def _statistics_of(tensors: Tensors) -> GaussianStatistics:
    return GaussianStatistics(tensors["means"], unpack_symmetric(tensors["covariance"]))
