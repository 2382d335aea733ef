"""Masks that cancel in the sum, with the primitives as they are."""

import itertools
import secrets
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'pfedfda[flower]'")

from flwr.common.secure_aggregation.secaggplus_utils import pseudo_rand_gen

from pfedfda.aggregation import Summation, Terms, choose_aggregation
from pfedfda.aggregation.secure import threshold
from pfedfda.engine.client import client_step
from pfedfda.flower.masking import Party, ProtocolError, Secrets, key_stream, pair_seed, unmask
from pfedfda.methods import all_methods, dry_run, find_method
from pfedfda.runs.config import make_config
from tests.methods.toy import TASK, make_client

SIZE = 50_000  # words, a byte value of which is expected 1,562 times
ALPHA = 1e-6  # so seldom does a proper mask fail a test


def make_parties(clients: int, needed: int) -> dict[int, Party]:
    own = {number: Secrets.make() for number in range(clients)}
    public = {number: secret.public() for number, secret in own.items()}
    return {number: Party(number, own[number], public, needed) for number in own}


def collect(parties: dict[int, Party]) -> dict[int, dict[int, bytes]]:
    """Return what each receives: the shares of all, encrypted for it."""
    boxes = {number: party.shares() for number, party in parties.items()}
    return {to: {sender: box[to] for sender, box in boxes.items()} for to in parties}


def run_protocol(
    numbers: Sequence[Tensor], dropped: Sequence[int], silent: Sequence[int], needed: int
) -> Tensor:
    """Add numbers up while some drop out after sharing, and others before they unmask."""
    parties = make_parties(len(numbers), needed)
    received = collect(parties)
    survivors = [number for number in parties if number not in dropped]
    masked = [parties[n].mask(numbers[n], sorted(parties)) for n in survivors]
    revealed = [parties[n].reveal(received[n], survivors) for n in survivors if n not in silent]
    total = torch.stack(masked).sum(0)
    members = parties[0].peers
    return unmask(total, members, survivors, revealed, needed)


def random_words(seed: int, size: int = 100) -> Tensor:
    words = np.random.default_rng(seed).integers(-(2**63), 2**63, size, dtype=np.int64)
    return torch.from_numpy(words)


@pytest.mark.parametrize(
    ("clients", "dropped", "silent"),
    [(3, [], []), (3, [1], []), (3, [], [0]), (6, [0, 5], []), (6, [3], [1]), (9, [1, 2, 8], [])],
)
def test_the_sum_of_those_who_are_left_is_exact(
    clients: int, dropped: list[int], silent: list[int]
) -> None:
    numbers = [random_words(seed) for seed in range(clients)]
    found = run_protocol(numbers, dropped, silent, threshold(2 / 3, clients))
    kept = [n.tolist() for i, n in enumerate(numbers) if i not in dropped]
    whole = [sum(column) % 2**64 for column in zip(*kept, strict=True)]
    assert [word % 2**64 for word in found.tolist()] == whole


ADDITIVE = sorted(name for name, method in all_methods().items() if method.additive)


@pytest.mark.parametrize("name", ADDITIVE)
def test_the_unmasked_sum_is_the_fixed_point_sum_of_every_method(name: str) -> None:
    """To the bit, with all clients and without one of four."""
    method = find_method(name)()
    config = make_config({name: method}, secure_aggregation=True)
    aggregation = choose_aggregation(config, method)
    state = method.init(TASK)
    clients = [make_client([0, 1, 2, 3, n % 4, 1], client_id=n) for n in range(4)]
    sizes = np.array([client.num_samples for client in clients])
    expected = dry_run(method, TASK, state).up
    summation = aggregation.begin(method, state, expected, sizes)
    assert isinstance(summation, Summation)
    numbers = []
    for client in clients:
        message = method.message(state, client.client_id)
        update = client_step("train", method, client, message).update
        assert update is not None
        terms = Terms(1, summation.needed)
        clear = aggregation.contribution(method, state, update, terms)
        numbers.append(summation.fixed.encode(clear))
    for dropped in ([], [2]):
        found = run_protocol(numbers, dropped, [], summation.needed)
        clear = [n for i, n in enumerate(numbers) if i not in dropped]
        assert torch.equal(found, torch.stack(clear).sum(0))
        assert any(bool(n.any()) for n in clear)


def byte_test(words: Tensor) -> float:
    """Return the smallest p-value of χ² tests that each of a word's eight bytes is uniform."""
    columns = words.numpy().view(np.uint8).reshape(-1, 8)
    return min(
        float(stats.chisquare(np.bincount(columns[:, place], minlength=256)).pvalue)
        for place in range(8)
    )


def bit_test(words: Tensor) -> float:
    """Return the smallest p-value of tests that each bit is 1 half the time."""
    bits = np.unpackbits(words.numpy().view(np.uint8)).reshape(-1, 64)
    ones = bits.sum(0)
    return min(float(stats.binomtest(int(n), len(bits)).pvalue) for n in ones)


def masked_by_one(numbers: Tensor) -> Tensor:
    parties = make_parties(3, 2)
    return parties[1].mask(numbers, [0, 1, 2])


@pytest.mark.parametrize("kind", ["zeros", "ones", "trained", "largest"])
def test_what_the_server_sees_of_one_client_is_uniform(kind: str) -> None:
    generator = torch.Generator().manual_seed(0)
    numbers = {
        "zeros": torch.zeros(SIZE, dtype=torch.int64),
        "ones": torch.ones(SIZE, dtype=torch.int64),
        "trained": (torch.randn(SIZE, generator=generator) * 2**30).long(),
        "largest": torch.full((SIZE,), 2**61),
    }[kind]
    assert min(byte_test(numbers), bit_test(numbers)) < ALPHA  # the tests notice what is bare
    masked = masked_by_one(numbers)
    assert byte_test(masked) > ALPHA / 8
    assert bit_test(masked) > ALPHA / 64
    # Nor does it tell one contribution from another: correlation with what is under it.
    rank = stats.spearmanr(masked.double(), random_words(1, SIZE).double()).pvalue
    assert rank > ALPHA
    if kind == "trained":
        assert stats.spearmanr(masked.double(), numbers.double()).pvalue > ALPHA


