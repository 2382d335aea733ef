"""Several seeds: which are accepted, and where the runs of each are."""

from collections.abc import Sequence
from pathlib import Path

from pfedfda.errors import InputError

MOST_SEEDS = 1000
SHARED = "initial weights, participation and batches"


def refuse_bad_seeds(seeds: Sequence[int] | None, partition_seeds: Sequence[int] | None) -> None:
    """Refuse no seed at all, a seed that is there twice, and partition seeds that do not fit."""
    if partition_seeds is not None and seeds is None:
        raise InputError("partition-seeds needs seeds, one partition seed for each.")
    if seeds is None:
        return
    if not 1 <= len(seeds) <= MOST_SEEDS:
        raise InputError(
            f"There are {len(seeds)} seeds; name at least one and at most {MOST_SEEDS}."
        )
    for name, values in (("seed", seeds), ("partition seed", partition_seeds or ())):
        twice = [seed for place, seed in enumerate(values) if seed in values[:place]]
        if twice:
            raise InputError(f"The {name} {twice[0]} is there twice; each counts once.")
    if partition_seeds is not None and len(partition_seeds) != len(seeds):
        raise InputError(
            f"There are {len(partition_seeds)} partition seeds for {len(seeds)} seeds; give one "
            f"for each."
        )


def seed_folder(folder: Path, seed: int) -> Path:
    """Return where the runs of a seed are: a folder like that of a comparison with one seed."""
    return folder / f"seed-{seed}"


def what_varies(own_partitions: bool) -> str:
    """Return what a seed draws anew."""
    return f"{SHARED}, and the partition" if own_partitions else f"{SHARED}; one partition"
