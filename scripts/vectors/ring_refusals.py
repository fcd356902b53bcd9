"""Negative vectors of a client on a ring: what it refuses of its neighbours, and of sums that leave it few.

Seven clients in the order of their ids, four neighbours each, of whom two may collude: with two missing or
colluding more, the ring could fall apart, so six have to be in every sum.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Final

from scripts.vectors.recorder import ROUND, Book, Recorder, Session
from secagg import messages as m
from secagg.cohort_members import invitation_digest
from secagg.message_records import Advert, encode_ids, encode_neighbours
from secagg.trust_levels import Trust
from tests.attacks.attackers.drawn_ring import DrawnRing

SIZE: Final = 7
NEIGHBOURS: Final = 4
THRESHOLD: Final = 3
ALL_SHARES: Final = NEIGHBOURS + 1  # as a threshold: nobody's neighbour may be missing
EVERYBODY: Final = range(SIZE)


class RingSession:
    """An honest session on a ring up to where a case wants to cheat."""

    def __init__(self, threshold: int = THRESHOLD, *, name: str = "ring", **rules: Any) -> None:
        self.rig = Recorder(Trust.CURIOUS, clients=SIZE, corrupt=2, name=name, **rules)
        self.invitation = self.rig.invitation(nonce=b"ring".ljust(32, b"\0"))
        self.adverts = self.rig.advertise(self.invitation)
        self.ring = DrawnRing.draw(
            self.invitation, self.adverts, EVERYBODY, neighbours=NEIGHBOURS, threshold=threshold
        )

    def neighbours(self, **changes: Any) -> bytes:
        """What introduces its neighbours to client 0, with changed fields."""
        records = encode_neighbours((k, self.adverts[k]) for k in self.ring.around(0))
        return _frame(self, records, **changes)

    def share(self) -> RingSession:
        self.shares = {k: self.rig.share(k, self.ring.frame(k), NEIGHBOURS + 1) for k in EVERYBODY}
        return self

    def deliver(self) -> RingSession:
        self.share()
        for member in EVERYBODY:
            parcels = self.ring.parcels(self.shares, member)
            self.rig.send(member, self.rig.delivery(self.ring.cohort, parcels))
        return self

    def query(self, roster: Iterable[int] = EVERYBODY) -> bytes:
        return self.rig.query(self.ring.cohort, 0, list(roster), round_number=ROUND)

    def mask(self) -> RingSession:
        self.deliver()
        for member in EVERYBODY:
            self.rig.send(member, self.query())
            self.rig.answer(member)
        return self

    def survivors(self, members: Iterable[int]) -> bytes:
        return self.rig.survivors(self.ring.cohort, 0, list(members))


def ring_refusals(book: Book) -> None:
    _neighbours(book)
    _ids(book)
    _bad_keys(book)
    _memories(book)
    _moves(book)
    _deliveries(book)
    _sums(book)


def _neighbours(book: Book) -> None:
    session = RingSession()
    start, ring = book.start("advertised, unsigned", session.rig), session.ring
    around = {k: session.adverts[k] for k in ring.around(0)}

    def refuse(name: str, error: str, records: Iterable[tuple[int, Advert]] = around.items(),
               **changes: Any) -> None:  # fmt: skip
        frame = _frame(session, encode_neighbours(records), **changes)
        book.case(f"neighbours: {name}", start, frame, error)

    own, first, second, *rest = around.items()
    stranger = (3, session.adverts[3])
    refuse("a ring below the minimum", "SmallCohort", size=3)
    refuse("a ring above the maximum", "LargeCohort", size=SIZE + 2)
    refuse("a position twice", "MalformedMessage", [own, first, (first[0], second[1]), *rest])
    refuse("positions out of order", "MalformedMessage", [own, second, first, *rest])
    refuse("an id twice", "MalformedMessage", [own, first, (second[0], first[1]), *rest])
    refuse("ids out of order", "MalformedMessage", [own, (first[0], second[1]), (second[0], first[1]), *rest])
    refuse("a position beyond the ring", "MalformedMessage", [own, first, second, rest[0], (7, rest[1][1])])
    refuse("without this client", "BadRoster", [first, second, stranger, *rest])
    refuse("with other keys of this client", "BadKey", [(0, replace(own[1], channel_key=bytes([9] * 32))),
                                                        first, second, *rest])  # fmt: skip
    refuse("an odd number", "BadRoster", [own, first, second, rest[0]])
    refuse("none", "BadRoster", [own])
    refuse("a threshold of one", "SmallThreshold", threshold=1)
    refuse("a threshold above the neighbourhood", "SmallThreshold", threshold=NEIGHBOURS + 2)
    refuse("a threshold that colluders reach", "SmallThreshold", threshold=2)
    refuse("so few that colluders cut the ring", "SmallCohort", [own, first, rest[1]])
    short = _frame(session, encode_neighbours(around.items())[:-1])
    book.case("neighbours: records of another length", start, short, "MalformedMessage")
    foreign = _frame(session, encode_neighbours(around.items()), context=bytes(32))
    book.case("neighbours: of another invitation", start, foreign, "WrongSession")


def _ids(book: Book) -> None:
    """The ids of all members: four bytes each, ascending, and those of the records."""
    session = RingSession()
    start, ids = book.start("advertised, unsigned", session.rig), encode_ids(EVERYBODY)
    for name, members in (
        ("of another length", ids[:-1]),
        ("of one client fewer", ids[:-4]),
        ("of one client more", encode_ids(range(SIZE + 1))),
        ("with one twice", encode_ids([0, 1, 2, 3, 3, 5, 6])),
        ("out of order", encode_ids([0, 1, 2, 4, 3, 5, 6])),
        ("with another one of a neighbour", encode_ids([0, 1, 2, 3, 4, 5, 7])),
    ):
        frame = session.neighbours(members=members)
        book.case(f"neighbours: the ids of all, {name}", start, frame, "MalformedMessage")


def _frame(session: RingSession, records: bytes, **changes: Any) -> bytes:
    fields = {
        "context": invitation_digest(session.invitation),
        "size": SIZE,
        "threshold": THRESHOLD,
        "ring": session.ring.cohort.digest,
        "adverts": records,
        "members": b"",
    }
    return m.Neighbours(**{**fields, **changes}).encode()


def _bad_keys(book: Book) -> None:
    session = RingSession()
    start, around = book.start("advertised, unsigned", session.rig), session.ring.around(0)
    own, neighbour = session.adverts[0], session.adverts[around[-1]]
    for name, key in (
        ("the key zero", bytes(32)),
        ("our own key echoed", own.mask_keys[0]),
        ("a channel key as a mask key", neighbour.channel_key),
    ):
        changed = replace(neighbour, mask_keys=(key, *neighbour.mask_keys[1:]))
        records = [(k, session.adverts[k]) for k in around[:-1]] + [(around[-1], changed)]
        book.case(f"neighbours: {name}", start, _frame(session, encode_neighbours(records)), "BadKey")


def _memories(book: Book) -> None:
    session = RingSession()
    memory = {"sessions": [session.ring.cohort.session.hex()]}
    seen = book.start("advertised, unsigned, the session is known", session.rig, memory=memory)
    book.case("neighbours: a session seen before", seen, session.ring.frame(0), "RepeatedSession")


def _moves(book: Book) -> None:
    """A ring is for a curious server, and comes once."""
    signed = Session(Trust.MALICIOUS).advertise()
    start, adverts = book.start("advertised", signed.rig), signed.adverts
    ring = DrawnRing.draw(signed.invitation, adverts, sorted(adverts), neighbours=2, threshold=THRESHOLD)
    book.case("neighbours: under malicious_server", start, ring.frame(0), "OutOfOrder")
    session = RingSession().share()
    start = book.start("shared, on a ring", session.rig)
    context, blob = session.ring.cohort.session, b"".join(a.encode() for a in session.ring.cohort.adverts)
    book.case("neighbours: a second time", start, _frame(session, blob, context=context), "OutOfOrder")
    book.case("key list: on a ring", start, m.KeyList(context, THRESHOLD, blob).encode(), "OutOfOrder")


def _deliveries(book: Book) -> None:
    session = RingSession().share()
    start, cohort = book.start("shared, on a ring", session.rig), session.ring.cohort
    parcels = session.ring.parcels(session.shares, 0)
    stranger = replace(parcels[1], sender=3)
    far = session.rig.delivery(cohort, [parcels[0], stranger, *parcels[2:]])
    book.case("delivery: of a client that is no neighbour", start, far, "UnknownPeer")
    few = session.rig.delivery(cohort, parcels[: THRESHOLD - 2])
    book.case("delivery: of too few neighbours", start, few, "FewContributors")
    many = m.Delivery(cohort.session, b"".join(p.encode() for p in [*parcels, *parcels])).encode()
    book.case("delivery: of more clients than are neighbours", start, many, "LargeCohort")


def _sums(book: Book) -> None:
    ready, masked = RingSession().deliver(), RingSession().mask()
    start = book.start("ready, on a ring", ready.rig)
    few, five = "FewContributors", [0, 1, 2, 3, 4]
    book.case("query: too few to hold a ring together", start, ready.query(five), few)
    start = book.start("masked, on a ring", masked.rig)
    book.case("survivors: too few to hold a ring together", start, masked.survivors(five), few)
    lonely = [0, 2, 3, 4, 5, 6]
    ready, masked = RingSession(ALL_SHARES).deliver(), RingSession(ALL_SHARES).mask()
    start = book.start("ready, on a ring where all shares are needed", ready.rig)
    book.case("query: too few around this client", start, ready.query(lonely), few)
    start = book.start("masked, on a ring where all shares are needed", masked.rig)
    book.case("survivors: too few around this client", start, masked.survivors(lonely), few)
    wide = m.Query(ready.ring.cohort.session, 0, ROUND, "vector", b"\xff", b"").encode()
    start = "ready, on a ring where all shares are needed"
    book.case("query: a roster with bits beyond the ring", start, wide, "MalformedMessage")
