"""The start of a connection: the client connects and sends its id, and the server verifies the id.

Any host can open a connection to the server. Until the peer has authenticated, its connection lasts for a
short time only and takes little memory. The number of such connections is bounded. The two sides also agree
which versions of transport and protocol they use.
"""

from __future__ import annotations

import os
import secrets
import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import trio

from secagg.errors import (
    SERVER,
    MalformedMessage,
    ParameterError,
    PeerError,
    SecaggError,
    UnknownPeer,
    WrongVersion,
)
from secagg.net import packets
from secagg.net.connection import Connection, ConnectionLost, StreamEnded, ack_delay_of, why_broken
from secagg.net.events import ClientIncompatible, ClientVersionsDiffer, ConnectionRefused, OnServerEvent
from secagg.net.packets import Bye, Hello, PacketKind, Reason, Welcome
from secagg.net.reliable_link import DismissedByServer
from secagg.net.settings import Address, Capacity, Patience
from secagg.net.tls import peer_key
from secagg.net.tunnel_dialer import TunnelDialer
from secagg.net.tunnel_stream import TunnelStream
from secagg.net.versions import (
    FIRST_NEGOTIATED,
    OWN_VERSIONS,
    AgreedVersions,
    NoCommonVersion,
    SpokenVersions,
    VersionRange,
)

UNAUTHENTICATED = -1  # the id of a peer that has not authenticated


@dataclass(frozen=True)
class AuthenticatedClient:
    """A client whose id the server has accepted: its first packet, its connection, and agreed versions."""

    hello: Hello
    connection: Connection
    versions: AgreedVersions


class ClientAuthenticator:
    """Authenticates incoming connections. `members` maps the id of each client to its public key. If
    `context` is None, nothing is encrypted and no id is verified. The server speaks the versions `spoken`."""

    def __init__(
        self,
        members: Mapping[int, bytes],
        *,
        context: ssl.SSLContext | None,
        patience: Patience,
        capacity: Capacity,
        on_event: OnServerEvent,
        spoken: SpokenVersions = OWN_VERSIONS,
    ) -> None:
        self.members = members
        self._spoken = spoken
        self._context = context
        self._patience = patience
        self._capacity = capacity
        self._on_event = on_event
        self._pending: dict[trio.CancelScope, None] = {}  # the oldest first

    def renew(self, members: Mapping[int, bytes], context: ssl.SSLContext | None) -> None:
        """Use other members and another context for connections that authenticate from now on. Raises
        `ParameterError` if that would begin or end the use of TLS."""
        if (context is None) != (self._context is None):
            raise ParameterError("a running server cannot begin or end to use TLS", parameter="context")
        self.members, self._context = members, context

    async def authenticate(self, stream: trio.abc.Stream, *, host: str) -> AuthenticatedClient | None:
        """Return the client that authenticates on `stream`. If none does, report it, close, return None."""
        self._limit_pending()
        scope = trio.CancelScope(deadline=trio.current_time() + self._patience.handshake)
        self._pending[scope] = None
        try:
            with scope:
                return await self._identify(stream)
            self._on_event(ConnectionRefused(host, "did not authenticate in time"))
        except NoCommonVersion as error:
            self._on_event(ClientIncompatible(host, error))
        except (SecaggError, trio.BrokenResourceError) as error:
            self._on_event(ConnectionRefused(host, _reason(error)))
        finally:
            self._pending.pop(scope, None)
        await trio.aclose_forcefully(stream)
        return None

    def _limit_pending(self) -> None:
        # The evicted connection is removed at once. Otherwise two calls could evict the same one.
        if len(self._pending) >= self._capacity.strangers:
            oldest = next(iter(self._pending))
            del self._pending[oldest]
            oldest.cancel()

    async def _identify(self, stream: trio.abc.Stream) -> AuthenticatedClient:
        key, delay, only = b"", ack_delay_of(stream), _member_of(stream)
        if self._context is not None:
            stream = trio.SSLStream(stream, self._context, server_side=True, https_compatible=True)
            await stream.do_handshake()
            key = peer_key(stream)
        silence = self._patience.silence
        connection = Connection(stream, peer=UNAUTHENTICATED, silence=silence, ack_delay=delay)
        kind, body = await connection.read()
        if kind is not PacketKind.HELLO:
            raise MalformedMessage(UNAUTHENTICATED, "did not say hello")
        hello = packets.parse_hello(body, sender=UNAUTHENTICATED)
        offered = await _offer_of(hello, connection)
        if hello.member not in self.members or (key and self.members[hello.member] != key):
            await connection.write([packets.bye(Reason.UNKNOWN)])
            raise UnknownPeer(hello.member, "is not a client of this server, or uses another client's id")
        if only not in (None, hello.member):
            await connection.write([packets.bye(Reason.UNKNOWN)])
            raise UnknownPeer(hello.member, f"connects through the node of client {only}")
        connection.peer = hello.member
        return AuthenticatedClient(hello, connection, await self._agree(connection, hello, offered))

    async def _agree(self, connection: Connection, hello: Hello, offered: SpokenVersions) -> AgreedVersions:
        """Return the versions to use. If there are none in common, refuse the client, which is authenticated,
        and raise `NoCommonVersion`."""
        agreed = self._spoken.agree(offered)
        if agreed is None:
            await connection.write([_refusal(hello, self._spoken)])
            raise NoCommonVersion(hello.member, own=self._spoken, theirs=offered)
        if offered != self._spoken:
            self._on_event(ClientVersionsDiffer(hello.member, offered, self._spoken, agreed))
        return agreed


