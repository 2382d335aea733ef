"""The masks of secure aggregation, after Bonawitz et al. (CCS 2017), from parts that exist.

Key agreement, encryption and secret sharing are Flower's (`flwr.common.secure_aggregation`); the
masks are the key stream of AES in counter mode from `cryptography`, on which Flower rests. Flower's
own generator of masks folds its seed to 32 bits, which can be tried out, and is not used.

Masks cancel in a sum of words modulo 2**64: each pair of clients adds and subtracts the same one.
Each client also adds one of its own, which the server takes away with shares that the others hold.
If a client drops out, they give shares of its key for the pairs in place of its own mask; nobody
ever gives both for one client.
"""

import base64
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.fernet import InvalidToken
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from flwr.common.secure_aggregation.crypto.shamir import combine_shares, create_shares
from flwr.common.secure_aggregation.crypto.symmetric_encryption import (
    decrypt,
    encrypt,
    generate_shared_key,
)
from flwr.common.secure_aggregation.secaggplus_utils import (
    share_keys_plaintext_concat,
    share_keys_plaintext_separate,
)
from flwr.supercore.primitives.asymmetric import (
    bytes_to_public_key,
    generate_key_pairs,
    public_key_to_bytes,
)
from torch import Tensor

from pfedfda.errors import PfedfdaError

SEED_BYTES = 32
KEY_BYTES = 48  # of a private key on the curve P-384, which Flower uses
PLACE_BYTES, BLOCK_BYTES = 4, 16  # a share tells its place, and has a block for each of the secret


class ProtocolError(PfedfdaError):
    """What the other side asks for or sends does not fit the protocol."""


@dataclass(frozen=True)
class PublicKeys:
    """What a client shows of its keys of a round.

    Parameters
    ----------
    masks
        With which pairs agree on their masks.
    shares
        With which pairs agree on how to encrypt shares.
    """

    masks: bytes
    shares: bytes

    def refuse_unusable(self) -> None:
        """Refuse what is no public key on the curve of all others."""
        for key in (self.masks, self.shares):
            try:
                public = bytes_to_public_key(key)
            except (ValueError, TypeError, UnsupportedAlgorithm) as error:
                raise ProtocolError("its keys cannot be read") from error
            on_curve = isinstance(public, ec.EllipticCurvePublicKey)
            if not on_curve or not isinstance(public.curve, ec.SECP384R1):
                raise ProtocolError("its keys are not on the curve P-384")


@dataclass(frozen=True)
class Secrets:
    """What a client keeps to itself in a round.

    Parameters
    ----------
    masks, shares
        The private halves of its keys.
    seed
        Of the mask that is its own.
    """

    masks: bytes
    shares: bytes
    seed: bytes

    @classmethod
    def make(cls) -> "Secrets":
        """Draw new keys and a new seed from the system's source of randomness."""
        masks, shares = (_private_bytes(generate_key_pairs()[0]) for _ in range(2))
        return cls(masks, shares, secrets.token_bytes(SEED_BYTES))

    def public(self) -> PublicKeys:
        """Return what others may see."""
        return PublicKeys(*(_public_bytes(key) for key in (self.masks, self.shares)))


@dataclass(frozen=True)
class Party:
    """A client that knows the keys of those with whom it adds up.

    Parameters
    ----------
    number
        Its own number.
    secrets
        Its secrets of the round.
    peers
        The public keys of all, its own among them, by number.
    threshold
        How many shares tell a secret.
    """

    number: int
    secrets: Secrets
    peers: Mapping[int, PublicKeys]
    threshold: int

    def __post_init__(self) -> None:
        peers, needed = self.peers, self.threshold
        if not 2 <= needed <= len(peers) or 2 * needed <= len(peers):
            raise ProtocolError(
                f"the threshold is {needed} of {len(peers)}; it must be at least 2 and more than "
                f"half of them"
            )
        if peers.get(self.number) != self.secrets.public():
            raise ProtocolError("its own keys of this round are not among those of the round")
        keys = [key for public in peers.values() for key in (public.masks, public.shares)]
        if len(set(keys)) < len(keys):
            raise ProtocolError("some keys of the round are the same")

    def shares(self) -> dict[int, bytes]:
        """Return shares of the seed and the key of the masks, encrypted for each by number."""
        numbers = sorted(self.peers)
        parts = [
            create_shares(secret, self.threshold, len(numbers))
            for secret in (self.secrets.seed, self.secrets.masks)
        ]
        return {
            other: encrypt(
                agreed_key(self.secrets.shares, self.peers[other].shares),
                share_keys_plaintext_concat(self.number, other, seed, key),
            )
            for other, seed, key in zip(numbers, *parts, strict=True)
        }

    def mask(self, numbers: Tensor, members: Sequence[int]) -> Tensor:
        """Return whole numbers under the masks.

        Parameters
        ----------
        numbers
            A vector of 64-bit words.
        members
            The clients that have given shares; only they have masks with this one.
        """
        self._refuse_strangers(members)
        masked = numbers + key_stream(self.secrets.seed, len(numbers))
        for other in members:
            if other != self.number:
                seed = pair_seed(self.secrets.masks, self.peers[other].masks)
                _add(masked, key_stream(seed, len(numbers)), self.number < other)
        return masked

    def reveal(self, received: Mapping[int, bytes], survivors: Sequence[int]) -> dict[int, bytes]:
        """Return for each client the share that the server needs: of its seed, or of its key.

        Parameters
        ----------
        received
            The shares that the clients encrypted for this one, by their numbers.
        survivors
            The clients whose masked numbers are in the sum.
        """
        self._refuse_strangers(received)
        if len(set(survivors)) < self.threshold or not set(survivors) <= set(received):
            raise ProtocolError(
                f"{len(set(survivors))} masked contributions are said to be there, and "
                f"{self.threshold} are needed"
            )
        found = {}
        for other, encrypted in received.items():
            try:
                plain = decrypt(
                    agreed_key(self.secrets.shares, self.peers[other].shares), encrypted
                )
            except InvalidToken as error:
                raise ProtocolError("a share that was sent to it cannot be decrypted") from error
            source, target, seed, key = share_keys_plaintext_separate(plain)
            if (source, target) != (other, self.number):
                raise ProtocolError("a share that was sent to it is meant for somebody else")
            found[other] = seed if other in survivors else key
        return found

    def _refuse_strangers(self, numbers: Sequence[int] | Mapping[int, bytes]) -> None:
        if len(set(numbers)) < self.threshold or not {self.number} <= set(numbers) <= set(
            self.peers
        ):
            raise ProtocolError("the members of the round are not those whose keys it knows")


