"""Addresses: `host:port`, with an IPv6 host in brackets, and where a sum may go without TLS."""

from __future__ import annotations

import ipaddress
import re
import ssl
from dataclasses import dataclass
from typing import Self

import trio

from secagg.errors import ParameterError


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


def host_of(stream: trio.abc.Stream) -> str:
    """Where a connection comes from, for the log."""
    try:
        return str(stream.socket.getpeername()[0]) if isinstance(stream, trio.SocketStream) else "memory"
    except OSError:
        return "nowhere"  # it has gone already
