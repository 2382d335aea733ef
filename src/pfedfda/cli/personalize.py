"""``pfedfda personalize``."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from pfedfda.errors import printable
from pfedfda.experiment.personal import personalize
from pfedfda.methods.registry import load_method_file
from pfedfda.models.factories import allow


@dataclass(frozen=True)
class PersonalizeCommand:
    """Make a personal model for new images from a finished run.

    The client that holds the images need not have been there when the federation was trained.

    Parameters
    ----------
    run
        The folder of a finished run.
    source
        The client's labelled images: a folder of class/image.png, or an .npz file.
    test_share
        The share of the images that is held out to measure the accuracy; 0 uses all for fitting.
    output
        Where to write the model; by default a new folder in the run's folder personal.
    seed
        Determines which images are held out.
    device
        Where the network runs: cpu, cuda, mps.
    method
        The Python file of the run's method, if it came from one.
    model
        The run's own model, file.py:name, if it has one: it is a program, which is named again.
    backbone
        The run's own backbone, likewise.
    """

    run: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="FOLDER")]
    source: str
    test_share: float = 0.2
    output: Path | None = None
    seed: int = 0
    device: str = "cpu"
    method: Path | None = None
    model: str | None = None
    backbone: str | None = None

    def execute(self) -> int:
        """Make the model, and print how good it is and where."""
        if self.method is not None:
            load_method_file(self.method)
        for spec in (self.model, self.backbone):
            if spec is not None:
                allow(spec)
        result = personalize(
            self.run,
            self.source,
            test_share=self.test_share,
            output=self.output,
            seed=self.seed,
            device=self.device,
        )
        metrics = "".join(f", {name} {value:.3f}" for name, value in result.metrics.items())
        text = (
            f"fitted to {result.fitted} images in {1000 * result.seconds['fit']:.1f} ms after "
            f"{1000 * result.seconds['network']:.0f} ms in the network{metrics}"
        )
        print(printable(text))
        if result.accuracy is not None:
            print(f"accuracy on {result.held_out} held-out images: {result.accuracy:.3f}")
        if result.shared_accuracy is not None:
            print(f"accuracy of the model that all clients share: {result.shared_accuracy:.3f}")
        print(printable(result.folder))
        return 0


command = PersonalizeCommand
