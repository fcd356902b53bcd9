"""Packets, the units in which a connection carries bytes: their kinds, how to make them and to parse them.

A packet has a kind, a length and a body of at most 64 KiB. A frame (one encoded message) is split into
packets, so that acknowledgements and keep-alive packets can be sent in between, and so that a reader can
refuse a frame by its announced length before it receives any of it.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from secagg.errors import MalformedMessage, Peer, WrongVersion

TRANSPORT_VERSION: Final = 2
LINK_BYTES: Final = 16
MAX_BODY: Final = 1 << 16
HEADER: Final = struct.Struct(">BI")
_MAGIC: Final = b"secagg"
_HELLO: Final = struct.Struct(f">{len(_MAGIC)}sBI{LINK_BYTES}sQ")
_WELCOME: Final = struct.Struct(">BQ")
_BEGIN: Final = struct.Struct(">IQ")
_COUNT: Final = struct.Struct(">Q")


class PacketKind(IntEnum):
    """The kind of a packet, which is its first byte."""

    HELLO = 1
    WELCOME = 2
    BEGIN = 3
    PIECE = 4
    ACK = 5
    ALIVE = 6
    BYE = 7


class Reason(IntEnum):
    """The reason for which a server ends a connection on purpose."""

    CLOSING = 1  # the server shuts down
    EXCLUDED = 2  # the client broke the protocol; it may connect again for the next session
    REPLACED = 3  # the same client has connected anew
    UNKNOWN = 4  # the client is unknown to this server, or its key is not that of its id


_SIZES: Final = {
    PacketKind.HELLO: range(_HELLO.size, _HELLO.size + 1),
    PacketKind.WELCOME: range(_WELCOME.size, _WELCOME.size + 1),
    PacketKind.BEGIN: range(_BEGIN.size, _BEGIN.size + 1),
    PacketKind.PIECE: range(1, MAX_BODY + 1),
    PacketKind.ACK: range(_COUNT.size, _COUNT.size + 1),
    PacketKind.ALIVE: range(1),
    PacketKind.BYE: range(1, 2),
}


@dataclass(frozen=True)
class Hello:
    """A client's first packet. `received` counts the frames that it got before on the `Link` named `link`."""

    member: int
    link: bytes
    received: int


@dataclass(frozen=True)
class Welcome:
    """The server's answer to `Hello`. `received` counts the frames that the server has got on the link named
    in `Hello`. If `resumed` is False, the server does not know the link, and the session on it is lost."""

    resumed: bool
    received: int


@dataclass(frozen=True)
class Begin:
    """Announces a frame of `size` bytes, made when its sender had received `seen` frames on the link."""

    size: int
    seen: int


def packet(kind: PacketKind, body: bytes = b"") -> bytes:
    return HEADER.pack(kind, len(body)) + body


def hello(member: int, link: bytes, received: int) -> bytes:
    return packet(PacketKind.HELLO, _HELLO.pack(_MAGIC, TRANSPORT_VERSION, member, link, received))


def welcome(*, resumed: bool, received: int) -> bytes:
    return packet(PacketKind.WELCOME, _WELCOME.pack(resumed, received))


def begin(size: int, seen: int) -> bytes:
    return packet(PacketKind.BEGIN, _BEGIN.pack(size, seen))


def ack(received: int) -> bytes:
    return packet(PacketKind.ACK, _COUNT.pack(received))


def bye(reason: Reason) -> bytes:
    return packet(PacketKind.BYE, bytes([reason]))


def parse_header(header: bytes, *, sender: Peer) -> tuple[PacketKind, int]:
    """Return the kind of a packet and its body's length in bytes. Raises `MalformedMessage` if not valid."""
    code, size = HEADER.unpack(header)
    if code not in _SIZES or size not in _SIZES[PacketKind(code)]:
        raise MalformedMessage(sender, "not a packet of this transport")
    return PacketKind(code), size


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
