"""Who the clients of a run are, and what is left of a client's part in a step."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from pfedfda.data import Preprocessing
from pfedfda.inputs import InputType
from pfedfda.methods import Personal, Update
from pfedfda.runs.quality import PredictionCounts


class Mistake(NamedTuple):
    """A test sample that a client's model takes for another class."""

    sample: int
    """Its number among the client's test samples."""
    true: int
    """Its class."""
    predicted: int
    """The class that the model takes it for."""
    confidence: float
    """The probability that the model gives to that class."""


@dataclass(frozen=True)
class Outcome:
    """What is left of a client's part in a step.

    Parameters
    ----------
    client_id
        Whose it is.
    update
        What it sent up, after training; None after evaluation.
    masked
        Whether its contribution is part of a masked sum, so that nobody has its update.
    correct, tested
        Correctly classified and all test samples, after evaluation.
    loss
        The sum of the cross-entropy over the test samples, after evaluation.
    predictions
        What the predictions on the test samples add up to, after evaluation.
    mistakes
        The most confident mistakes on the test samples. They stay on the machine of the client.
    measures
        What is left of the predictions once they were added to those of others: the client's own
        numbers by column of ``clients.csv``.
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
    masked: bool = False
    correct: int = 0
    tested: int = 0
    loss: float = 0.0
    predictions: PredictionCounts | None = None
    mistakes: tuple[Mistake, ...] = ()
    measures: Mapping[str, float] = field(default_factory=dict)
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
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one input; height, width and channels for images."""

    @property
    def input_type(self) -> InputType:
        """What inputs are: uint8 (images), float32 or int64."""

    @property
    def class_names(self) -> tuple[str, ...]:
        """The names of the classes, in the order of the labels."""

    @property
    def client_names(self) -> list[str]:
        """The name of every client."""

    @property
    def client_noun(self) -> str:
        """What to call one of them in a message."""

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

    @property
    def preprocessing(self) -> Preprocessing | None:
        """What turns a sample into an input; None where that is every site's own affair."""

    def classes_held(self, client_id: int) -> int:
        """Return how many classes occur among a client's training samples."""

    def __len__(self) -> int: ...
