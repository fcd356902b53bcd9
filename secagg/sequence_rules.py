"""Rules about sequences of sums: which sets of clients the same private values may be summed over.

Masks protect one sum. If the same values are summed over two sets of clients, the difference of the two
totals is the sum of the clients in which the sets differ. A client therefore remembers the sets of its
earlier sums, and refuses a new set that is too close to one of them. There are three rules:

* `STATIC`: the values of a part without noise are the same as in an earlier sum. They are recognised by a
  tag under a key of the client's own.
* `CONTENT`: under `malicious_server`, the query is the same as an earlier one except for its round.
* `KIND`: the sum is of the same kind as an earlier one, and the policy has a `min_difference`.

A set is close to an earlier one if they differ in at least one client and in fewer than the rule requires.
A client checks the roster before it masks its values, and the survivors before it releases any share.
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
from secagg.cohort import CohortView
from secagg.errors import SERVER
from secagg.fixed_point import checked
from secagg.hashing import digest, framed
from secagg.messages import Query
from secagg.params import SessionParams
from secagg.policy import Policy
from secagg.question import Question
from secagg.sum_spec import Part, Table
from secagg.trust_levels import Trust, dropouts_allowed

F = TypeVar("F", bound=Callable[..., Any])
_WHOLE: Final = 2.0**63
SumId: TypeAlias = tuple[bytes, int]  # session id, index of the sum
# (kind, payload) -> the payload without all that belongs to the round, such as nonces and round numbers.
ContentOf: TypeAlias = Callable[[str, bytes], bytes]


def whole_payload(_kind: str, payload: bytes) -> bytes:
    """Return the whole payload. This is the default `content_of` of client and server machines."""
    return payload


def static(function: F) -> F:
    """Mark a function as static: its values do not depend on the query. `secagg join` then applies `STATIC`.

    >>> @static
    ... def answer(asked):
    ...     return {"visits": [12]}
    >>> answer.static
    True
    """
    vars(function)["static"] = True
    return function


class Rule(StrEnum):
    """Why two sums form a sequence, whose sets of clients are compared. The module docstring explains it."""

    STATIC = "static"
    CONTENT = "content"
    KIND = "kind"


@dataclass(frozen=True)
class SumSequence:
    """Identifies a sequence of sums: `rule` compares the sets of clients of all sums with the same `key`."""

    rule: Rule
    key: bytes


class SetLog:
    """The sets of clients of earlier sums, by sequence. Sets hold the ids of clients.

    A set is stored as one integer with a bit for each client, so that thousands of sets take little memory.
    `all_clients` is for algorithms that need all clients: `RepeatPlanner` prefers to repeat an earlier set.
    """

    def __init__(self, *, all_clients: bool = False) -> None:
        self.all_clients = all_clients
        self.released: set[SumSequence] = set()  # the last total of these sequences was released
        self._bit: dict[int, int] = {}  # id -> bit
        self._ids: list[int] = []  # bit -> id
        self._confirmed: dict[SumSequence, set[int]] = {}
        self._unconfirmed: dict[SumSequence, dict[SumId, int]] = {}
        self._answered: dict[SumId, tuple[SumSequence, ...]] = {}

    def answer(self, sum_id: SumId, sequences: tuple[SumSequence, ...], roster: Iterable[int]) -> None:
        """Record a sum over `roster` that is about to be answered. Its survivors are not known yet."""
        bits = self._bits(roster)
        self._answered[sum_id] = sequences
        for sequence in sequences:
            self._unconfirmed.setdefault(sequence, {})[sum_id] = bits

    def confirm(self, sum_id: SumId, survivors: Iterable[int]) -> None:
        """Record the survivors of a sum that was passed to `answer` before."""
        ids = tuple(survivors)
        for sequence in self._answered.pop(sum_id, ()):
            self._unconfirmed[sequence].pop(sum_id, None)
            self.add(sequence, ids)

    def add(self, sequence: SumSequence, survivors: Iterable[int]) -> None:
        """Record the survivors of a sum of this sequence."""
        self._confirmed.setdefault(sequence, set()).add(self._bits(survivors))

    def confirmed(self, sequence: SumSequence) -> list[frozenset[int]]:
        """Return all survivor sets recorded for the sequence."""
        return [frozenset(self._members(bits)) for bits in sorted(self._confirmed.get(sequence, ()))]

    def entries(self) -> Iterator[tuple[SumSequence, tuple[int, ...]]]:
        """Yield every recorded (sequence, survivors), so that the caller can save them."""
        for sequence, sets in self._confirmed.items():
            for bits in sets:
                yield sequence, tuple(sorted(self._members(bits)))

    def is_close(
        self, sequence: SumSequence, members: Iterable[int], *, least: int, current: SumId | None = None
    ) -> bool:
        """Return whether `members` differ from an earlier set of the sequence, but by fewer than `least`.

        The total of a sum that was answered and never confirmed may be over any part of its roster. For
        `STATIC` sequences, `members` are therefore also compared with the rosters of such sums: they must be
        the same, or have `least` clients that the roster does not have. (The same roster is safe: if another
        total was released, a majority confirmed it and refuses now.) The sum `current` is not compared.

        The other rules do not need this. A total that was released under `malicious_server` was confirmed by
        more than half of the honest clients. If they are asked again, they refuse.
        """
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
    """Return the `CONTENT` sequence: that of all queries that equal this one except for their round."""
    content = content_of(kind, payload)
    return SumSequence(Rule.CONTENT, digest("repeated content", kind.encode("ascii"), content))


class SequenceMemory(Protocol):
    """The part of a client's memory that the rules use: `sets`, the clients of earlier sums, and `tag`, which
    returns a MAC of `data` under a key of the client's own, to recognise equal values but not store them."""

    @property
    def sets(self) -> SetLog: ...
    def tag(self, data: bytes) -> bytes: ...


