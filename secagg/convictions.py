"""Convictions: what the server concludes from a lie, and the evidence that it keeps of it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field

from secagg import errors
from secagg.cohort_members import Cohort
from secagg.dealt_shares import DealtShares
from secagg.disputes import Pair, settle
from secagg.events import Convicted, Excluded
from secagg.evidence import Evidence, Offence, Statement
from secagg.sum_unmasking import Tally


@dataclass
class Convictions:
    """The clients of one session that were convicted. `most` is how many of a client's neighbours may lie.
    Only if messages are signed is there evidence: `frames` has the invitation and the key list, else None."""

    cohort: Cohort
    dealt: DealtShares
    most: int
    frames: tuple[bytes, bytes] | None
    members: set[int] = field(default_factory=set)

    def convict(self, lies: Iterable[errors.Lie], tally: Tally | None) -> Iterator[Convicted | Excluded]:
        """Yield the events for each client in `lies` that was not convicted before. With `tally`, the lies
        are about that sum, and were signed if there are signatures."""
        for lie in lies:
            assert isinstance(lie.peer, int)  # the server never lies to itself
            if lie.peer not in self.members:
                self.members.add(lie.peer)
                yield Convicted(lie.peer, lie, self._evidence(lie, tally))
                yield Excluded(lie.peer, lie)

    def report(self, holder: int, dealers: Collection[int]) -> Iterator[Convicted | Excluded]:
        """Record that `holder` reports the shares of `dealers` (positions). Convict the holder if it reports
        more clients than may lie, else each dealer that more clients report than may lie."""
        self.dealt.report(holder, dealers)
        ids, lies = self.cohort.ids, list[errors.Lie]()
        if len(dealers) > self.most:
            lies.append(errors.FalseReport(ids[holder], "reports more dealers than may lie"))
        else:
            false = [each for each in dealers if len(self.dealt.reporters(each)) > self.most]
            lies += [errors.UnreadableShares(ids[each], "too many holders report it") for each in false]
        return self.convict(lies, None)

    def settle(self, pairs: Iterable[Pair], tally: Tally | None = None) -> Iterator[Convicted | Excluded]:
        """Yield the events of clients to convict or to exclude, until no two of `pairs` are left. Of each
        pair, at least one client lies. With `tally`, both ends signed contradictory inputs to that sum."""
        settlement = settle(pairs, corrupt=self.most)
        why = "contradicts more clients than may lie"
        yield from self.convict([errors.ManyDisputes(liar, why) for liar in settlement.liars], tally)
        for pair in settlement.excluded:
            for peer, other in (pair, pair[::-1]):
                yield Excluded(peer, errors.Dispute(peer, other))

    def after(self, error: errors.SumFailed, tally: Tally) -> Iterator[Convicted | Excluded]:
        """Yield the events of clients to convict or to exclude because the sum of `tally` failed."""
        if isinstance(error, errors.Unrecoverable | errors.CorruptTotal):
            yield from self.convict(error.liars, tally)
        elif isinstance(error, errors.Disputed):
            yield from self.settle(error.pairs, tally if error.signed else None)

    # --- evidence ---

    def _evidence(self, lie: errors.Lie, tally: Tally | None) -> Evidence | None:
        """Return the evidence of a lie about a sum. There is none of lies that only this server can judge."""
        if self.frames is None or tally is None:
            return None
        offence, statements, values = self._proof(lie, tally)
        assert isinstance(lie.peer, int)
        return Evidence(offence, lie.peer, *self.frames, tuple(statements), tuple(values))

    def _proof(self, lie: errors.Lie, tally: Tally) -> tuple[Offence, list[Statement], list[bytes]]:
        assert isinstance(lie.peer, int)
        position = self.cohort.position[lie.peer]
        match lie:
            case errors.WrongShare():
                dealer = self.cohort.position[lie.dealer]
                said = [self._tags(dealer), tally.reveal_statement(position)]
                return Offence.WRONG_SHARE, said, [self._accepted(position)]
            case errors.FalseDealing():
                rows = tally.dealt_rows(position, lie.column)
                head = [_u32(tally.question.sum_index), _u32(lie.column)]
                return Offence.FALSE_DEALING, [self._tags(position)], [*head, *rows]
            case errors.FalseCount():
                return Offence.FALSE_COUNT, [tally.input_statement(position)], [tally.secrets[position, 0]]
            case errors.FalseWord():
                return self._false_word(position, self.cohort.position[lie.other], tally)
            case errors.FalseDeposit():
                secret, index = tally.secrets[position, 0], tally.question.sum_index
                values = [_u32(lie.other), secret, self._accepted(position), _u32(index)]
                return Offence.FALSE_DEPOSIT, [self.dealt.deposits.statement(position)], values
            case _:
                others = [each for each in tally.disputes() if lie.peer in each]
                peers = [one if other == lie.peer else other for one, other in others]
                said = [tally.input_statement(self.cohort.position[each]) for each in (lie.peer, *peers)]
                return Offence.MANY_DISPUTES, said, []

    def _accepted(self, holder: int) -> bytes:
        return b"".join(_u32(dealer) + tags for dealer, tags in self.dealt.accepted_by(holder))

    def _false_word(
        self, position: int, dropped: int, tally: Tally
    ) -> tuple[Offence, list[Statement], list[bytes]]:
        secret, index = tally.secrets[dropped, 0], tally.question.sum_index
        said, values = [tally.input_statement(position)], [_u32(self.cohort.ids[dropped]), secret]
        _, secrets = self.dealt.pair_secrets(dropped, [position], index, secret)
        if secrets:
            said.append(self.dealt.deposits.statement(position))
            values += [self._accepted(position), secrets[position]]
        return Offence.FALSE_WORD, said, values

    def _tags(self, dealer: int) -> Statement:
        tags, signature = self.dealt.published(dealer)
        return Statement(self.cohort.ids[dealer], "share tags", (self.cohort.session, tags), signature)


def _u32(value: int) -> bytes:
    return value.to_bytes(4, "big")
