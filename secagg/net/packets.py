"""Packets, the units in which a connection carries bytes: their kinds, how to make them and to parse them.

A packet has a kind, a length and a body of at most 64 KiB. A frame (one encoded message) is split into
packets, so that acknowledgements and keep-alive packets can be sent in between, and so that a reader can
refuse a frame by its announced length before it receives any of it.
"""

from __future__ import annotations

import struct
from collections.abc import Collection
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from secagg.errors import MalformedMessage, ParameterError, Peer
from secagg.net.versions import NEWEST, OWN_VERSIONS, AgreedVersions, SpokenVersions, VersionRange

LINK_BYTES: Final = 16
MAX_BODY: Final = 1 << 16
HEADER: Final = struct.Struct(">BI")
_MAGIC: Final = b"secagg"
_HELLO: Final = struct.Struct(f">{len(_MAGIC)}sBI{LINK_BYTES}sQ")
_VERSIONS: Final = struct.Struct(">BBBB")
HELLO_BYTES: Final = _HELLO.size
_WELCOME: Final = struct.Struct(">BBBQ")
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
    VERSIONS = 8


class Reason(IntEnum):
    """The reason for which a server ends a connection on purpose."""

    CLOSING = 1  # the server shuts down
    EXCLUDED = 2  # the client broke the protocol; it may connect again for the next session
    REPLACED = 3  # the same client has connected anew
    UNKNOWN = 4  # the client is unknown to this server, or its key is not that of its id
    VERSIONS = 5  # client and server have no version in common; the versions of the server follow


# Hello, versions, welcome and bye stay the same in all transport versions from 3 on, so that any two sides
# can tell each other which versions they speak.
_SIZES: Final[dict[PacketKind, Collection[int]]] = {
    PacketKind.HELLO: range(HELLO_BYTES, HELLO_BYTES + 1),
    PacketKind.WELCOME: range(_WELCOME.size, _WELCOME.size + 1),
    PacketKind.BEGIN: range(_BEGIN.size, _BEGIN.size + 1),
    PacketKind.PIECE: range(1, MAX_BODY + 1),
    PacketKind.ACK: range(_COUNT.size, _COUNT.size + 1),
    PacketKind.ALIVE: range(1),
    PacketKind.BYE: (1, 1 + _VERSIONS.size),
    PacketKind.VERSIONS: range(_VERSIONS.size, _VERSIONS.size + 1),
}


@dataclass(frozen=True)
class Hello:
    """A client's first packet. `received` counts the frames that it got before on the `Link` named `link`.
    `transport` is the highest transport version that the client speaks."""

    member: int
    link: bytes
    received: int
    transport: int = OWN_VERSIONS.transport.highest


@dataclass(frozen=True)
class Welcome:
    """The server's answer to `Hello`. `received` counts the frames that the server has got on the link named
    in `Hello`. If `resumed` is False, the server does not know the link, and the session on it is lost.
    `versions` are those that the server has chosen among the client's."""

    resumed: bool
    received: int
    versions: AgreedVersions = NEWEST


@dataclass(frozen=True)
class Bye:
    """The server ends the connection for `reason`. `versions` are those that the server speaks; they are None
    unless the reason is `Reason.VERSIONS`."""

    reason: Reason
    versions: SpokenVersions | None


@dataclass(frozen=True)
class Begin:
    """Announces a frame of `size` bytes, made when its sender had received `seen` frames on the link."""

    size: int
    seen: int


def packet(kind: PacketKind, body: bytes = b"") -> bytes:
    return HEADER.pack(kind, len(body)) + body


def hello(member: int, link: bytes, received: int, *, offered: SpokenVersions = OWN_VERSIONS) -> bytes:
    """Return a client's greeting: its hello, and the versions that it offers. The hello has the shape of
    transport version 2. A server that speaks only that one refuses it by its version, and says so."""
    body = _HELLO.pack(_MAGIC, offered.transport.highest, member, link, received)
    return packet(PacketKind.HELLO, body) + packet(PacketKind.VERSIONS, _version_bytes(offered))


def _version_bytes(spoken: SpokenVersions) -> bytes:
    transport, protocol = spoken.transport, spoken.protocol
    assert protocol is not None  # each side knows its own
    return _VERSIONS.pack(transport.lowest, transport.highest, protocol.lowest, protocol.highest)


def welcome(*, resumed: bool, received: int, versions: AgreedVersions = NEWEST) -> bytes:
    body = _WELCOME.pack(versions.transport, versions.protocol, resumed, received)
    return packet(PacketKind.WELCOME, body)


def begin(size: int, seen: int) -> bytes:
    return packet(PacketKind.BEGIN, _BEGIN.pack(size, seen))


def ack(received: int) -> bytes:
    return packet(PacketKind.ACK, _COUNT.pack(received))


def bye(reason: Reason) -> bytes:
    return packet(PacketKind.BYE, bytes([reason]))


def bye_versions(spoken: SpokenVersions) -> bytes:
    """Return a bye for `Reason.VERSIONS`, from a server that speaks the versions `spoken`."""
    return packet(PacketKind.BYE, bytes([Reason.VERSIONS]) + _version_bytes(spoken))


def parse_header(header: bytes, *, sender: Peer) -> tuple[PacketKind, int]:
    """Return the kind of a packet and its body's length in bytes. Raises `MalformedMessage` if not valid."""
    code, size = HEADER.unpack(header)
    if code not in _SIZES or size not in _SIZES[PacketKind(code)]:
        raise MalformedMessage(sender, "not a packet of this transport")
    return PacketKind(code), size


def parse_hello(body: bytes, *, sender: Peer) -> Hello:
    magic, transport, member, link, received = _HELLO.unpack(body)
    if magic != _MAGIC or not transport:
        raise MalformedMessage(sender, "not a packet of this transport")
    return Hello(member, link, received, transport)


def parse_versions(body: bytes, *, sender: Peer) -> SpokenVersions:
    low, high, low_protocol, high_protocol = _VERSIONS.unpack(body)
    try:
        return SpokenVersions(VersionRange(low, high), VersionRange(low_protocol, high_protocol))
    except ParameterError:
        raise MalformedMessage(sender, "versions that are not a range") from None


def parse_welcome(body: bytes, *, sender: Peer) -> Welcome:
    transport, protocol, resumed, received = _WELCOME.unpack(body)
    if resumed > 1:
        raise MalformedMessage(sender, "a welcome that is neither yes nor no")
    return Welcome(bool(resumed), received, AgreedVersions(transport, protocol))


def parse_begin(body: bytes) -> Begin:
    return Begin(*_BEGIN.unpack(body))


def parse_count(body: bytes) -> int:
    count: int = _COUNT.unpack(body)[0]
    return count


def parse_bye(body: bytes, *, sender: Peer) -> Bye:
    try:
        reason = Reason(body[0])
    except ValueError:
        raise MalformedMessage(sender, "an unknown reason to end a connection") from None
    if (reason is Reason.VERSIONS) != (len(body) > 1):
        raise MalformedMessage(sender, "versions without their reason, or the reverse")
    return Bye(reason, parse_versions(body[1:], sender=sender) if len(body) > 1 else None)
