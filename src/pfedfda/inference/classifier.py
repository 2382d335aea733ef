"""A personal model in use: from samples as somebody has them to classes and probabilities."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pfedfda.data import Preprocessing
from pfedfda.data.unlabelled import SampleReader
from pfedfda.inputs import InputType
from pfedfda.methods import to_input
from pfedfda.models import Model, ModelConfig
from pfedfda.models.backbones import Backbone

BATCH = 500


@dataclass
class PersonalClassifier:
    """A trained model with all that is needed to use it.

    Parameters
    ----------
    network
        The body and the linear head, ready to predict.
    class_names
        The names of its outputs.
    config
        Which network it is.
    input_shape, input_type
        What goes into the network.
    preprocessing
        What turns a sample as its user has it into an input.
    about
        Anything else worth knowing, e.g. the method and the accuracy.

    Examples
    --------
    >>> import pfedfda
    >>> model = pfedfda.load_model("runs/digits-pfedfda/models/3")  # doctest: +SKIP
    >>> model.predict("photo.jpg")  # doctest: +SKIP
    ['7']
    """

    network: Model
    class_names: tuple[str, ...]
    config: ModelConfig
    input_shape: tuple[int, ...]
    input_type: InputType
    preprocessing: Preprocessing
    about: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.network.requires_grad_(False).eval()

    def __call__(self, inputs: Tensor) -> Tensor:
        """Return the network's logits (n, classes) for inputs that are prepared already.

        Parameters
        ----------
        inputs
            float32 images (n, channels, height, width) in [-1, 1], or numbers and indices as the
            network gets them.
        """
        return self.network(inputs)  # type: ignore[no-any-return]

    def predict(self, samples: object) -> list[str]:
        """Return the name of the most probable class of every sample.

        Parameters
        ----------
        samples
            A path of an image, a folder of images, an ``.npz``, a table or a ``.txt`` file; a
            Pillow image; a uint8 array (height, width[, channels]) or (n, …); numbers (features,)
            or (n, features); or a list of those. Images are cropped at the centre and scaled, as
            those of the training were. For a model of texts a string is a text.
        """
        return [self.class_names[label] for label in self.predict_proba(samples).argmax(axis=1)]

    def predict_proba(self, samples: object) -> NDArray[np.float32]:
        """Return the probabilities (n, classes), in the order of `class_names`.

        They are the softmax of the head's outputs; for pFedFDA that is the posterior of its
        Gaussians. The parameter is that of `predict`.
        """
        reader = SampleReader(self.preprocessing)
        return np.concatenate([self.probabilities(batch.values) for batch in reader.read(samples)])

    def probabilities(self, samples: NDArray[Any]) -> NDArray[np.float32]:
        """Return the probabilities for samples of the type and shape of `preprocessing`."""
        logits = list(self._logits(self.inputs(samples)))
        found: NDArray[np.float32] = torch.cat(logits).softmax(dim=1).numpy()
        return found

    def inputs(self, samples: NDArray[Any]) -> NDArray[Any]:
        """Return inputs of the network, for samples of the type and shape of `preprocessing`."""
        inputs, mapping = samples, self.preprocessing.map
        if self.backbone is not None:
            size, device = self.backbone.batch_size, torch.device("cpu")
            parts = [samples[i : i + size] for i in range(0, len(samples), size)]
            inputs = np.concatenate([self.backbone.features(part, device) for part in parts])
        return inputs if mapping is None else mapping(inputs)

    @cached_property
    def backbone(self) -> Backbone | None:
        """The frozen network that turns samples into features, if there is one."""
        return self.preprocessing.open_backbone()

    @torch.inference_mode()
    def _logits(self, inputs: NDArray[Any]) -> Iterator[Tensor]:
        for start in range(0, len(inputs), BATCH):
            part = torch.from_numpy(np.array(inputs[start : start + BATCH]))
            yield self.network(to_input(part)).float()
