"""Settings that follow from the data where the user gives none, and what else the data suggest.

Data under a name of this package, such as cifar10 or digits, keep the settings that results with
them were published with. Data of the user's own get settings by how much there is.
"""

from dataclasses import replace

import numpy as np

from pfedfda.methods.base import BATCH_SIZE
from pfedfda.models import default_model
from pfedfda.models.backbones import available_backbones
from pfedfda.runs.clients import Roster
from pfedfda.runs.config import Config

SMALLEST_BATCH = 10
BATCHES_PER_EPOCH = 10  # at least, as far as batches of the smallest size go
RESNET_SAMPLES = 10_000  # training images below which a ResNet is not the default
LARGEST_SMALL_SIDE = 96  # the side in pixels up to which cifar-cnn takes its place
SCARCE_IMAGES = 5_000  # training images below which a pretrained backbone is suggested
IMAGE_BACKBONE = "efficientnet-lite0"


def default_batch_size(samples: int) -> int:
    """Return the batch size for clients that hold so many training samples, in the median."""
    return min(max(samples // BATCHES_PER_EPOCH, SMALLEST_BATCH), BATCH_SIZE)


def default_model_for(height: int, width: int, samples: int) -> str:
    """Return the name of the model for so many training images of this size in all."""
    if samples < RESNET_SAMPLES and max(height, width) <= LARGEST_SMALL_SIDE:
        height, width = min(height, 48), min(width, 48)  # as for the smaller images
    return default_model(height, width)


def choose_settings(config: Config, roster: Roster, own: bool) -> tuple[Config, str]:
    """Return the settings with none left open that depends on the data, and a line about them.

    What the user has given stays as it is. The line is empty if that is everything, and for
    published data.

    Parameters
    ----------
    config
        The settings; batch_size may be None and model "auto".
    roster
        The clients of the run.
    own
        Whether the data are the user's own.
    """
    chosen = []
    if not own:
        training = replace(config.training, batch_size=config.training.batch_size or BATCH_SIZE)
        return replace(config, training=training), ""
    total, median = int(roster.train_sizes.sum()), int(np.median(roster.train_sizes))
    if config.training.batch_size is None:
        size = default_batch_size(median)
        config = replace(config, training=replace(config.training, batch_size=size))
        chosen.append(f"--batch-size {size} ({median:,} training samples per client)")
    if config.model.model == "auto" and roster.input_type == "uint8":
        height, width = roster.input_shape[:2]
        name = default_model_for(height, width, total)
        config = replace(config, model=replace(config.model, model=name))
        chosen.append(f"--model {name} ({total:,} training images of {height}×{width})")
    return config, f"Chosen for your data: {', '.join(chosen)}." if chosen else ""


def suggest_backbone(config: Config, roster: Roster) -> str:
    """Return a line about pretrained backbones if there are few images; empty otherwise."""
    total = int(roster.train_sizes.sum())
    ours = config.model.weights is None and ":" not in config.model.model
    if roster.input_type != "uint8" or total >= SCARCE_IMAGES or not ours:
        return ""
    few = f"{total:,} training images are few to train a network on: --backbone {IMAGE_BACKBONE}"
    if IMAGE_BACKBONE in available_backbones():
        return f"{few} uses a pretrained one, and is usually quicker and more accurate."
    return f"{few} uses a pretrained one (pip install 'pfedfda[backbones]')."
