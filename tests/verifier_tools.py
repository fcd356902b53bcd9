"""What the verifier is made of: encodings, hashes, keys, masks and shares."""

import hashlib
import hmac
import struct
from collections.abc import Iterable
from functools import cache
from math import prod
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

PRIME = 2**256 + 297


class Rejected(Exception):
    """The transcript is not one of the protocol; says where it goes wrong."""


def need(condition: bool, why: str) -> None:
    if not condition:
        raise Rejected(why)


def pack(value: Any) -> bytes:
    """Canonical MessagePack of short lists, booleans, floats, unsigned integers, text and bytes."""
    if isinstance(value, list):
        head = bytes([0x90 | len(value)]) if len(value) < 16 else b"\xdc" + len(value).to_bytes(2, "big")
        return head + b"".join(map(pack, value))
    if isinstance(value, bool):
        return b"\xc3" if value else b"\xc2"
    if isinstance(value, float):
        return b"\xcb" + struct.pack(">d", value)
    if isinstance(value, str):
        return bytes([0xA0 | len(value)] if len(value) < 32 else [0xD9, len(value)]) + value.encode()
    if isinstance(value, int) and value < 128:
        return bytes([value])
    first, number, tail = (0xCC, value, b"") if isinstance(value, int) else (0xC4, len(value), value)
    width = next(w for w in range(4) if number < 1 << (8 << w))
    return bytes([first + width]) + number.to_bytes(1 << width, "big") + tail


def unpack(data: bytes) -> list[Any]:
    """The fields of a frame: `data` must be the only encoding of them."""
    need(len(data) > 0 and data[0] >> 4 == 9, "not a frame")
    values, at = list[Any](), 1
    try:
        for _ in range(data[0] & 15):
            value, at = _unpacked(data, at)
            values.append(value)
    except (IndexError, UnicodeDecodeError):
        raise Rejected("a frame that is cut off, or text that is not ASCII") from None
    need(pack(values) == data, "not the canonical encoding of a frame")
    return values


def _unpacked(data: bytes, at: int) -> tuple[Any, int]:
    first, at = data[at], at + 1
    if first < 128:
        return first, at
    if first >> 5 == 5:
        return data[at : at + first % 32].decode("ascii"), at + first % 32
    need(first in (0xC4, 0xC5, 0xC6, 0xCC, 0xCD, 0xCE, 0xCF, 0xD9), "not a value of a frame")
    width = 1 << (first & 3 if first != 0xD9 else 0)
    number, at = int.from_bytes(data[at : at + width], "big"), at + width
    if first >> 2 == 0xCC >> 2:
        return number, at
    tail = data[at : at + number]
    return tail.decode("ascii") if first == 0xD9 else tail, at + number


def framed(purpose: str, *fields: bytes) -> bytes:
    chunks = (f"secagg/1 {purpose}".encode(), *fields)
    return b"".join(len(chunk).to_bytes(8, "big") + chunk for chunk in chunks)


def digest(purpose: str, *fields: bytes) -> bytes:
    return hashlib.sha256(framed(purpose, *fields)).digest()


def hkdf(material: bytes, salt: bytes, info: bytes) -> bytes:
    return hmac.digest(hmac.digest(salt, material, "sha256"), info + b"\x01", "sha256")


def u32(*values: int) -> bytes:
    return b"".join(value.to_bytes(4, "big") for value in values)


def private(secret: str) -> X25519PrivateKey:
    return X25519PrivateKey.from_private_bytes(bytes.fromhex(secret))


@cache
def public(secret: str) -> bytes:
    return private(secret).public_key().public_bytes_raw()


@cache
def is_signed(key: bytes, signature: bytes, message: bytes) -> bool:
    try:
        Ed25519PublicKey.from_public_bytes(key).verify(signature, message)
    except InvalidSignature:
        return False
    return True


@cache
def agree(secret: str, other: str, salt: bytes, info: bytes, more: bytes = b"") -> bytes:
    """HKDF of what two X25519 secrets have in common, and of a KEM secret if there is one."""
    return hkdf(private(secret).exchange(private(other).public_key()) + more, salt, info)


# --- tags of shares ----------------------------------------------------------------------------------


@cache
def share_hash(session: bytes, dealer: int, holder: int, index: int, column: int, share: bytes) -> bytes:
    text = framed("share", session, u32(dealer), u32(holder), u32(index)) + u32(column) + share
    return hashlib.sha256(text).digest()[:16]


def row_tag(hashes: Iterable[bytes]) -> bytes:
    return digest("share row", *hashes)[:16]


# --- masks and shares --------------------------------------------------------------------------------


def word_at(seed: bytes, offset: int) -> bytes:
    """The eight bytes of a key stream after the first `offset`."""
    stream = Cipher(algorithms.AES(seed[:16]), modes.CTR(seed[16:])).encryptor()
    return stream.update(bytes(offset + 8))[offset:]


@cache
def keystream(seed: bytes, layout: tuple[tuple[int, int], ...]) -> list[list[int]]:
    """AES-CTR, cut into little-endian words of the width of each (size, bits) in `layout`."""
    stream = Cipher(algorithms.AES(seed[:16]), modes.CTR(seed[16:])).encryptor()
    widths = [(size, next(w for w in (1, 2, 4, 8) if bits <= 8 * w)) for size, bits in layout]
    return [[int.from_bytes(stream.update(bytes(w)), "little") for _ in range(n)] for n, w in widths]


def packed_sum(terms: list[tuple[int, list[list[int]]]], layout: tuple[tuple[int, int], ...]) -> bytes:
    """The sum of sign * vectors modulo 2^b; element i of a part in bits i*b to i*b + b - 1, little-endian."""
    packed = b""
    for k, (size, bits) in enumerate(layout):
        values = [sum(sign * vectors[k][i] for sign, vectors in terms) % 2**bits for i in range(size)]
        packed += sum(v << i * bits for i, v in enumerate(values)).to_bytes((size * bits + 7) // 8, "little")
    return packed


def value_at(x: int, points: dict[int, int]) -> int:
    """The value at `x` of the polynomial through `points`, by Lagrange."""
    others = {a: [b for b in points if b != a] for a in points}
    slopes = {a: pow(prod(a - b for b in others[a]), -1, PRIME) for a in points}
    return sum(points[a] * slopes[a] * prod(x - b for b in others[a]) for a in points) % PRIME


@cache
def are_dealt(secret: str, shares: tuple[str, ...], threshold: int) -> bool:
    """Whether secret and shares lie on a polynomial that any `threshold` of them determine."""
    points = dict(enumerate(int(number, 16) for number in (secret, *shares)))
    base = {x: points[x] for x in range(1, threshold + 1)}
    return all(value_at(x, base) == y for x, y in points.items())
