"""The contract of an aggregation, and the plain sum."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from pfedfda.methods import Method, Tensors, Update

if TYPE_CHECKING:
    from pfedfda.aggregation.secure import Summation


@dataclass(frozen=True)
class Terms:
    """What a client must know of a round whose contributions nobody sees.

    Parameters
    ----------
    round
        The round, from 1.
    needed
        How many contributions there must be; with fewer there is no sum.
    noise_multiplier
        The standard deviation of the noise that the sum of so many must have, in clips; None for a
        sum without noise.
    """

    round: int
    needed: int
    noise_multiplier: float | None = None


class Aggregation:
    """Forms the server's state after a round from the clients' updates.

    This class leaves all to the method, which adds up its clients' contributions. Others derive
    from it.
    """

    fills_empty_rounds: ClassVar[bool] = False
    """Whether a round without any update is aggregated too. Each client then takes part by its own
    coin alone, and nobody is drawn in place of nobody."""

    loss: tuple[float, float] = (0.0, 0.0)
    """Of the last round whose updates nobody saw: training losses times weights, and the weights,
    each added up."""

    def begin(
        self,
        method: Method,
        state: Tensors,
        expected: Tensors | None,
        train_sizes: NDArray[np.int64],
    ) -> "Summation | None":
        """Open a round; return the sum that is to be formed without anybody seeing its parts.

        None, the default, says that updates are seen.

        Parameters
        ----------
        method
            The method.
        state
            The server's state before the round.
        expected
            Tensors of the names, shapes and types that a proper update has, None if that is not
            known.
        train_sizes
            How many training samples the clients that take part have.
        """
        return None

    def contribution(self, method: Method, state: Tensors, update: Update, terms: Terms) -> Tensors:
        """Return what a client adds to the sum, in double precision, before it is rounded.

        It is the last thing that happens to a contribution in the clear: at its site, or in place
        of it on one machine. The draws of an aggregation that adds noise here must depend on the
        seed, the round and ``update.client_id`` alone, unless they are to be secret.

        Parameters
        ----------
        method
            The method.
        state
            The server's state before the round. A site is sent it only where the sum has noise.
        update
            What the client would send in the clear, after all checks.
        terms
            What the server has announced about the round.
        """
        return method.contribution(update)

    def take(self, method: Method, update: Update, round_number: int) -> Update:
        """Return what of an update goes into `aggregate`; raise OutOfRangeError to leave it out."""
        return update

    def prepare(self, clients: int, initial: Tensors, expected: Tensors | None) -> None:
        """Learn what the first round will bring, and refuse what cannot be.

        Parameters
        ----------
        clients
            How many clients may take part.
        initial
            The server's state before the first round.
        expected
            Tensors of the names, shapes and types that an update has, None if that is not known.
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
            alone. There is at least one, unless
            `fills_empty_rounds` says that there may be none.
        round_number
            The round, from 1; with the seed of the run it determines every random draw, so that a
            run that is resumed goes on as it would have.
        """
        return method.aggregate(state, updates)

    def commitment(self) -> Mapping[str, Any]:
        """Return what a run that is resumed must have in common with the one that was stopped."""
        return {}

    def refuse_resume(self) -> None:
        """Refuse to go on with a run that was stopped, if that cannot be done."""

    def summary(self, rounds: int) -> Mapping[str, Any]:
        """Return what ``summary.json`` says of the aggregation after so many rounds."""
        return {}

    def closing_words(self, rounds: int) -> str:
        """Return what to say when so many rounds are over; empty for nothing."""
        return ""


class PlainSum(Aggregation):
    """The sum of all contributions, or whatever else the method itself makes of its updates."""
