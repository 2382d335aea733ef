"""The configuration of a run: dataclasses, and the TOML file that holds the same."""

import dataclasses
import json
import math
import re
import types
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from pfedfda.data import FEDERATIONS, FederationConfig
from pfedfda.errors import InputError, quote, unknown
from pfedfda.files import read_toml
from pfedfda.inputs import InputType
from pfedfda.methods import Method, Task, TrainingConfig, find_method
from pfedfda.methods.base import BATCH_SIZE
from pfedfda.methods.registry import is_loaded
from pfedfda.models import ModelConfig
from pfedfda.models.factories import is_allowed, is_program, name_callable
from pfedfda.runs.aggregation_config import AggregationConfig
from pfedfda.runs.engine_config import EngineConfig
from pfedfda.runs.output_config import OutputConfig as OutputConfig  # callers find it here too
from pfedfda.runs.seeds import refuse_bad_seeds

T = TypeVar("T")
MOST_ROUNDS = 1_000_000
LARGEST_INTEGER = 2**63 - 1  # as TOML has it
LONGEST_NAME = 255  # of a file or a folder, as file systems have it
NEW_CLIENT_SEVERITY = 3  # of the corruptions under which new clients are evaluated (Appendix C.3)


@dataclass(frozen=True)
class ScheduleConfig:
    """The rounds.

    Parameters
    ----------
    rounds
        The number of rounds.
    participation
        The probability q with which each client takes part in a round; at least one client always
        does, and in the last round all do.
    eval_every
        Evaluate all clients after every so many rounds, and always after the last; 0 means only
        after the last.
    new_clients
        The share of the clients, the last ones, that never take part in training. After the last
        round they personalise and are evaluated, on their own images and under each corruption at
        severity 3.
    checkpoint_every
        Save the run after every so many rounds, so that it can be taken up there if it is stopped;
        0 means about once a minute.
    max_update_norm
        The longest tensor that is believed; a client that sends a longer one is left out of the
        round, like one that sends numbers that are not finite.
    max_failures
        Stop the run when a larger share of the clients' steps than this has failed (and at least
        ten have); up to there, a client that fails is left out and named.
    seed
        Determines initial weights, participation and the order of samples.
    seeds
        A run with each of these seeds in place of the one, and a table of means over them with
        intervals and tests.
    partition_seeds
        With seeds, a partition seed for each, so that every seed deals the samples anew too; by
        default all seeds share the partition.
    """

    rounds: int = 200
    participation: float = 0.3
    eval_every: int = 20
    new_clients: float = 0.0
    checkpoint_every: int = 0
    max_update_norm: float = 1e6
    max_failures: float = 0.5
    seed: int = 0
    seeds: tuple[int, ...] | None = None
    partition_seeds: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.rounds <= MOST_ROUNDS:
            raise InputError(
                f"The number of rounds is {self.rounds}; it must lie between 1 and {MOST_ROUNDS:,}."
            )
        if not 0 < self.participation <= 1:
            raise InputError(f"The participation is {self.participation}; it must lie in (0, 1].")
        if not 0 <= self.new_clients < 1:
            raise InputError(f"new-clients is {self.new_clients}; it must lie in [0, 1).")
        if self.eval_every < 0:
            raise InputError(f"eval-every is {self.eval_every}; it must be 0 or more.")
        if self.checkpoint_every < 0:
            raise InputError(f"checkpoint-every is {self.checkpoint_every}; it must be 0 or more.")
        if not self.max_update_norm > 0:
            raise InputError(f"max-update-norm is {self.max_update_norm}; it must be above 0.")
        if not 0 <= self.max_failures <= 1:
            raise InputError(f"max-failures is {self.max_failures}; it must lie in [0, 1].")
        refuse_bad_seeds(self.seeds, self.partition_seeds)

    def trained_clients(self, clients: int) -> int:
        """Return how many of the clients may take part in training."""
        if not self.new_clients:
            return clients
        if clients == 1:
            raise InputError("A federation of one client has none to spare for new-clients.")
        newcomers = max(round(clients * self.new_clients), 1)
        return max(clients - newcomers, 1)

    def evaluates(self, round_number: int) -> bool:
        """Tell whether the clients are evaluated after this round."""
        if round_number == self.rounds:
            return True
        return self.eval_every > 0 and round_number % self.eval_every == 0


