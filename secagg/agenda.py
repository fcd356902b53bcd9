"""What a server has asked in a session, and what it may still ask.

An honest server keeps the same books as its clients, so as not to ask what they would refuse to answer.
"""

from __future__ import annotations

from secagg.bitmap import PositionSet
from secagg.budget import Budget
from secagg.errors import CohortChanged, ParameterError, PeerError, StateError
from secagg.groups import GroupBook
from secagg.memory import AnswerEntry, VolatileMemory
from secagg.messages import MAX_ROUND, Query
from secagg.question import content_digest
from secagg.spec import Table


class Agenda:
    """The sums of one session, asked and left."""

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
        """Whom a later sum of its group must be asked of; None for the first one."""
        return self._groups.confirmed(kind, round_number)

    def note(self, query: Query) -> None:
        """This is about to be asked."""
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
        """A total was released. Whoever did not reveal would sit the next sum of the group out."""
        self._groups.confirm(query.kind, query.round, survivors)
        if revealed != survivors:
            self._groups.close(query.kind, query.round)

    def close(self, kind: str, round_number: int) -> None:
        """No further sum of this group in this round."""
        self._groups.close(kind, round_number)
