"""How the updates of a round become the server's new state, whatever the method.

A method says what a client contributes and what the server makes of the sum. What stands between,
the plain sum or another way to combine contributions, is chosen here and known to no method.
"""

from pfedfda.aggregation.base import Aggregation, PlainSum, Terms
from pfedfda.aggregation.choice import choose_aggregation, refuse_unfit
from pfedfda.aggregation.fixed_point import FixedPoint, OutOfRangeError
from pfedfda.aggregation.secure import AbandonedRoundError, SecureSum, Summation

__all__ = [
    "AbandonedRoundError",
    "Aggregation",
    "FixedPoint",
    "OutOfRangeError",
    "PlainSum",
    "SecureSum",
    "Summation",
    "Terms",
    "choose_aggregation",
    "refuse_unfit",
]
