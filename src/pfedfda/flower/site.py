"""A site of the federation: its data, its own tensors and its personal model, on its own disk."""

import hashlib
import os
import shutil
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from pfedfda.data import ClientData, Federation, FederationConfig, prepare
from pfedfda.data.catalogue import SOURCE_OPTIONS
from pfedfda.data.shift import Shift
from pfedfda.data.views import ShiftedView
from pfedfda.engine import Step
from pfedfda.engine.base import StepKind
from pfedfda.engine.client import ClientRunner
from pfedfda.errors import InputError
from pfedfda.files import flush, make_folders
from pfedfda.flower.app_settings import SiteConfig, is_plain
from pfedfda.inference import PersonalClassifier, save_model
from pfedfda.inputs import InputType
from pfedfda.machine import one_thread, resolve_device
from pfedfda.methods import Method, Task, Tensors
from pfedfda.models import Model
from pfedfda.runs import ClientStates, Outcome
from pfedfda.runs.config import Config

SITE_SETTINGS = (
    *(name for name in SOURCE_OPTIONS if name != "group_column"),
    *("train_samples", "backbone", "backbone_size", "feature_transform"),
)


@dataclass(frozen=True)
class Description:
    """What a site tells the server before the first round.

    Parameters
    ----------
    name
        Its name.
    number
        In a trial, which client of the described federation it is; otherwise -1.
    train_size, test_size, classes_held
        The numbers of training and test images, and of classes among the former.
    class_names
        The classes of its images.
    input_shape, input_type
        The shape of one input, and what inputs are.
    attributes
        What else is known, e.g. the corruption of its images in a trial.
    columns
        A hash of the names of a table's columns in their order; empty for other data.
    """

    name: str
    number: int
    train_size: int
    test_size: int
    classes_held: int
    class_names: tuple[str, ...]
    input_shape: tuple[int, ...]
    attributes: dict[str, Any] = field(default_factory=dict)
    input_type: InputType = "uint8"
    columns: str = ""


@dataclass(frozen=True)
class SiteStep:
    """A site's part in a round, as the server asks for it.

    Parameters
    ----------
    kind
        train or evaluate.
    config
        The method and all settings.
    client_id
        The number of the site in this run.
    num_clients
        How many there are.
    class_names, input_shape, input_type
        What all sites have agreed on.
    round
        The round, from 1.
    checkpoint
        The round to which the server may have to go back.
    run
        A name of the run that no other run has; it is the same when the run is resumed.
    keep_model
        Write the personal model to the site's disk.
    shift
        Corrupt the site's images in this way first, to see how a new client would fare.
    """

    kind: StepKind
    config: Config
    client_id: int
    num_clients: int
    class_names: tuple[str, ...]
    input_shape: tuple[int, ...]
    input_type: InputType
    round: int
    checkpoint: int
    run: str
    keep_model: bool = False
    shift: Shift | None = None

    def with_min_class_count(self, least: int) -> "SiteStep":
        """Return the step with at least this least count of a class."""
        asked = self.config.aggregation
        least = max(least, asked.min_class_count)
        config = replace(self.config, aggregation=replace(asked, min_class_count=least))
        return replace(self, config=config)

    @property
    def method(self) -> Method:
        """The one method of the configuration."""
        (method,) = self.config.methods.values()
        return method

    @property
    def task(self) -> Task:
        """Settings shared by the server and all sites."""
        return self.config.task(
            self.input_shape, len(self.class_names), self.num_clients, self.input_type
        )


