"""A pipe that carries messages between a pool and one of its workers, in both directions and in order.
Messages are pickled: both ends are processes of one program and one user, so they trust each other. Messages
of a network peer go through `secagg.canonical_msgpack` instead.

`send` and `receive` wait with trio, `send_sync` and `receive_sync` with `poll`. No helper thread is used: a
cancelled wait leaves no thread behind that could consume the next message. Cancelling a call never splits a
message: the rest of a message that was partly sent or received stays in a buffer, and the next call continues
with it. A `multiprocessing.Connection` does not suffice: it blocks a thread while it waits, and a call cannot
be cancelled within a message (see tests/sims/test_message_pipe.py).
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
LARGEST: Final = 1 << 28  # bytes of one message
_CHUNK: Final = 1 << 16


class PipeClosed(Exception):
    """The other end is closed, or its process has ended. Nothing more can be sent or received."""


class MessagePipe:
    """One end of a message pipe, over a connected socket. Several tasks or threads may use it at once."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._unsent = bytearray()
        self._arrived = bytearray()
        self._guard = threading.Lock()  # of both buffers; never held while waiting
        self._sending = trio.Lock()  # trio lets only one task wait for a socket
        self._receiving = trio.Lock()
        self._peer_dead = False

    def fileno(self) -> int:
        return self._sock.fileno()

    async def send(self, message: object) -> None:
        """Send a message, and wait while the pipe is full. Raises `PipeClosed` if the other end is closed,
        and `ValueError` if the message is too large."""
        frame = _framed(message)
        async with self._sending:
            while not self._push(frame):
                frame = b""
                with suppress(trio.ClosedResourceError):  # The next push raises the right error.
                    await trio.lowlevel.wait_writable(self._sock)

    async def receive(self) -> object:
        """Wait for the next message and return it. Raises `PipeClosed` if no more messages can arrive."""
        async with self._receiving:
            while (frame := self._pull()) is None:
                with suppress(trio.ClosedResourceError):
                    await trio.lowlevel.wait_readable(self._sock)
        return _unframed(frame)

    def send_sync(self, message: object) -> None:
        """Send a message like `send`, but block the thread, so that no event loop is needed."""
        frame = _framed(message)
        while not self._push(frame):
            frame = b""
            self._wait(select.POLLOUT)

    def receive_sync(self) -> object:
        """Receive a message like `receive`, but block the thread, so that no event loop is needed."""
        while (frame := self._pull()) is None:
            self._wait(select.POLLIN)
        return _unframed(frame)

    def mark_peer_dead(self) -> None:
        """Record that the process at the other end is dead, so that nothing waits for it any more. Its death
        does not always close the pipe: a process that it forked may hold a copy of its end."""
        self._peer_dead = True
        self._wake()

    def close(self) -> None:
        """Shut down the pipe, also for copies of this end in other processes. Discard unread messages."""
        with suppress(OSError):  # Either end is already closed.
            self._sock.shutdown(socket.SHUT_RDWR)
        self._wake()
        with self._guard:
            self._sock.close()
            self._arrived.clear()

    def _wake(self) -> None:
        """Wake the tasks that wait to send or receive, so that they try again."""
        with suppress(RuntimeError):  # There is no event loop here.
            if self._sock.fileno() >= 0:
                trio.lowlevel.notify_closing(self._sock)

    def _push(self, frame: bytes) -> bool:
        """Queue `frame`, a message with its length, and send as much as is possible without waiting. Return
        whether all is sent. Raises `PipeClosed` if the other end is closed."""
        with self._guard:
            self._unsent += frame
            try:
                del self._unsent[: self._sock.send(self._unsent)]
            except BlockingIOError:
                if self._peer_dead:
                    raise PipeClosed from None
            except OSError:
                raise PipeClosed from None
            return not self._unsent

    def _pull(self) -> bytes | None:
        """Return the next message, pickled; None if not all has arrived. Raises `PipeClosed` if it cannot."""
        with self._guard:
            while (end := self._end()) is None:
                try:
                    chunk = self._sock.recv(_CHUNK)
                except BlockingIOError:
                    if self._peer_dead:
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
        """Return the index at which the first message in the buffer ends, or None if it is incomplete."""
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
