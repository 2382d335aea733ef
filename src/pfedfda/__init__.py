"""pfedfda: personalised federated learning.

Many clients with small, different datasets train one feature extractor together, and every client
ends with a classifier fitted to its own data. What most programs need is here; everything else is
in the packages.

Run and compare methods
    `run`, `compare` and `resume` run methods on a federation and return a `RunResult` or a
    `Comparison`; `load_run` reads a run from its folder, and an `Observer` is told of its progress.
    `tune` searches the settings of methods and returns a `Tuning`.
Federations
    `FederationConfig` says who holds which samples, `federation_from_arrays` makes one for arrays,
    and `prepare` makes a `Federation` of it.
Personal models
    `export_models` takes the models of a run's clients out of it, each an `ExportedModel`, and
    `personalize` makes a `PersonalModel` for a new client. `load_model` reads a saved one: a
    `PersonalClassifier`, which takes images, tables or texts as somebody has them.
Methods of your own
    `Method` is what they derive from, and `register` makes one known;
    `find_method` and `all_methods` look methods up.
Features without a federation
    `AdaptiveGaussianClassifier` is pFedFDA's classifier for scikit-learn. On tensors:
    `estimate_statistics` fits Gaussians with a mean for each class and one covariance to features;
    `class_moments`, `merge_moments` and `statistics_from_moments` do the same for features that lie
    at several places, from sums alone. `adapt` fits a client's classifier between its own and
    global statistics and returns an `Adaptation`; `search_beta`, `interpolate` and
    `bayes_classifier` are its three steps. They pass on `GaussianStatistics`, `ClassMoments` and a
    `LinearClassifier`.
Errors
    `PfedfdaError` is the base of all; `InputError` is for values that cannot be used, and
    `RunStoppedError` for runs that ended early.

The packages are `pfedfda.gaussian`, `pfedfda.data`, `pfedfda.models`, `pfedfda.methods`,
`pfedfda.aggregation`, `pfedfda.inference`, `pfedfda.engine`, `pfedfda.runs`, `pfedfda.experiment`,
`pfedfda.report`, `pfedfda.flower` and `pfedfda.paper`.
"""

import importlib
from typing import TYPE_CHECKING

from pfedfda.version import __version__

if TYPE_CHECKING:
    from pfedfda.data import Federation, FederationConfig, federation_from_arrays, prepare
    from pfedfda.errors import InputError, PfedfdaError, RunStoppedError
    from pfedfda.experiment import Comparison, RunResult, compare, load_run, resume, run
    from pfedfda.experiment.exporting import ExportedModel, export_models
    from pfedfda.experiment.observers import Observer
    from pfedfda.experiment.personal import PersonalModel, personalize
    from pfedfda.experiment.tune import Tuning, tune
    from pfedfda.gaussian import (
        Adaptation,
        AdaptiveGaussianClassifier,
        ClassMoments,
        GaussianStatistics,
        LinearClassifier,
        adapt,
        bayes_classifier,
        class_moments,
        estimate_statistics,
        interpolate,
        merge_moments,
        search_beta,
        statistics_from_moments,
    )
    from pfedfda.inference import PersonalClassifier, load_model
    from pfedfda.methods import Method, all_methods, find_method, register

__all__ = [
    "Adaptation",
    "AdaptiveGaussianClassifier",
    "ClassMoments",
    "Comparison",
    "ExportedModel",
    "Federation",
    "FederationConfig",
    "GaussianStatistics",
    "InputError",
    "LinearClassifier",
    "Method",
    "Observer",
    "PersonalClassifier",
    "PersonalModel",
    "PfedfdaError",
    "RunResult",
    "RunStoppedError",
    "Tuning",
    "__version__",
    "adapt",
    "all_methods",
    "bayes_classifier",
    "class_moments",
    "compare",
    "estimate_statistics",
    "export_models",
    "federation_from_arrays",
    "find_method",
    "interpolate",
    "load_model",
    "load_run",
    "merge_moments",
    "personalize",
    "prepare",
    "register",
    "resume",
    "run",
    "search_beta",
    "statistics_from_moments",
    "tune",
]

_HOMES = {
    "pfedfda.data": ["Federation", "FederationConfig", "federation_from_arrays", "prepare"],
    "pfedfda.errors": ["InputError", "PfedfdaError", "RunStoppedError"],
    "pfedfda.experiment": ["Comparison", "RunResult", "compare", "load_run", "resume", "run"],
    "pfedfda.experiment.exporting": ["ExportedModel", "export_models"],
    "pfedfda.experiment.observers": ["Observer"],
    "pfedfda.experiment.personal": ["PersonalModel", "personalize"],
    "pfedfda.experiment.tune": ["Tuning", "tune"],
    "pfedfda.gaussian": [
        "Adaptation",
        "AdaptiveGaussianClassifier",
        "ClassMoments",
        "GaussianStatistics",
        "LinearClassifier",
        "adapt",
        "bayes_classifier",
        "class_moments",
        "estimate_statistics",
        "interpolate",
        "merge_moments",
        "search_beta",
        "statistics_from_moments",
    ],
    "pfedfda.inference": ["PersonalClassifier", "load_model"],
    "pfedfda.methods": ["Method", "all_methods", "find_method", "register"],
}
_PACKAGES = (
    "aggregation",
    "data",
    "engine",
    "experiment",
    "flower",
    "gaussian",
    "inference",
    "methods",
    "models",
    "paper",
    "report",
    "runs",
)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_PACKAGES})


if not TYPE_CHECKING:  # a type checker would take any name for an attribute

    def __getattr__(name: str) -> object:
        """Import a name when it is first used: PyTorch alone takes more than a second."""
        for home, names in _HOMES.items():
            if name in names:
                globals()[name] = getattr(importlib.import_module(home), name)
                return globals()[name]
        if name in _PACKAGES:
            return importlib.import_module(f"{__name__}.{name}")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
