"""Hybrid keys for the verifier: ML-KEM-768, pair secrets and deposits.

Written from section 4.7 of docs/protocol.md; it shares no code with the package. Only ML-KEM itself is that
of `cryptography`.
"""

from functools import cache
from typing import Any

from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey

from tests.verifier_tools import digest, framed, hkdf, need, u32

HYBRID = "x25519+ml-kem-768"
CIPHERTEXT_BYTES = 1088


@cache
def kem_public(seed: str) -> bytes:
    return MLKEM768PrivateKey.from_seed_bytes(bytes.fromhex(seed)).public_key().public_bytes_raw()


@cache
def decapsulated(seed: str, ciphertext: bytes) -> bytes:
    need(len(ciphertext) == CIPHERTEXT_BYTES, "no ciphertext of ML-KEM-768")
    return MLKEM768PrivateKey.from_seed_bytes(bytes.fromhex(seed)).decapsulate(ciphertext)


@cache
def mask_key(secret: bytes, hybrid: bool) -> bytes:
    """The X25519 secret that belongs to the dealt secret of a mask key."""
    return hkdf(secret, b"", framed("mask key")) if hybrid else secret


def pair_secret(session: bytes, ends: dict[int, dict[str, Any]], index: int) -> bytes:
    """Of two clients and a sum. `ends` has what each of them encapsulated for the other, by its id."""
    (low, mine), (high, theirs) = sorted(ends.items())
    kem = bytes.fromhex(mine["secret"] + theirs["secret"])
    texts = digest("ciphertexts", bytes.fromhex(mine["ciphertext"]), bytes.fromhex(theirs["ciphertext"]))
    root = hkdf(kem, session, framed("pair root", u32(low), u32(high), texts))
    return hkdf(root, session, framed("pair secret", u32(index)))


def pair_secret_tag(session: bytes, one: int, other: int, index: int, secret: bytes) -> bytes:
    numbers = map(u32, (min(one, other), max(one, other), index))
    return digest("pair secret tag", session, *numbers, secret)


def opened_deposit(value: bytes, secret: bytes, session: bytes, owner: int, peer: int, index: int) -> bytes:
    """A pair secret from its deposit, or the deposit from the pair secret: what hides it is only added."""
    pad = hkdf(secret, session, framed("deposit", u32(owner), u32(peer), u32(index)))
    return bytes(a ^ b for a, b in zip(value, pad, strict=True))
