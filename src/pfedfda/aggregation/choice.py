"""Which aggregation a run uses."""

from pfedfda.aggregation.base import Aggregation, PlainSum
from pfedfda.aggregation.secure import SecureSum, refuse_method
from pfedfda.methods import Method
from pfedfda.runs.config import Config


def choose_aggregation(config: Config, method: Method) -> Aggregation:
    """Return the aggregation that a configuration asks for; refuse one that the method excludes."""
    if config.aggregation.secure_aggregation:
        refuse_method(method)
        return SecureSum(config)
    return PlainSum()
