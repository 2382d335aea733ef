"""The messages of secure aggregation: what is in them, by name, and how it is read."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pfedfda.aggregation import FixedPoint, Summation
from pfedfda.aggregation.private_secure import lacking
from pfedfda.flower.masking import PublicKeys
from pfedfda.flower.wire import MalformedError, Setting
from pfedfda.methods import Tensors

# Actions of messages of the type query; the third stage is the message that asks to train.
KEYS, SHARES, UNMASK = "secure_keys", "secure_shares", "secure_unmask"
MASKED = "masked"  # the name of the one tensor that goes up
STATE = "secure.state"  # names of the server's state, and what those begin with that are added
MOST_BYTES = 4096  # of a key or a share


@dataclass(frozen=True)
class Place:
    """Which round of which run a message belongs to, and whom it asks.

    Parameters
    ----------
    run, round
        The run and the round.
    client_id
        The number of the site.
    """

    run: str
    round: int
    client_id: int

    def settings(self) -> dict[str, Setting]:
        """Return it as the settings of a message."""
        return {
            "secure.run": self.run,
            "secure.round": self.round,
            "secure.client_id": self.client_id,
        }


def read_place(settings: Mapping[str, Any]) -> Place:
    """Return the place in the settings of a message."""
    try:
        return Place(
            str(settings["secure.run"]),
            int(settings["secure.round"]),
            int(settings["secure.client_id"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise MalformedError(f"The round cannot be read ({error!r}).") from error


def by_client(name: str, values: Mapping[int, bytes]) -> dict[str, Setting]:
    """Return bytes of several clients as settings."""
    return {f"{name}.clients": list(values), f"{name}.bytes": list(values.values())}


def read_by_client(name: str, settings: Mapping[str, Any]) -> dict[int, bytes]:
    """Return the bytes of several clients, or refuse what cannot be read."""
    clients, values = settings.get(f"{name}.clients"), settings.get(f"{name}.bytes")
    if not isinstance(clients, list) or not isinstance(values, list):
        raise MalformedError(f"it holds no {name}")
    whole = all(isinstance(client, int) for client in clients)
    short = all(isinstance(value, bytes) and len(value) <= MOST_BYTES for value in values)
    if not (whole and short) or len(set(clients)) < len(clients) or len(values) != len(clients):
        raise MalformedError(f"its {name} cannot be read")
    return dict(zip(clients, values, strict=True))


def keys_settings(keys: Mapping[int, PublicKeys]) -> dict[str, Setting]:
    """Return public keys as settings."""
    return {
        **by_client("masks", {client: key.masks for client, key in keys.items()}),
        **by_client("shares", {client: key.shares for client, key in keys.items()}),
    }


def read_keys(settings: Mapping[str, Any]) -> dict[int, PublicKeys]:
    """Return the public keys in the settings of a message."""
    masks, shares = (read_by_client(name, settings) for name in ("masks", "shares"))
    if masks.keys() != shares.keys():
        raise MalformedError("its keys cannot be read")
    return {client: PublicKeys(masks[client], shares[client]) for client in masks}


def summation_settings(summation: Summation) -> dict[str, Setting]:
    """Return what a site must know to turn its contribution into whole numbers."""
    fixed, noise = summation.fixed, summation.noise_multiplier
    return {
        **({} if noise is None else {"secure.noise": noise}),
        "secure.names": list(fixed.shapes),
        "secure.shapes": [" ".join(map(str, shape)) for shape in fixed.shapes.values()],
        "secure.exponents": [fixed.exponents[name] for name in fixed.shapes],
        "secure.bits": fixed.bits,
    }


def read_fixed_point(settings: Mapping[str, Any]) -> FixedPoint:
    """Return the fixed-point numbers of a round."""
    try:
        names = [str(name) for name in settings["secure.names"]]
        shapes = [tuple(map(int, text.split())) for text in settings["secure.shapes"]]
        exponents = [int(exponent) for exponent in settings["secure.exponents"]]
        return FixedPoint(
            dict(zip(names, shapes, strict=True)),
            dict(zip(names, exponents, strict=True)),
            int(settings["secure.bits"]),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise MalformedError(f"The ranges of the round cannot be read ({error!r}).") from error


def read_noise(settings: Mapping[str, Any]) -> float:
    """Return the noise multiplier of a private round, or refuse one that promises nothing."""
    noise = settings.get("secure.noise")
    if not isinstance(noise, float) or not 0 < noise < math.inf:
        raise MalformedError(f"The noise of the round is {noise!r}; it must be above 0 and finite.")
    return noise


def with_state(message: Tensors, state: Tensors) -> Tensors:
    """Return a message with the tensors of the state that it lacks."""
    added = lacking(message, state)
    return {**message, **{f"{STATE}.{name}": tensor for name, tensor in added.items()}}


def without_state(tensors: Tensors, settings: Mapping[str, Any]) -> tuple[Tensors, Tensors]:
    """Return the message in what a site has received, and the state, empty if it is not told."""
    if STATE not in settings:
        return tensors, {}
    message = {name: t for name, t in tensors.items() if not name.startswith(f"{STATE}.")}
    state: Tensors = {}
    try:
        for name in settings[STATE]:
            added = f"{STATE}.{name}"
            state[name] = tensors[added] if added in tensors else message[name]
    except (KeyError, TypeError) as error:
        raise MalformedError(f"The server's state cannot be read ({error!r}).") from error
    return message, state
