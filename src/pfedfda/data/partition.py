"""Partitions: which samples belong to which client.

Every function takes the labels (or groups) of all samples and returns one array of sample indices
for each client. No sample belongs to two clients, and the same seed gives the same partition.
"""

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from pfedfda.errors import InputError
from pfedfda.seeding import numpy_generator

Indices = NDArray[np.int64]
MIN_CLIENT_SAMPLES = 2  # one to train on and one to test on
MAX_DRAWS = 20_000


def iid(labels: Indices, clients: int, seed: int) -> list[Indices]:
    """Deal the shuffled samples out evenly: every client has the same distribution.

    Parameters
    ----------
    labels
        The label of every sample.
    clients
        The number of clients; sizes differ by at most one sample.
    seed
        Determines the shuffle.
    """
    _require_enough(len(labels), clients, MIN_CLIENT_SAMPLES)
    order = numpy_generator("partition", "iid", seed).permutation(len(labels))
    return [np.sort(part) for part in np.array_split(order, clients)]


def dirichlet(
    labels: Indices,
    clients: int,
    alpha: float,
    min_samples: int,
    seed: int,
    progress: Callable[[int, int], None] | None = None,
) -> list[Indices]:
    """Split every class over the clients by shares drawn from a Dirichlet distribution.

    This is the paper's partition (appendix, "Non-IID Partitioning"), drawn as the authors' released
    program draws it: a client that already holds its even share of all samples gets nothing of the
    classes that follow, which keeps the sizes in check, and the whole partition is drawn again
    until the smallest client has `min_samples`. It uses numpy's legacy generator, because that is
    what makes seed 42 reproduce the released partitions.

    Parameters
    ----------
    labels
        The label of every sample.
    clients
        The number of clients, M.
    alpha
        Concentration α > 0: small values give clients few classes, large ones tend to iid.
    min_samples
        The smallest size a client may have.
    seed
        Determines the draw.
    progress
        Called with the number of draws so far and the largest number there will be: at α = 0.1 a
        partition may take thousands.
    """
    if not (alpha > 0 and math.isfinite(alpha)):
        raise InputError(f"The Dirichlet concentration alpha is {alpha}; it must be above 0.")
    _require_enough(len(labels), clients, min_samples)
    random = np.random.RandomState(seed)
    even_share = len(labels) / clients
    by_class = [np.flatnonzero(labels == c) for c in np.unique(labels)]
    best = 0
    for draw in range(MAX_DRAWS):
        if progress is not None:
            progress(draw, MAX_DRAWS)
        sizes = np.zeros(clients, dtype=np.int64)
        splits: list[tuple[Indices, Indices]] = []
        for samples in by_class:
            shuffled = samples.copy()
            random.shuffle(shuffled)
            shares = random.dirichlet(np.full(clients, alpha)) * (sizes < even_share)
            total = shares.sum()
            if not total > 0:  # every open client drew a share of exactly zero (tiny alpha)
                break
            cuts = (np.cumsum(shares / total)[:-1] * len(shuffled)).astype(np.int64)
            sizes += np.diff(cuts, prepend=0, append=len(shuffled))
            splits.append((shuffled, cuts))
        else:
            if sizes.min() >= min_samples:
                columns = [np.split(shuffled, cuts) for shuffled, cuts in splits]
                return [np.sort(np.concatenate(parts)) for parts in zip(*columns, strict=True)]
            best = max(best, int(sizes.min()))
    raise InputError(
        f"None of {MAX_DRAWS:,} Dirichlet draws with alpha = {alpha} gave each of {clients} "
        f"clients {min_samples} samples (the best smallest client had {best}): use a larger alpha, "
        f"fewer clients, or a min-samples of at most {max(best, MIN_CLIENT_SAMPLES)}."
    )


def client_dirichlet(
    labels: Indices, clients: int, alpha: float, samples: int, seed: int
) -> list[Indices]:
    """Give every client the same number of samples, of a class mix of its own.

    Each client draws its mix of classes from a Dirichlet distribution and then its samples, one at
    a time and without replacement; a class that has run out is left out of the mix. This is the
    paper's setting of extreme scarcity (Table 3).

    Parameters
    ----------
    labels
        The label of every sample.
    clients
        The number of clients.
    alpha
        Concentration α > 0 of each client's mix of classes.
    samples
        The number of samples of every client.
    seed
        Determines the draw.
    """
    if not (alpha > 0 and math.isfinite(alpha)):
        raise InputError(f"The Dirichlet concentration alpha is {alpha}; it must be above 0.")
    _require_enough(len(labels), clients, samples)
    random = numpy_generator("partition", "client-dirichlet", seed)
    pools = [random.permutation(np.flatnonzero(labels == c)) for c in np.unique(labels)]
    left = np.array([len(pool) for pool in pools])
    parts = []
    for _ in range(clients):
        mix = random.dirichlet(np.full(len(pools), alpha))
        taken: list[Indices] = []
        missing = samples
        while missing:
            open_mix = np.where(left > 0, mix, 0.0)
            if not open_mix.sum() > 0:  # all classes of the mix have run out
                open_mix = left.astype(float)
            counts = np.minimum(random.multinomial(missing, open_mix / open_mix.sum()), left)
            for c in np.flatnonzero(counts):
                taken.append(pools[c][left[c] - counts[c] : left[c]])
            left = left - counts
            missing -= int(counts.sum())
        parts.append(np.sort(np.concatenate(taken)))
    return parts


