"""pfedfda: personalised federated learning.

Many clients with small, different image sets train one feature extractor together, and every client
ends with a classifier fitted to its own data.
"""

from pfedfda.data import Federation, FederationConfig, prepare
from pfedfda.errors import InputError, PfedfdaError, RunStoppedError
from pfedfda.experiment import Comparison, RunResult, compare, load_run, resume, run
from pfedfda.experiment.personal import PersonalModel, personalize
from pfedfda.methods import Method, all_methods, find_method, register
from pfedfda.models import load_model
from pfedfda.version import __version__

__all__ = [
    "Comparison",
    "Federation",
    "FederationConfig",
    "InputError",
    "Method",
    "PersonalModel",
    "PfedfdaError",
    "RunResult",
    "RunStoppedError",
    "__version__",
    "all_methods",
    "compare",
    "find_method",
    "load_model",
    "load_run",
    "personalize",
    "prepare",
    "register",
    "resume",
    "run",
]
