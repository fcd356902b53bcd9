"""Events of connections and sessions, as `Client` and `Server` deliver them to their `on_event` callback.

The events of the machines (`secagg.events`) are delivered to the same callback. A program acts on the types
and fields of events. Only `secagg.net.event_log` turns them into text. No event holds a secret.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from typing import TypeAlias

from secagg.errors import PeerError, SecaggError
from secagg.events import ClientEvent, ServerEvent
from secagg.net.connection import Reason
from secagg.net.settings import Address

# --- events of a client ----------------------------------------------------------------------------


@dataclass(frozen=True)
class ServerConnected:
    """The server has accepted a connection. `resumed` says whether it continues the last connection."""

    server: Address
    resumed: bool


@dataclass(frozen=True)
class ServerDisconnected:
    """The connection to the server ended. The client connects again."""

    error: SecaggError


@dataclass(frozen=True)
class ServerUnreachable:
    """An attempt to connect failed. The client tries again."""

    error: SecaggError


@dataclass(frozen=True)
class ClientDismissed:
    """The server ended or refused the connection on purpose, for `reason`."""

    reason: Reason


class SessionLossReason(Enum):
    """The reason why a client is no longer part of a session that it had joined."""

    SERVER_FORGOT = auto()
    DISMISSED = auto()


@dataclass(frozen=True)
class SessionLost:
    """The client cannot continue its session. Its secrets are erased."""

    reason: SessionLossReason


@dataclass(frozen=True)
class SessionRefused:
    """The client refused a message or failed, with `error`. The client has left the session."""

    error: SecaggError


ClientSideEvent: TypeAlias = (
    ServerConnected | ServerDisconnected | ServerUnreachable | ClientDismissed | SessionLost | SessionRefused
)
ClientNetworkEvent: TypeAlias = ClientSideEvent | ClientEvent
OnClientEvent: TypeAlias = Callable[[ClientNetworkEvent], None]

# --- events of a server ----------------------------------------------------------------------------


@dataclass(frozen=True)
class ConnectionRefused:
    """The server closed a connection because its peer did not authenticate as a client."""

    host: str
    reason: str


@dataclass(frozen=True)
class ClientConnected:
    """A client has authenticated. `resumed` says whether the connection continues its last one."""

    member: int
    resumed: bool


@dataclass(frozen=True)
class ClientDisconnected:
    """A client's connection ended. The client may connect again within `Patience.grace` seconds."""

    member: int
    error: SecaggError


class LeaveReason(Enum):
    """The reason why a client that did nothing wrong is no longer part of a session."""

    CONNECTION_LOST = auto()
    PROCESS_RESTARTED = auto()
    LEFT_SESSION = auto()
    COHORT_FULL = auto()


@dataclass(frozen=True)
class ClientLeft:
    """A client is no longer part of the session. It may take part in the next one."""

    member: int
    reason: LeaveReason


@dataclass(frozen=True)
class ClientExcluded:
    """A client broke the protocol. Nothing more is accepted from it until the next session."""

    member: int
    error: PeerError


@dataclass(frozen=True)
class SessionClosed:
    """The server has ended its session, whether or not the session was ever set up."""


ServerSideEvent: TypeAlias = (
    ConnectionRefused | ClientConnected | ClientDisconnected | ClientLeft | ClientExcluded | SessionClosed
)
ServerNetworkEvent: TypeAlias = ServerSideEvent | ServerEvent
OnServerEvent: TypeAlias = Callable[[ServerNetworkEvent], None]

NetworkEvent: TypeAlias = ClientNetworkEvent | ServerNetworkEvent
