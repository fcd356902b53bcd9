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
    """The server's answer to `Hello`. `received` counts the frames that the server has got on that link.

    If `resumed` is False, the server does not know the link, and the session on this link is lost.
    """

    resumed: bool
    received: int


@dataclass(frozen=True)
class Begin:
    """Announces a frame of `size` bytes. The sender had received `seen` frames when it made this frame."""

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
    """Return the kind of a packet and the length of its body in bytes, both from its header."""
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


_CHUNKS: Final = 64  # chunks before they are joined: as an object, a tiny chunk takes much more memory


class ConnectionLost(SecaggError):
    """The stream ended, broke or fell silent. The link may continue on another connection."""


def why_broken(error: BaseException) -> str:
    """Return the reason that TLS gave for `error`, or a general one, without any text from the peer."""
    cause = error.__cause__
    reason = getattr(cause, "reason", None) if isinstance(cause, ssl.SSLError) else None
    return f"TLS: {reason.replace('_', ' ').lower()}" if reason else "the connection broke"


class Connection:
    """A stream that carries packets. Only one task may read from it, and only one may write to it.

    `silence` is the number of seconds after which `read` gives up. In this time, a live peer with the same
    setting sends at least four packets, even while it does not read.
    """

    def __init__(self, stream: trio.abc.Stream, *, peer: Peer, silence: float) -> None:
        self._stream = stream
        self._rest = memoryview(b"")  # bytes of the next packets that were received already
        self._torn = False  # whether the last packet may have been sent in part only
        self.peer = peer
        self.silence = silence
        self.bytes_in = 0
        self.bytes_out = 0

    async def read(self) -> tuple[PacketKind, bytes]:
        """Return the kind and the body of the next packet.

        Raises `ConnectionLost` if no packet arrives, and `MalformedMessage` if the bytes are not a packet.
        Other tasks can run between two calls, even if both packets have arrived already.
        """
        await trio.lowlevel.checkpoint()
        try:
            with trio.fail_after(self.silence):
                kind, size = parse_header(await self._take(HEADER.size), sender=self.peer)
                return kind, await self._take(size)
        except trio.TooSlowError:
            raise ConnectionLost("no sign of life") from None

    async def _take(self, size: int) -> bytes:
        """Return the next `size` bytes. The bytes after them are not copied, so short packets cost little."""
        if len(self._rest) < size:
            self._rest = memoryview(await self._gather(size))
        taken, self._rest = bytes(self._rest[:size]), self._rest[size:]
        return taken

    async def _gather(self, size: int) -> bytes:
        """Return at least `size` bytes: the rest of the last chunk, and new chunks as needed."""
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
        """Send all packets in one call, and wait without a time limit until the other side reads them."""
        if self._torn:
            raise ConnectionLost("a packet was torn off")  # the peer would read the next packet as its rest
        data = b"".join(packets)
        self._torn = True
        try:
            await self._stream.send_all(data)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise ConnectionLost(why_broken(error)) from None
        self._torn = False
        self.bytes_out += len(data)

    async def close(self) -> None:
        """Close the stream at once, without waiting for the other side."""
        await trio.aclose_forcefully(self._stream)


def host_of(stream: trio.abc.Stream) -> str:
    """Return the address of the peer's host for the log, or "memory" if `stream` is not a socket."""
    try:
        return str(stream.socket.getpeername()[0]) if isinstance(stream, trio.SocketStream) else "memory"
    except OSError:
        return "nowhere"  # the peer has disconnected already
