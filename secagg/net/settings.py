"""What an operator sets: addresses, deadlines of stages, timeouts, and limits on what a peer may cost."""

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
    """Seconds after which a stage is closed with the answers received, if it is not complete before.

    `join`     clients come and advertise keys.
    `share`    they deal shares of their one-time secrets.
    `mask`     they compute and upload their masked input: local training is in here.
    `confirm`  under `malicious_server`, they confirm who is in the sum.
    `reveal`   they reveal shares.

    Raises `ParameterError` for what is no number of seconds.

    >>> Deadlines(mask=3600.0).mask
    3600.0
    """

    join: float = 60.0
    share: float = 60.0
    mask: float = 600.0
    confirm: float = 60.0
    reveal: float = 60.0

    def __post_init__(self) -> None:
        _check_seconds(self)

    def of(self, state: ServerState) -> float:
        """That of the stage which a server is in."""
        return {
            ServerState.INVITING: self.join,
            ServerState.SHARING: self.share,
            ServerState.MASKING: self.mask,
            ServerState.CONFIRMING: self.confirm,
            ServerState.UNMASKING: self.reveal,
        }[state]


@dataclass(frozen=True, kw_only=True)
class Patience:
    """Seconds for which the transport waits.

    `handshake`  from a new connection until its client is known.
    `silence`    without a sign of life, after which a connection is taken for dead.
    `grace`      without a connection, after which a client has left the session.
    `farewell`   until all clients have read that the server shuts down.

    Raises `ParameterError` for what is no number of seconds.

    >>> Patience().grace
    10.0
    """

    handshake: float = 10.0
    silence: float = 60.0
    grace: float = 10.0
    farewell: float = 2.0

    def __post_init__(self) -> None:
        _check_seconds(self)


@dataclass(frozen=True, kw_only=True)
class Capacity:
    """How much the server takes on.

    `uploads`   large messages taken in at the same time: memory is one vector more than that. Unless it is
                more than the clients that may collude, these can keep others waiting.
    `slowest`   bytes per second below which an upload makes room for others that wait.
    `strangers` connections whose clients are not known yet. When one more comes, the oldest has to go.

    Raises `ParameterError` for what is no such number.

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
    """Where a server listens.

    `parse` raises `ParameterError` for what is no address.

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
        return cls(host, int(port))

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"


def check_secure(address: Address, context: ssl.SSLContext | None, *, insecure_plain_tcp: bool) -> None:
    """Nothing goes without TLS unless it was asked for by that name, and then it stays on this machine."""
    if (context is None) != insecure_plain_tcp:
        raise ParameterError("pass a TLS context, or insecure_plain_tcp=True on a loopback address; not both")
    if context is None and not address.is_loopback:
        raise ParameterError(f"{address} is not on this machine, and only there a sum may go without TLS")
