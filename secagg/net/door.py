"""The door: who wants to come in, and whether it is who it says.

Everybody can knock. Until a client is known it costs little, for a short time, and there are only so many.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass

import trio

from secagg.errors import MalformedMessage, PeerError, SecaggError, UnknownPeer
from secagg.net import packets
from secagg.net.connection import Connection, ConnectionLost, why_broken
from secagg.net.events import ConnectionRefused, OnServerEvent
from secagg.net.packets import Hello, Kind, Reason
from secagg.net.settings import Capacity, Patience
from secagg.net.tls import peer_key

STRANGER = -1  # the id of whoever has not said theirs


@dataclass(frozen=True)
class Guest:
    """A client that is who it says."""

    hello: Hello
    connection: Connection


class Door:
    """Lets clients in. Without a `context` nothing is encrypted, and everybody is believed."""

    def __init__(
        self,
        members: Mapping[int, bytes],
        *,
        context: ssl.SSLContext | None,
        patience: Patience,
        capacity: Capacity,
        on_event: OnServerEvent,
    ) -> None:
        self.members = members
        self._context = context
        self._patience = patience
        self._capacity = capacity
        self._on_event = on_event
        self._strangers: dict[trio.CancelScope, None] = {}  # the oldest first

    async def admit(self, stream: trio.abc.Stream, *, host: str) -> Guest | None:
        """The client at the other end of `stream`, or None; the stream is then closed."""
        self._make_room()
        scope = trio.CancelScope(deadline=trio.current_time() + self._patience.handshake)
        self._strangers[scope] = None
        try:
            with scope:
                return await self._identify(stream)
            self._on_event(ConnectionRefused(host, "did not introduce itself in time"))
        except (SecaggError, trio.BrokenResourceError) as error:
            self._on_event(ConnectionRefused(host, _reason(error)))
        finally:
            self._strangers.pop(scope, None)
        await trio.aclose_forcefully(stream)
        return None

    def _make_room(self) -> None:
        # Whoever has to go counts no more at once, or several could come for the one that goes.
        if len(self._strangers) >= self._capacity.strangers:
            oldest = next(iter(self._strangers))
            del self._strangers[oldest]
            oldest.cancel()

    async def _identify(self, stream: trio.abc.Stream) -> Guest:
        key = b""
        if self._context is not None:
            stream = trio.SSLStream(stream, self._context, server_side=True, https_compatible=True)
            await stream.do_handshake()
            key = peer_key(stream)
        connection = Connection(stream, peer=STRANGER, silence=self._patience.silence)
        kind, body = await connection.read()
        if kind is not Kind.HELLO:
            raise MalformedMessage(STRANGER, "did not introduce itself")
        hello = packets.parse_hello(body, sender=STRANGER)
        if hello.member not in self.members or (key and self.members[hello.member] != key):
            await connection.write([packets.bye(Reason.UNKNOWN)])
            raise UnknownPeer(hello.member, "is not a client of this server, or somebody else's id")
        connection.peer = hello.member
        return Guest(hello, connection)


def _reason(error: Exception) -> str:
    """For the log: short, and never what a stranger wrote."""
    if isinstance(error, PeerError):
        return error.why
    return str(error) if isinstance(error, ConnectionLost) else why_broken(error)
