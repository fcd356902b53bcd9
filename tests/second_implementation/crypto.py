"""Hashes, keys, envelopes, shares, tags, signatures and key streams (sections 4 and 5.5)."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence

from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from tests.second_implementation.encoding import u32, u64

PRIME = 2**256 + 297
SHARE = 33
TAG = 16
HYBRID = "x25519+ml-kem-768"

# What signs: a purpose and the fields of 4.5 to a signature. An unsigned session has empty signatures.
Signer = Callable[[str, Sequence[bytes]], bytes]


def framed(purpose: str, *fields: bytes) -> bytes:
    """The string that stands for some fields and their purpose (4.1)."""
    label = f"secagg/1 {purpose}".encode("ascii")
    return b"".join(u64(len(field)) + field for field in (label, *fields))


def tagged(purpose: str, *fields: bytes) -> bytes:
    """The tagged hash H (4.1)."""
    return hashlib.sha256(framed(purpose, *fields)).digest()


def derive(material: bytes, salt: bytes, info: bytes) -> bytes:
    """HKDF-SHA256 to 32 bytes (4.3)."""
    return HKDF(SHA256(), 32, salt, info).derive(material)


def public_key(secret: bytes) -> bytes:
    """The X25519 public key of a secret."""
    return X25519PrivateKey.from_private_bytes(secret).public_key().public_bytes_raw()


def agree(secret: bytes, public: bytes) -> bytes:
    """X(secret, public) of 4.3."""
    return X25519PrivateKey.from_private_bytes(secret).exchange(X25519PublicKey.from_public_bytes(public))


def mask_secret(dealt: bytes, hybrid: bool) -> bytes:
    """The X25519 secret of a mask key, from the secret in column 1 of a row (4.7)."""
    return derive(dealt, b"", framed("mask key")) if hybrid else dealt


# --- Envelopes (4.3, 4.7)


def _envelope_keys(
    session: bytes, agreed: bytes, sender: int, receiver: int, kem: tuple[bytes, bytes]
) -> tuple[bytes, bytes]:
    """Key and additional data of an envelope; `kem` is the KEM's secret and ciphertext, empty without one."""
    info = framed("envelope", u32(sender), u32(receiver))
    return derive(agreed + kem[0], session, info + kem[1]), session + info


def seal(
    session: bytes, agreed: bytes, sender: int, receiver: int, kem: tuple[bytes, bytes], plaintext: bytes
) -> bytes:
    """The envelope from one client to another, with `agreed` of their channel keys."""
    key, data = _envelope_keys(session, agreed, sender, receiver, kem)
    return kem[1] + AESGCM(key).encrypt(bytes(12), plaintext, data)


def unseal(
    session: bytes, agreed: bytes, sender: int, receiver: int, kem: tuple[bytes, bytes], envelope: bytes
) -> bytes | None:
    """The plaintext of an envelope, or nothing if it does not open."""
    key, data = _envelope_keys(session, agreed, sender, receiver, kem)
    try:
        return AESGCM(key).decrypt(bytes(12), envelope[len(kem[1]) :], data)
    except InvalidTag:
        return None


# --- Pair secrets and deposits of hybrid keys (4.7)


def pair_root(
    session: bytes, low: int, high: int, up: tuple[bytes, bytes], down: tuple[bytes, bytes]
) -> bytes:
    """The root of two neighbours; `up` and `down` are secret and ciphertext of both envelopes."""
    info = framed("pair root", u32(low), u32(high), tagged("ciphertexts", up[1], down[1]))
    return derive(up[0] + down[0], session, info)


def pair_secret(session: bytes, root: bytes, k: int) -> bytes:
    """The pair secret of sum k."""
    return derive(root, session, framed("pair secret", u32(k)))


def pair_secret_tag(session: bytes, one: int, other: int, k: int, secret: bytes) -> bytes:
    """The tag of a pair secret, from the two ids in any order."""
    ids = (u32(min(one, other)), u32(max(one, other)))
    return tagged("pair secret tag", session, *ids, u32(k), secret)


def pad_deposit(session: bytes, dealt: bytes, owner: int, peer: int, k: int, secret: bytes) -> bytes:
    """A pair secret to its padded form in the owner's deposit, or back."""
    pad = derive(dealt, session, framed("deposit", u32(owner), u32(peer), u32(k)))
    return bytes(a ^ b for a, b in zip(secret, pad, strict=True))


# --- Seeds (4.3, 4.7)


def mask_context(session: bytes, k: int, query: bytes, spec: bytes, cohort: bytes, roster: bytes) -> bytes:
    """The mask context of a sum, with `query` the digest of the frame."""
    return tagged("mask context", session, u32(k), query, spec, cohort, roster)


