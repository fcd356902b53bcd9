"""Cohorts: the clients of a session that exchanged keys, with the session id and the threshold of shares.

On a complete graph, the server and all clients know the whole cohort (`Cohort`). On a ring, a client knows
only its neighbours (`Neighbourhood`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

from secagg.bitmap import pack_positions
from secagg.hashing import digest
from secagg.message_records import ID_BYTES, Advert


def invitation_digest(frame: bytes) -> bytes:
    """Return the digest of an invitation. Messages of its session carry it until the session id is known."""
    return digest("invitation", frame)


def session_id(invitation: bytes, key_list: bytes) -> bytes:
    """Return the id of a session on a complete graph: the digest of its invitation and key list."""
    return digest("session", invitation, key_list)


def ring_digest(adverts: Sequence[Advert]) -> bytes:
    """Return the digest of all clients' adverts on a ring, where no client receives all adverts itself."""
    return digest("ring", *(advert.encode() for advert in adverts))


def ring_session_id(
    invitation: bytes, *, size: int, neighbours: int, threshold: int, ring: bytes, members: bytes = b""
) -> bytes:
    """Return the id of a session on a ring: the digest of these arguments, which all its clients know."""
    numbers = (number.to_bytes(4, "big") for number in (size, neighbours, threshold))
    return digest("ring session", invitation, *numbers, ring, members)


@dataclass(frozen=True)
class Cohort:
    """All members of a session, in ascending order of id. A member's *position* is its index in `adverts`."""

    session: bytes
    threshold: int
    adverts: tuple[Advert, ...]
    digest: bytes = b""  # the digest of all ids on a complete graph, of all adverts on a ring

    def __post_init__(self) -> None:
        if not self.digest:
            ids = b"".join(member.to_bytes(ID_BYTES, "big") for member in self.ids)
            object.__setattr__(self, "digest", digest("cohort", ids))

    @property
    def size(self) -> int:
        return len(self.adverts)

    @property
    def neighbourhood(self) -> Sequence[int]:
        """The positions of all members. (On a ring, a client has a `Neighbourhood` instead of a `Cohort`.)"""
        return range(self.size)

    @cached_property
    def ids(self) -> tuple[int, ...]:
        return tuple(advert.member for advert in self.adverts)

    @cached_property
    def position(self) -> Mapping[int, int]:
        return {member: index for index, member in enumerate(self.ids)}


@dataclass(frozen=True)
class Neighbourhood:
    """What a client on a ring knows of its cohort: `size`, its own and neighbours' adverts (public keys). If
    the session names its members, `members` has all their ids, else it is empty."""

    session: bytes
    threshold: int
    size: int
    digest: bytes
    adverts: Mapping[int, Advert]  # position -> advert, ascending
    members: tuple[int, ...] = ()

    @cached_property
    def neighbourhood(self) -> Sequence[int]:
        return tuple(self.adverts)

    @cached_property
    def ids(self) -> Mapping[int, int]:
        """The ids, by position, of all members that this client knows."""
        around = {position: advert.member for position, advert in self.adverts.items()}
        return dict(enumerate(self.members)) if self.members else around

    @cached_property
    def position(self) -> Mapping[int, int]:
        """The positions of the neighbours, by id."""
        return {advert.member: position for position, advert in self.adverts.items()}


CohortView: TypeAlias = Cohort | Neighbourhood  # what one party knows of a cohort


def pack_neighbours(cohort: CohortView, positions: Iterable[int]) -> bytes:
    """Return `positions` as a bitmap: bit i stands for `cohort.neighbourhood[i]`. All must be in there."""
    around = cohort.neighbourhood
    return pack_positions((bisect_left(around, position) for position in positions), len(around))
