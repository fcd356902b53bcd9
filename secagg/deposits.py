"""`Deposits`: the server's record of what clients deposited for hybrid key agreement (see `hybrid_keys`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from secagg.cohort_members import Cohort
from secagg.disputes import Pair
from secagg.errors import FalseDeposit
from secagg.evidence import Signed, Statement
from secagg.hybrid_keys import DEPOSIT_BYTES, PAIR_SECRET_BYTES, padded, secret_tag


class Deposits:
    """The deposits of the members of `cohort`, by their positions, for `sums` sums."""

    def __init__(self, cohort: Cohort, *, sums: int) -> None:
        self._cohort = cohort
        self._sums = sums
        self._deposits: dict[int, dict[int, bytes]] = {}  # owner -> neighbour -> deposits of all sums
        self._signed: dict[int, Signed] = {}

    @property
    def owners(self) -> set[int]:
        """The positions of the members that made a deposit."""
        return set(self._deposits)

    def add(self, owner: int, deposits: Mapping[int, bytes], signed: Signed) -> None:
        self._deposits[owner] = dict(deposits)
        self._signed[owner] = signed

    def disputes(self) -> list[Pair]:
        """Return the ids of each two members whose deposits are not of the same pair secrets."""
        ids = self._cohort.ids
        return [
            (ids[one], ids[other])
            for one, theirs in sorted(self._deposits.items())
            for other in theirs
            if one < other and not self._agree(one, other)
        ]

    def _agree(self, one: int, other: int) -> bool:
        """Return whether two members published equal tags, or one of them made no deposit at all."""
        back = self._deposits.get(other)
        return back is None or (one in back and self._tags(one, other) == self._tags(other, one))

    def _tags(self, owner: int, peer: int) -> list[bytes]:
        return [self._one(owner, peer, k)[PAIR_SECRET_BYTES:] for k in range(self._sums)]

    def _one(self, owner: int, peer: int, sum_index: int) -> bytes:
        start = sum_index * DEPOSIT_BYTES
        return self._deposits[owner][peer][start : start + DEPOSIT_BYTES]

    def opened(self, owner: int, peers: Iterable[int], sum_index: int, secret: bytes) -> dict[int, bytes]:
        """Return the pair secrets of `owner`, which dropped out, with `peers`, from its deposits of one sum,
        which its dealt `secret` opens. Raises `FalseDeposit` if one does not fit its tag."""
        found = {}
        ids, session = self._cohort.ids, self._cohort.session
        for peer in peers:
            deposit = self._one(owner, peer, sum_index)
            names = {"owner": ids[owner], "peer": ids[peer], "sum_index": sum_index}
            opened = padded(deposit[:PAIR_SECRET_BYTES], secret=secret, session=session, **names)
            pair = (ids[owner], ids[peer])
            tag = secret_tag(opened, session=session, pair=pair, sum_index=sum_index)
            if tag != deposit[PAIR_SECRET_BYTES:]:
                raise FalseDeposit(ids[owner], ids[peer])
            found[peer] = opened
        return found

    def statement(self, owner: int) -> Statement:
        """Return what a member signed with its deposits."""
        return Statement(self._cohort.ids[owner], "deposit", *self._signed[owner])