def refuse_odd_shares(shares: Mapping[int, bytes], place: int, survivors: Sequence[int]) -> None:
    """Refuse shares that cannot be what a client has received for others.

    Parameters
    ----------
    shares
        What it revealed, by the number of the owner of the secret.
    place
        Its place among those who share secrets, from 0.
    survivors
        The clients whose seeds are wanted; of the others it is the key.
    """
    for owner, share in shares.items():
        secret = SEED_BYTES if owner in survivors else KEY_BYTES
        blocks = secret // BLOCK_BYTES + 1  # the padding always has a part
        at = int.from_bytes(share[:PLACE_BYTES], "little")
        if len(share) != PLACE_BYTES + BLOCK_BYTES * blocks or at != place + 1:
            raise ProtocolError("its shares are not those that it has received")


def unmask(
    total: Tensor,
    members: Mapping[int, PublicKeys],
    survivors: Sequence[int],
    revealed: Sequence[Mapping[int, bytes]],
    threshold: int,
) -> Tensor:
    """Return the sum of numbers from the sum of masked ones.

    Parameters
    ----------
    total
        The sum of the survivors' masked numbers.
    members
        The keys of those who have masks with each other, by number.
    survivors
        Whose masked numbers are in the sum.
    revealed
        What clients revealed, one after the other.
    threshold
        How many shares tell a secret.
    """
    clear, size = total.clone(), len(total)
    for owner, public in members.items():
        secret = _combine([shares[owner] for shares in revealed[:threshold]])
        if owner in survivors:
            _add(clear, key_stream(secret, size), False)
            continue
        if len(secret) != KEY_BYTES or _public_bytes(secret) != public.masks:
            raise ProtocolError("the shares of a key do not fit together")
        for other in survivors:
            seed = pair_seed(secret, members[other].masks)
            _add(clear, key_stream(seed, size), other > owner)
    return clear


def pair_seed(private: bytes, public: bytes) -> bytes:
    """Return the seed of the mask of a pair, which both find alone."""
    return base64.urlsafe_b64decode(agreed_key(private, public))


def agreed_key(private: bytes, public: bytes) -> bytes:
    """Return the key that one's private and the other's public key give."""
    try:
        return generate_shared_key(_private_key(private), bytes_to_public_key(public))
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise ProtocolError("a key of the round cannot be used") from error


def key_stream(seed: bytes, size: int) -> Tensor:
    """Return words that nobody can tell from random ones without the seed, which is used once."""
    if len(seed) != SEED_BYTES:
        raise ProtocolError("the shares of a seed do not fit together")
    stream = Cipher(algorithms.AES(seed), modes.CTR(bytes(16))).encryptor()
    words = np.frombuffer(bytearray(stream.update(bytes(8 * size))), dtype="<i8")
    return torch.from_numpy(words.astype(np.int64, copy=False))


def _add(total: Tensor, mask: Tensor, positive: bool) -> None:
    if positive:
        total.add_(mask)
    else:
        total.sub_(mask)


def _combine(shares: list[bytes]) -> bytes:
    sizes = {len(share) for share in shares}
    try:
        if len(sizes) > 1 or len({share[:4] for share in shares}) < len(shares):
            raise ValueError("sizes or places")
        return combine_shares(shares)
    except (ValueError, IndexError) as error:
        raise ProtocolError("the shares of a secret do not fit together") from error


def _private_bytes(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_numbers().private_value.to_bytes(KEY_BYTES, "big")


def _private_key(secret: bytes) -> ec.EllipticCurvePrivateKey:
    return ec.derive_private_key(int.from_bytes(secret, "big"), ec.SECP384R1())


def _public_bytes(secret: bytes) -> bytes:
    try:
        return public_key_to_bytes(_private_key(secret).public_key())
    except ValueError as error:
        raise ProtocolError("the shares of a key do not fit together") from error
