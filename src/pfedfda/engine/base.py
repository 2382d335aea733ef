"""What the round loop asks of an engine, whatever runs the clients."""

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from pfedfda.data.shift import Shift
from pfedfda.engine.runner import Outcome
from pfedfda.engine.states import ClientStates
from pfedfda.methods import Method, Task, Tensors


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
        """Content fingerprint of the images; empty if they may change."""

    def classes_held(self, client_id: int) -> int:
        """Return how many classes occur among a client's training samples."""

    def __len__(self) -> int: ...


class Engine(Protocol):
    """Runs clients.

    Outcomes are a stream in an order that depends on the clients alone, so that sums over them are
    the same to the bit whoever was quicker. A client that could not do its part has an outcome too,
    with its `failure`.
    """

    @property
    def federation(self) -> Roster:
        """Who the clients are."""

    @property
    def task(self) -> Task:
        """What everybody knows."""

    def train(
        self,
        method: Method,
        state: Tensors,
        client_ids: Sequence[int],
        round_number: int,
        states: ClientStates,
    ) -> Iterator[Outcome]:
        """Train these clients."""

    def evaluate(
        self,
        method: Method,
        state: Tensors,
        client_ids: Sequence[int],
        round_number: int,
        states: ClientStates,
        shift: Shift | None = None,
        frost: list[NDArray[np.uint8]] | None = None,
    ) -> Iterator[Outcome]:
        """Personalise and test these clients after a round."""

    def close(self) -> None:
        """Let go of processes and memory; a later call starts anew."""