class Site:
    """A site at work; it lives as long as the process that answers a message.

    Parameters
    ----------
    site
        What the site is.
    federation
        How images are prepared, and in a trial, whose they are.
    """

    def __init__(self, site: SiteConfig, federation: FederationConfig) -> None:
        self.site = site
        self._config = federation

    @cached_property
    def federation(self) -> Federation:
        """The site's images, prepared once; in a trial those of all clients."""
        if self.site.data is None:
            return prepare(self._config)
        if self._config.feature_dims is not None:
            raise InputError(
                "feature-dims needs sums over the features of all sites, which sites with data of "
                "their own do not send: drop it."
            )
        alone = FederationConfig(
            source=str(self.site.data.expanduser()),
            image_size=self._config.image_size,
            **{name: getattr(self._config, name) for name in SITE_SETTINGS},
            # Sums over all sites would be needed; what a site has alone would differ from the rest.
            standardize=False,
            partition="iid",
            clients=1,
            train_share=self._config.train_share,
            train_fraction=self._config.train_fraction,
            partition_seed=self._config.partition_seed,
        )
        return prepare(alone, self._make_folder() / "cache")

    def _make_folder(self) -> Path:
        """Make the folder of the site, and let nobody else in, whoever made it and how."""
        folder = self.site.folder
        try:
            make_folders(folder)
            folder.chmod(0o700)
        except OSError as error:
            raise InputError(f"The site cannot keep its files in {folder} ({error}).") from error
        return folder

    def run_folder(self, run: str) -> Path:
        """Return where everything of a run is."""
        if not is_plain(run):
            raise InputError(f"The name of the run is {run!r}; it must be a plain name.")
        return self._make_folder() / run

    @property
    def index(self) -> int:
        """Which client of the prepared federation the site is."""
        if self.site.data is not None:
            return 0
        number = self.site.partition_id
        if number is None or not 0 <= number < len(self.federation):
            raise InputError(
                f"partition-id is {number}; the federation of this run has the clients 0 to "
                f"{len(self.federation) - 1}."
            )
        return number

    def describe(self) -> Description:
        """Return what the server may know of the site's data."""
        federation, index = self.federation, self.index
        columns = federation.preprocessing.columns
        return Description(
            name=self.site.site_name,
            number=-1 if self.site.data is not None else index,
            train_size=int(federation.train_sizes[index]),
            test_size=int(federation.test_sizes[index]),
            classes_held=federation.classes_held(index),
            class_names=federation.class_names,
            input_shape=federation.input_shape,
            input_type=federation.input_type,
            attributes={name: values[index] for name, values in federation.attributes.items()},
            columns=hashlib.sha256(repr(columns).encode()).hexdigest()[:16] if columns else "",
        )

    def run(self, site_step: SiteStep, message: Tensors) -> Outcome:
        """Do the site's part in a round."""
        site_step = site_step.with_min_class_count(self.site.min_class_count)
        folder = self.run_folder(site_step.run)
        states = ClientStates(folder / "states", site_step.checkpoint)
        states.prune([site_step.client_id], site_step.round - 1)
        view = None
        if site_step.shift is not None:
            view = ShiftedView(site_step.shift, site_step.task.seed, self._config.data_dir)
        step = Step(site_step.kind, site_step.method, site_step.round, states, view)
        with one_thread():
            runner = ClientRunner(site_step.task, resolve_device(self.site.device))
            data = self._data(site_step.class_names)
            outcome = runner.run(step, site_step.client_id, data, lambda: message)
        if site_step.kind == "train" and states.folder.exists():
            # The server's next checkpoint counts on what the site has kept.
            states.flush([site_step.client_id])
            for place in (folder, self.site.folder):
                flush(place)
        if site_step.keep_model and outcome.personal is not None:
            self._keep_model(folder / "model", outcome.personal.model, site_step, outcome)
        return outcome

    def forget(self, site_step: SiteStep) -> None:
        """Remove what the site kept in a round, as if it had not taken part in it."""
        folder = self.run_folder(site_step.run) / "states"
        states = ClientStates(folder, site_step.checkpoint)
        states.forget(site_step.client_id, site_step.round)

    def _data(self, class_names: tuple[str, ...]) -> ClientData:
        """Return the site's images with labels in the numbering of the run."""
        own = self.federation.class_names
        unknown = [name for name in own if name not in class_names]
        if unknown:
            raise InputError(f"The run does not know the class {unknown[0]!r} of this site.")
        number = np.array([class_names.index(name) for name in own], dtype=np.int64)
        data = self.federation.client(self.index)
        return data._replace(
            train_labels=number[data.train_labels], test_labels=number[data.test_labels]
        )

    def _keep_model(
        self, folder: Path, network: nn.Module, site_step: SiteStep, outcome: Outcome
    ) -> None:
        """Write the personal model where the site finds it; a folder is complete or not there."""
        if not isinstance(network, Model):
            return
        about = {
            "method": site_step.method.name,
            "run": site_step.run,
            "round": site_step.round,
            "images_held_out": outcome.tested,
            "accuracy": outcome.correct / outcome.tested if outcome.tested else None,
            **outcome.metrics,
        }
        model = PersonalClassifier(
            network,
            site_step.class_names,
            site_step.task.model,
            site_step.input_shape,
            site_step.input_type,
            self.federation.preprocessing,
            about,
        )
        new = folder.with_name(f"{folder.name}.{os.getpid()}")
        shutil.rmtree(new, ignore_errors=True)
        new.mkdir(parents=True)
        save_model(new, model)
        shutil.rmtree(folder, ignore_errors=True)
        new.replace(folder)
        flush(folder.parent)
