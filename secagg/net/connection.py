"""A connection, which reads and writes packets on a byte stream that may be slow, cut off or hostile."""

from __future__ import annotations

import ssl
from collections.abc import Iterable
from contextlib import suppress
from typing import Final

import trio

from secagg.errors import Peer, SecaggError
from secagg.net.packets import HEADER, MAX_BODY, PacketKind, parse_header
from secagg.net.tunnel_stream import TunnelStream

LAST_SECONDS: Final = 1.0  # for a client to read why its connection is closed
_MAX_NAME: Final = 100  # characters of a node's name that are logged
_CHUNKS: Final = 64  # chunks before they are joined: as an object, a tiny chunk takes much more memory


class ConnectionLost(SecaggError):
    """The stream ended, broke or fell silent. The `Link` that used it may continue on another connection."""


class StreamEnded(ConnectionLost):
    """The other side closed the stream, or the stream broke, and TLS gives no reason."""


def why_broken(error: BaseException) -> str:
    """Return TLS's reason for `error`, or else "the connection broke"; never any text from the peer."""
    return _tls_reason(error) or "the connection broke"


def _tls_reason(error: BaseException) -> str | None:
    cause = error.__cause__
    reason = getattr(cause, "reason", None) if isinstance(cause, ssl.SSLError) else None
    return f"TLS: {reason.replace('_', ' ').lower()}" if reason else None


def _lost(error: BaseException) -> ConnectionLost:
    return (ConnectionLost if _tls_reason(error) else StreamEnded)(why_broken(error))


class Connection:
    """A stream that carries packets. Only one task may read from it, and only one may write to it. `read`
    gives up after `silence` seconds without a whole packet. In this time, a live peer with the same setting
    sends at least four packets, if only to show that it is alive, even while it does not read. An
    acknowledgement may wait for `ack_delay` seconds until a frame takes it along."""

    def __init__(
        self, stream: trio.abc.Stream, *, peer: Peer, silence: float, ack_delay: float = 0.0
    ) -> None:
        self._stream = stream
        self._rest = memoryview(b"")  # bytes of the next packets that were received already
        self._torn = False  # whether the last packet may have been sent in part only
        self.peer = peer
        self.silence = silence
        self.ack_delay = ack_delay
        self.bytes_in = 0
        self.bytes_out = 0

    async def read(self) -> tuple[PacketKind, bytes]:
        """Return the kind and the body of the next packet. Raises `ConnectionLost` if the stream ends or no
        packet arrives within `silence` seconds, and `MalformedMessage` if the bytes are not a packet. Each
        call lets other tasks run."""
        await trio.lowlevel.checkpoint()
        try:
            with trio.fail_after(self.silence):
                kind, size = parse_header(await self._take(HEADER.size), sender=self.peer)
                return kind, await self._take(size)
        except trio.TooSlowError:
            raise ConnectionLost("no sign of life") from None

    async def _take(self, size: int) -> bytes:
        """Return the next `size` bytes of the stream. Keep further bytes that arrived for the next call."""
        if len(self._rest) < size:
            self._rest = memoryview(await self._gather(size))
        taken, self._rest = bytes(self._rest[:size]), self._rest[size:]
        return taken

    async def _gather(self, size: int) -> bytes:
        """Return the bytes kept from before and new ones from the stream, in all at least `size`."""
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
            raise _lost(error) from None
        if not data:
            raise StreamEnded("the connection was closed")
        self.bytes_in += len(data)
        return data

    async def write(self, packets: Iterable[bytes | memoryview]) -> None:
        """Send all packets in one call. If the other side does not read, wait without a time limit. Raises
        `ConnectionLost` if the stream is broken."""
        if self._torn:
            raise ConnectionLost("a packet was torn off")  # the peer would read the next packet as its rest
        data = b"".join(packets)
        self._torn = True
        try:
            await self._stream.send_all(data)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise _lost(error) from None
        self._torn = False
        self.bytes_out += len(data)

    async def send_last(self, packet: bytes) -> None:
        """Try for at most `LAST_SECONDS` to send the last packet. A lost connection is not an error."""
        with trio.move_on_after(LAST_SECONDS), suppress(ConnectionLost):
            await self.write([packet])

    async def close(self) -> None:
        """Close the stream at once, without waiting for the other side."""
        await trio.aclose_forcefully(self._stream)


def ack_delay_of(stream: trio.abc.Stream) -> float:
    """Return how long acknowledgements may wait on a connection over `stream`."""
    return stream.ack_delay if isinstance(stream, TunnelStream) else 0.0


def host_of(stream: trio.abc.Stream) -> str:
    """Return the peer's address for the log; a node's name if an engine carries `stream`, "memory" if it is
    no socket, "nowhere" if it is closed."""
    if isinstance(stream, TunnelStream):
        return ascii(stream.node)[1:-1][:_MAX_NAME]  # the engine has chosen it
    try:
        return str(stream.socket.getpeername()[0]) if isinstance(stream, trio.SocketStream) else "memory"
    except OSError:
        return "nowhere"  # the peer has disconnected already
