"""Negative vectors of a client that compares the clients of successive sums.

Five clients, a threshold of four. The second sum leaves one client out: the difference of the two totals
would be its vector.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from scripts.vectors.recorder import ROUND, Book, Recorder
from scripts.vectors.ring_refusals import RingSession
from secagg import messages as m
from secagg.message_records import encode_ids
from secagg.trust_levels import Trust

SIZE: Final = 5
THRESHOLD: Final = 4
EVERYBODY: Final = range(SIZE)
REST: Final = range(SIZE - 1)
NONCE_BYTES: Final = 4


class SequenceSession:
    """An honest session with one sum over all clients, after which a case wants to cheat."""

    def __init__(self, name: str, trust: Trust, **rules: Any) -> None:
        self.rig = Recorder(trust, clients=SIZE, name=name, **rules)
        nonce = name.encode().ljust(32, b"\0")
        self.cohort = self.rig.set_up(threshold=THRESHOLD, nonce=nonce)
        self.sum_over(0)

    def query(self, index: int, roster: Iterable[int] = EVERYBODY) -> bytes:
        payload = b"%04d the model" % index  # only the number is new in every round
        settings: dict[str, Any] = {"payload": payload, "round_number": ROUND + index, "kind": "once"}
        return self.rig.query(self.cohort, index, list(roster), **settings)

    def survivors(self, index: int, members: Iterable[int] = EVERYBODY) -> bytes:
        return self.rig.survivors(self.cohort, index, list(members))

    def mask(self, index: int) -> None:
        for member in EVERYBODY:
            self.rig.send(member, self.query(index))
            self.rig.answer(member)

    def sum_over(self, index: int) -> None:
        self.mask(index)
        replies = {k: self.rig.send(k, self.survivors(index))[0] for k in EVERYBODY}
        signed = [(k, r.signature) for k, r in replies.items() if isinstance(r, m.Confirmation)]
        if signed:
            blob = b"".join(k.to_bytes(4, "big") + signature for k, signature in signed)
            for member in EVERYBODY:
                self.rig.send(member, m.Confirmations(self.cohort.session, index, blob).encode())


def sequence_refusals(book: Book) -> None:
    wary = {"policy_changes": {"min_difference": 2}}
    _rule(book, "min_difference", "SmallDifference", SequenceSession("wary", Trust.CURIOUS, **wary))
    _rule(
        book,
        "the same query but for the round",
        "RepeatedQuery",
        SequenceSession("repeating", Trust.MALICIOUS, nonce_bytes=NONCE_BYTES),
    )
    # The values of the second sum are known only after its query, so that its roster is no frame's fault.
    static = SequenceSession("static", Trust.CURIOUS, static=["once"])
    _survivors(book, "unchanged values", "UnchangedValues", static)
    _rings(book)


def _rule(book: Book, rule: str, error: str, session: SequenceSession) -> None:
    start = book.start(f"revealed, {session.rig.name}", session.rig)
    book.case(f"sequence: a close roster, {rule}", start, session.query(1, REST), error)
    _survivors(book, rule, error, session)


def _survivors(book: Book, rule: str, error: str, session: SequenceSession) -> None:
    session.mask(1)
    start = book.start(f"masked again, {session.rig.name}", session.rig)
    book.case(f"sequence: close survivors, {rule}", start, session.survivors(1, REST), error)


def _rings(book: Book) -> None:
    """Clients that compare need ids, and enough others that know of every total."""
    session = RingSession(policy_changes={"min_difference": 2}, name="wary, on a ring")
    start = book.start("advertised, wary", session.rig)
    book.case("neighbours: without the ids of all", start, session.ring.frame(0), "HiddenMembers")
    named = session.neighbours(members=encode_ids(session.ring.cohort.ids))
    book.case("neighbours: so few reveal that others do not know", start, named, "SmallThreshold")
