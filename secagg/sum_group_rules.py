"""Groups: sums of the same private vector, which must be over the same set of clients.

Masks do not prevent differencing. If a vector is summed twice and one client left in between, the difference
of the totals is that client's vector. So a client answers a later sum of a group only if the clients asked
are those of the group's last total. It refuses a group that was closed, or belongs to an earlier round.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from secagg import errors
from secagg.bitmap import PositionSet
from secagg.client_budget import Budget
from secagg.client_memory import NEVER, AnswerEntry, Memory, VolatileMemory
from secagg.errors import SERVER
from secagg.messages import MAX_ROUND, Query
from secagg.query_context import content_digest
from secagg.sum_spec import Table


@dataclass
class _Group:
    round_number: int
    answered: Counter[str] = field(default_factory=Counter)
    confirmed: PositionSet | None = None  # survivors of the last sum; None: they are not known
    closed: bool = False


class GroupBook:
    """The groups of one session (sums of the same private vector in one round). Clients use it to refuse
    queries, a server to avoid such queries. `memory` has each group's last round in earlier sessions."""

    def __init__(self, table: Table, memory: Memory) -> None:
        self._table = table
        self._memory = memory
        self._groups: dict[str, _Group] = {}

    def _current(self, kind: str, round_number: int) -> _Group | None:
        group = self._groups.get(self._table.group_of(kind))
        return group if group is not None and group.round_number == round_number else None

    def continues(self, kind: str, round_number: int) -> bool:
        """Return whether the group of `kind` already had a sum in this round, or was closed in it."""
        return self._current(kind, round_number) is not None

    def missed_confirmation(self, kind: str, round_number: int) -> bool:
        """Return whether the group of `kind` (sums of the same private vector) had a sum in this round, and
        this client does not know which clients are in the last total. False if the group is closed."""
        group = self._current(kind, round_number)
        return group is not None and not group.closed and group.confirmed is None

    def is_closed(self, kind: str, round_number: int) -> bool:
        group = self._current(kind, round_number)
        return group is not None and group.closed

    def confirmed(self, kind: str, round_number: int) -> PositionSet | None:
        """Return the clients in the group's last total in this round; None if no such total is known."""
        group = self._current(kind, round_number)
        return group.confirmed if group is not None else None

    def check_new(self, kind: str, round_number: int) -> None:
        """Raise `PeerError` if there may be no new sum of `kind` in this round: its group (sums of the same
        vector) is closed or already past this round, or `kind` had as many sums as its spec allows."""
        group = self._current(kind, round_number)
        name = self._table.group_of(kind)
        if group is None:
            latest = self._groups[name].round_number if name in self._groups else NEVER  # in this session
            remembered = self._memory.last_round(self._table.remembered_group(kind))
            if round_number <= max(remembered, latest):
                raise errors.GroupReopened(SERVER, f"group {name!r} of round {round_number} is over")
        elif group.closed:
            raise errors.GroupReopened(SERVER, f"group {name!r} of round {round_number} was closed")
        elif group.answered[kind] >= self._table[kind].times:
            raise errors.TooManySums(SERVER, f"kind {kind!r} was answered as often as declared")

    def check_roster(self, kind: str, round_number: int, roster: PositionSet) -> None:
        """Raise `GroupChanged` if the survivors of the group's last sum in this round are known, and differ
        from `roster`, the clients asked."""
        confirmed = self.confirmed(kind, round_number)
        if confirmed is not None and roster != confirmed:
            raise errors.GroupChanged(SERVER, "the roster is not the last confirmed survivor set")

    def answer(self, kind: str, round_number: int) -> None:
        """Record an answer before it is sent. Until `confirm`, the clients in the total count as unknown."""
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
        """Record that the group of `kind` (sums of the same vector) has no further sums in this round."""
        name = self._table.group_of(kind)
        group = self._current(kind, round_number) or _Group(round_number)
        group.closed = True
        self._groups[name] = group


class Agenda:
    """The server's record of the sums of one session: which were asked, and how many are left."""

    def __init__(self, table: Table, sums: int) -> None:
        self._table = table
        self._sums = sums
        self._memory = VolatileMemory()
        self._groups = GroupBook(table, self._memory)
        self.next_sum = 0

    @property
    def current_sum(self) -> int:
        """The index of the sum that was asked last; -1 before the first."""
        return self.next_sum - 1

    @property
    def sums_left(self) -> int:
        return self._sums - self.next_sum

    def check(self, kind: str, payload: bytes, round_number: int) -> None:
        """Raise `CohortChanged` if the query's group (sums of the same vector in this round) was closed, and
        `LocalError` if the query is invalid, no sum is left, or honest clients would refuse the query."""
        if not isinstance(payload, bytes):
            raise errors.ParameterError("the payload of a query must be bytes")
        if kind not in self._table:
            raise errors.ParameterError(f"the table has no kind of sum {kind!r}")
        if not 0 <= round_number <= MAX_ROUND:
            raise errors.ParameterError(f"a round must be from 0 to {MAX_ROUND}")
        if not self.sums_left:
            raise errors.StateError(f"all {self._sums} sums of this session are used")
        if self._groups.is_closed(kind, round_number):
            raise errors.CohortChanged("a client of this group has left; its last total stands")
        if self._memory.knows_query(content_digest(kind, payload, self._table.terms)):
            raise errors.StateError("this query was asked before; clients would refuse it")
        try:
            self._groups.check_new(kind, round_number)
        except errors.PeerError as error:
            raise errors.StateError(error.why) from None

    def later_roster(self, kind: str, round_number: int) -> PositionSet | None:
        """Return the positions of the clients to ask if the group of `kind` already had a total in this
        round: those in the total. None if it had none."""
        return self._groups.confirmed(kind, round_number)

    def note(self, query: Query) -> None:
        """Count a new sum, and record its query before it is sent. Then `check` refuses to repeat it."""
        entry = AnswerEntry(
            group=self._table.remembered_group(query.kind),
            round_number=query.round,
            content=content_digest(query.kind, query.payload, self._table.terms),
            charge=None,
        )
        self._memory.remember_answer(entry, Budget())
        self._groups.answer(query.kind, query.round)
        self.next_sum += 1

    def confirm(self, query: Query, survivors: PositionSet, *, revealed: set[int]) -> None:
        """Record that the total over `survivors` was released. If not all of them are in `revealed`, close
        its group: those that revealed no shares would decline later sums."""
        self._groups.confirm(query.kind, query.round, survivors)
        if revealed != survivors:
            self._groups.close(query.kind, query.round)

    def close(self, kind: str, round_number: int) -> None:
        """Record that the group of `kind` (sums of the same vector) has no further sums in this round."""
        self._groups.close(kind, round_number)
