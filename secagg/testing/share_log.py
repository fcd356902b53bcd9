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
from secagg.bitmap import unpack_positions
from secagg.cohort import session_id
from secagg.errors import SERVER
from secagg.records import Format, parse_adverts
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
    ids: tuple[int, ...] = ()
    survivors: dict[int, tuple[int, ...]] = field(default_factory=dict)


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
            self._open_session(self._views[member], frame, message)
        elif isinstance(message, m.Survivors):
            view = self._views[member]
            positions = unpack_positions(message.survivors, len(view.ids), sender=SERVER)
            view.survivors[message.sum_index] = positions

    def _open_session(self, view: _View, frame: bytes, message: m.KeyList) -> None:
        invitation = m.decode(view.invitation, sender=SERVER, limit=_NO_LIMIT)
        assert isinstance(invitation, m.Invitation)
        form = Format(invitation.sums, signed=bool(invitation.registry))
        view.session = session_id(view.invitation, frame)
        view.ids = tuple(advert.member for advert in parse_adverts(message.adverts, form, most=MAX_COMPLETE))

    def sent(self, member: int, frame: bytes) -> None:
        """`member` let this frame go."""
        message = m.decode(frame, sender=member, limit=_NO_LIMIT)
        if not isinstance(message, m.Reveal):
            return
        view = self._views[member]
        survivors = view.survivors[message.sum_index]
        for position in unpack_positions(message.dealers, len(view.ids), sender=member):
            kind = Kind.SELF_MASK if position in survivors else Kind.MASK_KEY
            dealer = view.ids[position]
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

    def most_shares(self, session: bytes, sum_index: int) -> int:
        """The largest number of shares of one kind for one dealer that are out for this sum."""
        of_sum = [e for e in self.entries if (e.session, e.sum_index) == (session, sum_index)]
        return max(Counter((e.dealer, e.kind) for e in of_sum).values(), default=0)