def test_one_word_is_uniform_over_rounds_too() -> None:
    """The same contribution in many rounds: each time with other keys."""
    numbers = torch.full((1,), 12345)
    words = torch.cat([masked_by_one(numbers) for _ in range(2000)])
    assert bit_test(words) > ALPHA / 64
    top = words.numpy().view(np.uint64) >> np.uint64(60)
    assert stats.chisquare(np.bincount(top.astype(int), minlength=16)).pvalue > ALPHA


def test_the_uniformity_test_finds_masks_that_are_too_small() -> None:
    """Flower's generator, which is not used: its numbers do not fill a word."""
    (small,) = pseudo_rand_gen(secrets.token_bytes(32), 2**32, [(SIZE,)])
    assert byte_test(torch.from_numpy(small)) < ALPHA
    assert bit_test(torch.from_numpy(small)) < ALPHA


def test_the_uniformity_test_finds_masks_that_are_not_quite_even() -> None:
    words = random_words(3, SIZE)
    skewed = words | torch.from_numpy((np.arange(SIZE) % 8 == 0).astype(np.int64))
    assert bit_test(skewed) < ALPHA


def test_all_but_one_client_and_the_server_see_the_sum_alone() -> None:
    """What is left of a client's masks when all others tell theirs is its own mask."""
    parties = make_parties(4, 3)
    numbers = torch.zeros(SIZE, dtype=torch.int64)
    masked = parties[0].mask(numbers, [0, 1, 2, 3])
    for other in (1, 2, 3):
        seed = pair_seed(parties[other].secrets.masks, parties[0].peers[0].masks)
        masked -= key_stream(seed, SIZE)
    assert byte_test(masked) > ALPHA / 8
    assert torch.equal(masked, key_stream(parties[0].secrets.seed, SIZE))


def test_fewer_shares_than_the_threshold_tell_nothing() -> None:
    numbers = [random_words(seed) for seed in range(5)]
    parties = make_parties(5, 4)
    received = collect(parties)
    total = torch.stack([parties[n].mask(numbers[n], range(5)) for n in range(5)]).sum(0)
    revealed = [parties[n].reveal(received[n], range(5)) for n in range(5)]
    clear = torch.stack(numbers).sum(0)
    assert torch.equal(unmask(total, parties[0].peers, range(5), revealed, 4), clear)
    for few in itertools.combinations(revealed, 3):
        try:
            found = unmask(total, parties[0].peers, range(5), few, 3)
        except ProtocolError:
            continue  # the secret had not even its form
        assert not torch.equal(found, clear)


def test_no_client_gives_both_secrets_of_another() -> None:
    """Whatever the server says, a client gives one share for each, and all together too few."""
    clients, needed = 6, 4
    parties = make_parties(clients, needed)
    received = collect(parties)
    # A server that says to half of them that client 5 survived, and to the others that it did not.
    everybody, without = list(range(clients)), list(range(clients - 1))
    told = {n: everybody if n % 2 else without for n in range(clients)}
    shares = {n: parties[n].reveal(received[n], told[n])[5] for n in range(clients)}
    seeds = [share for n, share in shares.items() if n % 2]
    keys = [share for n, share in shares.items() if not n % 2]
    assert len(seeds) < needed
    assert len(keys) < needed


def test_a_party_refuses_what_would_give_it_away() -> None:
    parties = make_parties(5, 4)
    party, received = parties[1], collect(parties)[1]
    own, public = party.secrets, dict(party.peers)
    with pytest.raises(ProtocolError, match="the threshold is 2 of 5"):
        Party(1, own, public, 2)  # two servers' halves could both be enough
    with pytest.raises(ProtocolError, match="its own keys"):
        Party(1, Secrets.make(), public, 4)
    with pytest.raises(ProtocolError, match="some keys of the round are the same"):
        Party(1, own, public | {4: public[3]}, 4)
    with pytest.raises(ProtocolError, match="not those whose keys it knows"):
        party.mask(random_words(0), [0, 1, 2])  # with too few masks
    with pytest.raises(ProtocolError, match="not those whose keys it knows"):
        party.mask(random_words(0), [0, 1, 2, 7])
    with pytest.raises(ProtocolError, match="3 masked contributions are said to be there"):
        party.reveal(received, [0, 1, 2])
    with pytest.raises(ProtocolError, match="cannot be decrypted"):
        party.reveal(received | {2: received[3]}, [0, 1, 2, 3])


def test_shares_that_do_not_fit_give_no_sum() -> None:
    numbers = [random_words(seed) for seed in range(3)]
    parties = make_parties(3, 2)
    received = collect(parties)
    total = torch.stack([parties[n].mask(numbers[n], range(3)) for n in (0, 1)]).sum(0)
    revealed = [dict(parties[n].reveal(received[n], [0, 1])) for n in (0, 1)]
    members = parties[0].peers
    broken = [revealed[0] | {2: revealed[0][2][:-1] + b"\0"}, revealed[1]]
    for bad in (broken, [revealed[0], revealed[0]], [revealed[0], dict.fromkeys(range(3), b"")]):
        with pytest.raises(ProtocolError, match="do not fit together"):
            unmask(total, members, [0, 1], bad, 2)