def _member_of(stream: trio.abc.Stream) -> int | None:
    """Return the id of the only client that may connect on `stream`; None if it says nothing about that."""
    return stream.member if isinstance(stream, TunnelStream) else None


async def _offer_of(hello: Hello, connection: Connection) -> SpokenVersions:
    """Return the versions that a client offers. Before `FIRST_NEGOTIATED`, clients name only the one
    transport version that they speak, in their hello."""
    if hello.transport < FIRST_NEGOTIATED:
        return SpokenVersions(VersionRange(hello.transport, hello.transport), protocol=None)
    kind, body = await connection.read()
    if kind is not PacketKind.VERSIONS:
        raise MalformedMessage(UNAUTHENTICATED, "did not say which versions it speaks")
    offered = packets.parse_versions(body, sender=UNAUTHENTICATED)
    if offered.transport.highest != hello.transport:
        raise MalformedMessage(UNAUTHENTICATED, "offers other versions than its hello")
    return offered


def _refusal(hello: Hello, spoken: SpokenVersions) -> bytes:
    """Return the last packet to a client without a common version. A client from before `FIRST_NEGOTIATED`
    understands only the older reasons, and none of them is about versions."""
    old = hello.transport < FIRST_NEGOTIATED
    return packets.bye(Reason.UNKNOWN) if old else packets.bye_versions(spoken)


def _reason(error: Exception) -> str:
    """Return why a connection was refused, for the log, without text that the unauthenticated peer sent."""
    if isinstance(error, PeerError):
        return error.why
    return str(error) if isinstance(error, ConnectionLost) else why_broken(error)


class GreetingUnanswered(ConnectionLost):
    """The server closed the connection and did not answer the greeting. Servers of transport version 2 do so
    if a client speaks another version; a server also does so if it refuses the client's certificate."""

    def __init__(self, error: StreamEnded, offered: SpokenVersions) -> None:
        super().__init__(
            f"{error} before the server answered; its log says why. If it does not speak {offered}, upgrade "
            "the server"
        )


_FIRST: Final = 0.25  # seconds before the second attempt
_LONGEST: Final = 30.0  # seconds between two attempts, at most


