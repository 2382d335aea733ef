"""Federated learning methods, one file each, on the contract in `pfedfda.methods.base`."""

from pfedfda.methods.base import (
    WEIGHT,
    Client,
    Method,
    Personal,
    Samples,
    Task,
    Tensors,
    TrainingConfig,
    Update,
    add,
    load,
    part,
)
from pfedfda.methods.registry import (
    all_methods,
    expand_names,
    find_method,
    register,
    register_preset,
)
from pfedfda.methods.summands import Summand
from pfedfda.methods.traffic import Sent, dry_run
from pfedfda.methods.training import (
    Batch,
    batches,
    cross_entropy,
    extract_features,
    sgd,
    to_input,
)

__all__ = [
    "WEIGHT",
    "Batch",
    "Client",
    "Method",
    "Personal",
    "Samples",
    "Sent",
    "Summand",
    "Task",
    "Tensors",
    "TrainingConfig",
    "Update",
    "add",
    "all_methods",
    "batches",
    "cross_entropy",
    "dry_run",
    "expand_names",
    "extract_features",
    "find_method",
    "load",
    "part",
    "register",
    "register_preset",
    "sgd",
    "to_input",
]
