"""The wire format: a subset of MessagePack with exactly one encoding per value.

A frame is one array of unsigned integers, byte strings and short ASCII strings. A list inside a message is
one byte string of fixed-size records. `encode_fields` encodes frames with the package msgpack, but
copies long byte strings directly. `Reader` decodes frames. It replaces the decoder of msgpack, which would
build all objects of a hostile frame before they can be checked (an empty array takes one byte in the frame
and 56 in memory), and would accept integers in longer forms than needed.
"""

from __future__ import annotations

from itertools import chain
from typing import Final, TypeGuard

import msgpack

from secagg.errors import MalformedMessage, Peer

_UINT_FORMS: Final = {0xCC: (1, 0x80), 0xCD: (2, 1 << 8), 0xCE: (4, 1 << 16), 0xCF: (8, 1 << 32)}
_BLOB_FORMS: Final = {0xC4: (1, 0), 0xC5: (2, 1 << 8), 0xC6: (4, 1 << 16)}
_MAX_TEXT: Final = 64
_LONG: Final = 1 << 16  # bytes; the length of a string from here on is written in the longest form


def encode_fields(*fields: int | bytes | str) -> bytes:
    """Return `fields` (at most 15) as a frame: the one valid encoding of an array of these fields."""
    if any(map(_is_long, fields)):
        return b"".join([bytes([0x90 | len(fields)]), *chain.from_iterable(map(_pieces, fields))])
    packed: bytes = msgpack.packb(fields)
    return packed


def _is_long(field: int | bytes | str) -> TypeGuard[bytes]:
    return isinstance(field, bytes) and len(field) >= _LONG


def _pieces(field: int | bytes | str) -> tuple[bytes, ...]:
    if _is_long(field):
        return b"\xc6" + len(field).to_bytes(4, "big"), field
    return (msgpack.packb(field),)


class Reader:
    """Reads a frame field by field. Raises `MalformedMessage` for a field not in its one valid encoding."""

    def __init__(self, frame: bytes, *, sender: Peer) -> None:
        self._frame = frame
        self._at = 0
        self._sender = sender

    def fail(self, why: str) -> MalformedMessage:
        return MalformedMessage(self._sender, why)

    def array(self, size: int) -> None:
        """Read the frame's header. Raises `MalformedMessage` unless it counts `size` (at most 15) fields."""
        if self._byte() != 0x90 | size:
            raise self.fail(f"not an array of {size} fields")

    def uint(self) -> int:
        lead = self._byte()
        return lead if lead < 0x80 else self._sized(lead, _UINT_FORMS)

    def blob(self) -> bytes:
        return self._take(self._sized(self._byte(), _BLOB_FORMS))

    def text(self) -> str:
        lead = self._byte()
        size = lead & 0x1F if lead >> 5 == 0b101 else self._sized(lead, {0xD9: (1, 32)})
        raw = self._take(size)
        if size > _MAX_TEXT or not raw.isascii():
            raise self.fail(f"text must be at most {_MAX_TEXT} ASCII characters")
        return raw.decode("ascii")

    def end(self) -> None:
        if self._at != len(self._frame):
            raise self.fail("bytes after the end of the message")

    def _sized(self, lead: int, forms: dict[int, tuple[int, int]]) -> int:
        """Read the integer that follows the type byte `lead`, which was already read, and return it. `forms`
        maps each allowed type byte to (width of the integer in bytes, least value of that width). Raises
        `MalformedMessage` for another type byte, or if a shorter form would have been enough."""
        if lead not in forms:
            raise self.fail("a field of another type")
        width, least = forms[lead]
        value = int.from_bytes(self._take(width), "big")
        if value < least:
            raise self.fail("a number in a longer form than it needs")
        return value

    def _byte(self) -> int:
        return self._take(1)[0]

    def _take(self, count: int) -> bytes:
        stop = self._at + count
        if stop > len(self._frame):
            raise self.fail("the message ends too early")
        taken = self._frame[self._at : stop]
        self._at = stop
        return taken