def pair_seed(session: bytes, context: bytes, one: int, other: int, agreed: bytes, secret: bytes) -> bytes:
    """The seed of a pair mask; `secret` is the pair secret, empty without hybrid keys."""
    info = framed("pair mask", context, u32(min(one, other)), u32(max(one, other)))
    return derive(agreed + secret, session, info)


def self_seed(session: bytes, context: bytes, owner: int, secret: bytes) -> bytes:
    """The seed of a self mask."""
    return derive(secret, session, framed("self mask", context, u32(owner)))


def noise_stream(session: bytes, context: bytes, owner: int, component: int, seed: bytes) -> bytes:
    """The seed of the key stream from which a component of noise is drawn."""
    return derive(seed, session, framed("noise", context, u32(owner), u32(component)))


class KeyStream:
    """The key stream of a seed, read from its start (5.5)."""

    def __init__(self, seed: bytes) -> None:
        self._cipher = Cipher(AES(seed[:16]), CTR(seed[16:])).encryptor()

    def read(self, size: int) -> bytes:
        """The next bytes."""
        return self._cipher.update(bytes(size))

    def words(self, count: int, size: int) -> list[int]:
        """The next little-endian words of `size` bytes each."""
        data = self.read(count * size)
        return [int.from_bytes(data[i : i + size], "little") for i in range(0, len(data), size)]


# --- Shares and their tags (4.4)


def interpolate(points: dict[int, int], at: int) -> int:
    """The value at `at` of the polynomial of least degree through the points."""
    total = 0
    for x, y in points.items():
        upper = lower = 1
        for other in points:
            if other != x:
                upper = upper * (at - other) % PRIME
                lower = lower * (x - other) % PRIME
        total += y * upper * pow(lower, -1, PRIME)
    return total % PRIME


def is_dealing(secret: bytes, shares: Sequence[bytes], threshold: int) -> bool:
    """Whether the shares at places 0, 1, ... are those of a secret, by a polynomial of the right degree."""
    points = {place + 1: int.from_bytes(share, "big") for place, share in enumerate(shares)}
    basis = {0: int.from_bytes(secret, "big")} | {x: points[x] for x in range(1, threshold)}
    return all(interpolate(basis, x) == y for x, y in points.items())


def recover(points: dict[int, bytes]) -> bytes | None:
    """The secret of the shares at some places, or nothing if it does not have 32 bytes."""
    value = interpolate({place + 1: int.from_bytes(share, "big") for place, share in points.items()}, 0)
    return value.to_bytes(32, "big") if value < 2**256 else None


def share_hash(session: bytes, dealer: int, holder: int, k: int, column: int, share: bytes) -> bytes:
    """The hash of one share."""
    start = framed("share", session, u32(dealer), u32(holder), u32(k))
    return hashlib.sha256(start + u32(column) + share).digest()[:TAG]


def row_hashes(session: bytes, dealer: int, holder: int, k: int, row: Sequence[bytes]) -> list[bytes]:
    """The hashes of all shares of a row, in order of the columns."""
    return [share_hash(session, dealer, holder, k, column, share) for column, share in enumerate(row)]


def row_tag(hashes: Iterable[bytes]) -> bytes:
    """The tag of a row, from the hashes of its shares."""
    return tagged("share row", *hashes)[:TAG]


def tags_digest(tags: bytes) -> bytes:
    """The digest of a dealer's tags for one holder, all sums joined."""
    return tagged("share tags", tags)


def receipt(accepted: Iterable[tuple[int, bytes]]) -> bytes:
    """The receipt of a holder, from the dealers that it accepted and their digests, in order."""
    return tagged("receipt", *(u32(dealer) + digest for dealer, digest in accepted))


def self_mask_commitment(owner: int, k: int, secret: bytes) -> bytes:
    """The commitment to the self-mask secret of sum k."""
    return tagged("self mask commitment", u32(owner), u32(k), secret)


def noise_commitment(owner: int, k: int, component: int, seed: bytes) -> bytes:
    """The commitment to the seed of a component of sum k."""
    return tagged("noise commitment", u32(owner), u32(k), u32(component), seed)


# --- Signatures (4.5)


def signed_string(purpose: str, fields: Sequence[bytes]) -> bytes:
    """What is signed."""
    return framed(f"signature: {purpose}", *fields)


def unsigned(purpose: str, fields: Sequence[bytes]) -> bytes:
    """The signer of a session without signatures."""
    return b""


def signer(secret: bytes) -> Signer:
    """The signer with an Ed25519 secret."""
    key = Ed25519PrivateKey.from_private_bytes(secret)
    return lambda purpose, fields: key.sign(signed_string(purpose, fields))


def verifies(public: bytes, purpose: str, fields: Sequence[bytes], signature: bytes) -> bool:
    """Whether a signature is valid."""
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, signed_string(purpose, fields))
    except InvalidSignature:
        return False
    return True
