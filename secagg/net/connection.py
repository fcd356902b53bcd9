"""A connection: packets over a byte stream that may be slow, cut off or hostile.

A packet has a kind, a length and a body of at most 64 KiB. A frame of a machine is split into packets, so
that acknowledgements and keep-alive packets can be sent in between, and so that a reader can refuse a frame
by its announced length before it receives any of it.
"""

from __future__ import annotations

import ssl
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

import trio

from secagg.errors import MalformedMessage, Peer, SecaggError, WrongVersion

TRANSPORT_VERSION: Final = 1
LINK_BYTES: Final = 16
MAX_BODY: Final = 1 << 16
HEADER: Final = struct.Struct(">BI")
_MAGIC: Final = b"secagg"
_HELLO: Final = struct.Struct(f">{len(_MAGIC)}sBI{LINK_BYTES}sQ")
_WELCOME: Final = struct.Struct(">BQ")
_BEGIN: Final = struct.Struct(">IQ")
_COUNT: Final = struct.Struct(">Q")


class PacketKind(IntEnum):
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
    """Kind and length of a packet, before its body is read."""
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


_CHUNKS: Final = 64  # of one packet; tiny ones take many times the memory of what is in them


class ConnectionLost(SecaggError):
    """The stream ended, broke or fell silent. The link may continue on another connection."""


def why_broken(error: BaseException) -> str:
    """What TLS or the network gave as a reason; never what the other side wrote."""
    cause = error.__cause__
    reason = getattr(cause, "reason", None) if isinstance(cause, ssl.SSLError) else None
    return f"TLS: {reason.replace('_', ' ').lower()}" if reason else "the connection broke"


class Connection:
    """A stream that carries packets. One task reads, one task writes.

    `silence` is how many seconds a packet may take to come, while it is waited for. A live peer sends one at
    least four times as often, even while it is not ready to read.
    """

    def __init__(self, stream: trio.abc.Stream, *, peer: Peer, silence: float) -> None:
        self._stream = stream
        self._rest = memoryview(b"")  # received, and of the next packets
        self._torn = False  # whether the last packet may have left in part only
        self.peer = peer
        self.silence = silence
        self.bytes_in = 0
        self.bytes_out = 0

    async def read(self) -> tuple[PacketKind, bytes]:
        """The next packet. Raises `ConnectionLost`, or `MalformedMessage` if it is none.

        Between two packets others have their turn, even if both are here already.
        """
        await trio.lowlevel.checkpoint()
        try:
            with trio.fail_after(self.silence):
                kind, size = parse_header(await self._take(HEADER.size), sender=self.peer)
                return kind, await self._take(size)
        except trio.TooSlowError:
            raise ConnectionLost("no sign of life") from None

    async def _take(self, size: int) -> bytes:
        """Return exactly `size` bytes, without moving the rest, so that many short packets cost little."""
        if len(self._rest) < size:
            self._rest = memoryview(await self._gather(size))
        taken, self._rest = bytes(self._rest[:size]), self._rest[size:]
        return taken

    async def _gather(self, size: int) -> bytes:
        """Return at least `size` bytes. Chunks are joined once, or repeatedly if they are tiny."""
        chunks: list[bytes | memoryview] = [self._rest]
        missing = size - len(self._rest)
        while missing > 0:
            chunks.append(await self._receive())
            missing -= len(chunks[-1])
            if len(chunks) == _CHUNKS:
                chunks = [b"".join(chunks)]
        return b"".join(chunks)

    async def _receive(self) -> bytes:
        try:
            data = bytes(await self._stream.receive_some(MAX_BODY))
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise ConnectionLost(why_broken(error)) from None
        if not data:
            raise ConnectionLost("the connection was closed")
        self.bytes_in += len(data)
        return data

    async def write(self, packets: Iterable[bytes | memoryview]) -> None:
        """Send packets as one piece, for as long as the other side takes to read them."""
        if self._torn:
            raise ConnectionLost("a packet was torn off")  # what follows would be taken for the rest of it
        data = b"".join(packets)
        self._torn = True
        try:
            await self._stream.send_all(data)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise ConnectionLost(why_broken(error)) from None
        self._torn = False
        self.bytes_out += len(data)

    async def close(self) -> None:
        """At once, whatever the other side does."""
        await trio.aclose_forcefully(self._stream)


def host_of(stream: trio.abc.Stream) -> str:
    """Where a connection comes from, for the log."""
    try:
        return str(stream.socket.getpeername()[0]) if isinstance(stream, trio.SocketStream) else "memory"
    except OSError:
        return "nowhere"  # it has gone already
