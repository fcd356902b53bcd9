"""The fallback for stock SuperNodes: a client that gets its letters from a program on the same host.

Flower starts a ClientApp as a new process for every message, with code that the SuperLink sends. So the
client, with its keys, ledger and data, is another process (`secagg join --relay SOCKET`). The ClientApp
(`sims.engines.flower.client_app`) takes each letter to the socket, and the reply back.
"""

from __future__ import annotations

import os
import socket
import struct
from contextlib import suppress
from pathlib import Path
from typing import Final

import trio

from secagg.errors import MalformedMessage
from secagg.net.event_log import EventLog
from secagg.net.tunnel_dialer import TunnelDialer
from secagg.net.tunnel_stream import WINDOW
from sims.config_problems import ConfigError

_HOLD: Final = 10.0  # seconds; meanwhile a ClientApp waits
_SIZE: Final = struct.Struct(">Q")
_MOST: Final = WINDOW + (1 << 16)  # bytes of a letter
_PATIENCE: Final = 30.0  # seconds in which a program sends its letter, and takes the reply
_TAKEN: Final = 60.0  # seconds that a ClientApp waits for a client


class RelayNode:
    """Takes letters from programs that connect to the socket at `path`. Implements `NodeEngine`. Only the
    user of this process can connect."""

    def __init__(self, path: Path, log: EventLog) -> None:
        self.dialer = TunnelDialer(hold=_HOLD)
        self._path = path
        self._log = log

    async def run(self) -> None:
        """Serve the socket until the task is cancelled. Raise `ConfigError` if it cannot be made."""
        listener = await self._listen()
        try:
            await trio.serve_listeners(self._serve, [listener])
        finally:
            self._path.unlink(missing_ok=True)

    async def _listen(self) -> trio.SocketListener:
        endpoint = trio.socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        before = os.umask(0o177)
        try:
            if self._path.is_socket():
                self._path.unlink()  # of an earlier process
            await endpoint.bind(str(self._path))
        except OSError as error:
            raise ConfigError(f"--relay {self._path}: cannot be made ({error.strerror or error})") from None
        finally:
            os.umask(before)
        endpoint.listen(16)
        self._log.write("relay", socket=str(self._path))
        return trio.SocketListener(endpoint)

    async def _serve(self, stream: trio.SocketStream) -> None:
        async with stream:
            with suppress(trio.BrokenResourceError, trio.TooSlowError):
                with trio.fail_after(_PATIENCE):
                    letter = await _receive(stream)
                if letter is not None:
                    await self._answer(stream, letter)

    async def _answer(self, stream: trio.SocketStream, letter: bytes) -> None:
        try:
            reply = await self.dialer.answer(letter)
        except MalformedMessage as error:
            self._log.write("letter lost", reason=str(error))
            self.dialer.lose_streams()
            return
        try:
            with trio.fail_after(_PATIENCE), trio.CancelScope(shield=True):
                await stream.send_all(_SIZE.pack(len(reply)) + reply)
        except (trio.BrokenResourceError, trio.TooSlowError):
            self.dialer.lose_streams()
            raise


async def _receive(stream: trio.SocketStream) -> bytes | None:
    """Return the letter that a program sends; None if it sends something else."""
    content, size = bytearray(), _SIZE.size
    while len(content) < size:
        chunk = await stream.receive_some()
        if not chunk:
            return None
        content += chunk
        if size == _SIZE.size and len(content) >= size:
            size += _SIZE.unpack_from(content)[0]
        if size > _MOST:
            return None
    return bytes(content[_SIZE.size : size])


def take_to_client(path: str, letter: bytes) -> bytes:
    """Take a letter to the client whose socket is at `path`, and return its reply. Raise `OSError` if no
    client is there, or if it sends none."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as endpoint:
        endpoint.settimeout(_TAKEN)
        endpoint.connect(path)
        endpoint.sendall(_SIZE.pack(len(letter)) + letter)
        with endpoint.makefile("rb") as replies:
            head = replies.read(_SIZE.size)
            if len(head) < _SIZE.size or (size := _SIZE.unpack(head)[0]) > _MOST:
                raise ConnectionError("the client has no reply")
            reply = replies.read(size)
    if len(reply) < size:
        raise ConnectionError("the reply of the client is not whole")
    return reply
