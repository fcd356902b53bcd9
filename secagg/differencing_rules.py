"""Rules about sequences of sums: which sets of clients the same private values may be summed over.

Masks protect one sum. If the same values are summed over two sets of clients, the difference of the two
totals is the sum of the clients in which the sets differ. A client therefore remembers the sets of its
earlier sums, and refuses a new set that is too close to one of them. Three rules say which sums it compares:

* `STATIC`: the values of a part without noise are the same as in an earlier sum. They are recognised by a
  tag under a key of the client's own.
* `CONTENT`: under `malicious_server`, the query is the same as an earlier one except for its round.
* `KIND`: the sum is of the same kind as an earlier one, and the policy has a `min_difference`.

A set is close to an earlier one if they differ in at least one client and in fewer than the rule requires. A
client checks the clients asked before it masks its values, and the survivors before it releases any share.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Protocol, TypeAlias, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from secagg import errors
from secagg.bitmap import PositionSet
from secagg.clipping_and_fixed_point import checked
from secagg.cohort_members import CohortView
from secagg.errors import SERVER
from secagg.hashing import digest, framed
from secagg.policy import Policy
from secagg.query_context import Question
from secagg.sum_spec import Part, Table
from secagg.trust_levels import Trust

F = TypeVar("F", bound=Callable[..., Any])
_WHOLE: Final = 2.0**63
SumId: TypeAlias = tuple[bytes, int]  # session id, index of the sum
# (kind, payload) -> the payload without all that belongs to the round, such as nonces and round numbers.
ContentOf: TypeAlias = Callable[[str, bytes], bytes]


def whole_payload(_kind: str, payload: bytes) -> bytes:
    """Return `payload` unchanged. As the default `content_of` of client and server machines, it says that two
    queries of a kind are the same only if their whole payloads are."""
    return payload


def static(function: F) -> F:
    """Mark an answer function as static: its values do not depend on the query. The command `secagg join`
    then refuses to sum the same values over sets of clients that differ too little (rule `STATIC`).

    >>> @static
    ... def answer(asked):
    ...     return {"visits": [12]}
    >>> answer.static
    True
    """
    vars(function)["static"] = True
    return function


class Rule(StrEnum):
    """Why a client compares the sets of clients of two sums: the values are the same (`STATIC`), the queries
    are the same except for the round (`CONTENT`), or the policy compares all sums of a kind (`KIND`)."""

    STATIC = "static"
    CONTENT = "content"
    KIND = "kind"


@dataclass(frozen=True)
class SumSequence:
    """Identifies a sequence of sums: `rule` compares the sets of clients of all sums with the same `key`."""

    rule: Rule
    key: bytes


class SetLog:
    """The sets of clients (their ids) of earlier sums, by sequence: sums whose sets are compared. A set is
    stored as one integer with a bit for each client, so that thousands of sets take little memory. If
    `all_clients`, an algorithm needs all clients, and `RepeatPlanner` prefers to repeat a set. On a server,
    `dropouts` is the number of clients that dropped out of the last sum."""

    def __init__(self, *, all_clients: bool = False) -> None:
        self.all_clients = all_clients
        self.released: set[SumSequence] = set()  # the last total of these sequences was released
        self.dropouts = 0
        self._bit: dict[int, int] = {}  # id -> bit
        self._ids: list[int] = []  # bit -> id
        self._confirmed: dict[SumSequence, set[int]] = {}
        self._unconfirmed: dict[SumSequence, dict[SumId, int]] = {}
        self._answered: dict[SumId, tuple[SumSequence, ...]] = {}

    def answer(self, sum_id: SumId, sequences: tuple[SumSequence, ...], roster: Iterable[int]) -> None:
        """Record a sum that asks the clients `roster`, before it is answered. Its survivors are unknown."""
        bits = self._bits(roster)
        self._answered[sum_id] = sequences
        for sequence in sequences:
            self._unconfirmed.setdefault(sequence, {})[sum_id] = bits

    def confirm(self, sum_id: SumId, survivors: Iterable[int], *, settled: bool = True) -> None:
        """Record the survivors of a sum; there are none if it ended without a total. Unless `settled`, the
        client was told of these survivors, but a total over others is still possible, so its roster stays.
        If the sum was not passed to `answer` before, or is settled, do nothing."""
        ids = tuple(survivors)
        for sequence in self._answered.get(sum_id, ()):
            if settled:
                self._unconfirmed[sequence].pop(sum_id, None)
            if ids:
                self.add(sequence, ids)
        if settled:
            self._answered.pop(sum_id, None)

    def is_open(self, sum_id: SumId) -> bool:
        """Return whether a sum was answered, and its survivors are unknown."""
        return sum_id in self._answered

    def add(self, sequence: SumSequence, survivors: Iterable[int]) -> None:
        """Record the survivors of a sum of this sequence."""
        self._confirmed.setdefault(sequence, set()).add(self._bits(survivors))

    def confirmed(self, sequence: SumSequence) -> list[frozenset[int]]:
        """Return all survivor sets (of client ids) recorded for the sequence."""
        return [frozenset(self._members(bits)) for bits in sorted(self._confirmed.get(sequence, ()))]

    def has(self, sequence: SumSequence, survivors: Iterable[int]) -> bool:
        """Return whether exactly these survivors are recorded for the sequence."""
        return self._bits(survivors) in self._confirmed.get(sequence, ())

    def copy(self, *, all_clients: bool) -> SetLog:
        """Return a log of the same survivors, for an algorithm that needs `all_clients` or not."""
        log = SetLog(all_clients=all_clients)
        for sequence, survivors in self.entries():
            log.add(sequence, survivors)
        log.released = set(self.released)
        return log

    def entries(self) -> Iterator[tuple[SumSequence, tuple[int, ...]]]:
        """Yield every recorded (sequence, survivors), so that the caller can save them."""
        for sequence, sets in self._confirmed.items():
            for bits in sets:
                yield sequence, tuple(sorted(self._members(bits)))

    def is_close(
        self, sequence: SumSequence, members: Iterable[int], *, least: int, current: SumId | None = None
    ) -> bool:
        """Return whether `members` differ from an earlier set of the sequence by at least one client, but by
        fewer than `least`; False if they equal any earlier set. A `STATIC` sequence also has the rosters of
        sums, other than `current`, that were answered but never confirmed: their totals may be over any part
        of the roster. Return True if fewer than `least` of `members` are not in such a roster. An equal
        roster is safe: if another total was released, a majority confirmed it and refuses now. Other rules
        need no rosters: under `malicious_server`, most honest clients confirmed a released total."""
        bits = self._bits(members)
        sets = self._confirmed.get(sequence, set())
        rosters: set[int] = set()
        if sequence.rule is Rule.STATIC:
            unconfirmed = self._unconfirmed.get(sequence, {})
            rosters = {roster for sum_id, roster in unconfirmed.items() if sum_id != current}
        if bits in sets or bits in rosters:
            return False
        return any((bits ^ each).bit_count() < least for each in sets) or any(
            (bits & ~each).bit_count() < least for each in rosters
        )

    def _bits(self, ids: Iterable[int]) -> int:
        bits = 0
        for member in ids:
            if member not in self._bit:
                self._bit[member] = len(self._ids)
                self._ids.append(member)
            bits |= 1 << self._bit[member]
        return bits

    def _members(self, bits: int) -> Iterator[int]:
        return (member for member, bit in self._bit.items() if bits >> bit & 1)


def content_sequence(kind: str, payload: bytes, content_of: ContentOf) -> SumSequence:
    """Return the sequence (rule `CONTENT`) of all queries of this kind with the same content, which
    `content_of` computes from a payload: all that does not belong to one round."""
    content = content_of(kind, payload)
    return SumSequence(Rule.CONTENT, digest("repeated content", kind.encode("ascii"), content))


def kind_sequence(kind: str) -> SumSequence:
    """Return the sequence (rule `KIND`) of all sums of this kind."""
    return SumSequence(Rule.KIND, kind.encode("ascii"))


class SequenceMemory(Protocol):
    """The part of a client's memory that the rules use: `sets`, the clients of earlier sums, and `tag`, which
    returns a MAC of `data` under a key of the client's own, to recognise equal values but not store them."""

    @property
    def sets(self) -> SetLog: ...
    def remember_survivors(self, sum_id: SumId, survivors: tuple[int, ...], *, settled: bool) -> None: ...
    def tag(self, data: bytes) -> bytes: ...


