"""Classes of which a client has few samples: no statistics of them are sent.

The mean feature of a class with one sample is that sample's feature, and few samples are little
better hidden. A method that sends class counts, class means or (co)variances leaves the samples of
such classes out before it computes anything of what it sends, and uses them when it personalises.
What follows from training, such as the weights of a body, still depends on all samples.
"""

import torch
from torch import Tensor

from pfedfda.methods.base import Task


def rare_classes(labels: Tensor, task: Task) -> Tensor:
    """Return which classes have samples here, but fewer than the task asks for.

    Parameters
    ----------
    labels : Tensor of shape (n,)
        Those of the samples that statistics are to be made of, each sample once.
    task : Task
        It has the least count.

    Returns
    -------
    Tensor of shape (C,)
        On the CPU.
    """
    counts = torch.bincount(labels.cpu(), minlength=task.num_classes)
    return (counts > 0) & (counts < task.min_class_count)


def without_rare(features: Tensor, labels: Tensor, task: Task) -> tuple[Tensor, Tensor]:
    """Return features and labels without those of rare classes; there may be none left."""
    rare = rare_classes(labels, task)
    if not bool(rare.any()):
        return features, labels
    kept = ~rare[labels.cpu()].to(labels.device)
    return features[kept], labels[kept]
