"""Which shares left which client: the log that the one-kind rule is checked against.

A Reveal frame does not say of which kind its shares are; the survivor set its sender was shown does: a share
of the self mask for a survivor, of the mask key for anybody else. Whoever holds a threshold of both kinds
for one client and one sum can read that client's input.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import Enum

from secagg import messages as m
from secagg.bitmap import PositionSet, unpack_positions
from secagg.cohort import ring_session_id, session_id
from secagg.errors import SERVER
from secagg.records import Format, parse_adverts, parse_neighbours
from secagg.thresholds import MAX_COMPLETE

_NO_LIMIT = 1 << 32


class Kind(Enum):
    """What a share is a share of."""

    SELF_MASK = "self mask"
    MASK_KEY = "mask key"


@dataclass(frozen=True)
class Released:
    """One share that left its holder. `holder` and `dealer` are ids."""

    session: bytes = field(repr=False)
    sum_index: int
    holder: int
    dealer: int
    kind: Kind


@dataclass
class _View:
    """What one client was shown of its session."""

    invitation: bytes
    session: bytes = b""
    size: int = 0  # of the cohort
    around: tuple[tuple[int, int], ...] = ()  # (position, id) of everybody in its neighbourhood
    survivors: dict[int, PositionSet] = field(default_factory=dict)


class ShareLog:
    """Fed with every frame a client accepted and every frame it sent."""

    def __init__(self) -> None:
        self.entries: list[Released] = []
        self._views: dict[int, _View] = {}

    def accepted(self, member: int, frame: bytes) -> None:
        """`member` took this frame from the server without refusing it."""
        message = m.decode(frame, sender=SERVER, limit=_NO_LIMIT)
        if isinstance(message, m.Invitation):
            self._views[member] = _View(frame)
        elif isinstance(message, m.KeyList):
            self._meet_everybody(self._views[member], frame, message)
        elif isinstance(message, m.Neighbours):
            self._meet_neighbours(self._views[member], message)
        elif isinstance(message, m.Survivors):
            view = self._views[member]
            view.survivors[message.sum_index] = PositionSet.parse(message.survivors, view.size, sender=SERVER)

    def _meet_everybody(self, view: _View, frame: bytes, message: m.KeyList) -> None:
        adverts = parse_adverts(message.adverts, _form(view), most=MAX_COMPLETE)
        view.session = session_id(view.invitation, frame)
        view.size = len(adverts)
        view.around = tuple((position, advert.member) for position, advert in enumerate(adverts))

    def _meet_neighbours(self, view: _View, message: m.Neighbours) -> None:
        adverts = parse_neighbours(message.adverts, _form(view), size=message.size, most=MAX_COMPLETE)
        view.session = ring_session_id(
            view.invitation,
            size=message.size,
            neighbours=len(adverts) - 1,
            threshold=message.threshold,
            ring=message.ring,
        )
        view.size = message.size
        view.around = tuple((position, advert.member) for position, advert in adverts.items())

    def sent(self, member: int, frame: bytes) -> None:
        """`member` let this frame go."""
        message = m.decode(frame, sender=member, limit=_NO_LIMIT)
        if not isinstance(message, m.Reveal):
            return
        view = self._views[member]
        survivors = view.survivors[message.sum_index]
        for place in unpack_positions(message.dealers, len(view.around), sender=member):
            position, dealer = view.around[place]
            kind = Kind.SELF_MASK if position in survivors else Kind.MASK_KEY
            self.entries.append(Released(view.session, message.sum_index, member, dealer, kind))

    # --- what must never happen, and how close it came ---

    def both_kinds(self) -> set[tuple[bytes, int, int]]:
        """The (session, sum, dealer) of which shares of both kinds are out. Must be empty."""
        kinds: dict[tuple[bytes, int, int], set[Kind]] = {}
        for entry in self.entries:
            kinds.setdefault((entry.session, entry.sum_index, entry.dealer), set()).add(entry.kind)
        return {key for key, found in kinds.items() if len(found) > 1}

    def repeated(self) -> set[tuple[bytes, int, int, int]]:
        """The (session, sum, holder, dealer) of which more than one share is out. Must be empty."""
        keys = Counter((e.session, e.sum_index, e.holder, e.dealer) for e in self.entries)
        return {key for key, count in keys.items() if count > 1}

    def counts(self, session: bytes, sum_index: int) -> Counter[tuple[int, Kind]]:
        """How many shares of each kind are out for each dealer in this sum."""
        of_sum = (e for e in self.entries if (e.session, e.sum_index) == (session, sum_index))
        return Counter((e.dealer, e.kind) for e in of_sum)

    def most_shares(self, session: bytes, sum_index: int) -> int:
        """The largest number of shares of one kind for one dealer that are out for this sum."""
        return max(self.counts(session, sum_index).values(), default=0)


def _form(view: _View) -> Format:
    invitation = m.decode(view.invitation, sender=SERVER, limit=_NO_LIMIT)
    assert isinstance(invitation, m.Invitation)
    return Format(invitation.sums, signed=bool(invitation.registry))
