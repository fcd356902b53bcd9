"""A cohort: whose keys were exchanged, under which session id and threshold."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from secagg.hashing import digest
from secagg.records import ID_BYTES, Advert


def invitation_digest(frame: bytes) -> bytes:
    """The context of set-up, before there is a session id."""
    return digest("invitation", frame)


def session_id(invitation: bytes, key_list: bytes) -> bytes:
    """The name of a session: the hash of its set-up transcript, as received."""
    return digest("session", invitation, key_list)


@dataclass(frozen=True)
class Cohort:
    """Members in ascending order of id. A member's *position* is its index here."""

    session: bytes
    threshold: int
    adverts: tuple[Advert, ...]

    @property
    def size(self) -> int:
        return len(self.adverts)

    @cached_property
    def ids(self) -> tuple[int, ...]:
        return tuple(advert.member for advert in self.adverts)

    @cached_property
    def position(self) -> dict[int, int]:
        return {member: index for index, member in enumerate(self.ids)}

    @cached_property
    def digest(self) -> bytes:
        return digest("cohort", b"".join(member.to_bytes(ID_BYTES, "big") for member in self.ids))
