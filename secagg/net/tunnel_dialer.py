"""A tunnel, at a node: the connection of a client to its server that an engine carries in its messages.

`secagg.net.tunnel` says what a tunnel is, and has the server's end.
"""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final, Protocol

import trio

from secagg.errors import SERVER, MalformedMessage
from secagg.net.nursery_and_threads import background_nursery
from secagg.net.trio_check import check_trio_runs
from secagg.net.tunnel_letters import (
    FAREWELL,
    GATHER,
    INSTANCE_BYTES,
    KEY_BYTES,
    MAX_LETTERS,
    Letter,
    parse_letter,
)
from secagg.net.tunnel_stream import WINDOW, TunnelEnd, TunnelStream, check_window

HOLD: Final = 20.0  # seconds for which a node keeps a letter while it has nothing to send
_RETIRED: Final = 16  # instances whose late letters a node ignores


@dataclass
class _Reply:
    """The reply to a letter, as soon as it is `done`. It is None if no call waits for it any more."""

    content: bytes | None = None
    done: trio.Event = field(default_factory=trio.Event)


class TunnelDialer:
    """The node's end of a tunnel, for one client. Give it to `open_client` in place of an address. Raises
    `ParameterError` if the window is too small. All calls are for tasks of trio: from a thread of an engine,
    use `trio.from_thread.run`."""

    def __init__(self, *, hold: float = HOLD, window: int = WINDOW) -> None:
        check_window(window)
        self._hold = hold
        self._changed = trio.Event()
        self._end = TunnelEnd(SERVER, window=window, on_output=self._notify)
        self._instance = bytes(INSTANCE_BYTES)
        self._retired: deque[bytes] = deque(maxlen=_RETIRED)  # instances that were replaced
        self._newest = 0  # number of a letter of this instance
        self._replies: dict[int, _Reply] = {}  # to the last letters, by their numbers

    async def open_stream(self) -> TunnelStream:
        """Return a new stream to the server, as soon as a first letter has come from there."""
        while not self._newest:
            await self._changed.wait()
        return self._end.add(secrets.token_bytes(KEY_BYTES), opens=True)

    async def answer(self, letter: bytes) -> bytes:
        """Take a letter, and return the reply: when there is something to send, a newer letter arrives, or
        after `hold` seconds. The reply to a letter that arrives twice is the same. Raises `MalformedMessage`
        if the bytes are not a letter of an honest server; then all streams are lost."""
        check_trio_runs("TunnelDialer.answer")
        try:
            taken = parse_letter(letter, sender=SERVER)
            if taken.instance in self._retired:
                # It is late. If it is not, the server sees that this is no reply to it, and starts over.
                return Letter(self._instance, taken.number).encode()
            reply = self._reply_before(taken)
            if reply is None:
                return await self._answer(taken)
        except MalformedMessage:
            self.lose_streams()
            raise
        await reply.done.wait()
        return reply.content or Letter(taken.instance, taken.number).encode()

    def _reply_before(self, letter: Letter) -> _Reply | None:
        """Return the reply to the same letter, if it has arrived before."""
        return self._replies.get(letter.number) if letter.instance == self._instance else None

    async def _answer(self, letter: Letter) -> bytes:
        self._take(letter)
        reply = _Reply()
        # The engine may have no use for the reply to an old letter: it has nothing to send.
        if letter.number == self._newest:
            await self._answer_newest(letter, reply)
        return reply.content or Letter(letter.instance, letter.number).encode()

    async def _answer_newest(self, letter: Letter, reply: _Reply) -> None:
        self._replies[letter.number] = reply
        while len(self._replies) > MAX_LETTERS:
            del self._replies[next(iter(self._replies))]
        try:
            await self._wait_for_output(letter)
            if letter.instance == self._instance:
                reply.content = self._end.letter(letter.instance, letter.number).encode()
        finally:
            reply.done.set()
        self._notify()

    async def _wait_for_output(self, letter: Letter) -> None:
        newest = letter.instance, letter.number
        with trio.move_on_after(self._hold):
            while not self._end.has_output and newest == (self._instance, self._newest):
                await self._changed.wait()
        if self._end.has_output and letter.instance == self._instance:
            await trio.sleep(GATHER)

    async def flush(self) -> None:
        """Wait until there is nothing to send."""
        while self._end.has_output:
            await self._changed.wait()

    def _take(self, letter: Letter) -> None:
        if letter.instance != self._instance:
            self._end.start_over()  # the server does not know the streams, or has lost a part of them
            self._retired.append(self._instance)
            self._instance, self._newest, self._replies = letter.instance, 0, {}
        self._end.take(letter)
        self._newest = max(self._newest, letter.number)
        self._notify()

    def lose_streams(self) -> None:
        """Break all streams, because a reply could not be sent."""
        check_trio_runs("TunnelDialer.lose_streams")
        self._end.lose_all()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = trio.Event()


class NodeEngine(Protocol):
    """An engine, as a node uses it: `run` hands every letter that arrives to `dialer.answer`, and carries the
    reply, until it is cancelled. A reply that `answer` has returned is still carried."""

    dialer: TunnelDialer

    async def run(self) -> None: ...


@asynccontextmanager
async def carried(engine: NodeEngine, *, farewell: float = FAREWELL) -> AsyncIterator[None]:
    """Let `engine` carry the letters of a node during the block, and then what is left, for at most
    `farewell` seconds."""
    async with background_nursery() as nursery:
        nursery.start_soon(engine.run)
        try:
            yield
        finally:
            with trio.move_on_after(farewell, shield=True):
                await engine.dialer.flush()
