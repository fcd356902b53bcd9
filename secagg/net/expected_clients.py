"""Which clients a session waits for while clients join it.

It waits for as many clients as it expects: for connected ones until the deadline. Clients without a
connection get a shorter time, which begins when all connected clients have joined. Clients that are gone are
not waited for at all. If too few clients have joined to go on, the session waits until the deadline, in case
that more connect.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from enum import Enum, auto

from secagg.server import ServerMachine


class ConnectionState(Enum):
    """Whether a client is connected to the server now."""

    CONNECTED = auto()
    OFFLINE = auto()  # it lost its connection less than `Patience.grace` seconds ago
    ABSENT = auto()  # it has not connected since the server started, and no session has waited for it
    GONE = auto()  # it was disconnected for too long, or excluded, or a session has waited for it in vain


class JoinWait(Enum):
    """How long a session waits for clients that have not joined."""

    NO_MORE = auto()
    SHORTLY = auto()  # for `Deadlines.absent` seconds
    UNTIL_DEADLINE = auto()  # for `Deadlines.join` seconds


class ExpectedClients:
    """The clients that may join a session: those in `candidates`. When `expected` of them have joined, or no
    other can join any more, the session waits for no more. A client that has left does not count as one that
    was expected: otherwise clients that come and leave would keep others out. If `expected` is None, the
    session always waits until the deadline."""

    def __init__(
        self,
        candidates: Collection[int],
        *,
        expected: int | None,
        presence: Callable[[int], ConnectionState],
    ) -> None:
        self.candidates = frozenset(candidates)
        self._expected = expected
        self._presence = presence

    def wait(self, machine: ServerMachine, left: Collection[int]) -> JoinWait:
        """Return how long the session of `machine` waits now. The clients `left` have left it."""
        if self._expected is None:
            return JoinWait.UNTIL_DEADLINE
        others = self.candidates - {*machine.advertised, *left}
        if len(machine.advertised) >= self._expected or not others:
            return JoinWait.NO_MORE
        missing = {self._presence(member) for member in others} - {ConnectionState.GONE}
        if ConnectionState.CONNECTED in missing or len(machine.advertised) < machine.min_cohort:
            return JoinWait.UNTIL_DEADLINE
        return JoinWait.SHORTLY if missing else JoinWait.NO_MORE

    def missing(self, machine: ServerMachine, left: Collection[int]) -> frozenset[int]:
        """Return the clients that have neither joined nor left, without those that are gone."""
        came = {*machine.advertised, *left}
        return frozenset(
            member for member in self.candidates - came if self._presence(member) is not ConnectionState.GONE
        )

    def offline(self, members: Collection[int]) -> int:
        """Return how many of `members` have no connection."""
        return sum(self._presence(member) is not ConnectionState.CONNECTED for member in members)
