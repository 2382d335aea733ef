"""A site's part in secure aggregation.

Between the messages of a round its secrets are in the context of the run, which Flower keeps in the
memory of the SuperNode and not on a disk; they are gone when they have been used. What is on the
disk says only with whom the site was added up, so that it never tells two sums of one round.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flwr.app import ConfigRecord, Context
from torch import Tensor

from pfedfda.aggregation import Terms, choose_aggregation
from pfedfda.errors import InputError
from pfedfda.experiment.checks import fault_of
from pfedfda.files import json_text, make_folders, read_text, write_text
from pfedfda.flower.masking import Party, ProtocolError, PublicKeys, Secrets
from pfedfda.flower.secure_messages import (
    Place,
    by_client,
    keys_settings,
    read_by_client,
    read_fixed_point,
    read_keys,
    read_noise,
    read_place,
)
from pfedfda.flower.site import Site, SiteStep
from pfedfda.flower.wire import MalformedError, Setting
from pfedfda.methods import Tensors, Update

STATE = "pfedfda.secure"  # the record in the context
SUMS = "sums.json"  # with whom the site was added up, by round
MOST_ROUNDS = 1000  # that are remembered; no checkpoint is so old


def advertise(settings: Mapping[str, Any], context: Context) -> dict[str, Setting]:
    """Make the keys of a round; those of a round before are forgotten."""
    place, secrets = read_place(settings), Secrets.make()
    _keep(context, place, secrets)
    return keys_settings({place.client_id: secrets.public()})


def share(settings: Mapping[str, Any], context: Context) -> dict[str, Setting]:
    """Encrypt shares of the secrets for everybody whose keys the server has sent."""
    place, state = _recall(settings, context)
    if "masks.clients" in state:
        raise ProtocolError("it has shared its secrets of this round already")
    party = Party(
        place.client_id, _secrets(state), read_keys(settings), int(settings.get("threshold", 0))
    )
    state.update(keys_settings(party.peers), threshold=party.threshold)
    return by_client("secrets", party.shares())


def mask(
    settings: Mapping[str, Any],
    context: Context,
    site: Site,
    site_step: SiteStep,
    known: Tensors,
    update: Update,
) -> Tensor:
    """Check what training has given as the server would, and return it under masks.

    Parameters
    ----------
    settings
        Those of the message that asked to train.
    context
        Where the site keeps its secrets.
    site, site_step
        Who is asked, and for what.
    known
        The server's state, in a private run.
    update
        What training has given.
    """
    place, state = _recall(settings, context)
    if (site_step.run, site_step.round, site_step.client_id) != (
        place.run,
        place.round,
        place.client_id,
    ):
        raise ProtocolError("the step and its masks are of different rounds")
    if "secrets.clients" in state:
        raise ProtocolError("it has masked a contribution in this round already")
    party, received = _party(place, state), read_by_client("secrets", settings)
    samples = int(site.federation.train_sizes[site.index])
    longest = site_step.config.schedule.max_update_norm
    fault = fault_of(update, site_step.method, None, longest, samples)
    if fault is not None:
        raise ProtocolError(fault)
    fixed, method = read_fixed_point(settings), site_step.method
    is_private = site_step.config.aggregation.dp_epsilon is not None
    # The share of the noise follows from the threshold that the site's own shares enforce.
    terms = Terms(place.round, party.threshold, read_noise(settings) if is_private else None)
    aggregation = choose_aggregation(site_step.config, method)
    clear = aggregation.contribution(method, known, update, terms)
    masked = party.mask(fixed.encode(clear), sorted(received))
    state.update(by_client("secrets", received))
    return masked


def reveal(settings: Mapping[str, Any], context: Context, site: Site) -> dict[str, Setting]:
    """Tell the shares with which the server unmasks the sum, once, and forget the round."""
    place, state = _recall(settings, context)
    survivors = settings.get("survivors")
    if not isinstance(survivors, list) or not all(isinstance(s, int) for s in survivors):
        raise MalformedError("the survivors of the round cannot be read")
    received = read_by_client("secrets", state)
    party = _party(place, state)
    del context.state[STATE]  # whatever comes now, there is no second answer
    shares = party.reveal(received, survivors)
    _note_sum(site.run_folder(place.run) / SUMS, place.round, sorted(survivors))
    return by_client("shares", shares)


def _note_sum(path: Path, round_number: int, survivors: list[int]) -> None:
    """Write down who is in the sum of a round; refuse a second sum with others.

    A run that goes on from a checkpoint repeats rounds with the same contributions: two sums of
    which one lacks a client would tell what that client contributed.
    """
    try:
        sums = json.loads(read_text(path)) if path.exists() else {}
        before = sums.get(str(round_number))
    except (OSError, ValueError, AttributeError) as error:
        raise InputError(f"{path} cannot be read ({error}).") from error
    if before is not None and before != survivors:
        raise ProtocolError("it has been added up with others in this round before")
    make_folders(path.parent)
    recent = {name: who for name, who in sums.items() if int(name) > round_number - MOST_ROUNDS}
    write_text(path, json_text(recent | {str(round_number): survivors}) + "\n")


def _keep(context: Context, place: Place, secrets: Secrets) -> None:
    context.state[STATE] = ConfigRecord(
        {
            **place.settings(),
            "own.masks": secrets.masks,
            "own.shares": secrets.shares,
            "own.seed": secrets.seed,
        }
    )


def _recall(settings: Mapping[str, Any], context: Context) -> tuple[Place, ConfigRecord]:
    """Return the round of a message, and what the site keeps of it."""
    place, state = read_place(settings), context.state.get(STATE)
    if not isinstance(state, ConfigRecord) or read_place(state) != place:
        raise ProtocolError("it has no keys of this round")
    return place, state


def _secrets(state: ConfigRecord) -> Secrets:
    masks, shares, seed = (state[f"own.{name}"] for name in ("masks", "shares", "seed"))
    assert isinstance(masks, bytes)
    assert isinstance(shares, bytes)
    assert isinstance(seed, bytes)
    return Secrets(masks, shares, seed)


def _party(place: Place, state: ConfigRecord) -> Party:
    peers: dict[int, PublicKeys] = read_keys(state)
    threshold = state["threshold"]
    assert isinstance(threshold, int)
    return Party(place.client_id, _secrets(state), peers, threshold)
