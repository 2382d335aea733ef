"""pFedFDA with options that were tried and did not become part of it.

What they are worth is told in docs/search.md. `search.py` measures them as settings of the preset
``pfedfda-pooled``, whose defaults this method has.
"""

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from pfedfda.errors import InputError
from pfedfda.gaussian import (
    Adaptation,
    GaussianStatistics,
    estimate_statistics,
    unpack_symmetric,
)
from pfedfda.methods import Client, Tensors, Update
from pfedfda.methods.pfedfda import PFedFDA
from pfedfda.methods.pfedfda_features import Features, extract


@dataclass(frozen=True)
class PFedFDAVariants(PFedFDA):
    """The preset ``pfedfda-pooled`` with further options.

    Parameters
    ----------
    scatter
        What the global covariance holds: within (the mean of the clients' own covariances) or total
        (with the scatter of the clients' class means about the global ones: the covariance of all
        features about the global means).
    relative_ridge
        Measure the ridge in units of the mean variance of the features that a covariance is
        estimated from, so that it means the same for small features and for large ones.
    features
        Which features of a round the estimates are made from: those that passed by in all epochs,
        in the first or in the last, or those of one more pass, before or after training.
    initial_means
        Start of the global means: at random, or estimated (in the first round clients do not train,
        but send their statistics of the random features).
    """

    name: ClassVar[str] = "pfedfda-variants"
    title: ClassVar[str] = "pFedFDA (variants)"
    removed: ClassVar[dict[str, object]] = {}

    keep: float = 0.2
    ridge: float = 0.1
    features: Literal["all", "first", "last", "before", "after"] = "all"
    initial_means: Literal["gaussian", "uniform", "estimated"] = "gaussian"
    initial_scale: float = 0.3
    relative_ridge: bool = False
    scatter: Literal["within", "total"] = "within"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.statistics == "interpolated" and self.initial_means == "estimated":
            raise InputError("Only pooled statistics can start from estimated means.")
        if self.statistics == "interpolated" and self.scatter == "total":
            raise InputError("Only pooled statistics can hold the total scatter.")

    def train(self, client: Client, message: Tensors) -> Update:
        """Send statistics of the random features in the first round, if the start is estimated."""
        if self.initial_means != "estimated" or client.round > 1:
            return super().train(client, message)
        shared = GaussianStatistics(message["means"], unpack_symmetric(message["covariance"]))
        self._load(client.model, message, shared, self._priors(client))
        return self._send_estimate(
            client, extract(client, self.drop_last), shared, {}, validates=False
        )

    def _adds_squares(self, update: Update) -> bool:
        """Add the squares of the means for the total scatter."""
        return self.scatter == "total"

    def _train_body(self, client: Client) -> tuple[Features, float]:
        """Train the body, and return the features that were asked for."""
        before = extract(client, self.drop_last) if self.features == "before" else None
        passed, loss = super()._train_body(client)
        if before is not None:
            return before, loss
        if self.features == "after":
            return extract(client, self.drop_last), loss
        if self.features == "last":
            an_epoch = len(passed.labels) // client.task.training.epochs
            return Features(*(part[-an_epoch:] for part in passed)), loss
        return passed, loss

    def _estimate(self, features: Features, shared: GaussianStatistics) -> GaussianStatistics:
        """Estimate with the ridge in its unit."""
        return PFedFDA._estimate(self._in_units(features, shared), features, shared)

    def _adapt(self, client: Client, features: Features, shared: GaussianStatistics) -> Adaptation:
        """Adapt with the ridge in its unit."""
        return PFedFDA._adapt(self._in_units(features, shared), client, features, shared)

    def _in_units(self, features: Features, shared: GaussianStatistics) -> "PFedFDAVariants":
        """Return this method with a ridge that is not relative any more."""
        if not self.relative_ridge:
            return self
        own = estimate_statistics(features.values, features.labels, len(shared.means))
        unit = float(own.covariance.diagonal().mean())
        return replace(self, ridge=self.ridge * unit, relative_ridge=False)
