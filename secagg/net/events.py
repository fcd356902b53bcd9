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
from secagg.identity_registry import Registry
from secagg.local_session import Stage
from secagg.net.notices import Notice
from secagg.net.packets import Reason
from secagg.net.settings import Address
from secagg.net.versions import AgreedVersions, NoCommonVersion, SpokenVersions
from secagg.usable_values import Zeros

# --- events of a client ----------------------------------------------------------------------------


@dataclass(frozen=True)
class ServerConnected:
    """The server accepted the client's connection. `resumed`: whether it continues the previous one."""

    server: Address
    resumed: bool


@dataclass(frozen=True)
class ServerDisconnected:
    """The client's connection to the server ended because of `error`. The client connects again."""

    error: SecaggError


@dataclass(frozen=True)
class ServerUnreachable:
    """An attempt of the client to connect to the server failed because of `error`. The client tries again."""

    error: SecaggError


@dataclass(frozen=True)
class ServerIncompatible:
    """The server and the client have no version in common. `error` has the versions of both, and the side
    that must be upgraded. The client tries again, in case that the server is upgraded."""

    server: Address
    error: NoCommonVersion


@dataclass(frozen=True)
class ServerIsOlder:
    """The server chose the versions `agreed`, but the client offered higher ones, too. Its range is `own`."""

    server: Address
    own: SpokenVersions
    agreed: AgreedVersions


@dataclass(frozen=True)
class ClientDismissed:
    """The server ended or refused the client's connection on purpose, for `reason`."""

    reason: Reason


class SessionLossReason(Enum):
    """The reason why a client is no longer part of a session that it had joined."""

    SERVER_FORGOT = auto()
    DISMISSED = auto()


@dataclass(frozen=True)
class SessionLost:
    """The client cannot continue its session, for `reason`. It has erased the session's secrets."""

    reason: SessionLossReason


@dataclass(frozen=True)
class SessionRefused:
    """The client left its session because of `error`: it refused a message of the server, or has failed."""

    error: SecaggError


@dataclass(frozen=True)
class NoticeReceived:
    """The server sent a notice."""

    notice: Notice


class KeyListing(Enum):
    """Which key a registry lists for a client."""

    OWN = auto()  # the one in use
    NEXT = auto()  # the one that the client was offered; it is used from now on
    OTHER = auto()
    NONE = auto()


@dataclass(frozen=True)
class RegistryAdopted:
    """The client uses a newer registry from its next session on. `data` is its file; `listing` says which key
    it lists for this client. The client remembers the version when the callback has returned."""

    registry: Registry
    data: bytes
    listing: KeyListing


@dataclass(frozen=True)
class ServerCertificateAdopted:
    """The client pins another `certificate` (PEM) of the server, for which the key of `previous` vouches."""

    certificate: bytes
    previous: bytes


@dataclass(frozen=True)
class KeysRefused:
    """The client refused a registry or a server's certificate because of `error`. It goes on with its own."""

    error: PeerError


@dataclass(frozen=True)
class ValuesChanged:
    """In a sum whose parts all have noise, a client answered with other values than those it computed. Counts
    of the parts `clipped` were beyond their bounds, or all values are `zeros`. Only the client knows this."""

    sum_index: int
    kind: str
    clipped: tuple[str, ...]
    zeros: Zeros | None


ServerConnectionEvent: TypeAlias = ServerConnected | ServerDisconnected | ServerUnreachable | ClientDismissed
ClientSideEvent: TypeAlias = (
    ServerConnectionEvent
    | ServerIncompatible
    | ServerIsOlder
    | SessionLost
    | SessionRefused
    | NoticeReceived
    | RegistryAdopted
    | ServerCertificateAdopted
    | KeysRefused
    | ValuesChanged
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
class ClientIncompatible:
    """The server refused an authenticated client because they have no version in common. `error` has the id
    of the client, the versions of both, and the side that must be upgraded."""

    host: str
    error: NoCommonVersion


@dataclass(frozen=True)
class ClientVersionsDiffer:
    """A client offers other versions than the server speaks. They use the versions `agreed`."""

    member: int
    offered: SpokenVersions
    own: SpokenVersions
    agreed: AgreedVersions


@dataclass(frozen=True)
class ClientConnected:
    """A client has authenticated. `resumed` says whether it continues where its last connection ended."""

    member: int
    resumed: bool


@dataclass(frozen=True)
class ClientDisconnected:
    """A client lost its connection. If it has none for `Patience.grace` seconds, it leaves the session."""

    member: int
    error: SecaggError


class LeaveReason(Enum):
    """The reason why a client that did nothing wrong is no longer part of a session."""

    CONNECTION_LOST = auto()
    PROCESS_RESTARTED = auto()
    LEFT_SESSION = auto()
    REFUSED_INVITATION = auto()
    COHORT_FULL = auto()
    KEY_CHANGED = auto()


@dataclass(frozen=True)
class ClientLeft:
    """A client is no longer part of the session. It may take part in the next one."""

    member: int
    reason: LeaveReason


@dataclass(frozen=True)
class ClientExcluded:
    """A client broke the protocol, as `error` says. Nothing is accepted from it until the next session. After
    a `Lie` or a `Dispute`, a server that remembers it accepts nothing in later sessions either."""

    member: int
    error: PeerError


@dataclass(frozen=True)
class ClientNotice:
    """A client sent a notice, for example why it refused a message."""

    member: int
    notice: Notice


@dataclass(frozen=True)
class SessionBegun:
    """An event of the server: it begins to set up a session, and invites clients. `SessionReady` or
    `SessionFailed` says what becomes of it, and `SessionClosed` follows in any case."""


@dataclass(frozen=True)
class ClientsAwaited:
    """An event of the server: it waits until `needed` clients are connected. Now `connected` are, without the
    ones that are barred, of which there are `barred`."""

    connected: int
    needed: int
    barred: int


@dataclass(frozen=True)
class SessionWaiting:
    """An event of the server: a stage of its session has lasted for `seconds`. So far, `answered` clients out
    of `expected` have joined the session or answered. Of the others, `offline` are not connected."""

    stage: Stage
    answered: int
    expected: int
    offline: int
    seconds: float


@dataclass(frozen=True)
class StageClosed:
    """An event of the server: a stage of its session is over. It took `seconds`, with the computation that
    closed it. There is no such event for a stage that was abandoned."""

    stage: Stage
    seconds: float


@dataclass(frozen=True)
class TrafficCounted:
    """An event of the server: since the last event about this `stage`, clients sent frames of `bytes_up` in
    total, and were sent frames of `bytes_down`. It comes when a stage is over, and when a session ends."""

    stage: Stage
    bytes_up: int
    bytes_down: int


@dataclass(frozen=True)
class SessionClosed:
    """An event of the server: it has ended its session, even if the session was never set up."""


ServerSideEvent: TypeAlias = (
    ConnectionRefused
    | ClientIncompatible
    | ClientVersionsDiffer
    | ClientConnected
    | ClientDisconnected
    | ClientLeft
    | ClientExcluded
    | ClientNotice
    | ClientsAwaited
    | SessionBegun
    | SessionWaiting
    | StageClosed
    | TrafficCounted
    | SessionClosed
)
ServerNetworkEvent: TypeAlias = ServerSideEvent | ServerEvent
OnServerEvent: TypeAlias = Callable[[ServerNetworkEvent], None]

VersionEvent: TypeAlias = ServerIncompatible | ServerIsOlder | ClientIncompatible | ClientVersionsDiffer
NetworkEvent: TypeAlias = ClientNetworkEvent | ServerNetworkEvent
