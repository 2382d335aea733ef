"""What secure aggregation costs: bytes and seconds beside a plain run.

    python benchmarks/secure.py                              the arithmetic, in one process
    PYTHONPATH=. python benchmarks/secure.py --deployment    a federation on loopback, with TLS

The first takes the processor seconds of a site and of the server in the four stages, for so many
sites and words, with and without a site that drops out, and counts the bytes that a site sends and
receives beside the model. The second runs FedAvg with the CIFAR CNN at three sites, and counts what
passes between one of them and the SuperLink in a round, as `benchmarks/wire.py` does.
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import torch

from pfedfda.aggregation.secure import threshold
from pfedfda.flower.masking import Party, Secrets, unmask

T = TypeVar("T")
SITES, WORDS = (3, 10, 30), (119_300, 1_000_000)


def timed(work: Callable[[], T]) -> tuple[T, float]:
    start = time.process_time()  # other work on the machine does not count
    return work(), time.process_time() - start


def compute(sites: int, words: int) -> str:
    """Go through a round with a site that drops out, and return a row of the table."""
    needed = threshold(2 / 3, sites)
    own = {n: Secrets.make() for n in range(sites)}
    public = {n: secret.public() for n, secret in own.items()}
    party, setting_up = timed(lambda: Party(0, Secrets(*vars(own[0]).values()), public, needed))
    box, sharing = timed(party.shares)
    parties = {n: Party(n, own[n], public, needed) for n in own}
    boxes = {n: parties[n].shares() if n else box for n in own}
    numbers = torch.zeros(words, dtype=torch.int64)
    members = range(sites)
    masked, masking = timed(lambda: party.mask(numbers, members))
    # Masks of zeros are all that is in the sum, so its parts need not be kept.
    totals = {0: masked.clone(), 1: masked.clone()}
    for n in range(1, sites):
        vector = parties[n].mask(numbers, members)
        totals[0] += vector
        totals[1] += vector if n < sites - 1 else 0
    seconds = {}
    revealing = 0.0
    for dropped, total in totals.items():
        survivors = list(range(sites - dropped))
        revealed = []
        for n in survivors[:needed]:
            received = {sender: boxes[sender][n] for sender in boxes}
            shares, revealing = timed(lambda n=n, r=received, s=survivors: parties[n].reveal(r, s))
            revealed.append(shares)
        clear, seconds[dropped] = timed(
            lambda t=total, s=survivors, r=revealed: unmask(t, public, s, r, needed)
        )
        assert not clear.any()
    keys = sum(len(key) for pair in public.values() for key in (pair.masks, pair.shares))
    ciphertexts = sum(len(share) for share in box.values())
    shares_up = sum(len(share) for share in revealed[0].values())
    up, down = keys // sites + ciphertexts + shares_up, keys + ciphertexts
    at_site = setting_up + sharing + masking + revealing
    return (
        f"| {sites} | {words:,} | {at_site:.3f} | {seconds[0]:.3f} | {seconds[1]:.3f} "
        f"| {up:,} | {down:,} | {8 * words:,} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--deployment", action="store_true", help="measure real processes")
    parser.add_argument("--sites", type=int, nargs="+", default=SITES)
    parser.add_argument("--words", type=int, nargs="+", default=WORDS)
    asked = parser.parse_args()
    if not asked.deployment:
        print("| sites | words | site | unmask | with a dropout | up | down | masked |")
        print("|---|---|---|---|---|---|---|---|")
        for sites in asked.sites:
            for words in asked.words:
                print(compute(sites, words), flush=True)
        return
    from wire import measure  # needs the tests of this repository

    print("| run | tensors up | wire up | wire down | s per round |")
    print("|---|---|---|---|---|")
    for name, more in (("plain", ""), ("secure", "secure-aggregation=true")):
        with tempfile.TemporaryDirectory() as folder:
            found = measure(Path(folder), "fedavg", more, ("second", "third"))
        print(
            f"| {name} | {found['tensors_up']:,.0f} | {found['up']:,.0f} | {found['down']:,.0f} "
            f"| {found['seconds']:.0f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
