"""Taking the models of a run's clients out of it, each exactly the model that was evaluated."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from pfedfda.data import Federation, prepare
from pfedfda.data.preparing import prepare_raw
from pfedfda.engine import Step
from pfedfda.engine.client import ClientRunner
from pfedfda.errors import InputError, nearest, quote, unknown
from pfedfda.experiment.finished import FinishedRun, load_finished
from pfedfda.experiment.personal import CHECKED
from pfedfda.files import inside, make_folders, refuse_link
from pfedfda.inference import (
    Difference,
    PersonalClassifier,
    export_onnx,
    export_program,
    save_model,
)
from pfedfda.machine import one_thread, resolve_device
from pfedfda.methods import Client
from pfedfda.runs import ClientStates
from pfedfda.runs.layout import CHECKPOINT, CLIENTS, METRICS
from pfedfda.runs.reader import read_clients, read_metrics
from pfedfda.seeding import numpy_generator, torch_generator

Format = Literal["folder", "onnx", "program"]
SUFFIXES: dict[str, str] = {"folder": "", "onnx": ".onnx", "program": ".pt2"}
MODELS = "models"
SHARED = "shared"
LONGEST_NAME = 100


@dataclass(frozen=True)
class ExportedModel:
    """A model that was taken out of a run.

    Parameters
    ----------
    path
        The folder or file.
    name
        The client's name, or ``shared``.
    accuracy
        On the client's test samples, None if they are not known here.
    recorded
        What ``clients.csv`` says of it, None if it says nothing about this round.
    tested
        The number of test samples.
    difference
        How far a file in another format is from the model; None for a folder.
    """

    path: Path
    name: str
    accuracy: float | None = None
    recorded: float | None = None
    tested: int = 0
    difference: Difference | None = None


def export_models(
    run: Path | str,
    clients: Iterable[int | str] | Literal["all"] | None = None,
    *,
    shared: bool = False,
    format: Format = "folder",
    output: Path | str | None = None,
    device: str = "cpu",
) -> list[ExportedModel]:
    """Write the models of a run's clients, exactly as they were evaluated after its last round.

    Parameters
    ----------
    run
        The folder of a run. Its data must still be where it was; for clients that were sites of a
        deployment there is nothing to write here, as each has its model on its own disk.
    clients
        Their names or numbers, or all; by default all, but none with `shared`.
    shared
        Write the model that all clients have in common, if the method has one.
    format
        folder (safetensors and JSON, for `load_model`), onnx (one file), or program (one .pt2 file
        that torch loads without this package).
    output
        The folder for the models, each of which is named after its client; ``models`` in the run
        by default.
    device
        Where networks run; that of the run gives the same bits.
    """
    finished = load_finished(Path(run))
    if clients == "all" or (clients is None and not shared):
        clients = range(finished.task.num_clients)
    chosen = list(clients or ())
    federation = None if shared and not chosen else open_federation(finished)
    return write_models(finished, federation, chosen, shared, format, output, device)


def write_models(
    finished: FinishedRun,
    federation: Federation | None,
    clients: Sequence[int | str],
    shared: bool = False,
    format: Format = "folder",
    output: Path | str | None = None,
    device: str = "cpu",
) -> list[ExportedModel]:
    """Do the work of `export_models` on a run that has been read."""
    refuse_format(format)
    folder = model_folder(finished.folder, output)
    runner = ClientRunner(finished.task, resolve_device(device))
    written = []
    if shared:
        model = shared_model(finished, runner)
        written.append(write_model(model, folder / SHARED, SHARED, format, made_up_samples(model)))
    if clients:
        assert federation is not None
        ids = [client_number(client, federation) for client in clients]
        names = plain_names(federation.client_names)
        raw = prepare_raw(finished.config.federation) if format != "folder" else None
        recorded = _recorded(finished)
        for client_id in ids:
            model, correct, tested = client_model(finished, federation, runner, client_id)
            samples = None if raw is None else raw.client(client_id).test_inputs[:CHECKED]
            one = write_model(model, folder / names[client_id], names[client_id], format, samples)
            written.append(
                ExportedModel(
                    one.path,
                    federation.client_names[client_id],
                    correct / tested,
                    recorded.get(client_id),
                    tested,
                    one.difference,
                )
            )
    return written


def convert_model(
    model: PersonalClassifier, path: Path, format: Format, samples: NDArray[Any] | None = None
) -> ExportedModel:
    """Write a model that is in memory, e.g. one that `load_model` has read, in some format.

    Parameters
    ----------
    model
        The model.
    path
        The place, without the ending that the format adds.
    format
        As for `export_models`.
    samples
        Samples on which a file is compared with the model; made-up ones by default.
    """
    refuse_format(format)
    if samples is None:
        samples = made_up_samples(model)
    return write_model(model, path, path.name, format, samples)


def write_model(
    model: PersonalClassifier, path: Path, name: str, format: Format, samples: Any
) -> ExportedModel:
    """Write a model in some format; see `convert_model`."""
    target = path.with_name(path.name + SUFFIXES[format])
    difference = None
    try:
        if format == "folder":
            refuse_link(target)
            make_folders(target)
            save_model(target, model)
        else:
            make_folders(target.parent)
            write = export_onnx if format == "onnx" else export_program
            difference = write(model, target, samples)
    except OSError as error:
        raise InputError(f"The model cannot be written to {target} ({error}).") from error
    return ExportedModel(target, name, difference=difference)


def client_model(
    finished: FinishedRun, federation: Federation, runner: ClientRunner, client_id: int
) -> tuple[PersonalClassifier, int, int]:
    """Return a client's model, and how many of how many test samples it has right.

    The step is that of the last evaluation: the same state of server and client, and the same
    random numbers. The network is the runner's, and is another client's after the next call.
    """
    states = ClientStates(finished.folder / CHECKPOINT / "clients", finished.round)
    step = Step("evaluate", finished.method, finished.round, states)
    receive = partial(finished.method.message, finished.state, client_id)
    with one_thread():
        outcome = runner.run(step, client_id, federation.client(client_id), receive)
    if outcome.personal is None:
        raise InputError(f"Client {client_id} has no model: {outcome.failure}.")
    about = {
        "client": federation.client_names[client_id],
        "number": client_id,
        "round": finished.round,
        "images_held_out": outcome.tested,
        "accuracy": outcome.correct / outcome.tested,
        **outcome.metrics,
    }
    model = finished.classifier(outcome.personal.model, about)
    return model, outcome.correct, outcome.tested


def shared_model(finished: FinishedRun, runner: ClientRunner) -> PersonalClassifier:
    """Return the model that all clients have in common; refuse a method that has none."""
    task, method = finished.task, finished.method
    nothing = np.zeros((1, *task.input_shape), dtype=task.input_type)
    client: Client = runner.client(
        0,
        finished.round,
        runner.samples(nothing, np.zeros(1, dtype=np.int64)),
        {},
        torch_generator("evaluate", task.seed, finished.round, 0),
    )
    network = method.shared_model(client, method.message(finished.state, 0))
    if network is None:
        raise InputError(f"{method.title} has no model that all clients share.")
    return finished.classifier(network, {"client": SHARED, "round": finished.round})


def open_federation(finished: FinishedRun) -> Federation:
    """Return the federation that a run was made on; refuse one that has changed since."""
    if not finished.fingerprint:
        raise InputError(
            f"The clients of the run in {finished.folder} were sites: each has its model on its "
            f"own disk, in the folder model of the run; here there is only the shared one "
            f"(--shared)."
        )
    federation = prepare(finished.config.federation)
    if federation.fingerprint != finished.fingerprint:
        raise InputError(
            f"The samples of {finished.config.federation.source} are not those that the run in "
            f"{finished.folder} was trained on: they, or this version's way to deal them, have "
            f"changed."
        )
    return federation


def client_number(client: int | str, federation: Federation) -> int:
    """Return the number of a client that is named by its name or its number."""
    names = federation.client_names
    if isinstance(client, str):
        if client in names:
            return names.index(client)
        if not client.isdecimal():
            raise unknown("client", client, _some(names))
        client = int(client)
    if not 0 <= client < len(names):
        raise InputError(
            f"There is no client {client}: the run has the clients 0 to {len(names) - 1}, called "
            f"{', '.join(_some(names))}.{nearest(str(client), names)}"
        )
    return client


def made_up_samples(model: PersonalClassifier) -> NDArray[Any]:
    """Return samples of the right type and shape, where there are none of anybody."""
    raw = model.preprocessing
    if raw.type == "text":
        return np.array(["a text"], dtype=np.dtypes.StringDType())
    random, shape = numpy_generator("export"), (16, *raw.shape)
    if raw.type == "uint8":
        return random.integers(0, 256, shape, dtype=np.uint8)
    if raw.type == "int64":
        return np.zeros(shape, dtype=np.int64)  # which indices there are is not known
    values = random.standard_normal(shape)
    if raw.map is not None and raw.backbone is None:
        values = values * raw.map.scale + raw.map.mean
    return values.astype(np.float32)


def plain_names(names: Sequence[str]) -> list[str]:
    """Return names that can be those of files, all different, from names that may be anything."""
    taken: set[str] = {SHARED}
    return [_plain_name(name, taken) for name in names]


def _plain_name(name: str, taken: set[str]) -> str:
    plain = re.sub(r"[^\w.-]", "_", name).strip(".")[:LONGEST_NAME] or "client"
    for number in count(1):
        found = plain if number == 1 else f"{plain}-{number}"
        if found.lower() not in taken:
            break
    taken.add(found.lower())
    return found


def model_folder(run: Path, output: Path | str | None) -> Path:
    """Return the folder for models; refuse one that is a link."""
    if output is None:
        return inside(run, MODELS)
    output = Path(output)
    refuse_link(output)
    return inside(run, *output.relative_to(run).parts) if output.is_relative_to(run) else output


def refuse_format(format: str) -> None:
    """Refuse a format that is unknown."""
    if format not in get_args(Format):
        raise unknown("format", format, get_args(Format))


def _recorded(finished: FinishedRun) -> dict[int, float]:
    """Return the accuracies in ``clients.csv``, if they are those after the last round."""
    metrics = read_metrics(finished.folder / METRICS)
    if not metrics or metrics[-1]["round"] != finished.round:
        return {}
    return {
        int(row.client): row.accuracy
        for row in read_clients(finished.folder / CLIENTS)
        if row.client.isdecimal() and row.accuracy is not None
    }


def _some(names: Sequence[str]) -> Iterator[str]:
    yield from names[:20]
    if len(names) > 20:
        yield "…"


def describe_exported(exported: ExportedModel) -> str:
    """Return a line about a model that was written, for people."""
    parts = [quote(exported.name).strip("'")]
    if exported.accuracy is not None:
        parts.append(f"accuracy {exported.accuracy:.3f} on {exported.tested} test samples")
    if exported.recorded is not None and exported.recorded != exported.accuracy:
        parts.append(f"but {exported.recorded:.3f} in {CLIENTS}")
    if exported.difference is not None:
        parts.append(
            f"within {exported.difference.largest:.1g} of the model on "
            f"{exported.difference.samples} samples"
        )
    return f"{', '.join(parts)}: {exported.path}"
