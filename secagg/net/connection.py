"""One connection: packets over a byte stream that may be slow, cut off or hostile."""

from __future__ import annotations

import ssl
from collections.abc import Iterable

import trio

from secagg.errors import Peer, SecaggError
from secagg.net.packets import HEADER, MAX_BODY, Kind, parse_header


class ConnectionLost(SecaggError):
    """The stream ended, broke or fell silent. Nobody broke the protocol; the link may go on elsewhere."""


def why_broken(error: BaseException) -> str:
    """What TLS or the network gave as a reason; never what the other side wrote."""
    cause = error.__cause__
    if isinstance(cause, ssl.SSLError) and cause.reason:
        return f"TLS: {cause.reason.replace('_', ' ').lower()}"
    return "the connection broke"


class Connection:
    """A stream that carries packets. One task reads, one task writes.

    `silence` is how many seconds the other side may send nothing while it is listened to. A live one gives a
    sign at least four times as often, even while it is not ready to read.
    """

    def __init__(self, stream: trio.abc.Stream, *, peer: Peer, silence: float) -> None:
        self._stream = stream
        self._buffer = bytearray()
        self.peer = peer
        self.silence = silence
        self.bytes_in = 0
        self.bytes_out = 0

    async def read(self) -> tuple[Kind, bytes]:
        """The next packet. Raises `ConnectionLost`, or `MalformedMessage` if it is none."""
        kind, size = parse_header(await self._take(HEADER.size), sender=self.peer)
        return kind, await self._take(size)

    async def _take(self, size: int) -> bytes:
        buffer = self._buffer
        while len(buffer) < size:
            buffer += await self._receive()
        taken = bytes(buffer[:size])
        del buffer[:size]
        return taken

    async def _receive(self) -> bytes:
        try:
            with trio.fail_after(self.silence):
                data = bytes(await self._stream.receive_some(MAX_BODY))
        except trio.TooSlowError:
            raise ConnectionLost("no sign of life") from None
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise ConnectionLost(why_broken(error)) from None
        if not data:
            raise ConnectionLost("the connection was closed")
        self.bytes_in += len(data)
        return data

    async def write(self, packets: Iterable[bytes]) -> None:
        """Send packets as one piece, for as long as the other side takes to read them."""
        data = b"".join(packets)
        try:
            await self._stream.send_all(data)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise ConnectionLost(why_broken(error)) from None
        self.bytes_out += len(data)

    async def close(self) -> None:
        """At once, whatever the other side does."""
        await trio.aclose_forcefully(self._stream)
