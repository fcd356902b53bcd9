"""A link: numbered frames between two processes, over one connection after another.

A frame is kept until the other side has it, and is sent again, as the identical bytes, on the next
connection if the last one broke. Numbers make sure that each arrives once and in order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final, TypeAlias

import trio

from secagg.errors import SERVER, MalformedMessage, OversizeMessage, Peer, PeerError, SecaggError, SlowReader
from secagg.net import connection as packets
from secagg.net.connection import MAX_BODY, Begin, Connection, ConnectionLost, PacketKind, Reason
from secagg.net.upload_slots import UploadSlot, UploadSlots

MAX_UNREAD: Final = 16
MAX_KEEPALIVES: Final = 256  # of life, in a second
_KEEPALIVES_PER_SILENCE: Final = 4  # of life, in the time after which silence is taken for death


class DismissedByServer(ConnectionLost):
    """The server ended the connection on purpose, and said why."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(f"the server ended it: {reason.name.lower()}")
        self.reason = reason


class ClosedLocally(SecaggError):
    """This side ended the connection."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason.name.lower())
        self.reason = reason


@dataclass(frozen=True)
class ReceivedFrame:
    """A frame, and how many of ours its sender had seen when it was made."""

    frame: bytes = field(repr=False)
    seen: int


Deliver: TypeAlias = Callable[[ReceivedFrame], Awaitable[None]]
SendProgress: TypeAlias = Callable[[bytes, int], None]  # (frame, bytes of it that have left)


def no_progress(_frame: bytes, _sent: int) -> None:
    pass


class Link:
    """One end of it.

    `member` is the client's id; `frame_limit`, its owner's to change, the largest frame that is accepted.
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
        self.run_lock = trio.Lock()  # held by the task that runs it
        self._slots = slots
        self._progress = progress
        self._outbox: deque[tuple[int, bytes]] = deque()  # (frames seen, frame), of those not acknowledged
        self._acked = 0
        self._seen = 0  # frames of the other side, with the one that is being delivered
        self._begun = 0  # frames that this connection has begun to send
        self._ack_due = False
        self._keepalives = 0  # of life, since the second began
        self._second = 0.0
        self._wake = trio.Event()
        self._flushed = trio.Event()
        self._scope: trio.CancelScope | None = None
        self._close_error: SecaggError | None = None

    @property
    def is_up(self) -> bool:
        return self._scope is not None

    def send(self, frame: bytes) -> None:
        """Take a frame to send, now or when there is a connection."""
        if len(self._outbox) >= MAX_UNREAD:
            raise SlowReader(self.peer, f"does not read; {MAX_UNREAD} messages wait for it")
        self._outbox.append((self._seen, frame))
        self.sent += 1
        if self._flushed.is_set():
            self._flushed = trio.Event()  # an unset one has tasks waiting for it
        self._wake.set()

    async def flush(self) -> None:
        """Wait until the other side has everything, or is gone."""
        while self._outbox and self.is_up:
            await self._flushed.wait()

    def close(self, reason: Reason) -> None:
        """End the connection, if there is one."""
        self._end(ClosedLocally(reason))

    def supersede(self) -> None:
        """End the connection, if there is one, for another of the same process.

        The process is not told: it knows, unless the other connection is an older one that was held up. Then
        it will connect anew.
        """
        self._end(ConnectionLost("another connection took its place"))

    def _end(self, why: SecaggError) -> None:
        if self._scope is not None:
            self._close_error = why
            self._scope.cancel()

    async def run(
        self, connection: Connection, *, first: bytes = b"", received: int, deliver: Deliver
    ) -> SecaggError:
        """Carry frames over `connection` until it ends, and say why it ended.

        The other side has `received` of ours; `first` is what it is waiting for.
        """
        assert self.run_lock.locked()  # or two connections would share the numbers
        ended: list[SecaggError] = []
        self._close_error = None

        async def side(work: Callable[[], Awaitable[None]], scope: trio.CancelScope) -> None:
            try:
                await work()
            except (ConnectionLost, PeerError) as error:
                # Its traceback would keep what had been received, long after the connection is gone.
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
            self._flushed.set()  # There is nothing to wait for.
        return self._close_error or ended[0]

    def _rewind(self, received: int) -> None:
        if received < self._acked:
            raise ConnectionLost("it is older than the one that it replaced")  # a greeting that was held up
        self._settle(received, most=self.sent)
        self._begun = received
        self._ack_due = False
        if self._outbox:
            self._flushed = trio.Event()

    def _settle(self, received: int, *, most: int) -> None:
        """Forget what the other side has."""
        if received > most:
            raise MalformedMessage(self.peer, "acknowledged what it cannot have received")
        while self._acked < received:
            self._outbox.popleft()
            self._acked += 1
        if not self._outbox:
            self._flushed.set()

    # --- out ---

    async def _write(self, connection: Connection, first: bytes) -> None:
        """The one task that sends. A reader that also sent could wait for a peer that waits for it."""
        await connection.write([first])
        while True:
            if self._ack_due:
                self._ack_due = False
                await connection.write([packets.ack(self.received)])
            elif self._begun < self.sent:
                await self._write_frame(connection)
            else:
                await self._rest(connection)

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
        """Until there is something to send, or it is time for a sign of life."""
        self._wake = trio.Event()
        with trio.move_on_after(connection.silence / _KEEPALIVES_PER_SILENCE) as scope:
            await self._wake.wait()
        if scope.cancelled_caught:
            await connection.write([packets.packet(PacketKind.ALIVE)])

    # --- in ---

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
        """Take one frame in and pass it on. Nothing holds it any more when this returns."""
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
            # Many small pieces would take many times the memory of the message.
            if len(body) != min(missing, MAX_BODY):
                raise MalformedMessage(self.peer, "a piece of another length than announced")
            missing -= len(body)
            pieces.append(body)
            slot.progress(len(body))
        return b"".join(pieces)

    def _control(self, kind: PacketKind, body: bytes) -> None:
        match kind:
            case PacketKind.ALIVE:
                self._count_sign()
            case PacketKind.ACK:
                self._take_ack(packets.parse_count(body))
            case PacketKind.BYE if self.peer == SERVER:
                raise DismissedByServer(packets.parse_reason(body, sender=self.peer))
            case _:
                raise MalformedMessage(self.peer, f"a packet out of order ({kind.name.lower()})")

    def _take_ack(self, received: int) -> None:
        if received <= self._acked:
            raise MalformedMessage(self.peer, "acknowledged the same twice")
        self._settle(received, most=self._begun)

    def _count_sign(self) -> None:
        now = trio.current_time()
        if now >= self._second + 1:
            self._second, self._keepalives = now, 0
        self._keepalives += 1
        if self._keepalives > MAX_KEEPALIVES:
            raise MalformedMessage(self.peer, "too many keep-alive packets")
