"""Letters: the messages in which an engine, such as Flower or NVFlare, carries byte streams.

An engine does not connect two processes. It carries a message from its server to a node, and one reply back.
A letter is the content of such a message or reply. It has segments of streams, each with its position, so
that letters may arrive twice or in another order. The engine can read a letter, and finds TLS records in it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from secagg.errors import MalformedMessage, Peer

KEY_BYTES: Final = 16
INSTANCE_BYTES: Final = 8
MAX_SEGMENTS: Final = 8  # of one letter: a node has one stream, or a few while an old one ends
MAX_DATA: Final = 8 << 20  # bytes of streams in one letter
MAX_LETTERS: Final = 4  # that a node has not answered
GATHER: Final = 0.03  # seconds in which further bytes join those that are about to be sent
FAREWELL: Final = 5.0  # seconds to send what is left at the end
_MAGIC: Final = b"secagg letter 1\n"
_HEAD: Final = struct.Struct(f">{len(_MAGIC)}s{INSTANCE_BYTES}sQBB")
_SEGMENT: Final = struct.Struct(f">{KEY_BYTES}sBQQI")
_OPEN, _END, _RESET = 1, 2, 4
_FLAGS: Final = (0, _OPEN, _END, _OPEN | _END, _RESET)


@dataclass(frozen=True, kw_only=True)
class Segment:
    """A part of the stream `key`: the bytes `data` from position `start` on.

    `limit`     position up to which the sender of this segment accepts bytes of the stream.
    `is_first`  the sender, which has opened the stream, does not know yet whether the other side knows it.
    `is_last`   no bytes follow.
    `is_reset`  the sender does not know the stream, or has lost a part of it.
    """

    key: bytes
    limit: int = 0
    start: int = 0
    data: bytes = field(default=b"", repr=False)
    is_first: bool = False
    is_last: bool = False
    is_reset: bool = False


@dataclass(frozen=True)
class Letter:
    """What an engine carries. `instance` is a random name of the server's end, for one node. The server takes
    another one if letters were lost, and another process of it does. It numbers its letters, and a reply has
    `instance` and `number` of the letter that it answers. `has_more`: the sender has more to send at once."""

    instance: bytes
    number: int = 0
    segments: tuple[Segment, ...] = ()
    has_more: bool = False

    @property
    def has_stream(self) -> bool:
        """Whether it has a segment of a stream that is not lost."""
        return any(not each.is_reset for each in self.segments)

    def encode(self) -> bytes:
        head = _HEAD.pack(_MAGIC, self.instance, self.number, self.has_more, len(self.segments))
        return b"".join([head, *(part for each in self.segments for part in _encoded(each))])


def _encoded(segment: Segment) -> Iterator[bytes]:
    flags = _OPEN * segment.is_first | _END * segment.is_last | _RESET * segment.is_reset
    yield _SEGMENT.pack(segment.key, flags, segment.limit, segment.start, len(segment.data))
    yield segment.data


def parse_letter(content: bytes, *, sender: Peer) -> Letter:
    """Return the letter in `content`. Raises `MalformedMessage` if it is none."""
    if not _HEAD.size <= len(content) <= _HEAD.size + MAX_SEGMENTS * _SEGMENT.size + MAX_DATA:
        raise MalformedMessage(sender, "a letter of a length that none has")
    magic, instance, number, has_more, count = _HEAD.unpack_from(content)
    if magic != _MAGIC or has_more > 1 or count > MAX_SEGMENTS:
        raise MalformedMessage(sender, "not a letter of this transport")
    segments, place = [], _HEAD.size
    for _ in range(count):
        segment, place = _parsed(content, place, sender)
        segments.append(segment)
    if place != len(content):
        raise MalformedMessage(sender, "a letter with bytes at its end")
    return Letter(instance, number, tuple(segments), bool(has_more))


def _parsed(content: bytes, place: int, sender: Peer) -> tuple[Segment, int]:
    begin = place + _SEGMENT.size
    if begin > len(content):
        raise MalformedMessage(sender, "a letter that ends early")
    key, flags, limit, start, size = _SEGMENT.unpack_from(content, place)
    if flags not in _FLAGS or begin + size > len(content) or (flags == _RESET and size):
        raise MalformedMessage(sender, "a letter with a segment that is none")
    segment = Segment(
        key=key,
        limit=limit,
        start=start,
        data=content[begin : begin + size],
        is_first=bool(flags & _OPEN),
        is_last=bool(flags & _END),
        is_reset=bool(flags & _RESET),
    )
    return segment, begin + size
