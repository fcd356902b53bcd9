"""One end of a byte stream that is carried in letters. TLS runs over it as over a socket.

Each end keeps at most `window` bytes that wait to be carried, and as many that wait to be read: the other end
learns up to which position it may send, and an end that is sent more breaks the stream.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import trio

from secagg.errors import MalformedMessage, Peer
from secagg.net.tunnel_letters import Segment

WINDOW: Final = 8 << 20  # bytes of one direction that wait to be carried, or to be read
_MAX_GAPS: Final = 16  # segments that arrived before an earlier one


class TunnelStream(trio.abc.Stream):
    """A stream in letters. `node` is the engine's name of the node, and `member` the id of the client that
    this name stands for, if any. `on_output` is called when there is something to carry."""

    # The other side of a stream has to acknowledge frames. Each letter takes long, so that an acknowledgement
    # waits this many seconds for an answer with which it can travel.
    ack_delay: Final = 2.0

    def __init__(
        self,
        key: bytes,
        *,
        peer: Peer,
        node: str = "",
        member: int | None = None,
        opens: bool = False,
        window: int = WINDOW,
        on_output: Callable[[], None],
    ) -> None:
        self.key = key
        self.node = node
        self.member = member
        self._peer = peer
        self._window = window
        self._on_output = on_output
        self._opens = opens  # whether the other side may not know this stream yet
        self._outgoing = bytearray()
        self._sent = 0  # position in the stream of the first byte of `_outgoing`
        self._send_limit = window  # both sides start with the same
        self._unread = bytearray()
        self._arrived = 0  # position after the last byte of `_unread`
        self._consumed = 0  # bytes that were read
        self._told_limit = window  # what the other side knows
        self._early: dict[int, Segment] = {}  # segments that arrived before an earlier one, by position
        self._ended = False  # the other side sends no more
        self._closing = False  # this side sends no more
        self._told_end = False
        self.is_broken = False
        self._changed = trio.Event()

    # --- for the reader and the writer ---

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await trio.lowlevel.checkpoint()
        rest = memoryview(data)
        while len(rest):
            self._check_open()
            if (room := self._window - len(self._outgoing)) <= 0:
                await self._changed.wait()
                continue
            self._outgoing += rest[:room]
            rest = rest[room:]
            self._on_output()

    async def wait_send_all_might_not_block(self) -> None:
        await trio.lowlevel.checkpoint()
        self._check_open()
        while len(self._outgoing) >= self._window:
            await self._changed.wait()
            self._check_open()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        await trio.lowlevel.checkpoint()
        while not self._unread:
            if self._closing:
                raise trio.ClosedResourceError
            if self.is_broken:
                raise trio.BrokenResourceError
            if self._ended:
                return b""
            await self._changed.wait()
        found = bytes(self._unread[:max_bytes])
        del self._unread[: len(found)]
        self._consumed += len(found)
        if self._needs_limit:
            self._on_output()
        return found

    async def aclose(self) -> None:
        if not self._closing:
            self._closing = True
            self._notify()
            self._on_output()
        await trio.lowlevel.checkpoint()

    def _check_open(self) -> None:
        if self._closing:
            raise trio.ClosedResourceError
        if self.is_broken or self._ended:
            raise trio.BrokenResourceError

    # --- for the letters ---

    @property
    def is_over(self) -> bool:
        """Whether no letter has anything more to do with this stream."""
        return self.is_broken or self._told_end

    @property
    def has_output(self) -> bool:
        if self.is_over:
            return False
        return self._carries or self._needs_limit or (self._closing and not self._outgoing)

    @property
    def _carries(self) -> bool:
        return bool(self._outgoing) and self._sent < self._send_limit

    @property
    def _needs_limit(self) -> bool:
        """Whether the other side should learn that it may send more."""
        return self._consumed + self._window - self._told_limit >= self._window // 2

    def next_segment(self, most: int) -> Segment:
        """Return the next segment to carry, with at most `most` bytes. It may be empty."""
        size = max(0, min(most, len(self._outgoing), self._send_limit - self._sent))
        data, start = bytes(self._outgoing[:size]), self._sent
        del self._outgoing[:size]
        self._sent += size
        self._told_limit = self._consumed + self._window
        self._told_end = self._closing and not self._outgoing
        self._notify()
        return Segment(
            key=self.key,
            limit=self._told_limit,
            start=start,
            data=data,
            is_first=self._opens,
            is_last=self._told_end,
        )

    def take(self, segment: Segment) -> None:
        """Take a segment that has arrived. Raises `MalformedMessage` if the other side breaks the rules."""
        if segment.is_reset:
            self.break_off()
            return
        self._opens = False
        self._send_limit = max(self._send_limit, segment.limit)
        self._place(segment)
        while (following := self._early.pop(self._arrived, None)) is not None:
            self._append(following)
        self._notify()
        if self.has_output:
            self._on_output()

    def _place(self, segment: Segment) -> None:
        end = segment.start + len(segment.data)
        if end > self._consumed + self._window:
            raise MalformedMessage(self._peer, "a letter with more bytes than were allowed")
        if segment.start > self._arrived:
            if not segment.data and not segment.is_last:
                return
            if len(self._early) >= _MAX_GAPS:
                raise MalformedMessage(self._peer, "too many letters that leave something out")
            self._early[segment.start] = segment
        elif segment.start == self._arrived:
            self._append(segment)
        elif end > self._arrived:
            raise MalformedMessage(self._peer, "a letter that repeats a part of another")

    def _append(self, segment: Segment) -> None:
        self._unread += segment.data
        self._arrived += len(segment.data)
        self._ended = self._ended or segment.is_last

    def break_off(self) -> None:
        """Break the stream: a part of it is lost. The reader still gets what has arrived."""
        self.is_broken = True
        self._outgoing.clear()
        self._early.clear()
        self._notify()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = trio.Event()
