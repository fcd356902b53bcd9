"""The memories that simulated clients keep over all channels of a run.

A client has one budget, whatever it is asked for. So the channels of a run to the same clients share their
memories. They take turns, because a client is in one session at a time.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from sims.runtime.client_state import SimulatedMemory


class MemoryUser(Protocol):
    """A channel that uses the memories of clients. `yield_turn` ends its session and completes the memories
    in this process, so that another channel can go on with them. `refresh` only completes them."""

    def yield_turn(self) -> None: ...
    def refresh(self) -> None: ...


class ClientMemories:
    """The memory of each simulated client, by id, which the channels to these clients use in turn."""

    def __init__(self) -> None:
        self._memories: dict[int, SimulatedMemory] = {}
        self._user: MemoryUser | None = None  # the channel that has its turn

    def of(self, members: Iterable[int]) -> dict[int, SimulatedMemory]:
        """Return the memories of all clients, with new ones for those of `members` that have none yet. It is
        the same dictionary for all channels."""
        for member in members:
            self._memories.setdefault(member, SimulatedMemory())
        return self._memories

    def take_turn(self, user: MemoryUser) -> bool:
        """Give the turn to `user`, after the session of the channel that had it has ended. Return whether
        another channel had it, which may have changed the memories."""
        before, self._user = self._user, user
        if before is None or before is user:
            return False
        before.yield_turn()
        for memory in self._memories.values():
            memory.forget_registry()
        return True

    def refresh(self) -> None:
        """Complete the memories in this process, if their clients run in other processes."""
        if self._user is not None:
            self._user.refresh()
