"""What travels on a connection: packets of at most 64 KiB, each a kind, a length and a body.

A frame of a machine is cut into pieces, so that acknowledgements and signs of life find a place between
them, and so that a reader can refuse a frame by its announced length before it holds any of it.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from secagg.errors import MalformedMessage, Peer, WrongVersion

TRANSPORT_VERSION: Final = 1
LINK_BYTES: Final = 16
MAX_BODY: Final = 1 << 16
HEADER: Final = struct.Struct(">BI")
_MAGIC: Final = b"secagg"
_HELLO: Final = struct.Struct(f">{len(_MAGIC)}sBI{LINK_BYTES}sQ")
_WELCOME: Final = struct.Struct(">BQ")
_BEGIN: Final = struct.Struct(">IQ")
_COUNT: Final = struct.Struct(">Q")


class Kind(IntEnum):
    """The first byte of a packet."""

    HELLO = 1
    WELCOME = 2
    BEGIN = 3
    PIECE = 4
    ACK = 5
    ALIVE = 6
    BYE = 7


class Reason(IntEnum):
    """Why a server ends a connection on purpose."""

    CLOSING = 1  # it shuts down
    EXCLUDED = 2  # the client broke the protocol; it may come back for the next session
    REPLACED = 3  # the same client has connected anew
    UNKNOWN = 4  # the client is not who it says, or nobody this server knows


_SIZES: Final = {
    Kind.HELLO: range(_HELLO.size, _HELLO.size + 1),
    Kind.WELCOME: range(_WELCOME.size, _WELCOME.size + 1),
    Kind.BEGIN: range(_BEGIN.size, _BEGIN.size + 1),
    Kind.PIECE: range(1, MAX_BODY + 1),
    Kind.ACK: range(_COUNT.size, _COUNT.size + 1),
    Kind.ALIVE: range(1),
    Kind.BYE: range(1, 2),
}


@dataclass(frozen=True)
class Hello:
    """A client's first packet. `received` counts the frames it has from this server on this link."""

    member: int
    link: bytes
    received: int


@dataclass(frozen=True)
class Welcome:
    """The answer. `resumed` says whether the server knows the link; if not, its session is lost."""

    resumed: bool
    received: int


@dataclass(frozen=True)
class Begin:
    """A frame of `size` bytes follows. Its sender had `seen` frames of the other side when it made it."""

    size: int
    seen: int


def packet(kind: Kind, body: bytes = b"") -> bytes:
    return HEADER.pack(kind, len(body)) + body


def hello(member: int, link: bytes, received: int) -> bytes:
    return packet(Kind.HELLO, _HELLO.pack(_MAGIC, TRANSPORT_VERSION, member, link, received))


def welcome(*, resumed: bool, received: int) -> bytes:
    return packet(Kind.WELCOME, _WELCOME.pack(resumed, received))


def begin(size: int, seen: int) -> bytes:
    return packet(Kind.BEGIN, _BEGIN.pack(size, seen))


def ack(received: int) -> bytes:
    return packet(Kind.ACK, _COUNT.pack(received))


def bye(reason: Reason) -> bytes:
    return packet(Kind.BYE, bytes([reason]))


def parse_header(header: bytes, *, sender: Peer) -> tuple[Kind, int]:
    """Kind and length of a packet, before its body is read."""
    code, size = HEADER.unpack(header)
    if code not in _SIZES or size not in _SIZES[Kind(code)]:
        raise MalformedMessage(sender, "not a packet of this transport")
    return Kind(code), size


def parse_hello(body: bytes, *, sender: Peer) -> Hello:
    magic, version, member, link, received = _HELLO.unpack(body)
    if magic != _MAGIC:
        raise MalformedMessage(sender, "not a packet of this transport")
    if version != TRANSPORT_VERSION:
        raise WrongVersion(sender, f"transport version {version}; this side speaks only {TRANSPORT_VERSION}")
    return Hello(member, link, received)


def parse_welcome(body: bytes, *, sender: Peer) -> Welcome:
    resumed, received = _WELCOME.unpack(body)
    if resumed > 1:
        raise MalformedMessage(sender, "a welcome that is neither yes nor no")
    return Welcome(bool(resumed), received)


def parse_begin(body: bytes) -> Begin:
    return Begin(*_BEGIN.unpack(body))


def parse_count(body: bytes) -> int:
    count: int = _COUNT.unpack(body)[0]
    return count


def parse_reason(body: bytes, *, sender: Peer) -> Reason:
    try:
        return Reason(body[0])
    except ValueError:
        raise MalformedMessage(sender, "an unknown reason to end a connection") from None
