"""The primitives of a secure sum: how each call in the package is replayed with nothing around it.

Timers inside a run would cost more than the calls they time. So one session is only *recorded*: each call
of a function listed in `LEAVES` leaves behind a bare call of the library with data of the same sizes. Those
are then timed in a tight loop, and whatever the machines spent beyond them is the Python around.

Shamir's scheme has no library behind it: its integer arithmetic is the primitive. Encoding and codec are
ours as well and are replayed as they are, because they are on the other side of the balance.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from types import ModuleType
from typing import Any, Final, TypeAlias

import numpy as np
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import ArrayLike, NDArray

from benchmarks.costs import Cost
from benchmarks.patches import Function
from secagg import bitmap, hashing, keys, mask_keystream, message_records, messages, shamir
from secagg.input_encoding import Encoding
from secagg.residue_packing import Residues
from secagg.share_envelopes import TAG_BYTES, EnvelopeCipher, PublicKeys

Replay: TypeAlias = Callable[[], object]
_Block: TypeAlias = tuple[
    memoryview, memoryview, NDArray[Any], Residues
]  # zeros, keystream, its words, target

_BLOCK: Final = 1 << 17  # the keystream's, as in secagg.mask_keystream
_NONCE: Final = bytes(12)


@dataclass(frozen=True)
class Leaf:
    """A function of the package, and what to time instead of it: `replay(original, *args, **kwargs)`.

    There is no replay of a call that finds its result made before.
    """

    cost: Cost
    owner: type | ModuleType
    name: str
    replay: Callable[..., Replay | None]


def _itself(original: Function, *args: Any, **kwargs: Any) -> Replay:
    return partial(original, *args, **kwargs)


# --- X25519 and HKDF ------------------------------------------------------------------------------


def _public_key(_: Function, secret: bytes) -> Replay:
    return partial(_raw_public_key, secret)


def _raw_public_key(secret: bytes) -> bytes:
    return X25519PrivateKey.from_private_bytes(secret).public_key().public_bytes_raw()


def _load_key(_: Function, _self: keys.Agreement, secret: bytes) -> Replay:
    return partial(X25519PrivateKey.from_private_bytes, secret)


def _exchange(
    _: Function, agreement: keys.Agreement, peer_key: bytes, *, salt: bytes, info: bytes, more: bytes = b""
) -> Replay | None:
    del salt, info, more  # those are for HKDF, a leaf of its own
    if peer_key in vars(agreement)["_shared"]:
        return None
    return partial(_raw_exchange, X25519PrivateKey.generate(), peer_key)


def _raw_exchange(private: X25519PrivateKey, peer_key: bytes) -> bytes:
    return private.exchange(X25519PublicKey.from_public_bytes(peer_key))


def _hkdf(_: Function, material: bytes, *, salt: bytes, info: bytes) -> Replay:
    return partial(_raw_hkdf, material, salt, info)


def _raw_hkdf(material: bytes, salt: bytes, info: bytes) -> bytes:
    return HKDF(algorithm=hashes.SHA256(), length=32, salt=salt, info=info).derive(material)


# --- AES-GCM, Ed25519, SHA-256 --------------------------------------------------------------------


def _seal(_: Function, _self: EnvelopeCipher, plaintext: bytes, *, receiver: PublicKeys) -> Replay:
    return partial(_raw_seal, bytes(32), plaintext, bytes(32) + keys.envelope_info(0, receiver.member))


def _raw_seal(key: bytes, plaintext: bytes, bound: bytes) -> bytes:
    return AESGCM(key).encrypt(_NONCE, plaintext, bound)


def _open(_: Function, _self: EnvelopeCipher, sealed: bytes, *, sender: PublicKeys) -> Replay:
    bound = bytes(32) + keys.envelope_info(sender.member, 0)
    ours = _raw_seal(bytes(32), bytes(len(sealed) - TAG_BYTES), bound)
    return partial(_raw_open, bytes(32), ours, bound)


def _raw_open(key: bytes, sealed: bytes, bound: bytes) -> bytes:
    return AESGCM(key).decrypt(_NONCE, sealed, bound)


def _sign(_: Function, _self: keys.Identity, purpose: str, *fields: bytes) -> Replay:
    return partial(Ed25519PrivateKey.generate().sign, _signed(purpose, fields))


def _verify(
    _: Function, _public: bytes, _signature: bytes, purpose: str, *fields: bytes, **_peer: object
) -> Replay:
    private, message = Ed25519PrivateKey.generate(), _signed(purpose, fields)
    return partial(_raw_verify, private.public_key().public_bytes_raw(), private.sign(message), message)


def _raw_verify(public: bytes, signature: bytes, message: bytes) -> None:
    Ed25519PublicKey.from_public_bytes(public).verify(signature, message)


def _signed(purpose: str, fields: tuple[bytes, ...]) -> bytes:
    return hashing.framed(f"signature: {purpose}", *fields)


def _digest(_: Function, purpose: str, *fields: bytes) -> Replay:
    return partial(_raw_digest, hashing.framed(purpose, *fields))


def _raw_digest(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


# --- masks ----------------------------------------------------------------------------------------


def _masks(
    _: Function, residues: Iterable[Residues], *, plus: Iterable[bytes], minus: Iterable[bytes]
) -> Replay:
    layout = tuple((len(part), part.dtype.str) for part in residues)
    return partial(_raw_masks, (*plus, *minus), _blocks(layout))


@lru_cache
def _blocks(layout: tuple[tuple[int, str], ...]) -> list[_Block]:
    """Return windows on one vector and one buffer: a machine also adds all its masks to the same residues."""
    buffer = np.empty(_BLOCK, np.uint8)
    windows = [window for size, dtype in layout for window in _windows(np.zeros(size, dtype))]
    blocks = [(buffer[: window.nbytes], window) for window in windows]
    return [(memoryview(bytes(b.nbytes)), b.data, b.view(window.dtype), window) for b, window in blocks]


def _windows(part: Residues) -> list[Residues]:
    step = _BLOCK // part.itemsize
    return [part[start : start + step] for start in range(0, len(part), step)]


def _raw_masks(seeds: Sequence[bytes], blocks: Sequence[_Block]) -> None:
    ciphers = (Cipher(algorithms.AES128(seed[:16]), modes.CTR(seed[16:])) for seed in seeds)
    encryptors = [cipher.encryptor() for cipher in ciphers]
    for zeros, buffer, words, window in blocks:
        for encryptor in encryptors:
            encryptor.update_into(zeros, buffer)
            np.add(window, words, out=window)


# --- encoding -------------------------------------------------------------------------------------


def _encode(
    original: Function,
    encoding: Encoding,
    values: Mapping[str, ArrayLike],
    _stream: mask_keystream.KeyStream,
    *,
    noise: Sequence[mask_keystream.KeyStream] = (),
) -> Replay:
    stream, *others = (
        mask_keystream.KeyStream(bytes(mask_keystream.SEED_BYTES)) for _ in range(1 + len(noise))
    )
    return partial(original, encoding, values, stream, noise=others)


def _on_copies(original: Function, encoding: Encoding, residues: Sequence[Residues], **rest: int) -> Replay:
    """Copy the residues for the replay, because they change after the call."""
    return partial(original, encoding, [part.copy() for part in residues], **rest)


LEAVES: Final = (
    Leaf(Cost.DH, keys, "public_key", _public_key),
    Leaf(Cost.DH, keys.Agreement, "__init__", _load_key),
    Leaf(Cost.DH, keys.Agreement, "derive", _exchange),
    Leaf(Cost.HKDF, keys, "hkdf", _hkdf),
    Leaf(Cost.SHAMIR, shamir, "deal", _itself),
    Leaf(Cost.SHAMIR, shamir, "lagrange_weights", _itself),
    Leaf(Cost.SHAMIR, shamir, "interpolate", _itself),
    Leaf(Cost.AEAD, EnvelopeCipher, "seal", _seal),
    Leaf(Cost.AEAD, EnvelopeCipher, "open", _open),
    Leaf(Cost.SIGN, keys.Identity, "sign", _sign),
    Leaf(Cost.VERIFY, keys, "verify", _verify),
    Leaf(Cost.HASHING, hashing, "digest", _digest),
    Leaf(Cost.MASKS, mask_keystream, "apply_masks", _masks),
    Leaf(Cost.ENCODING, Encoding, "encode", _encode),
    Leaf(Cost.ENCODING, Encoding, "pack", _on_copies),
    Leaf(Cost.ENCODING, Encoding, "unpack", _itself),
    Leaf(Cost.ENCODING, Encoding, "decode", _on_copies),
    Leaf(Cost.CODEC, messages, "decode", _itself),
    Leaf(Cost.CODEC, messages.Message, "encode", _itself),
    Leaf(Cost.CODEC, message_records, "parse_advert", _itself),
    Leaf(Cost.CODEC, message_records, "parse_adverts", _itself),
    Leaf(Cost.CODEC, message_records, "parse_parcels", _itself),
    Leaf(Cost.CODEC, message_records, "parse_envelopes", _itself),
    Leaf(Cost.CODEC, message_records, "parse_signatures", _itself),
    Leaf(Cost.CODEC, message_records, "encode_signatures", _itself),
    Leaf(Cost.CODEC, message_records.Advert, "encode", _itself),
    Leaf(Cost.CODEC, message_records.Parcel, "encode", _itself),
    Leaf(Cost.CODEC, shamir, "shares_to_bytes", _itself),
    Leaf(Cost.CODEC, shamir, "shares_from_bytes", _itself),
    Leaf(Cost.CODEC, bitmap, "pack_positions", _itself),
    Leaf(Cost.CODEC, bitmap, "unpack_positions", _itself),
)
