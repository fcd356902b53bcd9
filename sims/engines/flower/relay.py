"""The fallback for stock SuperNodes: a client that gets its letters from a program on the same host.

Flower starts a ClientApp as a new process for every message, with code that the SuperLink sends. So the
client, with its keys, ledger and data, is another process (`secagg join --relay SOCKET`). The ClientApp
(`sims.engines.flower.client_app`) takes each letter to the socket, and the reply back.
"""

from __future__ import annotations

import math
import os
import socket
import struct
from contextlib import suppress
from pathlib import Path
from shutil import chown
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
_LAST: Final = 2.0  # seconds in which it takes the reply once the task is cancelled
_TAKEN: Final = 60.0  # seconds that a ClientApp waits for a client
_AT_ONCE: Final = 4  # programs that are served at a time: as many letters as the server leaves with a node
_BACKLOG: Final = 16  # programs that wait for that
_PROBE: Final = 2.0  # seconds in which an earlier process accepts a connection; a busy one may not
_FAILED: Final = 1.0  # seconds to wait when no connection can be accepted


class RelayNode:
    """Takes letters from programs that connect to the socket at `path`. Implements `NodeEngine`. Only the
    user of this process can connect, and the members of `group` if one is given."""

    def __init__(self, path: Path, log: EventLog, *, group: str | None = None) -> None:
        self.dialer = TunnelDialer(hold=_HOLD)
        self._path = path
        self._log = log
        self._group = group
        self._room = trio.Semaphore(_AT_ONCE)  # a program is not read before there is some
        self._sends: set[trio.CancelScope] = set()
        self._end_of_sends = math.inf

    async def run(self) -> None:
        """Serve the socket until the task is cancelled. Raise `ConfigError` if it cannot be made."""
        listener = await self._listen()
        own = _inode(self._path)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._limit_sends)
                await self._accept_all(listener, nursery)
        finally:
            # Another process may have put a socket of its own there. While ours is open, no other file can
            # have its number.
            if own is not None and _inode(self._path) == own:
                self._path.unlink(missing_ok=True)
            listener.socket.close()

    async def _accept_all(self, listener: trio.SocketListener, nursery: trio.Nursery) -> None:
        """Accept a connection only when there is room for it, so that those that wait take no memory."""
        while True:
            await self._room.acquire()
            try:
                stream = await listener.accept()
            except OSError as error:  # too many open files, for instance
                self._room.release()
                self._log.write("relay", problem=error.strerror or type(error).__name__)
                await trio.sleep(_FAILED)
            except BaseException:
                self._room.release()
                raise
            else:
                nursery.start_soon(self._serve, stream)

    async def _listen(self) -> trio.SocketListener:
        endpoint = trio.socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            if self._path.is_socket():
                await self._check_unused()
                self._path.unlink()  # of an earlier process
            await self._bind(endpoint)
        except OSError as error:
            endpoint.close()
            raise ConfigError(f"--relay {self._path}: cannot be made ({error.strerror or error})") from None
        except BaseException:
            endpoint.close()
            raise
        self._log.write("relay", socket=str(self._path))
        return trio.SocketListener(endpoint)

    async def _check_unused(self) -> None:
        """Raise `ConfigError` if a process listens at the socket that exists."""
        with trio.socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe, trio.move_on_after(_PROBE):
            try:
                await probe.connect(str(self._path))
            except (ConnectionRefusedError, FileNotFoundError):
                return
        raise ConfigError(
            f"--relay {self._path}: another process listens there: end it, or name another socket here"
        )

    async def _bind(self, endpoint: trio.socket.SocketType) -> None:
        before = os.umask(0o177)
        try:
            await endpoint.bind(str(self._path))
        finally:
            os.umask(before)
        if self._group is not None:
            self._let_in(self._group)
        endpoint.listen(_BACKLOG)

    def _let_in(self, group: str) -> None:
        try:
            chown(self._path, group=group)
            self._path.chmod(0o660)
        except (LookupError, OSError) as error:
            self._path.unlink(missing_ok=True)
            why = error.strerror if isinstance(error, OSError) else "there is no such group"
            raise ConfigError(
                f"--relay-group {group}: the socket cannot be given to it ({why}): name a group of which the "
                "user of this process is a member"
            ) from None

    async def _serve(self, stream: trio.SocketStream) -> None:
        try:
            async with stream:
                with suppress(trio.BrokenResourceError, trio.TooSlowError):
                    with trio.fail_after(_PATIENCE):
                        letter = await _receive(stream)
                    if letter is not None:
                        await self._answer(stream, letter)
        finally:
            self._room.release()

    async def _answer(self, stream: trio.SocketStream, letter: bytes) -> None:
        try:
            reply = await self.dialer.answer(letter)
        except MalformedMessage as error:
            self._log.write("letter lost", reason=str(error))
            self.dialer.lose_streams()
            return
        try:
            await self._send(stream, reply)
        except (trio.BrokenResourceError, trio.TooSlowError):
            self.dialer.lose_streams()
            raise

    async def _send(self, stream: trio.SocketStream, reply: bytes) -> None:
        """Send a reply, also when the task is cancelled: the server waits for it."""
        # The limit belongs to the shield: that of a scope around a shield has no effect inside.
        end = min(trio.current_time() + _PATIENCE, self._end_of_sends)
        with trio.fail_at(end, shield=True) as scope:
            self._sends.add(scope)
            try:
                await stream.send_all(_SIZE.pack(len(reply)) + reply)
            finally:
                self._sends.discard(scope)

    async def _limit_sends(self) -> None:
        """When the task is cancelled, give replies that are being sent a last moment."""
        try:
            await trio.sleep_forever()
        finally:
            self._end_of_sends = trio.current_time() + _LAST
            for scope in self._sends:
                scope.deadline = min(scope.deadline, self._end_of_sends)


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


def _inode(path: Path) -> tuple[int, int] | None:
    """Return what tells a file from another one with the same name; None if there is none."""
    try:
        found = path.lstat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


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