class SequenceRules:
    """Applies the rules for one client. `static`: kinds of sums whose values do not depend on the query."""

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
        """Whether a rule applies, so that this client has to know the ids of all clients in a sum."""
        policy = self._policy
        return bool(self._static or policy.min_difference or policy.trust is Trust.MALICIOUS)

    def check_cohort(self, cohort: CohortView) -> None:
        """If a rule applies, raise `PeerError` if this client does not know all ids or a minority can reveal.

        Two disjoint sets of clients could otherwise reveal two sums, each without knowing of the other.
        """
        if not self.need_members:
            return
        if len(cohort.neighbourhood) < cohort.size:
            raise errors.HiddenMembers(
                SERVER, "a ring hides its members, and this client compares the clients of successive sums"
            )
        if 2 * cohort.threshold <= cohort.size:
            raise errors.SmallThreshold(
                SERVER,
                f"threshold {cohort.threshold} of {cohort.size} clients; this client compares the clients of "
                "successive sums, and needs a majority",
            )

    def of_query(self, question: Question) -> tuple[SumSequence, ...]:
        """Return the sequences of the rules `KIND` and `CONTENT` to which a query belongs.

        These do not depend on the values. For static kinds, the stronger rule `STATIC` replaces `CONTENT`.
        """
        query, found = question.query, []
        if self._policy.min_difference:
            found.append(SumSequence(Rule.KIND, query.kind.encode("ascii")))
        computed = query.kind not in self._static and not question.spec.is_private
        # A later sum of a group is over the same clients as the first one, whose query was compared.
        if computed and self._policy.trust is Trust.MALICIOUS and not question.later_in_group:
            found.append(content_sequence(query.kind, query.payload, self._content_of))
        return tuple(found)

    def of_values(self, question: Question, values: Mapping[str, ArrayLike]) -> tuple[SumSequence, ...]:
        """Return the sequences of unchanged values: one for each part without noise of a static kind.

        The same values of a part of the same name are one sequence in sums of different kinds too. Parts of
        other names are not compared: a refusal would tell that two different quantities are equal. Raises
        `InputError` if the values do not match the spec.
        """
        if question.query.kind not in self._static:
            return ()
        parts = [part for part in question.spec.parts if part.noise is None]
        return tuple(SumSequence(Rule.STATIC, self._memory.tag(_canonical(p, values))) for p in parts)

    def check(self, sequences: Iterable[SumSequence], question: Question, positions: PositionSet) -> None:
        """Raise a rule's error if `positions`, a sum's roster or survivors, are close to an earlier set."""
        for sequence in sequences:
            policy, members = self._policy, question.member_ids(positions)
            least = policy.min_difference if sequence.rule is Rule.KIND else policy.min_contributors
            if self._memory.sets.is_close(sequence, members, least=least, current=question.sum_id):
                refuse(sequence.rule, least)


