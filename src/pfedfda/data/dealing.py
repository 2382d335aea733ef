"""Who gets which samples of a source: dealing them to clients, and training and test samples."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pfedfda.data import partition
from pfedfda.data.federation import FederationConfig
from pfedfda.data.sources import Dataset
from pfedfda.errors import InputError
from pfedfda.seeding import numpy_generator


def deal(
    config: FederationConfig,
    dataset: Dataset,
    progress: Callable[[int, int], None] | None,
) -> tuple[list[str], list[NDArray[np.int64]], dict[str, list[Any]]]:
    """Return the names of the clients, the sample indices of each, and their attributes."""
    kind = config.partition
    if kind == "auto":
        kind = "dirichlet" if dataset.groups is None else "group"
    labels, seed = dataset.labels, config.partition_seed
    if kind in ("group", "group-dirichlet"):
        if dataset.groups is None:
            raise InputError(
                f"The partition {kind!r} needs a source with groups, and {config.source!r} has "
                f"none: use client/class/image.png, an array 'client', or --group-column."
            )
        if kind == "group-dirichlet":
            return _deal_inside_groups(config, dataset, dataset.groups, progress)
        minimum = config.min_samples or partition.MIN_CLIENT_SAMPLES
        parts = partition.by_group(dataset.groups, config.clients, minimum)
        return [dataset.group_names[dataset.groups[part[0]]] for part in parts], parts, {}
    clients = config.clients or 50
    if clients > len(labels):
        raise InputError(
            f"{clients} clients were asked for and {config.source!r} has {len(labels)} samples: "
            f"use at most {len(labels) // partition.MIN_CLIENT_SAMPLES} clients."
        )
    if kind == "iid":
        parts = partition.iid(labels, clients, seed)
    elif kind == "shards":
        parts = partition.shards(labels, clients, config.classes_per_client, seed)
    elif kind == "client-dirichlet":
        samples = max(math.ceil(config.samples / config.train_share - 1e-9), config.samples + 1)
        parts = partition.client_dirichlet(labels, clients, config.alpha, samples, seed)
    else:
        minimum = config.min_samples or _usual_minimum(len(labels), clients)
        parts = partition.dirichlet(labels, clients, config.alpha, minimum, seed, progress)
    return [str(client) for client in range(clients)], parts, {}


def _deal_inside_groups(
    config: FederationConfig,
    dataset: Dataset,
    groups: NDArray[np.int64],
    progress: Callable[[int, int], None] | None,
) -> tuple[list[str], list[NDArray[np.int64]], dict[str, list[Any]]]:
    """Split every group over clients of its own by Dirichlet shares."""
    names, parts, domains = [], [], []
    count = config.clients_per_group
    for group, name in enumerate(dataset.group_names):
        members = np.flatnonzero(groups == group)
        minimum = config.min_samples or _usual_minimum(len(members), count)
        inside = partition.dirichlet(
            dataset.labels[members],
            count,
            config.alpha,
            minimum,
            (config.partition_seed + group) % 2**32,
            progress,
        )
        parts += [members[part] for part in inside]
        names += [f"{name}-{client}" for client in range(count)]
        domains += [name] * count
    return names, parts, {"domain": domains}


def _usual_minimum(samples: int, clients: int) -> int:
    """Return the smallest size of a client where the user has not given one."""
    return min(10, max(partition.MIN_CLIENT_SAMPLES, samples // clients // 2))


def split(
    config: FederationConfig, parts: list[NDArray[np.int64]]
) -> tuple[NDArray[np.int64], list[int], list[int]]:
    """Shuffle every client's samples and cut them into training and test samples.

    Each client keeps at least one of both. A smaller training fraction keeps the first of the same
    training samples, so that the sets of 25, 50, 75 and 100 % are nested and the test set is one.
    For validation, the last of the kept training samples take the place of the test samples; the
    images of a client begin with the same ones either way, and are corrupted alike.
    """
    order, train_sizes, test_sizes = [], [], []
    for client, part in enumerate(parts):
        random = numpy_generator("split", config.partition_seed, client)
        shuffled = random.permutation(part)
        cut = min(max(int(len(part) * config.train_share + 1e-9), 1), len(part) - 1)
        kept = max(round(cut * config.train_fraction), 1)
        kept = min(kept, config.train_samples or kept)
        if config.validation_share:
            if kept < 2:
                raise InputError(
                    f"Client {client} has one training sample, and validation needs a second: "
                    f"raise min-samples or train-fraction, or set validation-share to 0."
                )
            held_out = min(max(round(kept * config.validation_share), 1), kept - 1)
            order.append(shuffled[:kept])
            train_sizes.append(kept - held_out)
            test_sizes.append(held_out)
        else:
            order += [shuffled[:kept], shuffled[cut:]]
            train_sizes.append(kept)
            test_sizes.append(len(part) - cut)
    return np.concatenate(order), train_sizes, test_sizes
