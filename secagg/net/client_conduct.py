"""What a server remembers of its clients' conduct: who is excluded, and how much each sent out of turn."""

from __future__ import annotations

import math
from collections import Counter
from typing import Final

import trio

from secagg.errors import OutOfOrder, OversizeMessage
from secagg.net.notices import MAX_CLIENT_NOTICE

_MAX_STRAY_FRAMES: Final = 8  # frames of an honest client that may arrive after its session has ended


class ClientConduct:
    """The conduct of clients, by id, since the last session began or ended, by the event loop's clock."""

    def __init__(self) -> None:
        self._excluded: dict[int, float] = {}  # until when a client is refused
        self._stray_frames: Counter[int] = Counter()
        self._notices: Counter[int] = Counter()

    def count_stray_frame(self, member: int) -> None:
        """Count a frame that belongs to no session. Raises `OutOfOrder` if it is one of too many."""
        self._stray_frames[member] += 1
        if self._stray_frames[member] > _MAX_STRAY_FRAMES:
            raise OutOfOrder(member, "sends messages that belong to no session")

    def count_notice(self, member: int, size: int) -> None:
        """Count a notice of `size` bytes. Raises `OversizeMessage` if it is too long, or one of too many."""
        self._notices[member] += 1
        if size > MAX_CLIENT_NOTICE or self._notices[member] > _MAX_STRAY_FRAMES:
            raise OversizeMessage(member, "too many notices, or too long ones")

    def exclude(self, member: int, seconds: float) -> None:
        """Refuse a client for so long, or until `clear`, and count what it sends from the beginning."""
        self.reset(member)
        self._excluded[member] = trio.current_time() + seconds

    def is_excluded(self, member: int) -> bool:
        return trio.current_time() < self._excluded.get(member, -math.inf)

    def reset(self, member: int) -> None:
        """Forget the conduct of one client."""
        for record in (self._excluded, self._stray_frames, self._notices):
            record.pop(member, None)

    def clear(self) -> None:
        """Forget the conduct of all clients."""
        for record in (self._excluded, self._stray_frames, self._notices):
            record.clear()