class ServerConnector:
    """Opens connections from client `member` to its server, with TLS unless `context` is None: to an address,
    or through a `tunnel`. The client offers to use the versions `offered`. `context` and `server_name`, the
    name by which the client asks for the server's certificate, may change meanwhile."""

    def __init__(
        self,
        address: Address,
        *,
        member: int,
        context: ssl.SSLContext | None,
        patience: Patience,
        offered: SpokenVersions = OWN_VERSIONS,
        tunnel: TunnelDialer | None = None,
    ) -> None:
        self.address = address
        self._tunnel = tunnel
        self.offered = offered
        self._member = member
        self.context = context
        self.server_name: str | None = None
        self._patience = patience

    async def connect(self, link: bytes, received: int) -> tuple[Connection, Welcome]:
        """Connect, and return the connection and the server's answer to the first packet. `link` names the
        `Link` to continue, and `received` is how many frames arrived on it before. Raises `DismissedByServer`
        if the server refuses with a reason, `NoCommonVersion` if it does so because of the versions,
        `ConnectionLost` if the connection fails, and another `PeerError` if the peer is not a server of this
        protocol."""
        try:
            # An engine may run for days before our server does.
            tunnel = None if self._tunnel is None else await self._tunnel.open_stream()
            with trio.fail_after(self._patience.handshake):
                stream = tunnel or await trio.open_tcp_stream(self.address.host, self.address.port)
                return await self._say_hello(stream, link, received)
        except trio.TooSlowError:
            raise ConnectionLost(f"{self.address} does not answer") from None
        except OSError as error:
            raise ConnectionLost(f"{self.address} cannot be reached ({_network(error)})") from None
        except UnicodeError:  # an `Address` that was not parsed, or a name that newer rules forbid
            raise ConnectionLost(f"{self.address} cannot be reached (no host has such a name)") from None

    async def _say_hello(
        self, stream: trio.abc.Stream, link: bytes, received: int
    ) -> tuple[Connection, Welcome]:
        silence, delay = self._patience.silence, ack_delay_of(stream)
        try:
            if self.context is not None:
                stream = await self._encrypted(stream, self.context)
            connection = Connection(stream, peer=SERVER, silence=silence, ack_delay=delay)
            greeting = packets.hello(self._member, link, received, offered=self.offered)
            await connection.write([greeting])
            return connection, await self._welcome(connection)
        except BaseException:
            await trio.aclose_forcefully(stream)
            raise

    async def _welcome(self, connection: Connection) -> Welcome:
        """Return the server's answer to the greeting."""
        try:
            kind, body = await connection.read()
        except StreamEnded as error:
            raise GreetingUnanswered(error, self.offered) from None
        if kind is PacketKind.BYE:
            raise self._dismissal(packets.parse_bye(body, sender=SERVER))
        if kind is not PacketKind.WELCOME:
            raise MalformedMessage(SERVER, "answered with a packet other than a welcome")
        welcome = packets.parse_welcome(body, sender=SERVER)
        if not self.offered.includes(welcome.versions):
            raise WrongVersion(SERVER, f"chose {welcome.versions}; this client offered {self.offered}")
        return welcome

    def _dismissal(self, bye: Bye) -> SecaggError:
        """Return the error that says why the server refuses the client."""
        if bye.versions is None:
            return DismissedByServer(bye.reason)
        if self.offered.agree(bye.versions) is not None:
            return MalformedMessage(SERVER, "refuses versions that it speaks itself")
        return NoCommonVersion(SERVER, own=self.offered, theirs=bye.versions)

    async def _encrypted(self, stream: trio.abc.Stream, context: ssl.SSLContext) -> trio.abc.Stream:
        encrypted = trio.SSLStream(stream, context, server_hostname=self.server_name, https_compatible=True)
        try:
            await encrypted.do_handshake()
        except trio.BrokenResourceError as error:
            raise ConnectionLost(why_broken(error)) from None
        return encrypted


def _network(error: BaseException) -> str:
    """Return the operating system's text for a connection error; for a group of errors, that of the first."""
    if isinstance(error, BaseExceptionGroup):
        return _network(error.exceptions[0])
    if isinstance(error, socket.gaierror):
        return str(error.strerror)  # its errno is a code of the resolver, which os.strerror does not know
    if isinstance(error, OSError) and error.errno:
        return os.strerror(error.errno)
    return _network(error.__cause__) if error.__cause__ is not None else type(error).__name__


def backoff(attempt: int) -> float:
    """Return how many seconds to wait after `attempt` failed attempts to connect: random, between half of a
    limit and the limit, which is 0.25 at first, doubles with each failure, and stays at 30."""
    most: float = min(_LONGEST, _FIRST * 2 ** min(attempt, 16))
    return most * (1 + secrets.randbelow(1 << 16) / (1 << 16)) / 2
