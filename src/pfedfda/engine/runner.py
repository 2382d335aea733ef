"""What happens at one client, in whatever process it runs."""

import ctypes
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits
from torch import Tensor, nn

from pfedfda.data import ClientData, corrupt
from pfedfda.data.shift import Shift
from pfedfda.engine.states import ClientStates
from pfedfda.errors import DivergedRunError, PfedfdaError
from pfedfda.methods import Client, Method, Samples, Task, Update, to_input
from pfedfda.seeding import numpy_generator, torch_generator

JobKind = Literal["train", "evaluate"]
EVALUATION_BATCH = 500
M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # of malloc.h


@dataclass(frozen=True)
class Outcome:
    """What is left of a client's part in a round.

    Parameters
    ----------
    client_id
        Whose it is.
    update
        What it sent up, after training; None after evaluation.
    correct, tested
        Correctly classified and all test samples, after evaluation.
    loss
        The sum of the cross-entropy over the test samples, after evaluation.
    metrics
        Numbers about the client from the method.
    seconds
        Where the client's time went, by component.
    bytes_down, bytes_up
        Sizes of the message and the update.
    failure
        Why the client could not do its part, in a few words; None if it could.
    trace
        Where in the program it failed.
    """

    client_id: int
    update: Update | None = None
    correct: int = 0
    tested: int = 0
    loss: float = 0.0
    metrics: Mapping[str, float] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)
    bytes_down: int = 0
    bytes_up: int = 0
    failure: str | None = None
    trace: str = ""


@dataclass(frozen=True)
class Broadcast:
    """What all clients of a round have in common.

    Parameters
    ----------
    method
        The method with its hyper-parameters.
    state
        The server's state; each client gets its message from it.
    round
        The number of the round, from 1.
    states
        Where the clients' own tensors are.
    shift
        Corrupt all images of every client in this way.
    frost
        Photographs for the corruption frost, if there are any.
    """

    method: Method
    state: dict[str, Tensor]
    round: int
    states: ClientStates
    shift: Shift | None = None
    frost: list[NDArray[np.uint8]] | None = None


class Holder(Protocol):
    """Who has the clients' images; a prepared `pfedfda.data.Federation` is one."""

    def client(self, client_id: int) -> ClientData:
        """Return the images of one client."""


