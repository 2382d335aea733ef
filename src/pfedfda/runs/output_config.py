"""Settings of what a run leaves behind, and where."""

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from pfedfda.errors import InputError, unknown

MOST_MISTAKES = 200
TRACKERS = ("none", "tensorboard")


@dataclass(frozen=True)
class OutputConfig:
    """Where the results go.

    Parameters
    ----------
    output
        The folder for runs.
    name
        The name of the run's folder in it; by default made from the source and the method, with a
        number if there is one of that name already.
    save_models
        At the end, write the personal model of every client to the folder models of the run, as
        'pfedfda export --all' does later.
    mistakes
        How many of the most confident mistakes on test images to keep with their images, in the
        run's folder and on its page; 0 keeps none. Only runs on this machine have them.
    track
        Also write the numbers of every evaluation for another program: tensorboard, or none.
    """

    output: Path = Path("runs")
    name: str | None = None
    save_models: bool = False
    mistakes: int = 24
    track: Literal["none", "tensorboard"] = "none"

    def __post_init__(self) -> None:
        if self.name is not None and (Path(self.name).name != self.name or self.name in ("", "..")):
            raise InputError(f"The name {self.name!r} is not a plain folder name.")
        if not 0 <= self.mistakes <= MOST_MISTAKES:
            raise InputError(
                f"mistakes is {self.mistakes}; it must lie between 0 and {MOST_MISTAKES}."
            )
        if self.track not in TRACKERS:
            raise unknown("tracker", self.track, TRACKERS)
        if self.track != "none" and find_spec(self.track) is None:
            raise InputError(
                f"track is {self.track}, which is not installed: pip install 'pfedfda[track]'."
            )

    @property
    def lasting(self) -> dict[str, Any]:
        """The settings that a run keeps when it is resumed, where they are not the defaults."""
        default = OutputConfig()
        names = ("save_models", "mistakes", "track")
        return {n: v for n in names if (v := getattr(self, n)) != getattr(default, n)}
