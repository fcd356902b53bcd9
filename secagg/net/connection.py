"""One connection: packets over a byte stream that may be slow, cut off or hostile."""

from __future__ import annotations

import ssl
from collections.abc import Iterable
from typing import Final

import trio

from secagg.errors import Peer, SecaggError
from secagg.net.packets import HEADER, MAX_BODY, Kind, parse_header

_CHUNKS: Final = 64  # of one packet; tiny ones take many times the memory of what is in them


class ConnectionLost(SecaggError):
    """The stream ended, broke or fell silent. Nobody broke the protocol; the link may go on elsewhere."""


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

    async def read(self) -> tuple[Kind, bytes]:
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
        """Exactly so many bytes. What is here is not moved, so that many short packets do not cost much."""
        if len(self._rest) < size:
            self._rest = memoryview(await self._gather(size))
        taken, self._rest = bytes(self._rest[:size]), self._rest[size:]
        return taken

    async def _gather(self, size: int) -> bytes:
        """At least so many bytes, which are joined once, or now and then if they come one by one."""
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
