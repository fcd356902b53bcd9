"""Cohorts and the names of sessions: every byte of set-up counts."""

from __future__ import annotations

from secagg.cohort import Cohort, invitation_digest, session_id
from secagg.hashing import digest
from secagg.records import Advert


def cohort(*ids: int) -> Cohort:
    adverts = tuple(Advert(member, bytes(32), (bytes(32),), (bytes(32),)) for member in ids)
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
