"""Settings: Flower's run configuration and node configuration, and what travels between them."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from pfedfda.errors import InputError, quote
from pfedfda.methods import Method, find_method
from pfedfda.runs.config import GROUPS, Config, from_mapping, make_config, refuse_unnamed_programs

Scalar = bool | int | float | str
TRAVELLING = ("federation", "model", "training", "schedule", "aggregation")
HYPERPARAMETERS = "hyperparameters."
MAX_NAME = 60


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
        Seconds a site has for its part in a round; after that it is left out of the round, and
        after two such silences in a row it is not waited for until it answers again.
    class_names
        The names of all classes, with commas between them, where no site need hold all of them; by
        default all sites hold the same ones.
    resume
        The folder of a run that was stopped, to go on with it.
    """

    min_nodes: int = 2
    wait: float = 600.0
    timeout: float = 600.0
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
    if "dp_epsilon" in general:
        general.setdefault("dp_randomness", "system")  # sites know the seed of the run
    method = str(run_config.get("method", "pfedfda"))
    instance = from_mapping(registered_method(method), hyper, f"hyperparameters of {method}")
    config = make_config({method: instance}, **general)
    if config.schedule.seeds is not None:
        raise InputError("A federation over real sites has one seed, not seeds.")
    return RunSettings(config, from_mapping(ServerConfig, own, "run configuration"))


def registered_method(name: str) -> type[Method]:
    """Return a method by name; refuse the path of a Python file, which would be run."""
    if name.endswith(".py"):
        raise InputError(
            f"The method is {quote(name)}; a site runs no Python file that a message names: make a "
            f"method of your own a module of the app, and give the name that it registers."
        )
    return find_method(name)


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
    instance = from_mapping(registered_method(method), tables["hyperparameters"], method)
    groups = {name: from_mapping(GROUPS[name], tables[name], name) for name in TRAVELLING}
    config = Config({method: instance}, **groups)
    refuse_unnamed_programs(config, "The server")
    return config


@dataclass(frozen=True)
class SiteConfig:
    """What a site says about itself, in the node configuration of its SuperNode.

    Parameters
    ----------
    name
        The name of the site, which must stay the same for as long as a run lasts.
    data
        The site's images: a folder of class/image.png, or an .npz file.
    partition_id, num_partitions
        For trials: the site plays this client of the federation that the run describes.
    state_dir
        Where the site keeps its own tensors, prepared images and personal models.
    device
        Where the network runs.
    min_class_count
        The samples of a class that the site must have to send statistics of it, if the run asks for
        fewer.
    sums_only
        Take part in training only where the server sees nothing but the sum of all sites.
    """

    name: str | None = None
    data: Path | None = None
    partition_id: int | None = None
    num_partitions: int | None = None
    state_dir: Path | None = None
    device: str = "cpu"
    min_class_count: int = 1
    sums_only: bool = False

    def __post_init__(self) -> None:
        if self.min_class_count < 1:
            raise InputError(f"min-class-count is {self.min_class_count}; it must be at least 1.")
        if self.data is None and self.partition_id is None:
            raise InputError(
                'The node configuration names no data: give data="PATH", or partition-id=N for '
                "a trial."
            )
        if self.data is not None and self.name is None:
            raise InputError('The node configuration has data and no name: give name="SITE".')
        if not is_plain(self.site_name):
            raise InputError(
                f"The name of the site is {self.site_name!r}; it must be 1 to {MAX_NAME} letters, "
                f"digits, dots, dashes or underscores."
            )

    @property
    def site_name(self) -> str:
        """The name of the site; in a trial by default the number of the client."""
        return str(self.partition_id) if self.name is None else self.name

    @property
    def folder(self) -> Path:
        """Where everything of this site is; sites that share a disk do not meet."""
        if self.state_dir is not None:
            return self.state_dir.expanduser() / self.site_name
        state_home = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
        return Path(state_home) / "pfedfda" / self.site_name


def read_node_config(node_config: Mapping[str, Any]) -> SiteConfig:
    """Return the settings in the node configuration of a SuperNode.

    Parameters
    ----------
    node_config
        Settings with dashes in their names, e.g. ``state-dir``; others than those of `SiteConfig`
        may be there for other apps.
    """
    known = {f.name for f in fields(SiteConfig)}
    named = {key.replace("-", "_"): value for key, value in node_config.items()}
    own = {name: value for name, value in named.items() if name in known}
    if "name" in own:
        own["name"] = str(own["name"])
    return from_mapping(SiteConfig, own, "node configuration")


def is_plain(name: str) -> bool:
    """Tell whether a name can be that of a folder and of nothing else."""
    return re.fullmatch(rf"\w[\w.-]{{0,{MAX_NAME - 1}}}", name) is not None
