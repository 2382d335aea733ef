"""The options of ``run`` and ``compare``: settings, and the hyper-parameters of methods.

The methods decide which hyper-parameters there are, and a configuration file, a run to go on with
or a named federation decides the defaults. So these few options are read first, then all of them.
"""

import dataclasses
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar

import tyro

from pfedfda.cli.parsing import Flag, read_known
from pfedfda.errors import InputError
from pfedfda.experiment.api import resumed_config, same_settings
from pfedfda.methods import all_methods, expand_names, find_method
from pfedfda.models.factories import allow
from pfedfda.runs.config import (
    GROUPS,
    Config,
    change,
    checked_fields,
    named_federation,
    read_config,
)

C = TypeVar("C", bound="SettingsCommand")


@dataclass(frozen=True)
class SettingsCommand:
    """A command with all settings as options; these are read first.

    Parameters
    ----------
    config
        A configuration file, such as the config.toml of an earlier run; other options override it.
    resume
        The folder of a run that was stopped: go on from its last checkpoint, with its settings.
    federation_name
        One of the paper's federations, e.g. cifar10-s, with its settings (pfedfda datasets lists
        them); other options override it.
    quiet
        Print nothing but the path of the results.
    """

    config: Path | None = None
    resume: Path | None = None
    federation_name: Annotated[str | None, tyro.conf.arg(name="federation")] = None
    quiet: Flag = False

    name: ClassVar[str]
    defaults: ClassVar[Config]  # what the options that are read first amount to

    @property
    @abstractmethod
    def asked(self) -> list[str]:
        """The methods that were asked for."""

    @property
    def config_file(self) -> Path | None:
        """The configuration file to start from."""
        return self.config

    def settings(self) -> Config:
        """Return the configuration: the defaults, changed by the options."""
        methods = {
            name: getattr(self, f"method_{number}", method)
            for number, (name, method) in enumerate(self.defaults.methods.items())
        }
        groups = {group: getattr(self, group) for group in GROUPS}
        for name, section in {**groups, **methods}.items():
            # What a file of settings would refuse, such as inf, is refused here too: the run could
            # not be resumed from its own file.
            values = {f.name: getattr(section, f.name) for f in dataclasses.fields(section)}
            checked_fields(type(section), values, name)
        config = Config(methods, **groups)
        if self.resume is not None and not same_settings(config, self.defaults):
            raise InputError(
                f"A run that goes on keeps its settings; start a new one with --config "
                f"{self.resume / 'config.toml'} to change them."
            )
        return config


def with_settings(kind: type[C], words: Sequence[str] | None) -> type[C]:
    """Return a command with all settings as options.

    Parameters
    ----------
    kind
        The command with the options that are read first.
    words
        What was typed behind the command; None for the options of all methods.
    """
    if words is None:
        defaults = Config({name: method() for name, method in all_methods().items()})
    else:
        _allow_named(words)
        defaults = _defaults(read_known(kind, words))
    # The names of groups are no prefixes of their options; the names of methods are.
    fields: list[tuple[str, Any, Any]] = [
        (name, Annotated[group, tyro.conf.OmitArgPrefixes], getattr(defaults, name))
        for name, group in GROUPS.items()
    ]
    for number, method in enumerate(defaults.methods.values()):
        if dataclasses.fields(method):
            hint: Any = Annotated[type(method), tyro.conf.arg(name=method.name)]
            fields.append((f"method_{number}", hint, method))
    return dataclasses.make_dataclass(
        kind.__name__,
        [(name, hint, dataclasses.field(default=value)) for name, hint, value in fields],
        bases=(kind,),
        namespace={"defaults": defaults, "__doc__": kind.__doc__},
        frozen=True,
    )


def _allow_named(words: Sequence[str]) -> None:
    """Let settings name the models and backbones that the user has typed."""
    for number, word in enumerate(words):
        option, _, value = word.partition("=")
        if option in ("--model", "--backbone"):
            allow(value or "".join(words[number + 1 : number + 2]))


def _defaults(start: SettingsCommand) -> Config:
    """Return the configuration that the options that are read first amount to."""
    asked = start.asked
    # A file of settings may name a method's file only after the user has.
    files = {name: find_method(name) for name in asked if name.endswith(".py")}
    config = Config({})
    if start.config_file is not None:
        config = read_config(start.config_file)
    if start.resume is not None:
        config = resumed_config(start.name, start.resume)
    if start.federation_name is not None:
        config = change(config, named_federation(start.federation_name))
    if start.resume is not None:
        known = {method.name for method in config.methods.values()}
        if {(files.get(name) or find_method(name)).name for name in expand_names(asked)} <= known:
            asked = []  # a method's file was named so that it is loaded
    if start.name == "run" and not asked and len(config.methods) > 1:
        raise InputError(
            f"These settings have {len(config.methods)} methods: choose one with --method, or give "
            f"the file to 'pfedfda compare'."
        )
    asked = asked or list(config.methods) or ["fedavg" if start.name == "run" else "all"]
    names = asked if start.name == "run" else expand_names(asked)
    methods = {name: config.methods.get(name) or find_method(name)() for name in names}
    return dataclasses.replace(config, methods=methods)