class ClientRunner:
    """Plays one client after the other, with one scratch model.

    Parameters
    ----------
    federation
        Whose data it is.
    task
        What everybody knows.
    device
        Where the networks run.
    """

    def __init__(self, federation: Holder, task: Task, device: torch.device) -> None:
        self.federation = federation
        self.task = task
        self.device = device
        self.model = task.build_model().to(device)
        self._initial = {name: t.clone() for name, t in self.model.state_dict().items()}

    def run(self, kind: JobKind, client_id: int, broadcast: Broadcast) -> Outcome:
        """Do a client's part in a round.

        Whatever goes wrong at a client is its outcome; only what is wrong with the run is raised.
        """
        try:
            return (self._train if kind == "train" else self._evaluate)(client_id, broadcast)
        except DivergedRunError:
            failure = "its training loss is not finite"
            return Outcome(client_id, failure=failure, trace=traceback.format_exc())
        except PfedfdaError:
            raise
        except Exception as error:
            failure = f"{type(error).__name__}: {' '.join(str(error).split())}"
            return Outcome(client_id, failure=failure, trace=traceback.format_exc())

    def _train(self, client_id: int, broadcast: Broadcast) -> Outcome:
        client = self._client("train", client_id, broadcast)
        message = broadcast.method.message(broadcast.state, client_id)
        update = broadcast.method.train(client, message)
        refuse_unsavable("update", update.tensors)
        refuse_unsavable("own state", client.state)
        for name, tensor in client.state.items():
            if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
                raise FloatingPointError(f"its own tensor {name} is not finite")
        if client.state:
            broadcast.states.save(client_id, broadcast.round, client.state)
        return Outcome(
            client_id,
            update=replace(update, client_id=client_id),
            metrics=update.metrics,
            seconds=client.seconds,
            bytes_down=num_bytes(message),
            bytes_up=num_bytes(update.tensors),
        )

    def _evaluate(self, client_id: int, broadcast: Broadcast) -> Outcome:
        client = self._client("evaluate", client_id, broadcast)
        message = broadcast.method.message(broadcast.state, client_id)
        personal = broadcast.method.personalize(client, message)
        data = self._data(client_id, broadcast)
        test = self._samples(data.test_images, data.test_labels)
        correct, loss = score(personal.model, test)
        return Outcome(
            client_id,
            correct=correct,
            tested=len(test.labels),
            loss=loss,
            metrics=personal.metrics,
            seconds=client.seconds,
        )

    def _client(self, purpose: JobKind, client_id: int, broadcast: Broadcast) -> Client:
        data = self._data(client_id, broadcast)
        # The purpose is part of the generator's name: evaluating draws nothing that training sees.
        generator = torch_generator(purpose, self.task.seed, broadcast.round, client_id)
        self._reset_model()
        return Client(
            client_id=client_id,
            round=broadcast.round,
            task=self.task,
            samples=self._samples(data.train_images, data.train_labels),
            state=broadcast.states.load(
                client_id, before=broadcast.round + (purpose == "evaluate")
            ),
            model=self.model,
            generator=generator,
        )

    def _reset_model(self) -> None:
        """Give the scratch model its initial weights again, whatever the last client left in it.

        Which client was the last one depends on the number of workers. A method that forgets to
        load something must not, so that its results do not either. It takes less than a thousandth
        of the time of training.
        """
        self.model.load_state_dict(self._initial)
        self.model.zero_grad()
        self.model.train().requires_grad_(True)

    def _data(self, client_id: int, broadcast: Broadcast) -> ClientData:
        """Return the client's images, corrupted if the broadcast says so.

        Test images have random numbers of their own: how many training images there are makes no
        difference to them.
        """
        data = self.federation.client(client_id)
        if broadcast.shift is None:
            return data
        name, severity = broadcast.shift
        train, test = (
            numpy_generator("new-client", self.task.seed, client_id, name, *use)
            for use in ((), ("test",))
        )
        return data._replace(
            train_images=corrupt(data.train_images, name, severity, train, broadcast.frost),
            test_images=corrupt(data.test_images, name, severity, test, broadcast.frost),
        )

    def _samples(self, images: NDArray[np.uint8], labels: NDArray[np.int64]) -> Samples:
        # The copy takes the slice out of the mapped file, which is read-only.
        return Samples(
            torch.from_numpy(np.array(images)).to(self.device),
            torch.from_numpy(np.array(labels)).to(self.device),
        )


def refuse_unsavable(what: str, tensors: Mapping[str, object]) -> None:
    """Raise if tensors cannot be written to a file, which is how they reach another process."""
    storages = set()
    for name, tensor in tensors.items():
        if not isinstance(tensor, Tensor):
            fault = f"is a {type(tensor).__name__} and not a tensor"
        elif tensor.device.type != "cpu":
            fault = f"is on {tensor.device} and not on the CPU"
        elif not tensor.is_contiguous():
            fault = "is not contiguous in memory"
        elif tensor.numel() and tensor.untyped_storage().data_ptr() in storages:
            fault = "shares its memory with another"
        else:
            storages.add(tensor.untyped_storage().data_ptr())
            continue
        raise TypeError(
            f"the tensor {name} of its {what} {fault}; model_tensors(client.model) returns copies "
            f"that can be sent"
        )


def score(model: nn.Module, samples: Samples) -> tuple[int, float]:
    """Return the number of correctly classified samples and the sum of the cross-entropy."""
    model.eval()
    hits, losses = [], []
    with torch.inference_mode():
        for images, labels in zip(
            torch.split(samples.images, EVALUATION_BATCH),
            torch.split(samples.labels, EVALUATION_BATCH),
            strict=True,
        ):
            logits = model(to_input(images))
            hits.append((logits.argmax(dim=1) == labels).sum())
            losses.append(F.cross_entropy(logits, labels, reduction="sum"))
    # An accelerator is asked once, at the end.
    return sum(torch.stack(hits).tolist()), sum(torch.stack(losses).tolist())


def num_bytes(tensors: Mapping[str, Tensor]) -> int:
    """Return the size of the tensors' content."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute with one thread: a worker has one core, and sums have one order."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpool_limits(1):
            yield
    finally:
        torch.set_num_threads(before)


def keep_memory() -> None:
    """Let this process keep the memory that it frees, for the next step.

    By default the C library gives large blocks back to the system at once, and every step of a
    network asks for the same pages again: for a small network a fifth of its time, and more on a
    busy machine. Other C libraries than that of GNU are left as they are.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        mallopt(M_MMAP_MAX, 0)
        mallopt(M_TRIM_THRESHOLD, 2**31 - 1)