def shards(labels: Indices, clients: int, classes_per_client: int, seed: int) -> list[Indices]:
    """Give every client exactly k classes, and split each class evenly among its holders.

    Parameters
    ----------
    labels
        The label of every sample.
    clients
        The number of clients.
    classes_per_client
        The number k of classes that a client holds.
    seed
        Determines who holds which class and which samples.
    """
    classes = np.unique(labels)
    if not 1 <= classes_per_client <= len(classes):
        raise InputError(
            f"Shards of {classes_per_client} classes per client were asked for; "
            f"with {len(classes)} classes it must be between 1 and {len(classes)}."
        )
    if clients * classes_per_client < len(classes):
        raise InputError(
            f"{clients} clients with {classes_per_client} classes each cannot hold all "
            f"{len(classes)} classes: use at least {math.ceil(len(classes) / classes_per_client)} "
            f"clients or more classes per client."
        )
    _require_enough(len(labels), clients, MIN_CLIENT_SAMPLES)
    random = numpy_generator("partition", "shards", seed)
    # Each class gets an even number of holders. Always taking the classes with the most places
    # left, ties broken at random, ends with every place filled and no class twice at a client.
    places = np.full(len(classes), clients * classes_per_client // len(classes))
    extra = clients * classes_per_client - places.sum()
    places[random.permutation(len(classes))[:extra]] += 1
    holders: list[list[int]] = [[] for _ in classes]
    for client in range(clients):
        chosen = np.lexsort((random.random(len(classes)), -places))[:classes_per_client]
        places[chosen] -= 1
        for c in chosen:
            holders[c].append(client)
    parts: list[list[Indices]] = [[] for _ in range(clients)]
    for c, members in zip(classes, holders, strict=True):
        shuffled = random.permutation(np.flatnonzero(labels == c))
        for client, part in zip(members, np.array_split(shuffled, len(members)), strict=True):
            parts[client].append(part)
    result = [np.sort(np.concatenate(part)) for part in parts]
    smallest = min(len(part) for part in result)
    if smallest < MIN_CLIENT_SAMPLES:
        raise InputError(
            f"With {clients} clients of {classes_per_client} classes each the smallest client "
            f"would hold {smallest} samples, and each needs {MIN_CLIENT_SAMPLES}: use fewer "
            f"clients."
        )
    return result


def by_group(groups: Indices, clients: int | None, min_samples: int) -> list[Indices]:
    """Make every group (a writer, a folder, a device) one client.

    Parameters
    ----------
    groups
        The group id of every sample.
    clients
        How many groups to use, in order of their ids; all of them when None.
    min_samples
        Groups with fewer samples are left out.
    """
    ids, sizes = np.unique(groups, return_counts=True)
    kept = ids[sizes >= min_samples]
    if len(kept) == 0 or (clients is not None and len(kept) < clients):
        raise InputError(
            f"{clients or 'Some'} clients were asked for, but only {len(kept)} of {len(ids)} "
            f"groups have {min_samples} samples or more: ask for fewer clients or lower "
            f"min-samples (the smallest group has {sizes.min()})."
        )
    order = np.argsort(groups, kind="stable")
    bounds = dict(zip(ids.tolist(), np.split(order, np.cumsum(sizes)[:-1]), strict=True))
    return [bounds[group] for group in kept[:clients].tolist()]


def _require_enough(samples: int, clients: int, min_samples: int) -> None:
    """Refuse a partition that no draw could satisfy."""
    if clients * min_samples > samples:
        fewer = samples // clients
        or_less = f" or fewer samples per client ({fewer})" if fewer >= MIN_CLIENT_SAMPLES else ""
        raise InputError(
            f"{clients} clients with at least {min_samples} samples each need "
            f"{clients * min_samples} samples, and there are {samples}: use fewer clients (there "
            f"is room for {samples // min_samples} at the most){or_less}."
        )
