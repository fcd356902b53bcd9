"""Groups: sums of one private vector, over one set of clients.

Masks cannot stop differencing. If a vector is summed twice and one client left in between, the difference
of the totals is that client's vector. So a client answers a later sum of a group only over exactly the
survivors it saw confirmed, and never takes up a group that was closed or belongs to the past.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from secagg.bitmap import PositionSet
from secagg.client_budget import Budget
from secagg.client_memory import NEVER, AnswerEntry, Memory, VolatileMemory
from secagg.errors import (
    SERVER,
    CohortChanged,
    GroupChanged,
    GroupReopened,
    ParameterError,
    PeerError,
    StateError,
    TooManySums,
)
from secagg.messages import MAX_ROUND, Query
from secagg.query_context import content_digest
from secagg.sum_spec import Table


@dataclass
class _Group:
    round_number: int
    answered: Counter[str] = field(default_factory=Counter)
    confirmed: PositionSet | None = None  # None: asked or answered, but not seen confirmed
    closed: bool = False


class GroupBook:
    """The groups of a session; memory knows the earlier ones.

    A client enforces it. An honest server keeps one too, so as not to ask what clients would refuse.
    """

    def __init__(self, table: Table, memory: Memory) -> None:
        self._table = table
        self._memory = memory
        self._groups: dict[str, _Group] = {}

    def _current(self, kind: str, round_number: int) -> _Group | None:
        group = self._groups.get(self._table.group_of(kind))
        return group if group is not None and group.round_number == round_number else None

    def _last_round(self, name: str) -> int:
        """Return the latest round of this session's groups; a close without an answer may have set it."""
        return self._groups[name].round_number if name in self._groups else NEVER

    def continues(self, kind: str, round_number: int) -> bool:
        """Whether a sum would be a later one of its group."""
        return self._current(kind, round_number) is not None

    def missed_confirmation(self, kind: str, round_number: int) -> bool:
        """Whether this client answered a sum of this group and never learned its survivors."""
        group = self._current(kind, round_number)
        return group is not None and not group.closed and group.confirmed is None

    def is_closed(self, kind: str, round_number: int) -> bool:
        group = self._current(kind, round_number)
        return group is not None and group.closed

    def confirmed(self, kind: str, round_number: int) -> PositionSet | None:
        """Return the survivors of this group's last sum, if they are known."""
        group = self._current(kind, round_number)
        return group.confirmed if group is not None else None

    def check_new(self, kind: str, round_number: int) -> None:
        """Refuse a group of an earlier round or session, one that was closed, and surplus sums."""
        group = self._current(kind, round_number)
        name = self._table.group_of(kind)
        if group is None:
            if round_number <= max(self._memory.last_round(name), self._last_round(name)):
                raise GroupReopened(SERVER, f"group {name!r} of round {round_number} is over")
        elif group.closed:
            raise GroupReopened(SERVER, f"group {name!r} of round {round_number} was closed")
        elif group.answered[kind] >= self._table[kind].times:
            raise TooManySums(SERVER, f"kind {kind!r} was answered as often as declared")

    def check_roster(self, kind: str, round_number: int, roster: PositionSet) -> None:
        """Refuse a roster other than the survivors confirmed last in this group."""
        confirmed = self.confirmed(kind, round_number)
        if confirmed is not None and roster != confirmed:
            raise GroupChanged(SERVER, "the roster is not the last confirmed survivor set")

    def answer(self, kind: str, round_number: int) -> None:
        """Note an answer that is about to leave; until it is confirmed, its survivors are unknown."""
        name = self._table.group_of(kind)
        group = self._current(kind, round_number) or _Group(round_number)
        group.answered[kind] += 1
        group.confirmed = None
        self._groups[name] = group

    def confirm(self, kind: str, round_number: int, survivors: PositionSet) -> None:
        group = self._current(kind, round_number)
        assert group is not None  # only an answered sum is confirmed
        group.confirmed = survivors

    def close(self, kind: str, round_number: int) -> None:
        """Refuse further sums of this group in this round."""
        name = self._table.group_of(kind)
        group = self._current(kind, round_number) or _Group(round_number)
        group.closed = True
        self._groups[name] = group


class Agenda:
    """The sums of one session: those asked, and how many are left."""

    def __init__(self, table: Table, sums: int) -> None:
        self._table = table
        self._sums = sums
        self._memory = VolatileMemory()
        self._groups = GroupBook(table, self._memory)
        self.next_sum = 0

    @property
    def sums_left(self) -> int:
        return self._sums - self.next_sum

    def check(self, kind: str, payload: bytes, round_number: int) -> None:
        """Refuse to ask what honest clients would refuse to answer."""
        if not isinstance(payload, bytes):
            raise ParameterError("the payload of a query must be bytes")
        if kind not in self._table:
            raise ParameterError(f"the table has no kind of sum {kind!r}")
        if not 0 <= round_number <= MAX_ROUND:
            raise ParameterError(f"a round must be from 0 to {MAX_ROUND}")
        if not self.sums_left:
            raise StateError(f"all {self._sums} sums of this session are used")
        if self._groups.is_closed(kind, round_number):
            raise CohortChanged("a client of this group has left; its last total stands")
        if self._memory.knows_query(content_digest(kind, payload)):
            raise StateError("this query was asked before; clients would refuse it")
        try:
            self._groups.check_new(kind, round_number)
        except PeerError as error:
            raise StateError(error.why) from None

    def later_roster(self, kind: str, round_number: int) -> PositionSet | None:
        """Return the clients of which a later sum of a group must be asked; None for the first sum."""
        return self._groups.confirmed(kind, round_number)

    def note(self, query: Query) -> None:
        """Note a query that is about to be sent."""
        entry = AnswerEntry(
            group=self._table.group_of(query.kind),
            round_number=query.round,
            content=content_digest(query.kind, query.payload),
            charge=None,
        )
        self._memory.remember_answer(entry, Budget())
        self._groups.answer(query.kind, query.round)
        self.next_sum += 1

    def confirm(self, query: Query, survivors: PositionSet, *, revealed: set[int]) -> None:
        """Note a released total. A client that did not reveal would decline the next sum of the group."""
        self._groups.confirm(query.kind, query.round, survivors)
        if revealed != survivors:
            self._groups.close(query.kind, query.round)

    def close(self, kind: str, round_number: int) -> None:
        """Refuse further sums of this group in this round."""
        self._groups.close(kind, round_number)
