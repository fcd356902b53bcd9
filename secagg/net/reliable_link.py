"""A link: numbered frames between two processes, over one connection after another.

A frame is kept until the other side has acknowledged it. If the connection breaks before that, the identical
bytes are sent again on the next connection. The numbers ensure that each frame arrives once and in order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final, TypeAlias

import trio

from secagg.errors import SERVER, MalformedMessage, OversizeMessage, Peer, PeerError, SecaggError, SlowReader
from secagg.net import packets
from secagg.net.connection import Connection, ConnectionLost
from secagg.net.packets import MAX_BODY, Begin, PacketKind, Reason
from secagg.net.upload_slots import UploadSlot, UploadSlots

MAX_UNREAD: Final = 16  # frames that the other side has not acknowledged
MAX_KEEPALIVES: Final = 256  # keep-alive packets that a peer may send in one second
_KEEPALIVES_PER_SILENCE: Final = 4  # sent in the time after which a silent connection counts as lost


class DismissedByServer(ConnectionLost):
    """The server ended the connection on purpose, and sent the reason."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(f"the server ended it: {reason.name.lower()}")
        self.reason = reason


class ClosedLocally(SecaggError):
    """This side ended the connection on purpose, for `reason`."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason.name.lower())
        self.reason = reason


@dataclass(frozen=True)
class ReceivedFrame:
    """A frame of the other side, which had received `seen` frames of this side when it made this one."""

    frame: bytes = field(repr=False)
    seen: int


Deliver: TypeAlias = Callable[[ReceivedFrame], Awaitable[None]]
SendProgress: TypeAlias = Callable[[bytes, int], None]  # (frame, bytes of it that were sent)


def no_progress(_frame: bytes, _sent: int) -> None:
    pass


class Link:
    """One end of a link, which carries frames over one connection after another.

    `name` is the same at both ends. `member` is the id of the client. The owner sets `frame_limit`, the bytes
    of the largest frame to accept; at first it is 0. `slots` limits how many links receive a large frame at
    the same time. `progress(frame, sent)` is called while a frame is sent, with its bytes sent so far.
    """

    def __init__(
        self,
        name: bytes,
        *,
        member: int,
        peer: Peer,
        slots: UploadSlots | None = None,
        progress: SendProgress = no_progress,
    ) -> None:
        self.name = name
        self.member = member
        self.peer = peer
        self.frame_limit = 0
        self.received = 0
        self.sent = 0
        self.run_lock = trio.Lock()  # held by the task that is in `run`
        self._slots = slots
        self._progress = progress
        self._outbox: deque[tuple[int, bytes]] = deque()  # (frames received before, frame): not acknowledged
        self._acked = 0
        self._seen = 0  # frames of the other side, including the one that is being delivered
        self._begun = 0  # frames that the other side has received or this connection has begun to send
        self._ack_due = False
        self._keepalives = 0  # received since the time `_second`
        self._second = 0.0
        self._wake = trio.Event()
        self._flushed = trio.Event()
        self._scope: trio.CancelScope | None = None
        self._close_error: SecaggError | None = None

    @property
    def is_up(self) -> bool:
        return self._scope is not None

    def send(self, frame: bytes) -> None:
        """Queue a frame, to be sent as soon as there is a connection; does not wait. Raises `SlowReader` if
        `MAX_UNREAD` frames are not acknowledged yet."""
        if len(self._outbox) >= MAX_UNREAD:
            raise SlowReader(self.peer, f"does not read; {MAX_UNREAD} messages wait for it")
        self._outbox.append((self._seen, frame))
        self.sent += 1
        if self._flushed.is_set():
            self._flushed = trio.Event()  # only if it is set: tasks may wait for an unset one
        self._wake.set()

    async def flush(self) -> None:
        """Wait until the other side has acknowledged all frames sent to it, or there is no connection."""
        while self._outbox and self.is_up:
            await self._flushed.wait()

    def close(self, reason: Reason) -> None:
        """End the connection, if there is one: `run` then returns `ClosedLocally` with `reason`."""
        self._end(ClosedLocally(reason))

    def supersede(self) -> None:
        """End the connection, if there is one, because the process at the other end has opened a newer one.
        That process is not told why. If the newer connection fails too, it connects again."""
        self._end(ConnectionLost("another connection took its place"))

    def _end(self, why: SecaggError) -> None:
        if self._scope is not None:
            self._close_error = why
            self._scope.cancel()

    async def run(
        self, connection: Connection, *, first: bytes = b"", received: int, deliver: Deliver
    ) -> SecaggError:
        """Exchange frames over `connection` until it ends, and return the error that ended it. `first` is the
        packet to send first. The other side already has `received` frames of this side. `deliver` is called
        with each frame that arrives. The caller holds `run_lock`."""
        assert self.run_lock.locked()  # otherwise two connections could use the same numbers
        ended: list[SecaggError] = []
        self._close_error = None

        async def side(work: Callable[[], Awaitable[None]], scope: trio.CancelScope) -> None:
            try:
                await work()
            except (ConnectionLost, PeerError) as error:
                # The traceback refers to received data, and would keep it in memory after the connection.
                ended.append(error.with_traceback(None))
                scope.cancel()

        try:
            self._rewind(received)
            async with trio.open_nursery() as nursery:
                self._scope = nursery.cancel_scope
                nursery.start_soon(side, lambda: self._write(connection, first), self._scope)
                nursery.start_soon(side, lambda: self._read(connection, deliver), self._scope)
        except (ConnectionLost, PeerError) as error:
            ended.append(error)
        finally:
            self._scope = None
            self._flushed.set()  # without a connection, `flush` does not wait
        return self._close_error or ended[0]

    def _rewind(self, received: int) -> None:
        if received < self._acked:
            raise ConnectionLost("it is older than the one that it replaced")  # its hello was delayed
        self._settle(received, most=self.sent)
        self._begun = received
        self._ack_due = False
        if self._outbox:
            self._flushed = trio.Event()

    def _settle(self, received: int, *, most: int) -> None:
        """Discard the kept copies of the first `received` frames: the other side reports that it has them.
        Raises `MalformedMessage` if `received` is above `most`, the number of frames that it can have."""
        if received > most:
            raise MalformedMessage(self.peer, "acknowledged what it cannot have received")
        while self._acked < received:
            self._outbox.popleft()
            self._acked += 1
        if not self._outbox:
            self._flushed.set()

    # --- sending ---

    async def _write(self, connection: Connection, first: bytes) -> None:
        """Send `first`, then acknowledgements, frames and keep-alive packets, as the only sending task."""
        await connection.write([first])
        while True:
            if self._begun < self.sent:
                await self._write_frame(connection)
            elif self._ack_due:
                await self._write_ack(connection)
            else:
                await self._rest(connection)

    async def _write_ack(self, connection: Connection) -> None:
        """Send an acknowledgement, unless a frame that takes it along comes within `ack_delay` seconds."""
        deadline = trio.current_time() + connection.ack_delay
        while self._begun == self.sent and trio.current_time() < deadline:
            self._wake = trio.Event()
            with trio.move_on_at(deadline):
                await self._wake.wait()
        if self._begun == self.sent:
            self._ack_due = False
            await connection.write([packets.ack(self.received)])

    async def _write_frame(self, connection: Connection) -> None:
        seen, frame = self._outbox[self._begun - self._acked]
        self._begun += 1
        head = [packets.begin(len(frame), seen)]
        view = memoryview(frame)
        for start in range(0, len(frame), MAX_BODY):
            if self._ack_due:
                self._ack_due = False
                head.append(packets.ack(self.received))
            piece = view[start : start + MAX_BODY]
            self._progress(frame, start)
            await connection.write([*head, packets.HEADER.pack(PacketKind.PIECE, len(piece)), piece])
            head = []
        self._progress(frame, len(frame))

    async def _rest(self, connection: Connection) -> None:
        """Wait for something to send. After a quarter of `silence`, stop and send a keep-alive packet."""
        self._wake = trio.Event()
        with trio.move_on_after(connection.silence / _KEEPALIVES_PER_SILENCE) as scope:
            await self._wake.wait()
        if scope.cancelled_caught:
            await connection.write([packets.packet(PacketKind.ALIVE)])

    # --- receiving ---

    async def _read(self, connection: Connection, deliver: Deliver) -> None:
        while True:
            kind, body = await connection.read()
            if kind is not PacketKind.BEGIN:
                self._control(kind, body)
                continue
            await self._accept(connection, packets.parse_begin(body), deliver)
            self.received += 1
            self._ack_due = True
            self._wake.set()

    async def _accept(self, connection: Connection, begin: Begin, deliver: Deliver) -> None:
        """Receive the frame that `begin` announces, and deliver it. After that, keep no reference to it."""
        self._check_size(begin.size)
        async with self._room(begin.size) as slot:
            with slot.reading():
                frame = await self._read_frame(connection, begin.size, slot)
            self._seen = self.received + 1
            await deliver(ReceivedFrame(frame, begin.seen))

    def _check_size(self, size: int) -> None:
        if not 1 <= size <= self.frame_limit:
            raise OversizeMessage(
                self.peer, f"announced a message of {size} bytes; {self.frame_limit} are allowed now"
            )

    @asynccontextmanager
    async def _room(self, size: int) -> AsyncIterator[UploadSlot]:
        if self._slots is None or size <= MAX_BODY:
            yield UploadSlot()
            return
        async with self._slots.hold() as slot:
            yield slot

    async def _read_frame(self, connection: Connection, size: int, slot: UploadSlot) -> bytes:
        pieces: list[bytes] = []
        missing = size
        while missing:
            kind, body = await connection.read()
            if kind is not PacketKind.PIECE:
                self._control(kind, body)
                continue
            # Small pieces are refused: each takes more memory as an object than its bytes.
            if len(body) != min(missing, MAX_BODY):
                raise MalformedMessage(self.peer, "a piece of another length than announced")
            missing -= len(body)
            pieces.append(body)
            slot.progress(len(body))
        return b"".join(pieces)

    def _control(self, kind: PacketKind, body: bytes) -> None:
        match kind:
            case PacketKind.ALIVE:
                self._count_keepalive()
            case PacketKind.ACK:
                self._take_ack(packets.parse_count(body))
            case PacketKind.BYE if self.peer == SERVER:
                raise DismissedByServer(packets.parse_bye(body, sender=self.peer).reason)
            case _:
                raise MalformedMessage(self.peer, f"a packet out of order ({kind.name.lower()})")

    def _take_ack(self, received: int) -> None:
        if received <= self._acked:
            raise MalformedMessage(self.peer, "acknowledged the same twice")
        self._settle(received, most=self._begun)

    def _count_keepalive(self) -> None:
        now = trio.current_time()
        if now >= self._second + 1:
            self._second, self._keepalives = now, 0
        self._keepalives += 1
        if self._keepalives > MAX_KEEPALIVES:
            raise MalformedMessage(self.peer, "too many keep-alive packets")
