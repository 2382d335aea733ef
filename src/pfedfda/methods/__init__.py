"""Federated learning methods, one file each, on the contract in `pfedfda.methods.base`."""

from pfedfda.methods.base import (
    Client,
    Method,
    Personal,
    Samples,
    Task,
    Tensors,
    TrainingConfig,
    Update,
    load,
    part,
    weighted_mean,
)
from pfedfda.methods.registry import all_methods, expand_names, find_method, register
from pfedfda.methods.training import (
    Batch,
    batches,
    cross_entropy,
    extract_features,
    sgd,
    to_input,
)

__all__ = [
    "Batch",
    "Client",
    "Method",
    "Personal",
    "Samples",
    "Task",
    "Tensors",
    "TrainingConfig",
    "Update",
    "all_methods",
    "batches",
    "cross_entropy",
    "expand_names",
    "extract_features",
    "find_method",
    "load",
    "part",
    "register",
    "sgd",
    "to_input",
    "weighted_mean",
]
