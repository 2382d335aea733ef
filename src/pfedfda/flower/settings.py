"""Settings on their way: the run configuration of Flower, and what the server tells a client."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from pfedfda.errors import InputError
from pfedfda.experiment.config import GROUPS, Config, from_mapping, make_config
from pfedfda.methods import find_method

Scalar = bool | int | float | str
TRAVELLING = ("federation", "model", "training", "schedule")
HYPERPARAMETERS = "hyperparameters."


@dataclass(frozen=True)
class ServerConfig:
    """What only the server of a real federation needs to know.

    Parameters
    ----------
    min_nodes
        The run begins when so many sites have described themselves; these are its clients.
    wait
        Seconds to wait for them.
    timeout
        Seconds a site has for its part in a round; after that it is left out of the round.
    class_names
        The names of all classes, with commas between them, where no site need hold all of them; by
        default all sites hold the same ones.
    resume
        The folder of a run that was stopped, to go on with it.
    """

    min_nodes: int = 2
    wait: float = 600.0
    timeout: float = 3600.0
    class_names: str | None = None
    resume: Path | None = None

    def __post_init__(self) -> None:
        if self.min_nodes < 1:
            raise InputError(f"min-nodes is {self.min_nodes}; it must be at least 1.")
        for name in ("wait", "timeout"):
            if not getattr(self, name) > 0:
                raise InputError(f"{name} is {getattr(self, name)}; it must be above 0 seconds.")

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes if they were given."""
        return tuple(name.strip() for name in (self.class_names or "").split(",") if name.strip())


@dataclass(frozen=True)
class RunSettings:
    """A run configuration of Flower in the terms of this package.

    Parameters
    ----------
    config
        The method and the groups of settings.
    server
        What the server needs besides.
    """

    config: Config
    server: ServerConfig = field(default_factory=ServerConfig)


def read_run_config(run_config: Mapping[str, Scalar]) -> RunSettings:
    """Return the settings in a run configuration.

    Parameters
    ----------
    run_config
        Settings by their names on the command line, e.g. ``eval-every``; ``hyperparameters.NAME``
        belongs to the method. An empty string means that a setting is not given: Flower lets only
        those settings be changed on the command line that the app's project names.
    """
    own: dict[str, Any] = {}
    general: dict[str, Any] = {}
    hyper: dict[str, Any] = {}
    names = {f.name for f in fields(ServerConfig)}
    for key, value in run_config.items():
        name = key.replace("-", "_")
        if value == "" or name == "method":
            continue
        if key.startswith(HYPERPARAMETERS):
            hyper[name.removeprefix(HYPERPARAMETERS)] = value
        elif name in names:
            own[name] = value
        else:
            general[name] = value
    method = str(run_config.get("method", "pfedfda"))
    instance = from_mapping(find_method(method), hyper, f"hyperparameters of {method}")
    config = make_config({method: instance}, **general)
    return RunSettings(config, from_mapping(ServerConfig, own, "run configuration"))


def to_settings(config: Config) -> dict[str, Scalar]:
    """Return what the sites must know of a configuration, one setting a name."""
    ((name, method),) = config.methods.items()
    settings: dict[str, Scalar] = {"method": name}
    groups = {group: getattr(config, group) for group in TRAVELLING}
    for prefix, section in {"hyperparameters": method, **groups}.items():
        for f in fields(section):
            value = getattr(section, f.name)
            if value is not None:
                settings[f"{prefix}.{f.name}"] = str(value) if isinstance(value, Path) else value
    return settings


def from_settings(settings: Mapping[str, Any]) -> Config:
    """Return the configuration that `to_settings` has spelled out."""
    tables: dict[str, dict[str, Any]] = {name: {} for name in ("hyperparameters", *TRAVELLING)}
    for key, value in settings.items():
        prefix, _, name = key.partition(".")
        if prefix in tables:
            tables[prefix][name] = value
    method = settings.get("method")
    if not isinstance(method, str):
        raise InputError(f"The method is {method!r}; it must be a name.")
    instance = from_mapping(find_method(method), tables["hyperparameters"], method)
    groups = {name: from_mapping(GROUPS[name], tables[name], name) for name in TRAVELLING}
    return Config({method: instance}, **groups)
