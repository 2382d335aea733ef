"""Random generators that depend on what they are for, never on who asks first.

Every random decision of a run has a name, such as ``("train", seed, round, client)``. Its generator
is derived from that name alone, so results do not depend on the order in which clients run, on the
number of workers, or on whether an evaluation took place in between.
"""

import hashlib

import numpy as np
import torch


def derive_seed(*name: str | int) -> int:
    """Return a 63-bit seed that is a fixed function of the parts of a name."""
    digest = hashlib.blake2b(repr(name).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def torch_generator(*name: str | int) -> torch.Generator:
    """Return a CPU generator of torch for the decision of this name."""
    return torch.Generator().manual_seed(derive_seed(*name))


def numpy_generator(*name: str | int) -> np.random.Generator:
    """Return a generator of numpy for the decision of this name."""
    return np.random.default_rng(derive_seed(*name))
