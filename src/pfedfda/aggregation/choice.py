"""Which aggregation a run uses."""

from pfedfda.aggregation.base import Aggregation, PlainSum
from pfedfda.aggregation.private import PrivateSum
from pfedfda.methods import Method
from pfedfda.runs.config import Config


def choose_aggregation(config: Config, method: Method) -> Aggregation:
    """Return the aggregation that a configuration asks for; refuse one that the method excludes."""
    if config.aggregation.dp_epsilon is not None:
        return PrivateSum(config, method)
    return PlainSum()
