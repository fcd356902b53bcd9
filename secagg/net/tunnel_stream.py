"""Byte streams that are carried in letters, at one end of a tunnel. TLS runs over them as over sockets.

Each end keeps at most `window` bytes that wait to be carried, and as many that wait to be read: the other end
learns up to which position it may send, and an end that is sent more breaks the stream. The two ends may have
different windows: each may send `FIRST_LIMIT` bytes before it knows that of the other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import trio

from secagg.errors import MalformedMessage, ParameterError, Peer
from secagg.net.tunnel_letters import MAX_DATA, MAX_SEGMENTS, Letter, Segment

WINDOW: Final = MAX_DATA  # bytes of one direction that wait to be carried, or to be read
FIRST_LIMIT: Final = 1 << 14  # bytes that may be sent before the other side has told its window
_MAX_STREAMS: Final = 4  # of one node; a client has one, and opens another after a loss
_MAX_GAPS: Final = 16  # segments that arrived before an earlier one


def check_window(window: int) -> None:
    """Raise `ParameterError` if the window of a tunnel is too small for the first bytes of a stream."""
    if window < FIRST_LIMIT:
        raise ParameterError(f"the window of a tunnel must be at least {FIRST_LIMIT}", parameter="window")


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
        self._send_limit = min(window, FIRST_LIMIT)
        self._unread = bytearray()
        self._arrived = 0  # position after the last byte of `_unread`
        self._consumed = 0  # bytes that were read
        self._told_limit = min(window, FIRST_LIMIT)  # what the other side knows
        self._early: dict[int, Segment] = {}  # segments that arrived before an earlier one, by position
        self._early_bytes = 0
        self._ended = False  # the other side sends no more
        self._closing = False  # this side sends no more
        self._told_end = False
        self._was_carried = False
        self.is_broken = False
        self._changed = trio.Event()

    # --- for the reader and the writer ---

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await trio.lowlevel.checkpoint()
        rest = memoryview(data)
        self._check_open()
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
            self._unread.clear()
            self._clear_early()
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
    def is_new(self) -> bool:
        """Whether the other side cannot know this stream, because no letter had a part of it."""
        return self._opens and not self._was_carried

    @property
    def is_over(self) -> bool:
        """Whether no letter has anything more to do with this stream."""
        return self.is_broken or self._told_end or (self.is_new and self._closing)

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
        if self._ended or self._closing:
            return False
        return self._told_limit - self._consumed <= min(self._window, self._told_limit) // 2

    def next_segment(self, most: int) -> Segment:
        """Return the next segment to carry, with at most `most` bytes. It may be empty."""
        size = max(0, min(most, len(self._outgoing), self._send_limit - self._sent))
        data, start = bytes(self._outgoing[:size]), self._sent
        del self._outgoing[:size]
        self._sent += size
        self._told_limit = self._consumed + self._window
        self._told_end = self._closing and not self._outgoing
        self._was_carried = True
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
            self._early_bytes -= len(following.data)
            self._append(following)
        self._notify()
        if self.has_output:
            self._on_output()

    def _place(self, segment: Segment) -> None:
        end = segment.start + len(segment.data)
        if end > self._told_limit:
            raise MalformedMessage(self._peer, "a letter with more bytes than were allowed")
        if segment.start > self._arrived:
            self._keep_early(segment)
        elif segment.start == self._arrived:
            self._append(segment)
        elif end > self._arrived:
            raise MalformedMessage(self._peer, "a letter that repeats a part of another")

    def _keep_early(self, segment: Segment) -> None:
        if segment.start in self._early or not (segment.data or segment.is_last):
            return
        # Segments of an honest sender do not overlap, and together they fit into the window.
        size = self._early_bytes + len(segment.data)
        if len(self._early) >= _MAX_GAPS or self._arrived + size > self._told_limit:
            raise MalformedMessage(self._peer, "too many letters that leave something out")
        self._early[segment.start] = segment
        self._early_bytes = size

    def _append(self, segment: Segment) -> None:
        if not self._closing:
            self._unread += segment.data
        self._arrived += len(segment.data)
        if segment.is_last:
            self._ended = True
            self._outgoing.clear()  # the other side does not read any more

    def _clear_early(self) -> None:
        self._early.clear()
        self._early_bytes = 0

    def break_off(self) -> None:
        """Break the stream: a part of it is lost. The reader still gets what has arrived."""
        self.is_broken = True
        self._outgoing.clear()
        self._clear_early()
        self._notify()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = trio.Event()


class TunnelEnd:
    """The streams of one node, at either end of the tunnel. `on_output` is called when one has something to
    carry."""

    def __init__(self, peer: Peer, *, window: int, on_output: Callable[[], None]) -> None:
        self._peer = peer
        self._window = window
        self._on_output = on_output
        self._streams: dict[bytes, TunnelStream] = {}
        self._resets: list[bytes] = []  # streams of which the other side is told that they are lost

    def add(self, key: bytes, *, opens: bool, node: str = "", member: int | None = None) -> TunnelStream:
        """Return a new stream. If there are too many, the oldest one is lost."""
        while len(self._streams) >= _MAX_STREAMS:
            self.lose(next(iter(self._streams)))
        stream = self._streams[key] = TunnelStream(
            key,
            peer=self._peer,
            node=node,
            member=member,
            opens=opens,
            window=self._window,
            on_output=self._on_output,
        )
        return stream

    @property
    def has_output(self) -> bool:
        return bool(self._resets) or any(each.has_output for each in self._streams.values())

    def letter(self, instance: bytes, number: int) -> Letter:
        """Return the next letter to send. It may be empty."""
        segments = [Segment(key=key, is_reset=True) for key in self._resets]
        room, self._resets = min(self._window, MAX_DATA), []
        for stream in [each for each in self._streams.values() if each.has_output]:
            segments.append(stream.next_segment(room))
            room -= len(segments[-1].data)
        self._streams = {key: each for key, each in self._streams.items() if not each.is_over}
        return Letter(instance, number, tuple(segments), has_more=self.has_output)

    def take(self, letter: Letter, accept: Callable[[bytes], TunnelStream] | None = None) -> None:
        """Take the segments of a letter. `accept` makes the streams that the other side opens. Raises
        `MalformedMessage` if the other side breaks the rules of a stream."""
        for segment in letter.segments:
            stream = self._streams.get(segment.key)
            if stream is None and segment.is_first and accept is not None:
                stream = accept(segment.key)
            if stream is not None:
                stream.take(segment)
            elif not segment.is_reset and (segment.data or not segment.is_last):
                self._reset(segment.key)
        self._streams = {key: each for key, each in self._streams.items() if not each.is_over}

    def _reset(self, key: bytes) -> None:
        if len(self._resets) < MAX_SEGMENTS - _MAX_STREAMS and key not in self._resets:
            self._resets.append(key)
        self._on_output()

    def lose(self, key: bytes) -> None:
        """Break a stream, and tell the other side if it knows the stream."""
        stream = self._streams.pop(key)
        stream.break_off()
        if not stream.is_new:
            self._reset(key)

    def lose_all(self) -> None:
        """Break all streams, because a letter was lost. The client connects again."""
        for key in list(self._streams):
            self.lose(key)

    def start_over(self) -> None:
        """Break the streams that the other side has known, because it was replaced by one that does not."""
        for key in [key for key, each in self._streams.items() if not each.is_new]:
            self._streams.pop(key).break_off()
        self._resets = []
