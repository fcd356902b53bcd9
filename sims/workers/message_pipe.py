"""A line carries small messages between a crew and one of its workers, both ways and in order.

Messages are pickled: both ends are processes of one program and one user, started by that program,
so neither has to fear the other. What comes from a real peer goes through `secagg.codec` instead.

Waiting is left to trio (`send`, `receive`) or to `poll` (`put`, `get`), and never to a helper
thread: a wait that is cancelled leaves no thread behind that could swallow the next message, and
two hundred workers need no two hundred threads. Bytes that are only half sent or half received stay
in the line's own buffers, so that a cancelled call never breaks a message in two: a message whose
`send` was cancelled goes out whole with the next one.
"""

from __future__ import annotations

import pickle
import select
import socket
import threading
from contextlib import suppress
from typing import Final

import trio

_HEAD: Final = 4  # bytes of the length before each message
LARGEST: Final = 1 << 28  # bytes of one message: a length beyond this is not a length
_CHUNK: Final = 1 << 16


class PipeClosed(Exception):
    """The other end is closed, or its process has ended. Nothing more can be sent or received."""


class MessagePipe:
    """One end of a line. Its methods may be called by several tasks and threads at once."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._unsent = bytearray()
        self._arrived = bytearray()
        self._guard = threading.Lock()  # of both buffers; held only while nothing can block
        self._sending = trio.Lock()  # trio lets one task at a time wait for a socket
        self._receiving = trio.Lock()
        self._hung_up = False

    def fileno(self) -> int:
        return self._sock.fileno()

    async def send(self, message: object) -> None:
        """Send a message, and wait until the other end has room for it. Raises `PipeClosed`."""
        frame = _framed(message)
        async with self._sending:
            while not self._push(frame):
                frame = b""
                with suppress(trio.ClosedResourceError):  # The next push says what has happened.
                    await trio.lowlevel.wait_writable(self._sock)

    async def receive(self) -> object:
        """Wait for the next message. Raises `PipeClosed` after the last one."""
        async with self._receiving:
            while (frame := self._pull()) is None:
                with suppress(trio.ClosedResourceError):
                    await trio.lowlevel.wait_readable(self._sock)
        return _unframed(frame)

    def put(self, message: object) -> None:
        """The same as `send`, for code without an event loop."""
        frame = _framed(message)
        while not self._push(frame):
            frame = b""
            self._wait(select.POLLOUT)

    def get(self) -> object:
        """The same as `receive`, for code without an event loop."""
        while (frame := self._pull()) is None:
            self._wait(select.POLLIN)
        return _unframed(frame)

    def close_sending(self) -> None:
        """Let the other end find the line closed, and still hear what it has to say."""
        with suppress(OSError):
            self._sock.shutdown(socket.SHUT_WR)

    def mark_peer_dead(self) -> None:
        """Expect nothing but what has arrived: the process at the other end is known to be dead.

        A line ends by itself when its other end is closed, but a copy of that end may live on in a
        process that the dead one has forked.
        """
        self._hung_up = True
        self._wake()

    def close(self) -> None:
        """Close this end, for the copies in other processes too, and forget what was not read."""
        with suppress(OSError):  # It is closed, or the other end is.
            self._sock.shutdown(socket.SHUT_RDWR)
        self._wake()
        with self._guard:
            self._sock.close()
            self._arrived.clear()

    def _wake(self) -> None:
        """Have waiting tasks try again."""
        with suppress(RuntimeError):  # There is no event loop here.
            if self._sock.fileno() >= 0:
                trio.lowlevel.notify_closing(self._sock)

    def _push(self, frame: bytes) -> bool:
        """Send what can be sent without waiting; whether that was everything."""
        with self._guard:
            self._unsent += frame
            try:
                del self._unsent[: self._sock.send(self._unsent)]
            except BlockingIOError:
                if self._hung_up:
                    raise PipeClosed from None
            except OSError:
                raise PipeClosed from None
            return not self._unsent

    def _pull(self) -> bytes | None:
        """The next message, as far as that needs no waiting."""
        with self._guard:
            while (end := self._end()) is None:
                try:
                    chunk = self._sock.recv(_CHUNK)
                except BlockingIOError:
                    if self._hung_up:
                        raise PipeClosed from None
                    return None
                except OSError:
                    raise PipeClosed from None
                if not chunk:
                    raise PipeClosed
                self._arrived += chunk
            frame = bytes(self._arrived[_HEAD:end])
            del self._arrived[:end]
            return frame

    def _end(self) -> int | None:
        """Where the first message ends among the bytes that have arrived, if all of it has."""
        if len(self._arrived) < _HEAD:
            return None
        end = _HEAD + int.from_bytes(self._arrived[:_HEAD], "big")
        return end if len(self._arrived) >= end else None

    def _wait(self, event: int) -> None:
        poll = select.poll()
        try:
            poll.register(self._sock, event)
        except (OSError, ValueError):  # closed by another thread
            raise PipeClosed from None
        poll.poll()


def _framed(message: object) -> bytes:
    body = pickle.dumps(message)
    if len(body) > LARGEST:
        raise ValueError(f"a message of {len(body)} bytes is too large: {LARGEST} are allowed")
    return len(body).to_bytes(_HEAD, "big") + body


def _unframed(frame: bytes) -> object:
    message: object = pickle.loads(frame)  # noqa: S301  # from a process of this program
    return message
