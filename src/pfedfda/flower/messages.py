"""Steps of sites and descriptions as the settings of a message, and back."""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from pfedfda.data.shift import Shift
from pfedfda.experiment.checks import MOST_METRICS, PLAIN
from pfedfda.flower.app_settings import MAX_NAME, from_settings, to_settings
from pfedfda.flower.site import Description, SiteStep
from pfedfda.flower.wire import MalformedError, Setting
from pfedfda.inputs import read_input_type
from pfedfda.runs.layout import CLIENT_COLUMNS, QUALITY_COLUMNS

MAX_SAMPLES = 10**9
MAX_CLASSES = 100_000
MAX_ATTRIBUTES = 2000
MAX_SIDE, MAX_AXES, MAX_VALUES = 2**20, 8, 2**28  # of an input


def site_step_settings(site_step: SiteStep) -> dict[str, Setting]:
    """Return the step of a site as the settings of a message."""
    return {
        **to_settings(site_step.config),
        "step.client_id": site_step.client_id,
        "step.num_clients": site_step.num_clients,
        "step.class_names": list(site_step.class_names),
        "step.input_shape": list(site_step.input_shape),
        "step.input_type": site_step.input_type,
        "step.round": site_step.round,
        "step.checkpoint": site_step.checkpoint,
        "step.run": site_step.run,
        "step.keep_model": site_step.keep_model,
        "step.corruption": "" if site_step.shift is None else site_step.shift.corruption,
        "step.severity": 0 if site_step.shift is None else site_step.shift.severity,
    }


def read_site_step(kind: Any, settings: Mapping[str, Any]) -> SiteStep:
    """Return the step of a site in the settings of a message."""
    try:
        corruption, severity = settings["step.corruption"], settings["step.severity"]
        return SiteStep(
            kind=kind,
            config=from_settings(settings),
            client_id=int(settings["step.client_id"]),
            num_clients=int(settings["step.num_clients"]),
            class_names=tuple(str(name) for name in settings["step.class_names"]),
            input_shape=tuple(int(n) for n in settings["step.input_shape"]),
            input_type=read_input_type(settings["step.input_type"]),
            round=int(settings["step.round"]),
            checkpoint=int(settings["step.checkpoint"]),
            run=str(settings["step.run"]),
            keep_model=bool(settings["step.keep_model"]),
            shift=Shift(str(corruption), int(severity)) if corruption else None,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise MalformedError(f"The step of the site cannot be read ({error!r}).") from error


def description_settings(description: Description) -> dict[str, Setting]:
    """Return a site's description as the settings of a message."""
    settings: dict[str, Setting] = {}
    for name, value in asdict(description).items():
        if name == "attributes":
            settings[name] = json.dumps(value)
        else:
            settings[name] = list(value) if isinstance(value, tuple) else value
    return settings


def read_description(settings: Mapping[str, Any]) -> Description:
    """Return the description that a site has sent, or refuse what cannot be one."""
    try:
        name = settings["name"]
        if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME or not name.isprintable():
            raise ValueError("its name is not a plain name")
        shape = [_natural(n, MAX_SIDE, 1) for n in settings["input_shape"]]
        if not 0 < len(shape) <= MAX_AXES or math.prod(shape) > MAX_VALUES:
            raise ValueError(f"its inputs have shape {tuple(shape)}")
        class_names = settings["class_names"]
        if not 0 < len(class_names) <= MAX_CLASSES:
            raise ValueError(f"it has {len(class_names)} classes")
        if not all(isinstance(c, str) and c.isprintable() for c in class_names):
            raise ValueError("the names of its classes are not plain names")
        columns = settings.get("columns", "")
        if not isinstance(columns, str) or not re.fullmatch("[0-9a-f]{0,16}", columns):
            raise ValueError("the hash of its columns is none")
        return Description(
            name=name,
            number=_natural(settings["number"] + 1, MAX_SAMPLES) - 1,
            train_size=_natural(settings["train_size"], MAX_SAMPLES, 1),
            test_size=_natural(settings["test_size"], MAX_SAMPLES, 1),
            classes_held=_natural(settings["classes_held"], len(class_names), 1),
            class_names=tuple(class_names),
            input_shape=tuple(shape),
            input_type=read_input_type(settings["input_type"]),
            attributes=_attributes(settings["attributes"]),
            columns=columns,
        )
    except KeyError as error:
        raise MalformedError(f"its description lacks {error}") from error
    except (TypeError, ValueError, IndexError, RecursionError) as error:
        raise MalformedError(f"its description cannot be used ({error})") from error


def _natural(value: Any, largest: int, smallest: int = 0) -> int:
    if type(value) is not int or not smallest <= value <= largest:
        raise ValueError(f"{value!r} is not a number from {smallest} to {largest}")
    return value


def _attributes(text: Any) -> dict[str, Any]:
    if not isinstance(text, str) or len(text) > MAX_ATTRIBUTES:
        raise ValueError("its attributes are too long")
    attributes = json.loads(text)
    if not isinstance(attributes, dict) or len(attributes) > MOST_METRICS:
        raise ValueError(f"its attributes are not a table of at most {MOST_METRICS}")
    for name, value in attributes.items():
        if not PLAIN.fullmatch(name) or name in (*CLIENT_COLUMNS, *QUALITY_COLUMNS):
            raise ValueError(f"an attribute is called {name[:80]!r}")
        plain = value.isprintable() if isinstance(value, str) else _is_finite(value)
        if not plain:
            raise ValueError(f"its attribute {name} is not a plain value")
    return attributes


def _is_finite(value: Any) -> bool:
    return isinstance(value, int | float) and abs(value) < math.inf
