"""Which shares left which client: the log that the one-kind rule is checked against.

A Reveal frame does not say of which kind its shares are; the survivor set its sender was shown does: a share
of the self mask for a survivor, of the mask key for any other client. A party with a threshold of both kinds
for one client and one sum can read that client's input. What follows a survivor's first share is of seeds of
its noise; of which layers, only a party that knows the dealer's secrets can tell.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from secagg import messages as m
from secagg.bitmap import PositionSet, unpack_positions
from secagg.client import ClientMachine
from secagg.cohort_members import ring_session_id, session_id
from secagg.errors import SERVER, Peer
from secagg.hashing import DIGEST_BYTES
from secagg.hybrid_keys import KeyAgreement
from secagg.local_session import AnswerFunction
from secagg.message_records import Format, parse_adverts, parse_neighbours
from secagg.server import ServerMachine
from secagg.shamir import SHARE_BYTES
from secagg.testing.faulty_wire import Schedule, Wire, faultless
from secagg.trust_levels import MAX_COMPLETE

_NO_LIMIT = 1 << 32


class Kind(Enum):
    """What a share is a share of."""

    SELF_MASK = "self mask"
    MASK_KEY = "mask key"
    NOISE = "noise"


@dataclass(frozen=True)
class Released:
    """One share that left its holder. `holder` and `dealer` are ids."""

    session: bytes = field(repr=False)
    sum_index: int
    holder: int
    dealer: int
    kind: Kind
    share: bytes = field(default=b"", repr=False, compare=False)


@dataclass
class _View:
    """What one client was shown of its session."""

    invitation: bytes
    form: Format
    session: bytes = b""
    size: int = 0  # of the cohort
    around: tuple[tuple[int, int], ...] = ()  # (position, id) of all in its neighbourhood
    survivors: dict[int, PositionSet] = field(default_factory=dict)


class ShareLog:
    """Fed with every frame a client accepted and every frame it sent."""

    def __init__(self) -> None:
        self.entries: list[Released] = []
        self._views: dict[int, _View] = {}

    def observe(self, member: int, sender: Peer, frame: bytes) -> None:
        """Take note of a frame that `member` accepted or sent."""
        if sender == SERVER:
            self.accepted(member, frame)
        else:
            self.sent(member, frame)

    def accepted(self, member: int, frame: bytes) -> None:
        """`member` took this frame from the server without refusing it."""
        message = m.decode(frame, sender=SERVER, limit=_NO_LIMIT)
        if isinstance(message, m.Invitation):
            self._views[member] = _View(frame, _form(message))
        elif isinstance(message, m.KeyList):
            self._meet_everybody(self._views[member], frame, message)
        elif isinstance(message, m.Neighbours):
            self._meet_neighbours(self._views[member], message)
        elif isinstance(message, m.Survivors):
            view = self._views[member]
            view.survivors[message.sum_index] = PositionSet.parse(message.survivors, view.size, sender=SERVER)

    def _meet_everybody(self, view: _View, frame: bytes, message: m.KeyList) -> None:
        adverts = parse_adverts(message.adverts, view.form, most=MAX_COMPLETE)
        view.session = session_id(view.invitation, frame)
        view.size = len(adverts)
        view.around = tuple((position, advert.member) for position, advert in enumerate(adverts))

    def _meet_neighbours(self, view: _View, message: m.Neighbours) -> None:
        adverts = parse_neighbours(message.adverts, view.form, size=message.size, most=MAX_COMPLETE)
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
        if isinstance(message, m.Advertisement):
            view = self._views[member]
            view.form = _with_seeds(view.form, len(message.advert))
        elif isinstance(message, m.Reveal):
            self._take_reveal(member, self._views[member], message)

    def _take_reveal(self, member: int, view: _View, message: m.Reveal) -> None:
        survivors = view.survivors[message.sum_index]
        places = unpack_positions(message.dealers, len(view.around), sender=member)
        dealers = [view.around[place] for place in places]
        shares = [message.shares[at : at + SHARE_BYTES] for at in range(0, len(message.shares), SHARE_BYTES)]
        alive = sum(position in survivors for position, _ in dealers)
        noise = (len(shares) - len(dealers)) // alive  # the same for every survivor, and the sender is one
        rest = iter(shares)
        for position, dealer in dealers:
            kinds = (Kind.SELF_MASK, *[Kind.NOISE] * noise) if position in survivors else (Kind.MASK_KEY,)
            self.entries += [
                Released(view.session, message.sum_index, member, dealer, kind, next(rest)) for kind in kinds
            ]
        assert not [*rest]  # a frame that holds more than its sender owes

    # --- what must never happen, and how close it came ---

    def both_kinds(self) -> set[tuple[bytes, int, int]]:
        """The (session, sum, dealer) of whose masks shares of both kinds are out. Must be empty."""
        kinds: dict[tuple[bytes, int, int], set[Kind]] = {}
        for entry in self._of_masks():
            kinds.setdefault((entry.session, entry.sum_index, entry.dealer), set()).add(entry.kind)
        return {key for key, found in kinds.items() if len(found) > 1}

    def repeated(self) -> set[tuple[bytes, int, int, int]]:
        """The (session, sum, holder, dealer) of whose masks more than one share is out. Must be empty."""
        keys = Counter((e.session, e.sum_index, e.holder, e.dealer) for e in self._of_masks())
        return {key for key, count in keys.items() if count > 1}

    def counts(self, session: bytes, sum_index: int) -> Counter[tuple[int, Kind]]:
        """How many shares of each kind are out for each dealer's masks in this sum."""
        of_sum = (e for e in self._of_masks() if (e.session, e.sum_index) == (session, sum_index))
        return Counter((e.dealer, e.kind) for e in of_sum)

    def most_shares(self, session: bytes, sum_index: int) -> int:
        """The largest number of shares of one kind for one dealer that are out for this sum."""
        return max(self.counts(session, sum_index).values(), default=0)

    def _of_masks(self) -> Iterator[Released]:
        return (entry for entry in self.entries if entry.kind is not Kind.NOISE)


def _form(invitation: m.Invitation) -> Format:
    agreement = KeyAgreement(invitation.agreement)
    return Format(invitation.sums, signed=bool(invitation.registry), agreement=agreement)


def _with_seeds(form: Format, advert_bytes: int) -> Format:
    """The format in which an advert has this length: a client with removable noise commits to its seeds."""
    seeds = (advert_bytes - form.advert_bytes) // (form.sums * DIGEST_BYTES)
    return replace(form, seeds=seeds)


class LoggedWire(Wire):
    """A wire with the log of all shares that its clients released."""

    def __init__(
        self,
        server: ServerMachine,
        clients: Mapping[int, ClientMachine],
        answer: AnswerFunction,
        *,
        schedule: Schedule = faultless,
    ) -> None:
        self.shares = ShareLog()
        super().__init__(server, clients, answer, schedule=schedule, observe=self.shares.observe)
