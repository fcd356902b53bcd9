"""Hybrid key agreement: X25519 with ML-KEM-768 against later decryption of recorded messages.

Envelopes are sealed under HKDF of both secrets. Masks need more: a holder of the dealt secret of a drop-out
must be able to compute its pair masks, from either end of a pair, and ML-KEM has no two ends. So the two KEM
secrets of a pair, one from each direction, give a *pair secret* for every sum. Pair masks depend on it and on
X25519. Each end *deposits* the pair secret at the server, under a one-time pad that only its own dealt secret
of that sum opens. A drop-out's dealt secret opens its own deposits of that sum, and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Final, NamedTuple, TypeAlias

from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey, MLKEM768PublicKey

from secagg.argument_checks import one_of
from secagg.errors import BadKey, Peer
from secagg.hashing import DIGEST_BYTES, digest, framed
from secagg.keys import KEY_BYTES, OneTime, hkdf

KEM_KEY_BYTES: Final = 1184
CIPHERTEXT_BYTES: Final = 1088
KEM_SEED_BYTES: Final = 64
PAIR_SECRET_BYTES: Final = 32
SECRET_TAG_BYTES: Final = 32  # a party that chooses half of a pair secret could find a collision of fewer
DEPOSIT_BYTES: Final = PAIR_SECRET_BYTES + SECRET_TAG_BYTES


class KeyAgreement(StrEnum):
    """How clients agree on secrets: by X25519 alone, or also by ML-KEM-768."""

    X25519 = "x25519"
    HYBRID = "x25519+ml-kem-768"

    @classmethod
    def parse(cls, name: str) -> KeyAgreement:
        return one_of(cls, name, "key_agreement")


class Encapsulation(NamedTuple):
    """A KEM secret, and the ciphertext from which only the owner of the public key can compute it."""

    secret: bytes
    ciphertext: bytes

    def __repr__(self) -> str:
        return "Encapsulation()"  # no secret


Encapsulate: TypeAlias = Callable[[bytes], Encapsulation]  # from a public key


def encapsulate(public: bytes) -> Encapsulation:
    return Encapsulation(*MLKEM768PublicKey.from_public_bytes(public).encapsulate())


def check_kem_key(key: bytes, *, peer: Peer) -> None:
    """Raise `BadKey` if `peer`'s ML-KEM `key` is not valid."""
    try:
        MLKEM768PublicKey.from_public_bytes(key)
    except ValueError:
        raise BadKey(peer, "not a public key of ML-KEM-768") from None


class KemKey(OneTime):
    """A private key of ML-KEM-768 for one session, made from a 64-byte `seed`."""

    def __init__(self, seed: bytes) -> None:
        self._private = MLKEM768PrivateKey.from_seed_bytes(seed)

    def public(self) -> bytes:
        return self._private.public_key().public_bytes_raw()

    def open(self, ciphertext: bytes) -> Encapsulation:
        return Encapsulation(self._private.decapsulate(ciphertext), ciphertext)


def mask_key_of(secret: bytes, agreement: KeyAgreement) -> bytes:
    """Return the private X25519 key of a sum that belongs to the dealt `secret`. With X25519 alone, they are
    the same. Otherwise the dealt secret also opens deposits, so each is derived from it."""
    if agreement is KeyAgreement.X25519:
        return secret
    return hkdf(secret, salt=b"", info=framed("mask key"))


def pair_secrets(
    lower: Encapsulation, higher: Encapsulation, *, session: bytes, pair: tuple[int, int], sums: int
) -> list[bytes]:
    """Return the pair secret of each sum of two clients, whose ids `pair` ascend. The client with the lower
    id made `lower` for the other, which made `higher`."""
    ends = map(_u32, pair)
    info = framed("pair root", *ends, digest("ciphertexts", lower.ciphertext, higher.ciphertext))
    root = hkdf(lower.secret + higher.secret, salt=session, info=info)
    return [hkdf(root, salt=session, info=framed("pair secret", _u32(k))) for k in range(sums)]


def secret_tag(secret: bytes, *, session: bytes, pair: tuple[int, int], sum_index: int) -> bytes:
    """Return a public tag of a pair secret: both ends publish it, so that a false deposit shows."""
    return digest("pair secret tag", session, *map(_u32, (*sorted(pair), sum_index)), secret)


def padded(value: bytes, *, secret: bytes, session: bytes, owner: int, peer: int, sum_index: int) -> bytes:
    """Return `value`, a pair secret or its deposit, XOR the one-time pad that client `owner` uses for `peer`.
    The pad depends on the dealt `secret` of the sum."""
    info = framed("deposit", *map(_u32, (owner, peer, sum_index)))
    pad = hkdf(secret, salt=session, info=info)
    return bytes(one ^ other for one, other in zip(value, pad, strict=True))


def _u32(value: int) -> bytes:
    return value.to_bytes(4, "big")


assert PAIR_SECRET_BYTES == KEY_BYTES
assert SECRET_TAG_BYTES == DIGEST_BYTES
