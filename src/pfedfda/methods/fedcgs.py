"""FedCGS: a Gaussian classifier from the sums of one round.

Z. Guan, Y. Zhou and X. Gu, "Capture Global Feature Statistics for One-Shot Federated Learning",
AAAI 2025.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from pfedfda.errors import InputError, unknown
from pfedfda.gaussian import (
    GaussianStatistics,
    LinearClassifier,
    bayes_classifier,
    shrunk,
    unpack_symmetric,
)
from pfedfda.methods.base import Client, Tensors
from pfedfda.methods.closed_form import (
    ClosedForm,
    class_means,
    first_moments,
    log_shares,
    moved,
    second_moments,
    without_unseen,
)
from pfedfda.methods.registry import register

PRIORS = ("client", "global", "uniform")
SCATTERS = ("within", "total")


@register
@dataclass(frozen=True)
class FedCGS(ClosedForm):
    """The Bayes classifier of Gaussians with one covariance, from all clients' exact moments.

    Parameters
    ----------
    priors
        client (a client's own class shares), global (those of all clients, as in the paper) or
        uniform.
    scatter
        The covariance is that about the class means (within) or about the mean of everything
        (total, as in the authors' program).
    shrinkage
        This share of the covariance is replaced by a multiple of the identity with the same trace.
        The authors' program has 0, and fails where the covariance is singular; here 0 then takes
        the solution of least norm.
    """

    name: ClassVar[str] = "fedcgs"
    title: ClassVar[str] = "FedCGS"
    paper: ClassVar[str] = "Guan et al., AAAI 2025"
    year: ClassVar[int] = 2025
    reveals: ClassVar[str] = (
        "class counts, class means and second moments; a class's only sample is its mean, "
        "of few samples it is their span"
    )

    priors: Literal["client", "global", "uniform"] = "client"
    scatter: Literal["within", "total"] = "within"
    shrinkage: float = 0.01

    def __post_init__(self) -> None:
        if self.priors not in PRIORS:
            raise unknown("kind of priors:", self.priors, PRIORS)
        if self.scatter not in SCATTERS:
            raise unknown("scatter:", self.scatter, SCATTERS)
        if not 0 <= self.shrinkage <= 1:
            raise InputError(f"shrinkage is {self.shrinkage}; it must lie in [0, 1].")

    def moments(self, client: Client, features: Tensor) -> Tensors:
        """Send class counts, class means and the mean of zzᵀ."""
        samples = features, client.samples.labels, client.task
        return first_moments(*samples) | {"squares": second_moments(*samples)}

    def head(self, total: Tensors) -> LinearClassifier:
        """Return the Bayes classifier of the pooled moments."""
        counts = total["counts"]
        samples = counts.sum()
        means, mean = class_means(total)
        squares = unpack_symmetric(total["squares"]) - samples * torch.outer(mean, mean)
        if self.scatter == "within":
            squares -= means.T @ (counts[:, None] * means)
        covariance = shrunk(squares / (samples - 1).clamp(min=1), self.shrinkage)
        priors = counts if self.priors == "global" else (counts > 0).double()
        head = bayes_classifier(GaussianStatistics(means, covariance), priors)
        return without_unseen(moved(head, mean), counts)

    def personal_bias(self, counts: Tensor) -> Tensor:
        """Return the client's log priors."""
        return log_shares(counts) if self.priors == "client" else torch.zeros(len(counts))
