"""Validation folds that are stratified by class and never part the copies of one sample."""

import torch
from torch import Tensor


def assign_folds(
    labels: Tensor,
    n_folds: int,
    *,
    sample_ids: Tensor | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Assign each row to one of `n_folds` validation folds.

    Parameters
    ----------
    labels : Tensor of shape (n,)
        The class of each row, int64.
    n_folds : int
        The number of folds k, at least 2.
    sample_ids : Tensor of shape (n,), optional
        Says which rows are copies of one sample, for example the features of one image in
        several epochs: they share an id, and always share a fold. Without it each row is a
        sample of its own, which lets copies fall on both sides of a split.
    generator : torch.Generator, optional
        Shuffles the samples within their class. Without it they are dealt in the order in
        which they first appear when sorted by id.

    Returns
    -------
    Tensor of shape (n,)
        The fold of each row, from 0 to `n_folds` - 1. The samples of each class, and all
        samples together, are spread so that two folds differ by one at most.
    """
    if n_folds < 2:
        raise ValueError(f"n_folds is {n_folds}, but at least 2 folds are needed.")
    sample_labels, sample_of_row = labels_of_samples(labels, sample_ids)
    return deal(sample_labels, n_folds, generator)[sample_of_row]


def deal(sample_labels: Tensor, n_folds: int, generator: torch.Generator | None) -> Tensor:
    """Assign each sample to a fold, by its label."""
    count = sample_labels.shape[0]
    if generator is None:
        order = torch.argsort(sample_labels, stable=True)
    else:
        shuffled = torch.randperm(count, generator=generator)
        order = shuffled[torch.argsort(sample_labels[shuffled], stable=True)]
    # Samples sorted by class are dealt like cards; going on where the last class ended also
    # keeps the folds of equal size.
    folds = torch.empty(count, dtype=torch.int64)
    folds[order] = torch.arange(count) % n_folds
    return folds


def labels_of_samples(labels: Tensor, sample_ids: Tensor | None) -> tuple[Tensor, Tensor | slice]:
    """Return the label of each sample and the sample of each row, as an index."""
    if sample_ids is None:
        return labels, slice(None)
    if sample_ids.shape != labels.shape:
        raise ValueError(
            f"sample_ids has shape {tuple(sample_ids.shape)}, but one id for each of the "
            f"{labels.shape[0]} labels is needed."
        )
    unique, sample_of_row = torch.unique(sample_ids.detach().cpu(), return_inverse=True)
    sample_labels = labels.new_empty(unique.shape[0])
    sample_labels[sample_of_row] = labels
    torn = sample_labels[sample_of_row] != labels
    if bool(torn.any()):
        torn_id = sample_ids.detach().cpu()[torn][0].item()
        raise ValueError(
            f"sample_ids gives the id {torn_id} to rows of different labels, but all copies of a "
            "sample must have one label."
        )
    return sample_labels, sample_of_row
