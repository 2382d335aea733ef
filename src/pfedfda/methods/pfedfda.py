"""pFedFDA: personalisation by adapting a Gaussian model of the features.

C. J. McLaughlin and L. Su, "Personalized Federated Learning via Feature Distribution Adaptation",
NeurIPS 2024. Numbers of lines are those of its Algorithm 1.

The server holds a feature extractor φ and global class means μ_g and a covariance Σ_g of the
features. A client trains φ against the Bayes classifier of these Gaussians, estimates its own μ̂ and
Σ̂ from the features of its samples, and uses an interpolation β μ̂ + (1 - β) μ_g,
likewise for Σ, whose β it finds by cross-validation.

The global Gaussians are formed in one of two ways. *Interpolated* is Algorithm 1: clients send what
they interpolated, and the server averages it. *Pooled*: clients send their plain estimates, which
the server pools, and find β only when they personalise.

The paper leaves some choices open, and the authors' released program differs from the text in
others. Each is a hyper-parameter; the method's defaults and the presets in pfedfda_presets.py
fix them all (docs/search.md says how the defaults were chosen). Algorithm 1 as written has no
guard against divergence; docs/pfedfda.md says where it needs one.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from pfedfda.errors import InputError
from pfedfda.gaussian import (
    GRID,
    Adaptation,
    Betas,
    GaussianStatistics,
    adapt,
    adapt_levels,
    bayes_classifier,
    estimate_statistics,
    is_positive_semidefinite,
    level_losses,
    lowest,
    pack_symmetric,
    shrunk,
    unpack_symmetric,
    with_relative_ridge,
)
from pfedfda.methods.base import (
    WEIGHT,
    Client,
    Method,
    Personal,
    Task,
    Tensors,
    Update,
    load,
    part,
    wrong_counts,
)
from pfedfda.methods.generative import pack_statistics, put_head, unpack_statistics
from pfedfda.methods.pfedfda_features import Features, extract, too_rare, train_body
from pfedfda.methods.pfedfda_private import (
    interpolated_differences,
    interpolated_total,
    pooled_differences,
    pooled_total,
)
from pfedfda.methods.pooling import add_estimates, pooled_state
from pfedfda.methods.registry import register
from pfedfda.methods.space import Choices, Search
from pfedfda.methods.summands import Summand
from pfedfda.models import Model, gaussian_model, model_tensors
from pfedfda.seeding import torch_generator

VALIDATED_EVERY = 5  # of so many clients in a round of training, one sends validation losses


def _is_last(tensors: Tensors) -> bool:
    """Tell whether this is the last round, in which nothing is trained."""
    left = tensors.get("rounds_left")
    return left is not None and int(left) == 1


@register
@dataclass(frozen=True)
class PFedFDA(Method):
    """A shared feature extractor; every client gets the Bayes classifier of its own Gaussians.

    Parameters
    ----------
    statistics
        How the global Gaussians are formed: interpolated (Algorithm 1: clients send what they
        interpolated, averaged by sample counts), pooled (clients send plain estimates; means are
        averaged by class counts) or accumulated (pooled, and a class with few new samples moves
        less: better with many classes).
    keep
        What a round keeps of the old global statistics: for pooled ones a share of each, a moving
        average; for accumulated ones a share of their samples. 0 replaces them.
    ridge
        The ε whose multiple of the identity is added to every estimated covariance. Too small, and
        training diverges from random initial means; too large, and it is slow.
    adaptation
        How a client's Gaussians lie between the global ones and its own: beta (the paper: one β for
        all classes) or levels (an offset that all classes share, then each class by its count, and
        the covariance; how strongly the global ones pull is what the clients' cross-validations say
        together). Levels need pooled statistics.
    personal_ridge
        For levels, what is added to the diagonal of the global covariance when a client
        personalises, as a share of the features' mean variance; it takes the place of the ridge.
    gaussian_features
        Take features where the body says that they are nearest to Gaussian, as a rule before its
        last activation, in training and for use. A body that says nothing is used as it is.
    final_pass
        Train nothing in the last round of several: all clients send statistics of the body that
        they are going to use, and the global Gaussians are those alone.
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
        Which features of training the estimates are made from: those of all epochs, or of the
        first.
    personal
        The model that a client uses: stored (Algorithm 1: the body and Gaussians of its last
        training) or fresh (the global body, and Gaussians from one pass over the training samples).
    rare_class
        In fresh statistics a class of which the client has at most this many samples takes the
        global mean, as a class that it lacks always does.
    initial_means
        The random start of the global means: gaussian (normal around 0) or uniform from 0.
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
    reveals: ClassVar[str] = (
        "a body trained on its samples, and their class counts, class means and covariance; "
        "a class's only sample is its mean"
    )
    removed: ClassVar[Mapping[str, Any]] = {"relative_ridge": False, "scatter": "within"}
    added: ClassVar[Mapping[str, Any]] = {
        "adaptation": "beta",
        "personal_ridge": 0.1,
        "gaussian_features": False,
        "final_pass": False,
    }
    summands: ClassVar[Mapping[str, Summand]] = {
        "means": Summand(per="counts"),  # where there are counts: else they have the weight
        "covariance": Summand(covariance=True),
        "squares": Summand(per="counts", about="means"),
        "losses": Summand(per="validated"),
    }

    statistics: Literal["interpolated", "pooled", "accumulated"] = "pooled"
    keep: Annotated[float, Search(0.0, 0.9)] = 0.2
    ridge: Annotated[float, Search(0.01, 1.0, log=True)] = 0.1
    adaptation: Literal["beta", "levels"] = "beta"
    personal_ridge: float = 0.1
    gaussian_features: bool = False
    final_pass: bool = False
    betas: Annotated[Literal["single", "multiple", "none"], Choices("single", "multiple")] = (
        "single"
    )
    folds: int = 2
    grouped_folds: bool = True
    solver: Literal["spectral", "reference", "clipped"] = "spectral"
    features: Literal["all", "first"] = "first"
    personal: Literal["stored", "fresh"] = "fresh"
    rare_class: int = 0
    initial_means: Literal["gaussian", "uniform"] = "gaussian"
    initial_scale: Annotated[float, Search(0.1, 1.0, log=True)] = 0.3
    prior_smoothing: float = 1e-4
    shrinkage: float = 0.0
    drop_last: bool = False
    max_norm: float = 10.0

    def __post_init__(self) -> None:
        for name, allowed, limits in (
            ("ridge", self.ridge >= 0, "it must be 0 or more"),
            ("personal-ridge", self.personal_ridge > 0, "it must be above 0"),
            ("initial-scale", self.initial_scale > 0, "it must be above 0"),
            ("keep", 0 <= self.keep < 1, "it must lie in [0, 1)"),
            ("folds", self.folds >= 2, "it must be at least 2"),
            ("rare-class", self.rare_class >= 0, "it must be 0 or more"),
            ("prior-smoothing", self.prior_smoothing >= 0, "it must be 0 or more"),
            ("max-norm", self.max_norm >= 0, "it must be 0 or more"),
            ("shrinkage", 0 <= self.shrinkage <= 1, "it must lie in [0, 1]"),
        ):
            if not allowed:
                value = getattr(self, name.replace("-", "_"))
                raise InputError(f"{name} is {value}; {limits}.")
        if self.statistics != "interpolated" and self.personal == "stored":
            raise InputError(
                f"{self.statistics.capitalize()} statistics have no interpolated ones to store: "
                f"use personal fresh."
            )
        if self.statistics == "interpolated" and self.adaptation == "levels":
            raise InputError("Interpolated statistics come with β: use adaptation beta.")
        if self.statistics == "interpolated" and self.final_pass:
            raise InputError("Interpolated statistics come from training: use no final-pass.")

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
        if self.statistics != "interpolated":
            state["seen"] = torch.zeros(classes)  # whether any client has shown the class yet
        if self.statistics == "accumulated":
            state["mass"] = torch.zeros(classes)  # what is left of old samples
        if self.adaptation == "levels":
            state["losses"] = torch.zeros(len(GRID))
        if self.final_pass:
            # A single round has to train.
            state["rounds_left"] = torch.tensor(task.rounds if task.rounds > 1 else 0)
        return state

    def message(self, state: Tensors, client_id: int) -> Tensors:
        """Send body, means and covariance (line 4)."""
        return {name: tensor for name, tensor in state.items() if name not in ("seen", "mass")}

    def train(self, client: Client, message: Tensors) -> Update:
        """Train the body against the global classifier, then estimate (lines 6 to 12)."""
        shared = unpack_statistics(message)
        self._choose_features(client)
        self._load(client.model, message, shared, self._priors(client))
        if _is_last(message):
            return self._send_estimate(
                client, extract(client, self.drop_last), shared, {}, validates=True
            )
        features, loss = self._train_body(client)
        if self.statistics == "interpolated":
            return self._send_interpolated(client, features, shared, {"train_loss": loss})
        validates = (client.client_id + client.round) % VALIDATED_EVERY == 0
        return self._send_estimate(client, features, shared, {"train_loss": loss}, validates)

    def _send_interpolated(
        self,
        client: Client,
        features: Features,
        shared: GaussianStatistics,
        metrics: dict[str, float],
    ) -> Update:
        """Interpolate with the global Gaussians, keep the result and send it (lines 8 to 12).

        With rare classes, what is sent is interpolated without their samples.
        """
        adaptation = self._adapt(client, features, shared)
        betas, mixed = adaptation.betas, adaptation.statistics
        body = part(model_tensors(client.model), "body")
        client.state = pack_statistics(mixed) | {
            "betas": torch.tensor([betas.means, betas.covariance])
        }
        if self.personal == "stored":
            client.state |= body
        common = features.without(too_rare(client, features))
        if not len(common.labels):
            betas, mixed = Betas(0.0, 0.0), shared
        elif len(common.labels) < len(features.labels):
            adaptation = self._adapt(client, common, shared)
            betas, mixed = adaptation.betas, adaptation.statistics
        metrics |= self._metrics(betas)
        return Update(body | pack_statistics(mixed), client.num_samples, metrics)

    def _send_estimate(
        self,
        client: Client,
        features: Features,
        shared: GaussianStatistics,
        metrics: dict[str, float],
        validates: bool,
    ) -> Update:
        """Send plain estimates with the class counts by which the server pools them (line 8).

        For levels the update has validation losses too, or zeros if this client `validates`
        nothing in this round: while bodies are trained, a part of the clients is enough.
        """
        with client.timer("statistics"):
            rare = too_rare(client, features)
            features = features.without(rare)
            estimate = self._estimate(features, shared)
            counts = torch.bincount(client.samples.labels.cpu(), minlength=len(shared.means))
            counts[rare] = 0
        body = part(model_tensors(client.model), "body")
        sent = body | pack_statistics(estimate) | {"counts": counts.float()}
        if self.adaptation == "levels":
            losses = torch.zeros(len(GRID))
            if validates and len(features.labels):
                with client.timer("interpolation"):
                    losses = self._losses(client, features, shared).float()
            validated = float(counts.sum()) if losses.any() else 0.0
            sent |= {"losses": losses, "validated": torch.tensor(validated)}
        return Update(sent, client.num_samples, metrics)

    def contribution(self, update: Update, total: Tensors | None = None) -> Tensors:
        """Weight bodies by samples, but pooled statistics by class counts."""
        if self.statistics == "interpolated":
            return super().contribution(update, total)
        body = replace(update, tensors=part(update.tensors, "body"))
        total = super().contribution(body, total)
        return add_estimates(update.tensors, total, with_squares=self._adds_squares(update))

    def private_contribution(self, state: Tensors, update: Update) -> Tensors:
        """Return differences per sample; losses of levels stay at home, for they have no bound."""
        if self.statistics == "interpolated":
            return interpolated_differences(state, update)
        return pooled_differences(state, update, self._adds_squares(update))

    def private_total(
        self, state: Tensors, noisy: Tensors, clients: float, noise: float
    ) -> Tensors:
        """Return sums with counts of at least 0 and a covariance that can be one."""
        if self.statistics == "interpolated":
            return interpolated_total(state, noisy, clients, noise)
        return pooled_total(state, noisy, clients, noise)

    def _adds_squares(self, update: Update) -> bool:
        """Tell whether the pooled covariance is that of all features about the global means.

        It is where there is no body to train, as with a frozen backbone: the features of all
        clients are then those of one network, and their covariance is exact. While bodies are
        trained apart, their class means differ for that reason too, and the pooled covariance is
        the mean of the clients' own.
        """
        return not part(update.tensors, "body")

    def fault(self, update: Update) -> str | None:
        """Refuse class counts that cannot be, and what is no covariance."""
        if not is_positive_semidefinite(unpack_symmetric(update.tensors["covariance"])):
            return "its covariance is not positive semi-definite"
        counts = update.tensors.get("counts")
        return None if counts is None else wrong_counts(counts, update.weight)

    def finish(self, state: Tensors, total: Tensors) -> Tensors:
        """Average the bodies and form the global Gaussians (line 14)."""
        if self.statistics == "interpolated":
            return super().finish(state, total)
        after = {**state, **super().finish(state, part(total, "body", WEIGHT))}
        if bool(total["counts"].any()):  # else no client has enough samples of any class
            # In the last round all clients have just estimated under the body that they will use.
            after |= pooled_state(state, total, 0.0 if _is_last(state) else self.keep)
        if "rounds_left" in state:
            after["rounds_left"] = state["rounds_left"] - 1
        return after

    def personalize(self, client: Client, message: Tensors) -> Personal:
        """Use the client's own Gaussians; without stored ones make them (lines 8 to 11)."""
        if self.personal == "stored" and client.state:
            betas = Betas(*client.state["betas"].tolist())
            mixed = unpack_statistics(client.state)
            self._load(client.model, client.state, mixed, self._priors(client))
            return Personal(client.model, self._metrics(betas))
        shared = unpack_statistics(message)
        self._choose_features(client)
        load(client.model, part(message, "body"))
        features = extract(client, self.drop_last)
        if self.adaptation == "levels":
            return self._personalize_levels(client, message, features, shared)
        adaptation = self._adapt(client, features, shared)
        means = adaptation.fit.means
        if self.rare_class:
            counts = torch.bincount(features.labels.cpu(), minlength=len(shared.means))
            rare = (counts <= self.rare_class)[:, None].to(means.device)
            means = torch.where(rare, shared.means.to(means), means)
        with client.timer("interpolation"):
            classifier = adaptation.solve(self._priors(client), means, self.shrinkage)
        load(client.model, part(message, "body"))
        put_head(client.model, classifier)
        return Personal(client.model, self._metrics(adaptation.betas))

    def _personalize_levels(
        self, client: Client, message: Tensors, features: Features, shared: GaussianStatistics
    ) -> Personal:
        """Use posterior means, at the strengths of the federation or, without them, its own."""
        with client.timer("interpolation"):
            losses = message["losses"]
            if not losses.any():
                losses = self._losses(client, features, shared, every_fold=True)
            strengths = GRID[lowest(losses)]
            given = features.values, features.labels, self._for_use(shared), strengths
            fit = adapt_levels(*given, priors=self._priors(client))
        load(client.model, part(message, "body"))
        put_head(client.model, fit.classifier)
        return Personal(client.model, fit.weights())

    def _losses(
        self,
        client: Client,
        features: Features,
        shared: GaussianStatistics,
        every_fold: bool = False,
    ) -> Tensor:
        """Return the client's validation losses at all strengths.

        One fold is enough where the losses of many clients are added up.
        """
        return level_losses(
            features.values,
            features.labels,
            self._for_use(shared),
            priors=self._priors(client),
            sample_ids=features.rows,
            n_folds=self.folds,
            every_fold=every_fold,
            generator=client.generator,
        )

    def _for_use(self, shared: GaussianStatistics) -> GaussianStatistics:
        """Return the global statistics with the ridge of personalisation in place of training's."""
        covariance = with_relative_ridge(shared.covariance, self.ridge, self.personal_ridge)
        return replace(shared, covariance=covariance)

    def _choose_features(self, client: Client) -> None:
        """Take features where they are nearest to Gaussian, if that is asked for."""
        if self.gaussian_features:
            client.model = gaussian_model(client.model)

    def shared_model(self, client: Client, message: Tensors) -> nn.Module:
        """Return the global classifier, with all classes equally likely."""
        shared = unpack_statistics(message)
        self._choose_features(client)
        self._load(client.model, message, shared, torch.ones(len(shared.means)))
        return client.model

    def _train_body(self, client: Client) -> tuple[Features, float]:
        """Train the body (line 7); return features that passed by, and the mean loss."""
        return train_body(client, self.features, self.drop_last, self.max_norm)

    def _estimate(self, features: Features, shared: GaussianStatistics) -> GaussianStatistics:
        """Estimate means and covariance (line 8); absent classes take the global mean."""
        if not len(features.labels):
            return replace(shared, covariance=torch.zeros_like(shared.covariance))
        return estimate_statistics(
            features.values,
            features.labels,
            len(shared.means),
            prior_means=shared.means,
            ridge=self.ridge,
        )

    def _adapt(self, client: Client, features: Features, shared: GaussianStatistics) -> Adaptation:
        """Estimate, find β and interpolate (lines 8 to 11)."""
        return adapt(
            features.values,
            features.labels,
            shared,
            priors=self._priors(client),
            sample_ids=features.rows,
            betas=self.betas,
            n_folds=self.folds,
            ridge=self.ridge,
            grouped=self.grouped_folds,
            solver=self.solver,
            generator=client.generator,
            timer=client.timer,
        )

    def _load(
        self, model: Model, tensors: Tensors, statistics: GaussianStatistics, priors: Tensor
    ) -> None:
        """Put a body and the Bayes classifier of the statistics into a model."""
        covariance = shrunk(statistics.covariance, self.shrinkage)
        load(model, part(tensors, "body"))
        put_head(model, bayes_classifier(replace(statistics, covariance=covariance), priors))

    def _priors(self, client: Client) -> Tensor:
        """Return the client's class shares, smoothed."""
        counts = torch.bincount(client.samples.labels.cpu(), minlength=client.task.num_classes)
        return counts.double() / counts.sum() + self.prior_smoothing

    def _metrics(self, betas: Betas) -> dict[str, float]:
        if self.betas == "multiple":
            return {"beta": betas.means, "beta_covariance": betas.covariance}
        return {"beta": betas.means}
