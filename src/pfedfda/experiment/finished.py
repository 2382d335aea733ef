"""A finished run from its files: the method, its server's state, and the models it gives."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from pfedfda.data import Preprocessing
from pfedfda.errors import InputError, PfedfdaError, quote
from pfedfda.inference import PersonalClassifier
from pfedfda.inputs import read_inputs
from pfedfda.methods import Method, Task, Tensors
from pfedfda.methods.base import load, part
from pfedfda.models import Model
from pfedfda.runs.checkpoint import read_checkpoint
from pfedfda.runs.config import Config, read_config
from pfedfda.runs.layout import CHECKPOINT, COMPARISON, CONFIG, ROSTER


@dataclass(frozen=True)
class FinishedRun:
    """A run's method, what its clients knew, and its server's state."""

    folder: Path
    config: Config
    method: Method
    task: Task
    class_names: tuple[str, ...]
    round: int
    state: Tensors
    preprocessing: Preprocessing
    fingerprint: str
    """The content fingerprint of its federation; empty if the clients were sites."""

    def classifier(self, network: nn.Module, about: Mapping[str, Any]) -> PersonalClassifier:
        """Return a model of this run, with what is needed to use it."""
        if not isinstance(network, Model):
            raise InputError(
                f"The personal model of {self.method.name} is not a body and a linear head."
            )
        return PersonalClassifier(
            network,
            self.class_names,
            self.task.model,
            self.task.input_shape,
            self.task.input_type,
            self.preprocessing,
            {"method": self.method.name, **about},
        )


def load_finished(run: Path) -> FinishedRun:
    """Read the method and the server's state of a finished run."""
    if not run.is_dir():
        raise InputError(f"There is no folder {run}.")
    if (run / COMPARISON).exists():
        raise InputError(f"{run} is a comparison: name the folder of one method in it.")
    if not (run / CHECKPOINT).exists():
        raise InputError(f"{run} is not a run: it has no checkpoint.")
    checkpoint = read_checkpoint(run / CHECKPOINT)
    if checkpoint.round == 0:
        raise InputError(f"The run in {run} has no complete round yet: nothing has been learned.")
    if checkpoint.tally.get("used") == 0:
        raise InputError(f"No client of the run in {run} could be trained: nothing was learned.")
    try:
        about = checkpoint.about["task"]
        input_shape, input_type = read_inputs(about)
        class_names = tuple(str(name) for name in checkpoint.about["class_names"])
        num_clients = int(about["num_clients"])
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        raise InputError(f"{run} is not a finished run ({error}).") from error
    config = read_config(run / CONFIG)
    if len(config.methods) != 1:
        raise InputError(f"{run / 'config.toml'} has {len(config.methods)} methods instead of one.")
    (method,) = config.methods.values()
    task = config.task(input_shape, len(class_names), num_clients, input_type)
    preprocessing = Preprocessing.read(run)
    if preprocessing is None and input_type != "uint8" and (run / ROSTER).exists():
        raise InputError(
            f"The run in {run} does not know how its sites prepared their samples: use the models "
            f"that they have written."
        )
    preprocessing = preprocessing or Preprocessing(input_type, input_shape)
    finished = FinishedRun(
        run,
        config,
        method,
        task,
        class_names,
        checkpoint.round,
        checkpoint.state,
        preprocessing,
        str(checkpoint.about.get("federation", "")),
    )
    _refuse_other_tensors(finished, run)
    return finished


def _refuse_other_tensors(finished: FinishedRun, run: Path) -> None:
    """Refuse a run whose tensors are not those of its method and its network."""
    try:
        message = finished.method.message(finished.state, finished.task.num_clients)
        load(finished.task.build_model(), part(message, "body", "head"))
    except PfedfdaError:
        raise
    except Exception as error:  # whatever a method does with tensors that it does not expect
        reason = " ".join(str(error).split()) or type(error).__name__
        raise InputError(
            f"The checkpoint in {run} does not fit its config.toml ({quote(reason)})."
        ) from error
