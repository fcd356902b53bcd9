"""Cohorts and the names of sessions: every byte of set-up counts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from secagg.cohort_members import (
    Cohort,
    Neighbourhood,
    invitation_digest,
    ring_digest,
    ring_session_id,
    session_id,
)
from secagg.hashing import digest
from secagg.message_records import Advert


def cohort(*ids: int) -> Cohort:
    adverts = tuple(Advert(member, bytes(32), b"", (bytes(32),), (bytes(32),)) for member in ids)
    return Cohort(b"s" * 32, 2, adverts)


def test_positions_are_indices_in_order_of_id() -> None:
    one = cohort(3, 8, 1 << 31)
    assert one.size == 3
    assert one.ids == (3, 8, 1 << 31)
    assert one.position == {3: 0, 8: 1, 1 << 31: 2}


def test_the_digest_is_of_the_ids() -> None:
    assert cohort(3, 8).digest == digest("cohort", b"\0\0\0\3\0\0\0\x08")
    digests = {cohort(*ids).digest for ids in ((), (3,), (3, 8), (3, 9), (3, 8, 9), (0x0308,))}
    assert len(digests) == 6


def test_a_session_is_named_after_its_whole_set_up() -> None:
    names = {
        session_id(b"invitation", b"keys"),
        session_id(b"invitation", b"keyz"),
        session_id(b"invitatiom", b"keys"),
        session_id(b"invitationk", b"eys"),
        session_id(b"keys", b"invitation"),
        invitation_digest(b"invitation"),
        invitation_digest(b"invitationkeys"),
    }
    assert len(names) == 7


# --- on a ring ---------------------------------------------------------------------------------------


def test_a_cohort_may_be_named_by_another_digest() -> None:
    ring = replace(cohort(3, 8), digest=b"r" * 32)
    assert ring.digest == b"r" * 32
    assert list(ring.neighbourhood) == [0, 1]


def test_a_neighbourhood_knows_its_members_by_position_in_the_whole_cohort() -> None:
    adverts = {4: cohort(3).adverts[0], 9: cohort(8).adverts[0], 11: cohort(1 << 31).adverts[0]}
    some = Neighbourhood(b"s" * 32, 2, 20, b"r" * 32, adverts)
    assert (some.size, some.neighbourhood) == (20, (4, 9, 11))
    assert some.ids == {4: 3, 9: 8, 11: 1 << 31}
    assert some.position == {3: 4, 8: 9, 1 << 31: 11}
    assert some.adverts[9].member == some.ids[9] == 8


def test_a_neighbourhood_that_was_told_all_members_knows_their_ids_but_only_its_neighbours_keys() -> None:
    adverts = {0: cohort(3).adverts[0], 2: cohort(8).adverts[0]}
    some = Neighbourhood(b"s" * 32, 2, 4, b"r" * 32, adverts, (3, 5, 8, 9))
    assert some.ids == {0: 3, 1: 5, 2: 8, 3: 9}
    assert (some.neighbourhood, some.position) == ((0, 2), {3: 0, 8: 2})


def test_the_digest_of_a_ring_is_of_all_keys_in_order() -> None:
    one, other = cohort(3, 8).adverts
    assert ring_digest((one, other)) == digest("ring", one.encode(), other.encode())
    changed = replace(other, commitments=(b"c" * 32,))
    rings = [(one, other), (other, one), (one,), (one, changed), (one, other, other)]
    assert len({ring_digest(ring) for ring in rings}) == len(rings)


def test_a_session_on_a_ring_is_named_after_what_all_its_clients_were_told() -> None:
    told: dict[str, Any] = {"size": 20, "neighbours": 6, "threshold": 3, "ring": b"r" * 32, "members": b"id"}
    name = ring_session_id(b"invitation", **told)
    fields = (b"invitation", b"\0\0\0\x14", b"\0\0\0\6", b"\0\0\0\3", b"r" * 32, b"id")
    assert name == digest("ring session", *fields)
    changes: list[dict[str, Any]] = [
        {"size": 21},
        {"neighbours": 8},
        {"threshold": 4},
        {"ring": b"s" * 32},
        {"members": b""},
    ]
    names = {ring_session_id(b"invitation", **{**told, **change}) for change in changes}
    names |= {name, ring_session_id(b"invitatiom", **told), session_id(b"invitation", b"r" * 32)}
    assert len(names) == len(changes) + 3
