"""Bounds the number of large frames that the server receives at the same time.

A masked vector is discarded once it is added, so memory is that of the vectors in transit. The server does
not read from a client that waits for a slot. While others wait, an upload that is slower than `slowest` loses
its slot. With more slots than corrupt clients, these cannot take all of them.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Final

import trio

from secagg.net.connection import ConnectionLost

GRACE: Final = 5.0  # seconds that any upload may take, however slow


class UploadSlot:
    """One upload."""

    def __init__(self) -> None:
        self._since = trio.current_time()
        self._taken = 0
        self._scope: trio.CancelScope | None = None

    def progress(self, taken: int) -> None:
        """Count bytes that have arrived."""
        self._taken += taken

    @contextmanager
    def reading(self) -> Iterator[None]:
        """While its sender is waited for, the upload can be made to end."""
        with trio.CancelScope() as self._scope:
            yield
        caught, self._scope = self._scope.cancelled_caught, None
        if caught:
            raise ConnectionLost("its slow upload made room for others")

    @property
    def is_ending(self) -> bool:
        """Whether it has to make room, and is about to."""
        return self._scope is not None and self._scope.cancel_called

    def overdue(self, slowest: float) -> float:
        """The time at which it is too slow, unless more arrives until then."""
        if self._scope is None or self.is_ending:
            return math.inf
        return self._since + GRACE + self._taken / slowest

    def end(self) -> None:
        assert self._scope is not None  # or it would never be overdue
        self._scope.cancel()


class UploadSlots:
    """`uploads` at a time, in the order in which they were begun."""

    def __init__(self, uploads: int, *, slowest: float) -> None:
        self._free = uploads
        self._slowest = slowest  # bytes per second
        self._held: set[UploadSlot] = set()
        self._queue: deque[trio.Event] = deque()

    @asynccontextmanager
    async def hold(self) -> AsyncIterator[UploadSlot]:
        await self._wait()
        slot = UploadSlot()
        self._held.add(slot)
        try:
            yield slot
        finally:
            self._held.discard(slot)
            self._give_back()

    async def _wait(self) -> None:
        turn = trio.Event()
        self._queue.append(turn)
        self._grant()
        try:
            while not turn.is_set():
                with trio.move_on_at(self._next_overdue()):
                    await turn.wait()
                self._end_overdue()
        except trio.Cancelled:
            if turn.is_set():
                self._give_back()
            else:
                self._queue.remove(turn)
            raise

    def _grant(self) -> None:
        while self._free and self._queue:
            self._free -= 1
            self._queue.popleft().set()

    def _give_back(self) -> None:
        self._free += 1
        self._grant()

    def _next_overdue(self) -> float:
        # If no holder can lose its slot now, look again later.
        soonest = min((slot.overdue(self._slowest) for slot in self._held), default=math.inf)
        return min(soonest, trio.current_time() + GRACE)

    def _end_overdue(self) -> None:
        """Return one upload for each waiting client, the slowest first."""
        now = trio.current_time()
        wanted = len(self._queue) - sum(slot.is_ending for slot in self._held)
        late = sorted(self._held, key=lambda slot: slot.overdue(self._slowest))
        for slot in late[: max(wanted, 0)]:
            if slot.overdue(self._slowest) <= now:
                slot.end()
