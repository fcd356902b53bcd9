"""Keys: X25519 agreement, HKDF-SHA256 derivation, commitments, and Ed25519 identities.

The seed of a pair mask depends on the session, the sum, its query and spec, the cohort (all clients) and the
roster (those asked); see `mask_context`. If two clients get different values, their masks do not cancel.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NoReturn, TypeAlias

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from secagg.errors import BadKey, BadSignature, Peer
from secagg.hashing import digest, framed

Random: TypeAlias = Callable[[int], bytes]

KEY_BYTES: Final = 32
SIGNATURE_BYTES: Final = 64

_FIELD: Final = (1 << 255) - 19
# u-coordinates of the points of small order on Curve25519 and its twist. Agreement with them gives zero.
_SMALL_ORDER: Final = (
    0,
    1,
    _FIELD - 1,
    325606250916557431795983626356110631294008115727848805560023387167927233504,
    39382357235489614581723060781553021112529911719440698176882885853963445705823,
)


def public_key(secret: bytes) -> bytes:
    """Return the X25519 public key of the private key `secret`, which has 32 bytes."""
    return X25519PrivateKey.from_private_bytes(secret).public_key().public_bytes_raw()


def check_public_key(key: bytes, *, peer: Peer) -> None:
    """Raise `BadKey` if `peer`'s X25519 `key` is not canonical, or makes every shared secret zero."""
    value = int.from_bytes(key, "little")
    if len(key) != KEY_BYTES or value >= _FIELD or value in _SMALL_ORDER:
        raise BadKey(peer, "not the canonical encoding of a public key of full order")


class OneTime:
    """Base class of objects with one-time secrets. `copy` and `pickle` raise `TypeError`, because a copy
    could use the secrets a second time, and a pickle would leak them."""

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"a {type(self).__name__} holds one-time secrets; it cannot be copied or pickled")


class Agreement(OneTime):
    """X25519 key agreement between one private key and many peers' public keys. The secret shared with a peer
    is computed once and kept, because several keys are derived from it."""

    def __init__(self, secret: bytes) -> None:
        self._private = X25519PrivateKey.from_private_bytes(secret)
        self._shared: dict[bytes, bytes] = {}  # peer's public key -> shared point

    def derive(self, peer_key: bytes, *, salt: bytes, info: bytes, more: bytes = b"") -> bytes:
        """Return 32 bytes of HKDF-SHA256 of the X25519 secret shared with `peer_key`, a valid public key, and
        of `more`, another secret of the pair."""
        if peer_key not in self._shared:
            self._shared[peer_key] = self._private.exchange(X25519PublicKey.from_public_bytes(peer_key))
        return hkdf(self._shared[peer_key] + more, salt=salt, info=info)


def hkdf(material: bytes, *, salt: bytes, info: bytes) -> bytes:
    return HKDF(algorithm=hashes.SHA256(), length=32, salt=salt, info=info).derive(material)


# --- inputs to HKDF, and commitments -------------------------------------------------------------


def mask_context(
    *, session: bytes, sum_index: int, query: bytes, spec: bytes, cohort: bytes, roster: bytes
) -> bytes:
    """Return the digest of all values that two clients must agree on for their pair masks to cancel."""
    return digest("mask context", session, _u32(sum_index), query, spec, cohort, roster)


def pair_info(context: bytes, one: int, other: int) -> bytes:
    """Return the HKDF info for the pair mask of clients `one` and `other`, whose order does not matter."""
    low, high = sorted((one, other))
    return framed("pair mask", context, _u32(low), _u32(high))


def self_mask_info(context: bytes, owner: int) -> bytes:
    """Return the HKDF info for the self mask of client `owner`."""
    return framed("self mask", context, _u32(owner))


def self_mask_seed(secret: bytes, *, session: bytes, context: bytes, owner: int) -> bytes:
    """Return the seed of the self mask of client `owner`, derived from its 32-byte self-mask `secret`."""
    return hkdf(secret, salt=session, info=self_mask_info(context, owner))


def noise_info(context: bytes, owner: int, layer: int) -> bytes:
    """Return the HKDF info for the seed of noise component number `layer` of client `owner`."""
    return framed("noise", context, _u32(owner), _u32(layer))


def noise_commitment(secret: bytes, *, owner: int, sum_index: int, layer: int) -> bytes:
    """Return the public commitment to a noise seed `secret`. A reconstructed seed is compared with it."""
    return digest("noise commitment", _u32(owner), _u32(sum_index), _u32(layer), secret)


def envelope_info(sender: int, receiver: int) -> bytes:
    return framed("envelope", _u32(sender), _u32(receiver))


def seed_commitment(secret: bytes, *, owner: int, sum_index: int) -> bytes:
    """Return the public commitment to a self-mask `secret`. A reconstructed secret is compared with it."""
    return digest("self mask commitment", _u32(owner), _u32(sum_index), secret)


def _u32(value: int) -> bytes:
    return value.to_bytes(4, "big")


# --- identities ----------------------------------------------------------------------------------


class Identity:
    """A long-term Ed25519 signing key. A signature covers a `purpose`, and is invalid for any other purpose.

    >>> identity = Identity.generate()
    >>> len(identity.public)
    32
    """

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key

    @classmethod
    def generate(cls) -> Identity:
        return cls(Ed25519PrivateKey.generate())

    @classmethod
    def from_secret(cls, secret: bytes) -> Identity:
        return cls(Ed25519PrivateKey.from_private_bytes(secret))

    @property
    def public(self) -> bytes:
        return self._key.public_key().public_bytes_raw()

    def secret(self) -> bytes:
        """Return the 32 bytes of the private key, which `secagg.net` stores in a key file."""
        return self._key.private_bytes_raw()

    def sign(self, purpose: str, *fields: bytes) -> bytes:
        return self._key.sign(framed(f"signature: {purpose}", *fields))

    def __repr__(self) -> str:
        return f"Identity(public={self.public.hex()})"


def verify(public: bytes, signature: bytes, purpose: str, *fields: bytes, peer: Peer) -> None:
    """Raise `BadSignature`, which names `peer`, if the key `public` did not sign `fields` for `purpose`."""
    key = Ed25519PublicKey.from_public_bytes(public)
    try:
        key.verify(signature, framed(f"signature: {purpose}", *fields))
    except InvalidSignature:
        raise BadSignature(peer, f"signature for {purpose!r} does not verify") from None
