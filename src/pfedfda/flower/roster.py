"""The sites of a run, in the order of their numbers."""

import json
import secrets
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pfedfda.errors import InputError
from pfedfda.files import json_text, write_text
from pfedfda.flower.messages import description_settings, read_description
from pfedfda.flower.site import Description
from pfedfda.flower.wire import MalformedError
from pfedfda.inputs import InputType, describe_inputs
from pfedfda.runs.layout import ROSTER


@dataclass(frozen=True)
class SiteRoster:
    """Who takes part in a run; what the round loop needs to know of a federation.

    Parameters
    ----------
    sites
        What the sites told about themselves; the number of a client is its place here.
    class_names, input_shape, input_type
        What they have agreed on.
    run
        A name of the run that no other run has, under which the sites keep their own tensors.
    """

    sites: tuple[Description, ...]
    class_names: tuple[str, ...]
    input_shape: tuple[int, ...]
    input_type: InputType = "uint8"
    run: str = ""

    client_noun = "site"

    def __len__(self) -> int:
        return len(self.sites)

    @cached_property
    def client_names(self) -> list[str]:
        """The name of every site."""
        return [site.name for site in self.sites]

    @cached_property
    def train_sizes(self) -> NDArray[np.int64]:
        """The number of training images of every site."""
        return np.array([site.train_size for site in self.sites], dtype=np.int64)

    @cached_property
    def test_sizes(self) -> NDArray[np.int64]:
        """The number of test images of every site."""
        return np.array([site.test_size for site in self.sites], dtype=np.int64)

    @cached_property
    def attributes(self) -> dict[str, list[Any]]:
        """What else the sites told; an empty string where one told nothing."""
        names = dict.fromkeys(name for site in self.sites for name in site.attributes)
        return {name: [site.attributes.get(name, "") for site in self.sites] for name in names}

    @property
    def has_own_data(self) -> bool:
        """Whether a site brings its own data, instead of playing a client of a described one."""
        return any(site.number < 0 for site in self.sites)

    @property
    def preprocessing(self) -> None:
        """Sites prepare their samples themselves."""

    @property
    def fingerprint(self) -> str:
        """Empty: which images a site has is its own business."""
        return ""

    def classes_held(self, client_id: int) -> int:
        """Return how many classes occur among a site's training images."""
        return self.sites[client_id].classes_held

    def describe(self) -> str:
        """Return a line about the federation for people."""
        return (
            f"{len(self)} sites, {len(self.class_names)} classes, {self.train_sizes.sum()} "
            f"training and {self.test_sizes.sum()} test samples in all: "
            f"{', '.join(self.client_names)}"
        )

    def write(self, folder: Path) -> None:
        """Write the roster to the folder of its run."""
        content = asdict(self) | {"sites": [description_settings(site) for site in self.sites]}
        write_text(folder / ROSTER, json_text(content, indent=2) + "\n")


def agree(sites: Iterable[Description], class_names: Sequence[str], run: str) -> SiteRoster:
    """Make a roster, and refuse sites that do not fit together.

    Parameters
    ----------
    sites
        What the sites told; they are numbered as in the trial, or by their names.
    class_names
        The names of all classes; empty if every site must hold the same.
    run
        The beginning of the name of the run.
    """
    ordered = sorted(sites, key=lambda site: (site.number < 0, site.number, site.name))
    first = ordered[0]
    for name, times in Counter(site.name for site in ordered).items():
        if times > 1:
            raise InputError(f"Two sites are called {name!r}: every site needs its own name.")
    names = tuple(class_names) or first.class_names
    if len(set(names)) < len(names):
        raise InputError(f"The class names {', '.join(names)} are not all different.")
    table = next((site for site in ordered if site.columns), first)
    for site in ordered:
        if (site.input_shape, site.input_type) != (first.input_shape, first.input_type):
            images = "uint8" in (site.input_type, first.input_type)
            remedy = "set image-size, and use grey or colour everywhere" if images else "mend one"
            raise InputError(
                f"The inputs of the sites do not agree: {first.name} has {_inputs(first)} and "
                f"{site.name} has {_inputs(site)}; {remedy}."
            )
        if site.columns and site.columns != table.columns:
            raise InputError(
                f"The tables of the sites {table.name} and {site.name} do not have the same "
                f"columns in the same order: mend one."
            )
        unknown = [name for name in site.class_names if name not in names]
        if class_names and unknown:
            raise InputError(
                f"The site {site.name} has a class {unknown[0]!r} that is not among class-names."
            )
        if not class_names and site.class_names != names:
            odd = sorted(set(site.class_names) ^ set(names)) or list(site.class_names)
            raise InputError(
                f"The classes of the sites {first.name} and {site.name} do not agree "
                f"({odd[0]!r} is one of the differences): list all classes in class-names."
            )
    token = f"{run[:40]}-{secrets.token_hex(6)}"
    return SiteRoster(tuple(ordered), names, first.input_shape, first.input_type, token)


def read_roster(folder: Path) -> SiteRoster:
    """Read the roster of a run that is to go on."""
    try:
        content = json.loads((folder / ROSTER).read_text(encoding="utf-8"))
        return SiteRoster(
            tuple(read_description(site) for site in content["sites"]),
            tuple(content["class_names"]),
            tuple(content["input_shape"]),
            content["input_type"],
            content["run"],
        )
    except (OSError, ValueError, KeyError, TypeError, MalformedError) as error:
        raise InputError(f"{folder} is not a run of a federation on Flower ({error}).") from error


def _inputs(site: Description) -> str:
    return describe_inputs(site.input_shape, site.input_type)
