"""``pfedfda data show``."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, ClassVar

import tyro

from pfedfda.data import FederationConfig, prepare
from pfedfda.data.shift import frost_photos
from pfedfda.errors import InputError, printable
from pfedfda.experiment.observers import choose_observer
from pfedfda.report.federation import clients_table, draw_figures, summary_table
from pfedfda.runs.comparison import plain_console
from pfedfda.runs.config import make_config

FederationOptions = Annotated[FederationConfig, tyro.conf.OmitArgPrefixes]


@dataclass(frozen=True)
class DataShowCommand:
    """Prepare a federation, print its sizes and draw what its clients hold.

    Parameters
    ----------
    name
        One of the paper's federations, e.g. cifar10-s; without it the options say what to show.
    figures
        The folder for the figures; by default figures/NAME.
    federation
        The federation; these options override those of the name.
    """

    name: Annotated[tyro.conf.Positional[str | None], tyro.conf.arg(metavar="[NAME]")] = None
    figures: Path | None = None
    federation: FederationOptions = field(default_factory=FederationConfig)

    named: ClassVar[str | None] = None  # whose settings are the defaults of the options

    def execute(self) -> int:
        """Print tables, and the paths of the figures."""
        if self.name != self.named:
            raise InputError(f"Name the federation first: pfedfda data show {self.name}")
        with choose_observer(quiet=False) as observer:
            federation = prepare(self.federation, progress=observer.preparing)
        plain_console().print(summary_table(federation))
        if (clients := clients_table(federation)) is not None:
            plain_console().print(clients)
        folder = Path("figures") / (self.name or Path(self.federation.source).stem)
        photos = frost_photos(self.federation.data_dir)
        for path in draw_figures(federation, self.figures or folder, photos):
            print(printable(path))
        return 0


def command_for(words: Sequence[str] | None) -> dict[str, type[DataShowCommand]]:
    """Return the command with the settings of the federation that these words name first."""
    behind = words[1:] if words and words[0] == "show" else []
    name = behind[0] if behind and not behind[0].startswith("-") else None
    default = make_config({}, name).federation
    show = dataclasses.make_dataclass(
        "DataShowCommand",
        [("federation", FederationOptions, field(default=default))],
        bases=(DataShowCommand,),
        namespace={"named": name, "__doc__": DataShowCommand.__doc__},
        frozen=True,
    )
    return {"show": show}
