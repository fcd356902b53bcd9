"""The server's choice of clients for a query: clients that will not refuse it because of earlier sums."""

from __future__ import annotations

from collections.abc import Iterable

from secagg import errors
from secagg.batched_rosters import is_allowed, largest_roster
from secagg.differencing_rules import ContentOf, SetLog, SumSequence, content_sequence, kind_sequence
from secagg.hashing import digest
from secagg.messages import Query
from secagg.session_params import SessionParams
from secagg.sum_spec import Table
from secagg.trust_levels import Trust, dropouts_allowed


class RepeatPlanner:
    """Chooses the clients that the server asks if the same query was asked before, for example in a sum that
    failed. By the rule `CONTENT`, clients answer it only over a set of clients that confirmed it before, or
    over a set that differs from each such set by at least `min_contributors` clients. If the parameters have
    a `min_difference`, it also keeps the rule `KIND`, of clients with that policy. All kinds are treated as
    one here, because sums of a group have the same clients and may be of several kinds."""

    def __init__(self, log: SetLog, params: SessionParams, *, table: Table, content_of: ContentOf) -> None:
        self._log = log
        self._least = params.min_contributors
        self._apart = params.min_difference
        self._dropout = params.dropout
        self._signed = params.trust is Trust.MALICIOUS
        self._table = table
        self._content_of = content_of

    def roster(self, kind: str, payload: bytes, members: tuple[int, ...], *, need: int) -> tuple[int, ...]:
        """Return the ids of the clients to ask: `members`, without some clients of every set that confirmed
        this query before, so that survivors differ enough from each of these sets, whichever drop out. If too
        few would be left, no drop-outs are expected or the log has `all_clients`, return instead the largest
        of these sets that is complete in `members`. Too few: below `need`, even after drop-outs if the last
        total was released. Raises `TooFewClients` if fewer than `need` are left and there is no such set."""
        if self._apart:
            return self._batch(kind, payload, members, need)
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

    def _batch(self, kind: str, payload: bytes, members: tuple[int, ...], need: int) -> tuple[int, ...]:
        """Return the clients to ask under the rule `KIND`, which also keep the rule `CONTENT`."""
        earlier = sets_by_kind(self._log, self._table, self._apart)
        for sequence in self.sequences(kind, payload):
            for each in self._log.confirmed(sequence):
                earlier[each] = max(self._least, earlier.get(each, 0))
        chosen = batched_roster(members, earlier, dropouts=self._log.dropouts, least=need, most=len(members))
        if chosen is None:
            raise errors.TooFewClients(
                "clients are left out and taken in by batches, and no set of those here is far enough from "
                "the earlier ones"
            )
        return chosen

    def confirm(
        self, query: Query, survivors: tuple[int, ...], *, later: bool = False
    ) -> tuple[SumSequence, ...]:
        """Record `survivors`, the ids of the clients that are about to confirm a sum. Return the sequences
        that this set is recorded for. `later` is true if the sum is not the first of its group. Raises
        `TooFewClients` if the survivors are so close to those of an earlier sum that they would refuse."""
        sequences = self.sequences(query.kind, query.payload, later=later)
        asked = int.from_bytes(query.roster, "big").bit_count()
        self._log.released.difference_update(sequences)
        self._log.dropouts = asked - len(survivors)
        if any(self._log.is_close(each, survivors, least=self._least) for each in sequences):
            raise errors.TooFewClients(
                "the survivors are too close to those that confirmed this query before"
            )
        if not is_allowed(survivors, sets_by_kind(self._log, self._table, self._apart)):
            raise errors.TooFewClients(
                "the survivors differ by fewer than min_difference clients from those of an earlier sum"
            )
        for sequence in (recorded := sequences + self._new_set(query.kind, survivors)):
            self._log.add(sequence, survivors)
        return recorded

    def _new_set(self, kind: str, survivors: tuple[int, ...]) -> tuple[SumSequence, ...]:
        """Return a tuple with the `KIND` sequence, or () if clients do not compare it or it has this set."""
        sequence = kind_sequence(kind)
        return (sequence,) if self._apart and not self._log.has(sequence, survivors) else ()

    def release(self, query: Query, *, later: bool = False) -> None:
        """Record for `roster` that the last total of `query` was released. Record nothing if `sequences` is
        empty, for example for a `later` sum of a group."""
        self._log.released.update(self.sequences(query.kind, query.payload, later=later))

    def sequences(self, kind: str, payload: bytes, *, later: bool = False) -> tuple[SumSequence, ...]:
        """Return a tuple with the `CONTENT` sequence of a query, or () if clients do not compare it: under
        `curious_server`, with noise on all parts, or for a `later` sum of a group."""
        if later or not self._signed or self._table[kind].is_private:
            return ()
        return (content_sequence(kind, payload, self._content_of),)


def _order(sequence: SumSequence, member: int) -> bytes:
    """Return a pseudorandom rank of a client, so that different queries leave out different clients."""
    return digest("left out", sequence.key, member.to_bytes(4, "big"))


def sets_by_kind(log: SetLog, kinds: Iterable[str], min_difference: int) -> dict[frozenset[int], int]:
    """Return the survivor sets of earlier sums of these kinds, each with `min_difference`; none if that is 0:
    then clients do not compare them."""
    if not min_difference:
        return {}
    return {each: min_difference for kind in kinds for each in log.confirmed(kind_sequence(kind))}


def batched_roster(
    members: Iterable[int], earlier: dict[frozenset[int], int], *, dropouts: int, least: int, most: int
) -> tuple[int, ...] | None:
    """Return the `largest_roster` that stays allowed if as many clients drop out as in the last sum, or as
    many fewer as possible. Return None if there is no roster."""
    present = tuple(members)
    rosters = (
        largest_roster(present, earlier, least=least, most=most, spare=spare)
        for spare in range(max(0, dropouts), -1, -1)
    )
    return next((each for each in rosters if each is not None), None)
