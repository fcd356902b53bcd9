"""Bytes that are no message: one example of each thing the decoder does not let pass."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

Malformed = tuple[str, bytes, str]

_TRUST_AT: Final = 5  # behind the array header, version, type and the empty context
_HEADER: Final = 3


def malformed_frames(invitation: bytes) -> Iterator[Malformed]:
    """(name, frame, error), each made from a good invitation by one change."""
    yield from _headers(invitation)
    yield from _fields(invitation)
    yield from _lengths(invitation)


def _headers(good: bytes) -> Iterator[Malformed]:
    yield "nothing", b"", "MalformedMessage"
    header, fields = good[:1], good[0] & 0x0F
    yield "one byte", header, "MalformedMessage"
    yield "not an array", b"\xc4" + good[1:], "MalformedMessage"
    yield "a map", b"\x84" + good[1:], "MalformedMessage"
    yield "an array header in a longer form", b"\xdc\x00" + bytes([fields]) + good[1:], "MalformedMessage"
    yield "one field fewer than announced", bytes([0x90 + fields + 1]) + good[1:], "MalformedMessage"
    yield "one field more than announced", bytes([0x90 + fields - 1]) + good[1:], "MalformedMessage"
    yield "version 0", header + b"\x00" + good[2:], "WrongVersion"
    yield "version 1", header + b"\x01" + good[2:], "WrongVersion"
    yield "version 3", header + b"\x03" + good[2:], "WrongVersion"
    yield "version 3 of a message unknown to version 2", b"\x93\x03\x63\x00", "WrongVersion"
    yield "the version in a longer form", header + b"\xcc\x02" + good[2:], "MalformedMessage"
    yield "the version as text", header + b"\xa12" + good[2:], "MalformedMessage"
    yield "an unknown type", good[:2] + b"\x0a" + good[3:], "MalformedMessage"
    yield "the type in a longer form", good[:2] + b"\xcc\x01" + good[3:], "MalformedMessage"


def _fields(good: bytes) -> Iterator[Malformed]:
    """The third field is an empty byte string, the fourth the trust level, the fifth the key agreement, the
    sixth the number of sums."""
    length = good[_TRUST_AT] & 0x1F
    trust_ends = _TRUST_AT + 1 + length
    sums_at = trust_ends + 1 + (good[trust_ends] & 0x1F)
    trust = good[_TRUST_AT + 1 : trust_ends]

    def with_context(field: bytes) -> bytes:
        return good[:_HEADER] + field + good[_TRUST_AT:]

    def with_trust(field: bytes) -> bytes:
        return good[:_TRUST_AT] + field + good[trust_ends:]

    def with_sums(field: bytes) -> bytes:
        return good[:sums_at] + field + good[sums_at + 1 :]

    bad = "MalformedMessage"
    yield "the length of a byte string in 2 bytes", with_context(b"\xc5\x00\x00"), bad
    yield "the length of a byte string in 4 bytes", with_context(b"\xc6\x00\x00\x00\x00"), bad
    yield "text in place of bytes", with_context(b"\xa0"), bad
    yield "a context where none belongs", with_context(b"\xc4\x01\x00"), bad
    yield "the length of a text in a longer form", with_trust(b"\xd9" + bytes([length]) + trust), bad
    yield "the length of a text in 2 bytes", with_trust(b"\xda\x00" + bytes([length]) + trust), bad
    yield "bytes in place of text", with_trust(b"\xc4" + bytes([length]) + trust), bad
    yield "text that is not ASCII", with_trust(b"\xa2\xc3\xa9"), bad
    yield "an empty text", with_trust(b"\xa0"), bad
    yield "a text of 65 characters", with_trust(b"\xd9\x41" + b"a" * 65), bad
    yield "a number in 1 byte more than it needs", with_sums(b"\xcc\x03"), bad
    yield "a number in 2 bytes more than it needs", with_sums(b"\xcd\x00\x03"), bad
    yield "a number in 4 bytes more than it needs", with_sums(b"\xce\x00\x00\x00\x03"), bad
    yield "a number in 8 bytes more than it needs", with_sums(b"\xcf" + bytes(7) + b"\x03"), bad
    yield "a number in 2 bytes that needs 1", with_sums(b"\xcd\x00\xff"), bad
    yield "a number in 4 bytes that needs 2", with_sums(b"\xce\x00\x00\xff\xff"), bad
    yield "a number in 8 bytes that needs 4", with_sums(b"\xcf" + bytes(4) + b"\xff" * 4), bad
    yield "a signed number", with_sums(b"\xd0\x03"), bad
    yield "a negative number", with_sums(b"\xff"), bad
    yield "a floating-point number", with_sums(b"\xcb" + bytes(8)), bad
    yield "nil", with_sums(b"\xc0"), bad
    yield "true", with_sums(b"\xc3"), bad
    yield "an array inside", with_sums(b"\x90"), bad
    yield "a map inside", with_sums(b"\x80"), bad
    yield "an extension", with_sums(b"\xd4\x00\x00"), bad
    yield "a number above its range", with_sums(b"\x41"), bad


def _lengths(good: bytes) -> Iterator[Malformed]:
    nonce_at = len(good) - 34
    bad = "MalformedMessage"
    yield "a byte behind the message", good + b"\x00", bad
    yield "the message twice", good + good, bad
    yield "the last byte missing", good[:-1], bad
    yield "the second half missing", good[: len(good) // 2], bad
    yield "a nonce of 31 bytes", good[:nonce_at] + b"\xc4\x1f" + good[-31:], bad
    yield "a nonce of 33 bytes", good[:nonce_at] + b"\xc4\x21" + good[-32:] + b"\x00", bad
    yield "a byte string of 4 GB announced", good[:nonce_at] + b"\xc6\xff\xff\xff\xff" + good[-32:], bad
