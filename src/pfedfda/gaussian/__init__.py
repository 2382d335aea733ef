"""The mathematics of pFedFDA on tensors: no network, no federation.

Features of a class are modelled as Gaussian, with a mean for each class and one covariance for all.
`estimate_statistics` fits that model, `bayes_classifier` turns it into a linear layer,
`search_beta` finds how far a client should trust its own estimates against global ones, and `adapt`
does all three in one call. `AdaptiveGaussianClassifier` is the same for scikit-learn. Numbers of
equations are those of the paper: 3 and 4 the classifier, 6 to 8 means and covariance, 9 the search
for β.

Tensors may come from any device and in any floating type. Results are float64 on the CPU, where all
linear algebra is done: the matrices are small, and their inverses need the digits.
"""

from typing import TYPE_CHECKING, Any

from pfedfda.gaussian.adaptation import adapt, search_beta
from pfedfda.gaussian.adapted import Adaptation, Betas, shrunk
from pfedfda.gaussian.bound import interpolation_error_bound
from pfedfda.gaussian.classifier import LOG_OF_ZERO, LinearClassifier, bayes_classifier
from pfedfda.gaussian.estimate import (
    ClassMoments,
    class_moments,
    class_priors,
    estimate_statistics,
    merge_moments,
    statistics_from_moments,
)
from pfedfda.gaussian.folds import assign_folds
from pfedfda.gaussian.interpolation import interpolate
from pfedfda.gaussian.level_search import GRID, level_losses, lowest
from pfedfda.gaussian.levels import LevelFit, Strengths, adapt_levels, with_relative_ridge
from pfedfda.gaussian.nearest_pd import is_positive_semidefinite, nearest_positive_definite
from pfedfda.gaussian.statistics import GaussianStatistics, pack_symmetric, unpack_symmetric

if TYPE_CHECKING:
    from pfedfda.gaussian.adaptive_classifier import AdaptiveGaussianClassifier

__all__ = [
    "GRID",
    "LOG_OF_ZERO",
    "Adaptation",
    "AdaptiveGaussianClassifier",
    "Betas",
    "ClassMoments",
    "GaussianStatistics",
    "LevelFit",
    "LinearClassifier",
    "Strengths",
    "adapt",
    "adapt_levels",
    "assign_folds",
    "bayes_classifier",
    "class_moments",
    "class_priors",
    "estimate_statistics",
    "interpolate",
    "interpolation_error_bound",
    "is_positive_semidefinite",
    "level_losses",
    "lowest",
    "merge_moments",
    "nearest_positive_definite",
    "pack_symmetric",
    "search_beta",
    "shrunk",
    "statistics_from_moments",
    "unpack_symmetric",
    "with_relative_ridge",
]


def __getattr__(name: str) -> Any:
    # scikit-learn takes a second to import, and those who train networks do not need it.
    if name == "AdaptiveGaussianClassifier":
        from pfedfda.gaussian.adaptive_classifier import AdaptiveGaussianClassifier

        return AdaptiveGaussianClassifier
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