@dataclass(frozen=True)
class Config:
    """Everything needed to run one or more methods on a federation.

    Parameters
    ----------
    methods
        The methods by name, with their hyper-parameters.
    federation, model, training, schedule, aggregation, engine, output
        The groups of settings.
    """

    methods: dict[str, Method]
    federation: FederationConfig = field(default_factory=FederationConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    aggregation: AggregationConfig = field(default_factory=AggregationConfig)
    engine: EngineConfig = field(default_factory=EngineConfig)
    output: OutputConfig = field(default_factory=OutputConfig)

    def task(
        self,
        input_shape: tuple[int, ...],
        num_classes: int,
        num_clients: int,
        input_type: InputType = "uint8",
    ) -> Task:
        """Return what the server and all clients know before the first round."""
        model = self.model
        if model.model == "auto" and self.federation.backbone is not None:
            model = dataclasses.replace(model, model="linear")  # features need no network
        training = self.training
        if training.batch_size is None:
            training = dataclasses.replace(training, batch_size=BATCH_SIZE)
        task = Task(
            model=model,
            input_shape=input_shape,
            num_classes=num_classes,
            num_clients=num_clients,
            training=training,
            seed=self.schedule.seed,
            input_type=input_type,
            rounds=self.schedule.rounds,
            min_class_count=self.aggregation.min_class_count,
        )
        task.initial_tensors()  # refuses a model that does not fit the inputs
        return task


GROUPS: dict[str, type[Any]] = {
    "federation": FederationConfig,
    "model": ModelConfig,
    "training": TrainingConfig,
    "schedule": ScheduleConfig,
    "aggregation": AggregationConfig,
    "engine": EngineConfig,
    "output": OutputConfig,
}


def make_config(
    methods: Mapping[str, Method],
    federation: FederationConfig | str | None = None,
    **settings: Any,
) -> Config:
    """Build a configuration from settings of all groups by their plain names.

    Parameters
    ----------
    methods
        The methods by name.
    federation
        A federation, or the name of one of the paper's; its fields can also be given as settings.
    settings
        Fields of any group, e.g. ``rounds=20, alpha=0.3, workers=0``.
    """
    config = Config(dict(methods))
    if isinstance(federation, str):
        config = change(config, named_federation(federation))
    elif federation is not None:
        config = dataclasses.replace(config, federation=federation)
    return change(config, settings)


def named_federation(name: str) -> dict[str, Any]:
    """Return the settings of one of the paper's federations."""
    if name not in FEDERATIONS and Path(name).exists():
        raise InputError(f"{quote(name)} is a folder or file, not a federation: --source {name}")
    if name not in FEDERATIONS:
        raise unknown("federation", name, FEDERATIONS)
    return FEDERATIONS[name][1]


def change(config: Config, settings: Mapping[str, Any]) -> Config:
    """Return the configuration with some settings, of any group, changed."""
    groups: dict[str, dict[str, Any]] = {name: {} for name in GROUPS}
    owner = {f.name: name for name, group in GROUPS.items() for f in dataclasses.fields(group)}
    for setting, value in settings.items():
        if setting in ("model", "backbone") and callable(value):
            value = name_callable(value)
        if setting not in owner:
            raise unknown("setting", setting, owner)
        groups[owner[setting]][setting] = value
    changed = {
        name: dataclasses.replace(
            getattr(config, name), **checked_fields(GROUPS[name], groups[name], name)
        )
        for name in GROUPS
    }
    return dataclasses.replace(config, **changed)


def from_mapping(kind: type[T], values: Mapping[str, Any], where: str) -> T:
    """Build a dataclass from plain values, and refuse unknown fields and wrong types.

    Parameters
    ----------
    kind
        The dataclass.
    values
        Values by field name, as a TOML table has them.
    where
        What to call the table in an error.
    """
    return kind(**checked_fields(kind, values, where))


def checked_fields(kind: type[Any], values: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return values for fields of a dataclass in the fields' types, or refuse them."""
    hints = get_type_hints(kind)
    known = [f.name for f in dataclasses.fields(kind)]
    arguments = {}
    for name, value in values.items():
        if name not in known:
            raise unknown(f"field in [{where}]:", name, known or ["(it has none)"])
        arguments[name] = _convert(hints[name], value, f"{where}.{name}")
    return arguments


def _convert(hint: Any, value: Any, where: str) -> Any:
    """Return the value as the type that a field has, or refuse it."""
    options = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    if isinstance(value, int) and abs(value) > LARGEST_INTEGER:
        raise InputError(f"{where} is a whole number of more than 64 bits.")
    if isinstance(value, str | Path):
        _refuse_odd_text(str(value), where)
    for option in options:
        if get_origin(option) is Literal and value in get_args(option):
            return value
        if option is type(None) and value is None:
            return None
        if option is Path and isinstance(value, str | Path):
            return Path(value)
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if option is float and number and math.isfinite(value):
            return float(value)
        if option in (int, str, bool) and type(value) is option:
            return value
        if get_origin(option) is tuple and isinstance(value, list | tuple):
            return tuple(_convert(get_args(option)[0], item, where) for item in value)
    raise InputError(f"{where} is {quote(value)}; it must be {_describe(options)}.")


def _refuse_odd_text(text: str, where: str) -> None:
    """Refuse what no file system takes as a path; settings that are no paths are short anyway."""
    if not text.isascii() and text.encode(errors="replace").decode() != text:
        raise InputError(f"{where} is {quote(text)}; it must be text that UTF-8 can hold.")
    if "\0" in text or any(len(part.encode()) > LONGEST_NAME for part in text.split("/")):
        raise InputError(
            f"{where} is {quote(text)}; it must be free of null characters and of names that are "
            f"longer than {LONGEST_NAME} bytes."
        )


def _describe(options: tuple[Any, ...]) -> str:
    names = {int: "a whole number", float: "a number", str: "a string", bool: "true or false"}
    words = []
    for option in options:
        if get_origin(option) is Literal:
            words += [repr(choice) for choice in get_args(option)]
        elif get_origin(option) is tuple:
            words.append("a list")
        elif option is not type(None):
            words.append(names.get(option, "a path"))
    return " or ".join(words)


def read_config(path: Path) -> Config:
    """Read a configuration from a TOML file, such as the ``config.toml`` of a run."""
    try:
        tables = read_toml(path)
    except FileNotFoundError:
        raise InputError(f"There is no configuration file {path}.") from None
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"The configuration file {path} cannot be read ({error}).") from error
    for name, table in tables.items():
        if name not in ("methods", *GROUPS):
            raise unknown(f"table in {path}:", name, ["methods", *GROUPS])
        if not isinstance(table, dict):
            raise InputError(f"{name} in {path} is {quote(table)}; it must be a table.")
    methods = {}
    for name, fields in tables.get("methods", {}).items():
        if not isinstance(fields, dict):
            raise InputError(f"methods.{name} in {path} is {quote(fields)}; it must be a table.")
        _refuse_odd_text(name, f"The name of a method in {path}")
        if name.endswith(".py") and not is_loaded(Path(name)):
            raise InputError(
                f"{path} takes a method from the Python file {quote(name)}, and settings must not "
                f"run a program by themselves: name that file on the command line too, with "
                f"--method (run) or --methods (compare)."
            )
        kind = find_method(name)
        fields = kind.without_removed(fields)
        for field_name in fields.keys() & kind.removed.keys():
            raise InputError(
                f"methods.{name}.{field_name} in {path} is {quote(fields[field_name])}, and this "
                f"setting was removed: only {quote(kind.removed[field_name])} is still accepted."
            )
        methods[name] = from_mapping(kind, fields, f"methods.{name}")
    groups = {name: from_mapping(GROUPS[name], tables.get(name, {}), name) for name in GROUPS}
    config = Config(methods, **groups)
    refuse_unnamed_programs(config, str(path))
    return config


def refuse_unnamed_programs(config: Config, where: str) -> None:
    """Refuse settings that would run a program which the user has not named."""
    for option, spec in (("model", config.model.model), ("backbone", config.federation.backbone)):
        if is_program(spec) and not is_allowed(str(spec)):
            again = f"name it on the command line too, with --{option} {spec}"
            if str(spec).startswith("python:"):
                again = f"give that function again in Python, with {option}=FUNCTION"
            raise InputError(
                f"{where} takes the {option} from {quote(spec)}, and settings must not run a "
                f"program by themselves: {again}."
            )


def write_config(config: Config) -> str:
    """Return the configuration as TOML, less the place of the output.

    Settings that are None, such as the number of workers by default, are left out, and so is the
    table of the aggregation where it is the plain sum.
    """
    sections = {name: getattr(config, name) for name in GROUPS if name != "output"}
    if config.aggregation == AggregationConfig():
        del sections["aggregation"]
    sections |= {f"methods.{_key(name)}": m for name, m in config.methods.items()}
    lines = []
    for name, section in sections.items():
        lines.append(f"[{name}]")
        for f in dataclasses.fields(section):
            value = getattr(section, f.name)
            if value is not None:
                lines.append(f"{f.name} = {_toml(value)}")
        lines.append("")
    if lasting := config.output.lasting:
        lines += ["[output]", *(f"{name} = {_toml(v)}" for name, v in lasting.items()), ""]
    return "\n".join(lines)


def _key(name: str) -> str:
    """Return a name as a TOML key; a method may be named by the path of a file."""
    return name if re.fullmatch(r"[\w-]+", name, re.ASCII) else _toml(name)


def _toml(value: Any) -> str:
    if isinstance(value, bool | int | float):
        return repr(value).lower()
    if isinstance(value, tuple):
        return f"[{', '.join(map(_toml, value))}]"
    return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")
