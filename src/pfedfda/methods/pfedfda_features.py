"""Features of a client's training samples: those of its training, and those of a pass for them."""

from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from pfedfda.methods.base import Client
from pfedfda.methods.rare_classes import rare_classes
from pfedfda.methods.training import Batch, extract_features, sgd


class Features(NamedTuple):
    """Features of training samples, their labels, and which samples they are of."""

    values: Tensor
    labels: Tensor
    rows: Tensor

    def without(self, classes: Tensor) -> "Features":
        """Return those of other classes than these, given as a mask."""
        if not bool(classes.any()):
            return self
        kept = ~classes[self.labels.cpu()]
        on_device = kept.to(self.labels.device)
        return Features(self.values[on_device], self.labels[on_device], self.rows[kept])


def train_body(
    client: Client, kept: Literal["all", "first"], drop_last: bool, max_norm: float
) -> tuple[Features, float]:
    """Train the loaded body against the loaded head, which stays as it is.

    Parameters
    ----------
    client
        The client.
    kept
        Which of the features that passed by are returned: of all epochs, or of the first.
    drop_last, max_norm
        As for `pfedfda.methods.training.sgd`.

    Returns
    -------
    Features
        As they were when they passed by.
    float
        The mean loss.
    """
    body, head = client.model.body, client.model.head
    passed: list[Features] = []

    def loss(batch: Batch) -> Tensor:
        features = body(batch.inputs)
        passed.append(Features(features.detach(), batch.labels, batch.rows))
        return F.cross_entropy(head(features), batch.labels)

    mean_loss = sgd(client, body.parameters(), loss, drop_last=drop_last, max_norm=max_norm)
    if kept == "first":
        passed = passed[: len(passed) // client.task.training.epochs]
    return Features(*(torch.cat(parts) for parts in zip(*passed, strict=True))), mean_loss


def extract(client: Client, drop_last: bool) -> Features:
    """Return the features of the training samples under the loaded body."""
    used = client.num_samples
    incomplete = used % client.task.batch_size
    if drop_last and incomplete < used:
        used -= incomplete
    with client.timer("network"):
        values = extract_features(client, used)
    return Features(values, client.samples.labels[:used], torch.arange(used))


def too_rare(client: Client, features: Features) -> Tensor:
    """Return the classes of which there are features of too few samples to send statistics."""
    return rare_classes(client.samples.labels.cpu()[torch.unique(features.rows)], client.task)
