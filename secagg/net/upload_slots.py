"""Bounds the number of large frames that the server receives at the same time.

Each upload of a masked vector needs one of a fixed number of slots. The server does not read from a client
that waits for one. A vector is discarded once it is added to the total, so the server needs memory only for
the vectors that are being received. While clients wait, an upload that is slower than `slowest` bytes per
second is ended. If there are more slots than corrupt clients, these cannot occupy all slots.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Final

import trio

from secagg.net.connection import ConnectionLost

GRACE: Final = 5.0  # seconds for which even a slow upload keeps its slot


class UploadSlot:
    """The slot of one upload: counts the bytes that have arrived, and can end the upload."""

    def __init__(self) -> None:
        self._since = trio.current_time()
        self._taken = 0
        self._scope: trio.CancelScope | None = None

    def progress(self, taken: int) -> None:
        """Add `taken` to the number of bytes that have arrived."""
        self._taken += taken

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Context manager around the reads of the upload. If `end` is called, the block is cancelled, and
        `ConnectionLost` is raised after it."""
        with trio.CancelScope() as self._scope:
            yield
        caught, self._scope = self._scope.cancelled_caught, None
        if caught:
            raise ConnectionLost("its slow upload made room for others")

    @property
    def is_ending(self) -> bool:
        """Whether `end` was called, and the block of the context manager `reading` is still running."""
        return self._scope is not None and self._scope.cancel_called

    def overdue_at(self, slowest: float) -> float:
        """Return when, on trio's clock, the upload is too slow unless more bytes arrive: 5 s after its start,
        plus bytes so far / `slowest`, in bytes per second. Infinite if no read runs or it is ending."""
        if self._scope is None or self.is_ending:
            return math.inf
        return self._since + GRACE + self._taken / slowest

    def end(self) -> None:
        assert self._scope is not None  # otherwise `overdue_at` is infinite
        self._scope.cancel()


class UploadSlots:
    """Lets at most `uploads` uploads run at a time; others wait for a slot, in the order in which they asked.
    While some wait, uploads slower than `slowest` bytes per second are ended."""

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
                # If no upload can lose its slot now, check again after `GRACE` seconds.
                soonest = min((slot.overdue_at(self._slowest) for slot in self._held), default=math.inf)
                with trio.move_on_at(min(soonest, trio.current_time() + GRACE)):
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

    def _end_overdue(self) -> None:
        """End uploads that are too slow, the longest overdue first, but at most one per waiting client."""
        now = trio.current_time()
        wanted = len(self._queue) - sum(slot.is_ending for slot in self._held)
        late = sorted(self._held, key=lambda slot: slot.overdue_at(self._slowest))
        for slot in late[: max(wanted, 0)]:
            if slot.overdue_at(self._slowest) <= now:
                slot.end()
