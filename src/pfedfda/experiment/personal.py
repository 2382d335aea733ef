"""New clients: a personal model for samples that were never part of the training."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pfedfda.data import FederationConfig, Preprocessing, Source, open_source
from pfedfda.data.catalogue import TABLE_OPTIONS
from pfedfda.data.decoding import with_channels
from pfedfda.data.tables import SUFFIXES
from pfedfda.engine.client import ClientRunner, client_step, score
from pfedfda.errors import InputError, PfedfdaError, quote
from pfedfda.files import inside, make_folders, refuse_link
from pfedfda.inputs import describe_inputs, read_inputs
from pfedfda.machine import one_thread, resolve_device
from pfedfda.methods import Method, Task, Tensors
from pfedfda.methods.base import load, part
from pfedfda.models import Model, save_model
from pfedfda.models.factories import allow_given
from pfedfda.runs import make_folder
from pfedfda.runs.checkpoint import read_checkpoint
from pfedfda.runs.config import OutputConfig, read_config
from pfedfda.seeding import numpy_generator, torch_generator


@dataclass(frozen=True)
class PersonalModel:
    """What a new client gets.

    Parameters
    ----------
    folder
        Where ``model.safetensors`` and ``model.json`` are; `pfedfda.load_model` reads them.
    model
        The model.
    accuracy, shared_accuracy
        On the held-out images: of the personal model, and of the one that all clients share (None
        if the method has none). None without held-out images.
    metrics
        What the method tells about it, e.g. ``beta``.
    fitted, held_out
        The number of images used for fitting and for the accuracy.
    seconds
        ``network`` for passes of the network, ``fit`` for everything else.
    """

    folder: Path
    model: Model
    accuracy: float | None
    shared_accuracy: float | None
    metrics: dict[str, float]
    fitted: int
    held_out: int
    seconds: dict[str, float]


@dataclass(frozen=True)
class FinishedRun:
    """A run's method, what its clients knew, and its server's state."""

    method: Method
    task: Task
    class_names: tuple[str, ...]
    round: int
    state: Tensors
    preprocessing: Preprocessing
    federation: FederationConfig


def personalize(
    run: Path | str,
    source: str,
    *,
    test_share: float = 0.2,
    output: Path | None = None,
    seed: int = 0,
    device: str = "cpu",
    model: str | Callable[..., Any] | None = None,
    backbone: str | Callable[..., Any] | None = None,
) -> PersonalModel:
    """Make a personal model for a client that was not there when the federation was trained.

    The method's own way to personalise is used. For pFedFDA that is one pass of the images through
    the network, and then linear algebra: no training.

    Parameters
    ----------
    run
        The folder of a finished run.
    source
        The client's labelled samples: a folder of class/image.png, an .npz file or a table, of the
        kind that the run was trained on. The names of the classes must be among those of the run.
    test_share
        The share of the images that is held out to measure the accuracy; 0 uses all for fitting.
    output
        Where to write the model; by default a new folder in ``personal`` of the run.
    seed
        Determines which images are held out.
    device
        Where the network runs.
    model, backbone
        The run's model or backbone, if it is a function of your own: settings alone run none.
    """
    allow_given(model, backbone)
    if not 0 <= test_share < 1:
        raise InputError(f"test-share is {test_share}; it must lie in [0, 1).")
    if output is not None and output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise InputError(f"{output} is not a new or empty folder: choose another --output.")
    if output is not None:
        refuse_link(output)
        if output.is_relative_to(run):  # the folder of the run may come from somebody else
            inside(Path(run), *output.relative_to(run).parts)
    finished = load_finished(Path(run))
    images, labels = _samples(source, finished)
    order = numpy_generator("personalize", seed).permutation(len(labels))
    held_out = min(round(len(labels) * test_share), len(labels) - 1)
    test, fit = order[:held_out], order[held_out:]

    method, task = finished.method, finished.task
    runner = ClientRunner(task, resolve_device(device))
    test_samples = runner.samples(images[test], labels[test])
    client = runner.client(
        task.num_clients,
        finished.round,
        runner.samples(images[fit], labels[fit]),
        {},
        torch_generator("personalize", seed),
    )
    message = method.message(finished.state, client.client_id)
    accuracy = shared_accuracy = None
    if held_out:
        shared = method.shared_model(client, message)
        if shared is not None:
            shared_accuracy = score(shared, test_samples)[0] / held_out
    start = time.perf_counter()
    with one_thread():  # the matrices are small: more threads would wait for each other
        personal = client_step("evaluate", method, client, message).personal
    passed = time.perf_counter() - start
    if personal is None or not isinstance(personal.model, Model):
        raise InputError(f"The personal model of {method.name} is not a body and a linear head.")
    if held_out:
        accuracy = score(personal.model, test_samples)[0] / held_out
    folder = output if output is not None else _new_folder(Path(run), source)
    network = client.seconds.get("network", 0.0)
    result = PersonalModel(
        folder=folder,
        model=personal.model,
        accuracy=accuracy,
        shared_accuracy=shared_accuracy,
        metrics=dict(personal.metrics),
        fitted=len(fit),
        held_out=held_out,
        seconds={"network": network, "fit": passed - network},
    )
    _save(result, finished, source)
    return result


def load_finished(run: Path) -> FinishedRun:
    """Read the method and the server's state of a finished run."""
    if not run.is_dir():
        raise InputError(f"There is no folder {run}.")
    if (run / "comparison.csv").exists():
        raise InputError(f"{run} is a comparison: name the folder of one method in it.")
    if not (run / "checkpoint").exists():
        raise InputError(f"{run} is not a run: it has no checkpoint.")
    checkpoint = read_checkpoint(run / "checkpoint")
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
    config = read_config(run / "config.toml")
    if len(config.methods) != 1:
        raise InputError(f"{run / 'config.toml'} has {len(config.methods)} methods instead of one.")
    (method,) = config.methods.values()
    task = config.task(input_shape, len(class_names), num_clients, input_type)
    preprocessing = Preprocessing.read(run) or Preprocessing(input_type, input_shape)
    finished = FinishedRun(
        method,
        task,
        class_names,
        checkpoint.round,
        checkpoint.state,
        preprocessing,
        config.federation,
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


def _samples(source: str, run: FinishedRun) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Return the client's inputs as the run's were made, and its labels in the run's numbering."""
    raw = run.preprocessing
    dataset = _open(source, run).load()
    # A folder of clients is refused even with one client, whose folder is easily named instead.
    if dataset.groups is not None and (len(dataset.group_names) > 1 or raw.type == "uint8"):
        raise InputError(
            f"{source} holds the samples of {len(dataset.group_names)} clients: name the folder or "
            f"file of one of them."
        )
    unknown = [name for name in dataset.class_names if name not in run.class_names]
    if unknown:
        raise InputError(
            f"The run does not know the class {unknown[0]!r}; it knows "
            f"{', '.join(run.class_names)}."
        )
    found = "text" if dataset.inputs.dtype.kind == "T" else str(dataset.inputs.dtype)
    # Images get the right channels below.
    kept = 2 if raw.type == "uint8" else None
    if found != raw.type or dataset.inputs.shape[1:][:kept] != raw.shape[:kept]:
        raise InputError(
            f"The samples are {describe_inputs(dataset.inputs.shape[1:], found)}; the run was "
            f"trained on {describe_inputs(raw.shape, raw.type)}."
        )
    number = np.array([run.class_names.index(name) for name in dataset.class_names])
    inputs = dataset.inputs
    if raw.type == "uint8":
        inputs = with_channels(inputs, raw.shape[2])
    return raw(inputs), number[dataset.labels]


def _open(source: str, run: FinishedRun) -> Source:
    """Open a source with the settings of the run, as far as it knows them."""
    raw = run.preprocessing
    if raw.type == "uint8":
        height, width = raw.shape[:2]
        return open_source(source, height if height == width else None)
    if not source.lower().endswith(SUFFIXES):
        return open_source(source)
    given = {name: getattr(run.federation, name) for name in TABLE_OPTIONS}
    options = {name: value for name, value in given.items() if value not in (None, False)}
    return open_source(source, options={**options, "expected": raw.columns})


def _new_folder(run: Path, source: str) -> Path:
    return make_folder(OutputConfig(inside(run, "personal")), Path(source).stem or "model")


def _save(result: PersonalModel, run: FinishedRun, source: str) -> None:
    about: dict[str, Any] = {
        "method": run.method.name,
        "source": source,
        "images_fitted": result.fitted,
        "images_held_out": result.held_out,
        "accuracy": result.accuracy,
        "shared_accuracy": result.shared_accuracy,
        **result.metrics,
    }
    try:
        make_folders(result.folder)
        save_model(
            result.folder,
            result.model,
            run.task.model,
            run.task.input_shape,
            run.class_names,
            about,
            run.task.input_type,
        )
        if run.preprocessing.does_something:
            run.preprocessing.save(result.folder)
    except OSError as error:
        raise InputError(f"The model cannot be written to {result.folder} ({error}).") from error
