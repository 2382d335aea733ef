"""What the round loop and an engine say to each other, whatever runs the clients."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from pfedfda.data.views import ShiftedView
from pfedfda.engine.states import ClientStates
from pfedfda.methods import Method, Personal, Task, Tensors, Update

StepKind = Literal["train", "evaluate"]


@dataclass(frozen=True)
class Step:
    """What clients are asked to do in a round: to train, or to personalise and be tested.

    Parameters
    ----------
    kind
        train or evaluate.
    method
        The method with its hyper-parameters.
    round
        The number of the round, from 1.
    states
        Where the clients' own tensors are.
    view
        Through which the clients see their data, e.g. corrupted; None for the data as they are.
    """

    kind: StepKind
    method: Method
    round: int
    states: ClientStates
    view: ShiftedView | None = None


@dataclass(frozen=True)
class Outcome:
    """What is left of a client's part in a step.

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
    personal
        The client's model, after evaluation. It stays in the process that made it.
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
    personal: Personal | None = None


class Roster(Protocol):
    """Who the clients are; a prepared `pfedfda.data.Federation` is one."""

    @property
    def class_names(self) -> tuple[str, ...]:
        """The names of the classes, in the order of the labels."""

    @property
    def client_names(self) -> list[str]:
        """The name of every client."""

    @property
    def train_sizes(self) -> NDArray[np.int64]:
        """The number of training samples of every client."""

    @property
    def test_sizes(self) -> NDArray[np.int64]:
        """The number of test samples of every client."""

    @property
    def attributes(self) -> dict[str, list[Any]]:
        """What else is known of every client, e.g. its domain."""

    @property
    def fingerprint(self) -> str:
        """A content fingerprint of all samples; empty if they may change."""

    def classes_held(self, client_id: int) -> int:
        """Return how many classes occur among a client's training samples."""

    def __len__(self) -> int: ...


class Engine(Protocol):
    """Runs clients."""

    @property
    def federation(self) -> Roster:
        """Who the clients are."""

    @property
    def task(self) -> Task:
        """Settings shared by the server and all clients."""

    def run(self, step: Step, state: Tensors, client_ids: Sequence[int]) -> Iterator[Outcome]:
        """Let clients do a step, and yield their outcomes.

        Outcomes are a stream in an order that depends on the clients alone (`largest_first`), so
        that sums over them are the same to the bit whoever was quicker. A client that could not do
        its part has an outcome too, with its `failure`.

        Parameters
        ----------
        step
            What to do.
        state
            The server's state, from which every client gets its message.
        client_ids
            Who does it.
        """

    def close(self) -> None:
        """Let go of processes and memory; a later call starts anew."""


def largest_first(client_ids: Sequence[int], roster: Roster) -> list[int]:
    """Return clients in the order of outcomes: no long one is left for the end."""
    sizes = roster.train_sizes
    return sorted(client_ids, key=lambda client_id: (-int(sizes[client_id]), client_id))


def num_bytes(tensors: Mapping[str, Tensor]) -> int:
    """Return the size of the tensors' content."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
