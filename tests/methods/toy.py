"""A client without an engine, for tests of methods."""

from typing import Any

from pfedfda.experiment.toy import TASK, make_client, same, snapshot
from pfedfda.methods import Tensors

__all__ = ["TASK", "make_client", "parameters_of", "same", "snapshot"]


def parameters_of(module: Any) -> Tensors:
    return {name: p.detach().clone() for name, p in module.state_dict().items()}
