"""What the round loop and an engine say to each other, whatever runs the clients."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from torch import Tensor

from pfedfda.aggregation import Summation
from pfedfda.data.views import ShiftedView
from pfedfda.methods import Method, Task, Tensors
from pfedfda.runs import ClientStates, Outcome, Roster

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
    summation
        The sum that is to be formed of a training step's contributions. An engine whose clients can
        mask them fills it, and yields outcomes that are `masked`; others yield updates as ever.
    """

    kind: StepKind
    method: Method
    round: int
    states: ClientStates
    view: ShiftedView | None = None
    summation: Summation | None = None


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