def refuse(rule: Rule, least: int) -> None:
    """Raise the error of `rule`: a set of clients differs from an earlier one by fewer than `least`."""
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
    """Return the values of a part as bytes that do not depend on their numeric type or the part's bound."""
    array = checked(part, values.get(part.name, ()))
    if array.dtype.kind == "f" and (np.trunc(array) == array).all() and (np.abs(array) < _WHOLE).all():
        array = array.astype(np.int64)  # a count may be given as floats
    form = "<f8" if array.dtype.kind == "f" else "<u8"  # negative numbers modulo 2^64
    return framed("values", part.name.encode("ascii"), form.encode(), array.astype(form).tobytes())


class RepeatPlanner:
    """The server's side of the rule `CONTENT`: it chooses clients that will not refuse a repeated query.

    After a sum that failed, the next round may ask the same query again. If the clients of the new sum are
    close to those that confirmed the earlier one, all of them refuse.
    """

    def __init__(self, log: SetLog, params: SessionParams, *, table: Table, content_of: ContentOf) -> None:
        self._log = log
        self._least = params.min_contributors
        self._dropout = params.dropout
        self._signed = params.trust is Trust.MALICIOUS
        self._table = table
        self._content_of = content_of

    def roster(self, kind: str, payload: bytes, members: tuple[int, ...], *, need: int) -> tuple[int, ...]:
        """Return the clients to ask: `members` without some clients of every earlier set of this query.

        Then the survivors differ enough from each earlier set, whoever drops out. Return an earlier set that
        is still complete in `members` instead, if too few clients would be left, if no drop-outs are expected
        or if the log has `all_clients`. Too few means fewer than `need`, also after the expected drop-outs if
        the last total was released. Raises `TooFewClients` if neither is possible.
        """
        sequences, present = self.sequences(kind, payload), frozenset(members)
        earlier = [each for sequence in sequences for each in self._log.confirmed(sequence)]
        chosen = set(present)
        for each in earlier:
            missing = self._least - len(each - chosen)
            order = sorted(each & chosen, key=lambda member: _order(sequences[0], member))
            chosen.difference_update(order[: max(0, missing)])
        same = max((each for each in earlier if each <= present), key=len, default=None)
        lost = dropouts_allowed(len(chosen), self._dropout)
        preferred = not self._log.released.issuperset(sequences) or len(chosen) - lost >= need
        leave_out = same is None or (self._dropout > 0 and preferred and not self._log.all_clients)
        if not earlier or (len(chosen) >= need and leave_out):
            return tuple(sorted(chosen))
        if same is None:
            raise errors.TooFewClients(
                "this query was confirmed before, over clients that are not all here: too few others are left"
            )
        return tuple(sorted(same))

    def confirm(
        self, query: Query, survivors: tuple[int, ...], *, later: bool = False
    ) -> tuple[SumSequence, ...]:
        """Record the survivors that clients are about to confirm, and return the sequences of the query.

        `later` is true if the sum is not the first of its group. Raises `TooFewClients` if the survivors
        would refuse to confirm.
        """
        sequences = self.sequences(query.kind, query.payload, later=later)
        self._log.released.difference_update(sequences)
        if any(self._log.is_close(each, survivors, least=self._least) for each in sequences):
            raise errors.TooFewClients(
                "the survivors are too close to those that confirmed this query before"
            )
        for sequence in sequences:
            self._log.add(sequence, survivors)
        return sequences

    def release(self, query: Query, *, later: bool = False) -> None:
        """Record that the total of a query was released, so that `roster` may prefer its clients."""
        self._log.released.update(self.sequences(query.kind, query.payload, later=later))

    def sequences(self, kind: str, payload: bytes, *, later: bool = False) -> tuple[SumSequence, ...]:
        """Return a tuple with the sequence of a query, or an empty tuple if clients do not compare it."""
        if later or not self._signed or self._table[kind].is_private:
            return ()
        return (content_sequence(kind, payload, self._content_of),)


def _order(sequence: SumSequence, member: int) -> bytes:
    """Return a pseudorandom rank of a client, so that repeats do not always leave out the same clients."""
    return digest("left out", sequence.key, member.to_bytes(4, "big"))
