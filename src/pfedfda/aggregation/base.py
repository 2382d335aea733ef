"""The contract of an aggregation, and the plain sum."""

from collections.abc import Iterable, Mapping
from typing import Any

from pfedfda.methods import Method, Tensors, Update


class Aggregation:
    """Forms the server's state after a round from the clients' updates.

    This class leaves all to the method, which adds up its clients' contributions. Others derive
    from it.
    """

    def aggregate(
        self, method: Method, state: Tensors, updates: Iterable[Update], round_number: int
    ) -> Tensors:
        """Return the server's state after a round.

        Parameters
        ----------
        method
            The method, whose `contribution` and `finish` say what is added up and what becomes of
            the sum.
        state
            The server's state before the round. It must not change.
        updates
            The updates that are in order, as a stream in an order that depends on the clients
            alone. There is at least one.
        round_number
            The round, from 1; with the seed of the run it determines every random draw, so that a
            run that is resumed goes on as it would have.
        """
        return method.aggregate(state, updates)

    def summary(self, rounds: int) -> Mapping[str, Any]:
        """Return what ``summary.json`` says of the aggregation after so many rounds."""
        return {}


class PlainSum(Aggregation):
    """The sum of all contributions, or whatever else the method itself makes of its updates."""