class SequenceRules:
    """Decides, for one client, whether the clients of a sum are too close to those of an earlier sum that
    must be compared. `static` has the kinds of sums whose values do not depend on the query. The constructor
    raises `ParameterError` if one of them is not in `table`."""

    def __init__(
        self,
        policy: Policy,
        memory: SequenceMemory,
        *,
        table: Table,
        static: Collection[str],
        content_of: ContentOf,
    ) -> None:
        self._policy = policy
        self._memory = memory
        if unknown := set(static) - set(table):
            raise errors.ParameterError(
                f"the table has no kind of sum {sorted(unknown)[0]!r}", parameter="static"
            )
        self._static = frozenset(kind for kind in static if not table[kind].is_private)
        self._content_of = content_of

    @property
    def need_members(self) -> bool:
        """Whether this client may have to compare the clients of its sums, and so must know all their ids."""
        return bool(self._static or self._policy.min_difference or self._policy.trust is Trust.MALICIOUS)

    def check_cohort(self, cohort: CohortView, least: int) -> None:
        """Do nothing unless `need_members`. Raise `PeerError` if this client does not know all ids (a ring
        may hide them), or if so few clients can reveal a total that others, who do not know of it, could
        reveal another one over nearly the same clients. A sum has at least `least` clients."""
        if not self.need_members:
            return
        if len(cohort.ids) < cohort.size:
            raise errors.HiddenMembers(
                SERVER, "a ring hides its members, and this client compares the clients of successive sums"
            )
        around, threshold = len(cohort.neighbourhood), cohort.threshold
        if around == cohort.size:
            enough = 2 * threshold > cohort.size
        else:  # each of `least` clients needs `threshold` holders, and a holder serves `around` of them
            revealing = -(-least * threshold // around) - self._policy.corrupt
            enough = revealing >= max(self._policy.min_contributors, self._policy.min_difference)
        if not enough:
            raise errors.SmallThreshold(
                SERVER,
                f"threshold {threshold} of {around} clients; this client compares the clients of successive "
                "sums, and more of them must know of every total",
            )

    def of_query(self, question: Question) -> tuple[SumSequence, ...]:
        """Return the sequences to which a query belongs by its kind (rule `KIND`) and content (`CONTENT`),
        where they apply. For static kinds, the stronger rule `STATIC` (in `of_values`) replaces `CONTENT`."""
        query, found = question.query, []
        if self._policy.min_difference:
            found.append(kind_sequence(query.kind))
        computed = query.kind not in self._static and not question.spec.is_private
        # A later sum of a group is over the same clients as the first one, whose query was compared.
        if computed and self._policy.trust is Trust.MALICIOUS and not question.later_in_group:
            found.append(content_sequence(query.kind, query.payload, self._content_of))
        return tuple(found)

    def of_values(self, question: Question, values: Mapping[str, ArrayLike]) -> tuple[SumSequence, ...]:
        """Return the sequences to which `values` belong by the rule `STATIC`: one for each part without
        noise; none if the kind is not static. Sums with the same values in a part of the same name form one
        sequence, whatever their kind. Parts of other names are not compared: a refusal would tell that two
        different quantities are equal. Raises `InputError` if the values do not match the spec."""
        if question.query.kind not in self._static:
            return ()
        parts = [part for part in question.spec.parts if part.noise is None]
        return tuple(SumSequence(Rule.STATIC, self._memory.tag(_canonical(p, values))) for p in parts)

    def remember(
        self,
        sequences: Iterable[SumSequence],
        question: Question,
        survivors: PositionSet,
        *,
        confirmed: bool = False,
    ) -> None:
        """Record the survivors of a sum that belongs to `sequences`, safely, before a signature or a share
        leaves. A malicious server may name others to other clients until a threshold `confirmed` them."""
        if sequences:
            settled = confirmed or self._policy.trust is Trust.CURIOUS
            ids = question.member_ids(survivors)
            self._memory.remember_survivors(question.sum_id, ids, settled=settled)

    def give_up(self, question: Question) -> None:
        """Record that the server gave up a sum. A server that follows the protocol has then released no total
        of it, and never will, unless it has named the survivors before."""
        if self._policy.trust is Trust.CURIOUS and self._memory.sets.is_open(question.sum_id):
            self._memory.remember_survivors(question.sum_id, (), settled=True)

    def check(self, sequences: Iterable[SumSequence], question: Question, positions: PositionSet) -> None:
        """Raise `PeerError` if the clients at `positions`, asked or surviving, differ from an earlier set of
        one of `sequences`, but by fewer clients than its rule requires."""
        for sequence in sequences:
            policy, members = self._policy, question.member_ids(positions)
            least = policy.min_difference if sequence.rule is Rule.KIND else policy.min_contributors
            if self._memory.sets.is_close(sequence, members, least=least, current=question.sum_id):
                refuse(sequence.rule, least)


def refuse(rule: Rule, least: int) -> None:
    """Raise the `PeerError` of `rule`: a set of clients differs from an earlier one by fewer than `least`."""
    if rule is Rule.STATIC:
        raise errors.UnchangedValues(
            SERVER,
            f"these values were summed before over clients that differ from these by fewer than {least}; "
            "they are summed again over the same clients, or after they have changed",
        )
    if rule is Rule.CONTENT:
        raise errors.RepeatedQuery(
            SERVER, f"the same query was answered over clients that differ from these by fewer than {least}"
        )
    raise errors.SmallDifference(
        SERVER, f"a sum of this kind was over clients that differ from these by fewer than {least}"
    )


def _canonical(part: Part, values: Mapping[str, ArrayLike]) -> bytes:
    """Return the name and values of a part as bytes that do not depend on the numeric type of the values.
    Raises `InputError` if these do not match the part."""
    array = checked(part, values.get(part.name, ()))
    if array.dtype.kind == "f" and (np.trunc(array) == array).all() and (np.abs(array) < _WHOLE).all():
        array = array.astype(np.int64)  # a count may be given as floats
    form = "<f8" if array.dtype.kind == "f" else "<u8"  # negative numbers modulo 2^64
    return framed("values", part.name.encode("ascii"), form.encode(), array.astype(form).tobytes())
