"""The ClientApp: answers the server with what this site's data give."""

import os
from collections.abc import Callable

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from pfedfda.data import FederationConfig
from pfedfda.engine.base import StepKind
from pfedfda.errors import InputError, PfedfdaError
from pfedfda.flower.app_settings import from_settings, read_node_config
from pfedfda.flower.messages import description_settings, read_site_step
from pfedfda.flower.predictions import SQUARED_ERROR, prediction_lists
from pfedfda.flower.site import Site, SiteStep
from pfedfda.flower.wire import (
    FAILURE,
    NAME,
    MalformedError,
    Setting,
    pack,
    settings_of,
    tensors_of,
)

app = ClientApp()


@app.query()
def describe(message: Message, context: Context) -> Message:
    """Tell the server who this site is and how much data it has."""

    def answer() -> Message:
        config = from_settings(settings_of(message.content))
        site = Site(read_node_config(context.node_config), config.federation)
        return Message(pack(settings=description_settings(site.describe())), reply_to=message)

    return _answered(message, context, answer)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train, keep the site's own tensors here, and send up what the method sends up."""
    return _answered(message, context, lambda: _work("train", message, context))


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Personalise and test; after the last round also write the personal model to the disk."""
    return _answered(message, context, lambda: _work("evaluate", message, context))


def _work(kind: StepKind, message: Message, context: Context) -> Message:
    site_step = read_site_step(kind, settings_of(message.content))
    site = Site(read_node_config(context.node_config), site_step.config.federation)
    secure = site_step.config.aggregation.secure_aggregation
    if kind == "train" and site.site.sums_only and not secure:
        raise InputError(
            f"The site {site.site.site_name} shows nothing but sums (sums-only): set "
            f"secure-aggregation=true."
        )
    if kind == "train" and secure:
        return _masked(message, context, site, site_step)
    outcome = site.run(site_step, tensors_of(message.content))
    if outcome.failure is not None:
        return Message(pack(settings={FAILURE: outcome.failure}), reply_to=message)
    numbers = {
        "correct": outcome.correct,
        "tested": outcome.tested,
        "loss": outcome.loss,
        **{f"metric.{name}": value for name, value in outcome.metrics.items()},
        **{f"seconds.{name}": value for name, value in outcome.seconds.items()},
    }
    if outcome.update is None:
        assert outcome.predictions is not None
        numbers[SQUARED_ERROR] = outcome.predictions.squared_error
        lists = prediction_lists(outcome.predictions)
        return Message(pack(metrics=numbers, lists=lists), reply_to=message)
    numbers["weight"] = outcome.update.weight
    return Message(pack(outcome.update.tensors, numbers), reply_to=message)


def _masked(message: Message, context: Context, site: Site, site_step: SiteStep) -> Message:
    """Train, and return the contribution under masks and nothing else about it."""
    from pfedfda.flower import secure_messages, secure_site  # only such a run needs them

    settings = settings_of(message.content)
    received, known = secure_messages.without_state(tensors_of(message.content), settings)
    outcome = site.run(site_step, received)
    try:
        if outcome.update is None:
            raise MalformedError(str(outcome.failure))
        masked = secure_site.mask(settings, context, site, site_step, known, outcome.update)
        return Message(pack({secure_messages.MASKED: masked}), reply_to=message)
    except PfedfdaError:
        site.forget(site_step)
        raise


@app.query("secure_keys")
def advertise_keys(message: Message, context: Context) -> Message:
    """Make the keys of a round with secure aggregation."""
    from pfedfda.flower import secure_site

    return _answered(
        message, context, lambda: _told(message, secure_site.advertise(_asked(message), context))
    )


@app.query("secure_shares")
def share_secrets(message: Message, context: Context) -> Message:
    """Encrypt shares of the round's secrets for the other sites."""
    from pfedfda.flower import secure_site

    return _answered(
        message, context, lambda: _told(message, secure_site.share(_asked(message), context))
    )


@app.query("secure_unmask")
def reveal_shares(message: Message, context: Context) -> Message:
    """Tell the shares with which the sum of the round is unmasked."""
    from pfedfda.flower import secure_site

    def answer() -> Message:
        site = Site(read_node_config(context.node_config), FederationConfig())
        return _told(message, secure_site.reveal(_asked(message), context, site))

    return _answered(message, context, answer)


def _asked(message: Message) -> dict[str, Setting]:
    return settings_of(message.content)


def _told(message: Message, settings: dict[str, Setting]) -> Message:
    return Message(pack(settings=settings), reply_to=message)


def _answered(message: Message, context: Context, answer: Callable[[], Message]) -> Message:
    """Turn what goes wrong here on purpose into an answer that the server can show.

    Whatever is written meanwhile is for this user's eyes alone.
    """
    before = os.umask(0o077)
    try:
        return answer()
    except PfedfdaError as error:
        settings = {FAILURE: str(error), **_name(context)}
        return Message(pack(settings=settings), reply_to=message)
    finally:
        os.umask(before)


def _name(context: Context) -> dict[str, str]:
    """Return the name of this site, so that whoever reads of a failure knows where it was."""
    try:
        return {NAME: read_node_config(context.node_config).site_name}
    except PfedfdaError:
        return {}
