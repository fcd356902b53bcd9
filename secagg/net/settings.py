"""Network settings of an operator: server address, deadlines of stages, timeouts, limits on server load."""

from __future__ import annotations

import ipaddress
import re
import ssl
from dataclasses import dataclass, fields
from typing import Final, Self

from secagg.errors import ParameterError
from secagg.transitions import ServerState

DAY: Final = 86_400.0


@dataclass(frozen=True, kw_only=True)
class Deadlines:
    """The most seconds of each protocol stage. After them, the server closes it, even if answers are missing.
    Raises `ParameterError` unless each value is above 0 and at most a day.

    `join`     clients join and advertise their public keys.
    `absent`   for a session that enough clients have joined, and all that are connected: clients without a
               connection get no more than this time to come. It ends with `join` at the latest. Clients that
               were disconnected for longer than `Patience.grace`, or for which an earlier session has waited
               in vain, get none.
    `share`    clients secret-share their one-time secrets. With hybrid keys, they then have as long again to
               deposit their pair secrets.
    `mask`     clients compute and upload their masked input. This includes local training.
    `confirm`  clients sign which clients are in the sum; only if the trust level is `malicious_server`.
    `reveal`   clients reveal the shares with which the server unmasks the total.

    >>> Deadlines(mask=3600.0).mask
    3600.0
    """

    join: float = 60.0
    absent: float = 30.0  # within this time, each client that cannot connect tries again
    share: float = 60.0
    mask: float = 600.0
    confirm: float = 60.0
    reveal: float = 60.0

    def __post_init__(self) -> None:
        _check_seconds(self)

    def of(self, state: ServerState) -> float:
        """Return the deadline, in seconds, of the stage `state`. Raises `KeyError` if it is no stage."""
        return {
            ServerState.INVITING: self.join,
            ServerState.SHARING: self.share,
            ServerState.DEPOSITING: self.share,
            ServerState.MASKING: self.mask,
            ServerState.CONFIRMING: self.confirm,
            ServerState.UNMASKING: self.reveal,
        }[state]


@dataclass(frozen=True, kw_only=True)
class Patience:
    """Timeouts of the network transport, in seconds. Raises `ParameterError` unless each value is above 0 and
    at most a day.

    `handshake`  a new connection is closed if it is not authenticated within this time.
    `silence`    a connection counts as lost if nothing arrives on it for this time.
    `grace`      the server drops a client from the session if it has had no connection for this time.
    `farewell`   a side that shuts down waits at most this long for the other to receive all frames.
    `report`     a server that waits for clients reports for which, once in this time.

    >>> Patience().grace
    10.0
    """

    handshake: float = 10.0
    silence: float = 60.0
    grace: float = 10.0
    farewell: float = 2.0
    report: float = 30.0

    def __post_init__(self) -> None:
        _check_seconds(self)


@dataclass(frozen=True, kw_only=True)
class Capacity:
    """Limits on the load of a server. Raises `ParameterError` unless each is positive.

    `uploads`   the most large messages received at a time; the server needs memory for these and one vector
                more. If it is not above the number of colluders, they can keep other clients waiting.
    `slowest`   the least rate of an upload, in bytes per second; a slower one is ended if other clients wait.
    `strangers` the most connections that are not authenticated yet. One more replaces the oldest of them.

    >>> Capacity(uploads=16).uploads
    16
    """

    uploads: int = 8
    slowest: float = 32768.0
    strangers: int = 128

    def __post_init__(self) -> None:
        if min(self.uploads, self.strangers) < 1 or not self.slowest > 0:
            raise ParameterError("uploads and strangers must be at least 1, and slowest above 0")


def _check_seconds(settings: Deadlines | Patience) -> None:
    for column in fields(settings):
        value = getattr(settings, column.name)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= DAY:
            raise ParameterError(f"{column.name} must be a number of seconds, above 0 and at most {DAY:g}")


@dataclass(frozen=True)
class Address:
    """The host and the port at which a server listens. `parse` reads "host:port", and raises `ParameterError`
    if the text is not an address.

    >>> Address.parse("[::1]:7443")
    Address(host='::1', port=7443)
    """

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Self:
        scheme, slashes, _ = text.partition("://")
        if slashes:
            raise ParameterError(f"{text!r} is no address: write host:port, without {scheme}://")
        host, colon, port = text.rpartition(":")
        if host.startswith("[") and host.endswith("]"):
            host = host[1:-1]
        elif ":" in host:
            raise ParameterError(f"{text!r} is no address: write an IPv6 host in brackets, as [::1]:7443")
        if not (colon and host and re.fullmatch("[0-9]{1,5}", port) and int(port) < 1 << 16):
            raise ParameterError(f"{text!r} is no address: write host:port, with a port from 0 to 65535")
        if not _can_be_host(host):
            raise ParameterError(
                f"{text!r} is no address: a host has 1 to 63 characters between two dots, and no spaces"
            )
        return cls(host, int(port))

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"


class _EngineAddress(Address):
    """Stands for the address of a server whose connections an engine carries. It is not on this machine."""

    def __str__(self) -> str:
        return self.host


ENGINE: Final = _EngineAddress("an engine", 0)


def _can_be_host(host: str) -> bool:
    """Return whether the resolver of the operating system can be asked for `host`."""
    try:
        host.encode("idna")  # as Python does to ask the resolver
    except UnicodeError:
        return False
    return host.isprintable() and " " not in host


def check_secure(address: Address, context: ssl.SSLContext | None, *, insecure_plain_tcp: bool) -> None:
    """Raise `ParameterError` unless either a TLS `context` is given or `insecure_plain_tcp` is true, not
    both, and the second only for a loopback address."""
    if (context is None) != insecure_plain_tcp:
        raise ParameterError("pass a TLS context, or insecure_plain_tcp=True on a loopback address; not both")
    if context is None and not address.is_loopback:
        raise ParameterError(f"{address} is not on this machine, and only there a sum may go without TLS")
