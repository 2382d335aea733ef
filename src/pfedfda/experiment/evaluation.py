"""Results of an evaluation, gathered client by client."""

import heapq
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pfedfda.data import Federation
from pfedfda.runs import Mistake, Outcome, PooledCounts, Roster
from pfedfda.runs.accuracy import Accuracy
from pfedfda.runs.quality import PREDICTIONS


@dataclass
class Evaluation:
    """The test results of one evaluation.

    Of each client little more than its line in ``clients.csv`` is kept.

    Parameters
    ----------
    num_classes
        The number of classes.
    most_mistakes
        How many of the most confident mistakes are kept.
    outcomes
        The test results, without what has been added up.
    pooled
        The sum of the counts of all clients.
    mistakes
        The most confident mistakes of all clients, with the clients; the most confident first.
    """

    num_classes: int
    most_mistakes: int = 0
    outcomes: list[Outcome] = field(default_factory=list)
    pooled: PooledCounts = field(init=False)
    mistakes: list[tuple[int, Mistake]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.pooled = PooledCounts(self.num_classes)

    def add(self, outcome: Outcome) -> None:
        """Add the test result of a client, which has no fault."""
        assert outcome.predictions is not None
        self.pooled.add(outcome.predictions)
        found = [(outcome.client_id, mistake) for mistake in outcome.mistakes]
        # Ties go to the client with the lower number, whoever came first.
        self.mistakes = heapq.nsmallest(
            self.most_mistakes, [*self.mistakes, *found], key=lambda m: (-m[1].confidence, m[0])
        )
        self.outcomes.append(
            replace(
                outcome,
                measures=outcome.predictions.measures(outcome.loss),
                predictions=None,
                mistakes=(),
            )
        )

    @property
    def accuracy(self) -> Accuracy:
        """The accuracy over the clients."""
        return Accuracy.of([o.correct for o in self.outcomes], [o.tested for o in self.outcomes])

    def results(self, train_loss: float, class_names: Collection[str]) -> dict[str, Any]:
        """Return what a run says of its last evaluation.

        Parameters
        ----------
        train_loss
            The mean training loss of the round.
        class_names
            The names of the classes.
        """
        tested = sum(outcome.tested for outcome in self.outcomes)
        return {
            **self.accuracy.as_dict(),
            "test_loss": sum(outcome.loss for outcome in self.outcomes) / tested,
            "train_loss": train_loss,
            **self.pooled.quality().as_dict(),
            PREDICTIONS: self.pooled.tables(tuple(class_names)),
        }


def line_of(results: Mapping[str, Any]) -> dict[str, Any]:
    """Return the numbers of an evaluation for ``metrics.jsonl``, without the tables."""
    return {name: value for name, value in results.items() if name != PREDICTIONS}


def has_pictures(federation: Roster) -> bool:
    """Tell whether the inputs are images on this machine, in grey or in colour."""
    if not isinstance(federation, Federation):
        return False
    return federation.input_type == "uint8" and federation.input_shape[2] in (1, 3)
