"""Which aggregation a run uses."""

from pfedfda.aggregation.accountant import require
from pfedfda.aggregation.base import Aggregation, PlainSum
from pfedfda.aggregation.private import PrivateSum
from pfedfda.aggregation.private_secure import PrivateSecureSum
from pfedfda.aggregation.robust import Clipped, Median, MultiKrum, Robust, TrimmedMean
from pfedfda.aggregation.secure import SecureSum, refuse
from pfedfda.errors import InputError
from pfedfda.methods import Method
from pfedfda.runs.config import Config


def refuse_unfit(config: Config, clients: int) -> None:
    """Refuse a run whose aggregation has no chance, before anybody trains.

    Parameters
    ----------
    config
        The settings of the run.
    clients
        How many clients are trained.
    """
    for method in config.methods.values():
        choose_aggregation(config, method, clients)


def choose_aggregation(config: Config, method: Method, clients: int | None = None) -> Aggregation:
    """Return the aggregation that a configuration asks for; refuse one that cannot be.

    Parameters
    ----------
    config
        The settings.
    method
        The method, which may exclude an aggregation.
    clients
        How many clients take part in training; None at a site, which knows only itself.
    """
    asked = config.aggregation
    is_private = asked.dp_epsilon is not None
    if is_private and clients is not None:  # a site adds noise, and counts no ε
        require()
    if asked.secure_aggregation:
        refuse(config, method, clients)
        return PrivateSecureSum(config, method) if is_private else SecureSum(config)
    if is_private:
        return PrivateSum(config, method)
    if asked.aggregation == "sum":
        return PlainSum()
    rule = _robust(config, method)
    if clients is not None:
        participants = config.schedule.participation * clients
        least = rule.least_participants(participants)
        if participants < least:
            smaller = ", or a smaller --assumed-liars" if rule.name == MultiKrum.name else ""
            raise InputError(
                f"About {participants:g} clients take part in a round, and --aggregation "
                f"{rule.name} needs {least}: it takes more clients, a larger --participation"
                f"{smaller}."
            )
    return rule


def _robust(config: Config, method: Method) -> Robust:
    asked = config.aggregation
    match asked.aggregation:
        case "trimmed-mean":
            return TrimmedMean(method, asked.assumed_liars)
        case "multi-krum":
            return MultiKrum(method, asked.assumed_liars)
        case "clipped":
            return Clipped(method, asked.clip_norm)
    return Median(method)
