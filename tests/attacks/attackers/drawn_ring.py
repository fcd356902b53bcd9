"""A ring that the attacker draws: who stands next to whom is its choice, and what each client hears of it.

The order is what a curious server is trusted with. All else is as an honest server does it, unless a client
is told something else on purpose.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from secagg.cohort_members import Cohort, invitation_digest, ring_digest, ring_session_id
from secagg.message_records import Advert, Parcel, encode_ids, encode_neighbours
from secagg.messages import Neighbours
from secagg.share_tags import tags_digest
from secagg.topology import RingGraph
from tests.attacks.attackers.colluder import Colluder
from tests.attacks.rig import Dealt, Rig


@dataclass(frozen=True)
class DrawnRing:
    """The session on a ring. `size` and `members`, the ids of all or nothing, are what clients are told, and
    `cohort` is what there is."""

    invitation: bytes
    graph: RingGraph
    cohort: Cohort
    size: int
    members: bytes = b""

    @classmethod
    def draw(
        cls,
        invitation: bytes,
        adverts: Mapping[int, Advert],
        order: Sequence[int],
        *,
        neighbours: int,
        threshold: int,
        named: bool = False,
    ) -> DrawnRing:
        """The ring of the clients with these ids, in this order. If `named`, all are told the ids of all."""
        ids = sorted(order)
        graph = RingGraph([ids.index(member) for member in order], neighbours)
        ordered = tuple(adverts[member] for member in ids)
        empty = Cohort(b"", threshold, ordered, ring_digest(ordered))
        return cls(invitation, graph, empty, len(ids), encode_ids(ids) if named else b"").told()

    def told(
        self, *, ring: bytes | None = None, size: int | None = None, members: bytes | None = None
    ) -> DrawnRing:
        """The same ring as it looks to a client who is told another digest, another size, or other ids."""
        ring, size, members = ring or self.cohort.digest, size or self.size, members or self.members
        session = ring_session_id(
            self.invitation,
            size=size,
            neighbours=self.graph.neighbours,
            threshold=self.cohort.threshold,
            ring=ring,
            members=members,
        )
        cohort = replace(self.cohort, session=session, digest=ring)
        return replace(self, cohort=cohort, size=size, members=members)

    def around(self, member: int) -> list[int]:
        """The ids of a client and its neighbours, ascending."""
        positions = self.graph.neighbourhood(self.cohort.position[member])
        return [self.cohort.ids[position] for position in positions]

    def frame(self, member: int) -> bytes:
        """What introduces its neighbours to a client."""
        position, adverts = self.cohort.position, self.cohort.adverts
        records = encode_neighbours((position[k], adverts[position[k]]) for k in self.around(member))
        context = invitation_digest(self.invitation)
        return Neighbours(
            context, self.size, self.cohort.threshold, self.cohort.digest, records, self.members
        ).encode()

    def parcels(self, shares: Mapping[int, Dealt], receiver: int) -> list[Parcel]:
        """What the neighbours of `receiver` sealed for it."""
        rows = []
        for sender in self.around(receiver):
            if sender != receiver and sender in shares:
                dealt, place = shares[sender], self.around(sender).index(receiver)
                envelope = dealt.envelopes[place - (receiver > sender)]  # senders skip themselves
                rows.append(Parcel(sender, tags_digest(dealt.tags[place]), envelope, dealt.signature))
        return rows


def set_up_ring(
    rig: Rig,
    colluders: Iterable[Colluder],
    order: Sequence[int],
    *,
    neighbours: int,
    threshold: int,
    named: bool = False,
    members: bytes | None = None,
) -> DrawnRing:
    """Set-up among the honest clients and colluders in `order`, who are told `members`, by default the ids of
    all if `named`."""
    corrupt = {colluder.member: colluder for colluder in colluders}
    honest = [member for member in order if member not in corrupt]
    invitation = rig.invitation()
    adverts = {
        **rig.advertise(invitation, honest),
        **{member: colluder.advert(invitation) for member, colluder in corrupt.items()},
    }
    drawn = DrawnRing.draw(
        invitation, adverts, order, neighbours=neighbours, threshold=threshold, named=named
    )
    ring = drawn.told(members=members)
    shares = {
        **{k: rig.share(k, ring.frame(k), neighbours + 1) for k in honest},
        **{k: colluder.deal(ring.cohort, ring.around(k)) for k, colluder in corrupt.items()},
    }
    for member in honest:
        rig.send(member, rig.delivery(ring.cohort, ring.parcels(shares, member)))
    for member, colluder in corrupt.items():
        colluder.open(ring.cohort, [p for p in ring.parcels(shares, member) if p.sender in honest])
    return ring
