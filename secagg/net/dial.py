"""Dialling: a client's way to a connection on which the server has welcomed it."""

from __future__ import annotations

import os
import secrets
import socket
import ssl
from typing import Final

import trio

from secagg.errors import SERVER, MalformedMessage
from secagg.net import packets
from secagg.net.address import Address
from secagg.net.connection import Connection, ConnectionLost, why_broken
from secagg.net.link import Dismissed
from secagg.net.packets import Kind, Welcome
from secagg.net.settings import Patience

_FIRST: Final = 0.25  # seconds before the second attempt
_LONGEST: Final = 30.0


class Dial:
    """How to reach the server."""

    def __init__(
        self, address: Address, *, member: int, context: ssl.SSLContext | None, patience: Patience
    ) -> None:
        self.address = address
        self._member = member
        self._context = context
        self._patience = patience

    async def connect(self, link: bytes, received: int) -> tuple[Connection, Welcome]:
        """Raises `ConnectionLost`, `Dismissed` if the server said why, or `PeerError` if it is no server."""
        try:
            with trio.fail_after(self._patience.handshake):
                stream = await trio.open_tcp_stream(self.address.host, self.address.port)
                return await self._introduce(stream, link, received)
        except trio.TooSlowError:
            raise ConnectionLost(f"{self.address} does not answer") from None
        except OSError as error:
            raise ConnectionLost(f"{self.address} cannot be reached ({_network(error)})") from None

    async def _introduce(
        self, stream: trio.abc.Stream, link: bytes, received: int
    ) -> tuple[Connection, Welcome]:
        try:
            if self._context is not None:
                stream = await self._encrypted(stream, self._context)
            connection = Connection(stream, peer=SERVER, silence=self._patience.silence)
            await connection.write([packets.hello(self._member, link, received)])
            kind, body = await connection.read()
            if kind is Kind.BYE:
                raise Dismissed(packets.parse_reason(body, sender=SERVER))
            if kind is not Kind.WELCOME:
                raise MalformedMessage(SERVER, "answered with something else than a welcome")
            return connection, packets.parse_welcome(body, sender=SERVER)
        except BaseException:
            await trio.aclose_forcefully(stream)
            raise

    async def _encrypted(self, stream: trio.abc.Stream, context: ssl.SSLContext) -> trio.abc.Stream:
        encrypted = trio.SSLStream(stream, context, https_compatible=True)
        try:
            await encrypted.do_handshake()
        except trio.BrokenResourceError as error:
            raise ConnectionLost(why_broken(error)) from None
        return encrypted


def _network(error: BaseException) -> str:
    """Why, in the system's words, which are hidden where several addresses were tried."""
    if isinstance(error, BaseExceptionGroup):
        return _network(error.exceptions[0])
    if isinstance(error, socket.gaierror):
        return str(error.strerror)  # its number is not one of the system's errors
    if isinstance(error, OSError) and error.errno:
        return os.strerror(error.errno)
    return _network(error.__cause__) if error.__cause__ is not None else type(error).__name__


def backoff(attempt: int) -> float:
    """Seconds to wait before the next attempt: longer each time, and never at the same time as others."""
    most: float = min(_LONGEST, _FIRST * 2 ** min(attempt, 16))
    return most * (1 + secrets.randbelow(1 << 16) / (1 << 16)) / 2
