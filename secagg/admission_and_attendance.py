"""The server's record of its clients: accepted keys and shares, and which clients answered or left. The
server checks keys and signatures just as clients do, so that it can exclude a client with bad keys and
continue the session. Otherwise every honest client would refuse the key list, and the session would end."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from secagg.cohort_members import Cohort, ring_digest, ring_session_id, session_id
from secagg.dealt_shares import DealtShares
from secagg.errors import BadKey, Barred, LargeCohort, MalformedMessage, OutOfOrder, UnknownPeer
from secagg.events import Outgoing
from secagg.hybrid_keys import check_kem_key
from secagg.identity_registry import Registry
from secagg.keys import check_public_key, verify
from secagg.message_records import (
    Advert,
    Format,
    Parcel,
    encode_ids,
    encode_neighbours,
    parse_advert,
    parse_envelopes,
)
from secagg.messages import Advertisement, Delivery, KeyList, Neighbours, Shares
from secagg.share_tags import tags_digest
from secagg.topology import Topology


class Admission:
    """Collects clients' public keys (adverts) and encrypted shares (envelopes), and counts bad envelopes."""

    def __init__(
        self,
        form: Format,
        *,
        context: bytes,
        registry: Registry | None,
        most: int,
        barred: Collection[int] = (),
    ) -> None:
        self._form = form
        self._barred = frozenset(barred)
        self._context = context
        self._registry = registry
        self._most = most
        self._adverts: dict[int, Advert] = {}
        self._keys: set[bytes] = set()
        self._envelopes: dict[int, tuple[bytes, ...]] = {}
        self._signatures: dict[int, bytes] = {}

    @property
    def advertised(self) -> tuple[int, ...]:
        return tuple(sorted(self._adverts))

    @property
    def shared(self) -> tuple[int, ...]:
        return tuple(sorted(self._signatures))

    # --- keys ---

    def add_advert(self, sender: int, message: Advertisement) -> None:
        advert = parse_advert(message.advert, self._form, sender=sender)
        if advert.member != sender:
            raise UnknownPeer(sender, f"advertised keys as client {advert.member}")
        if sender in self._barred:
            raise Barred(sender, "lied, or was in a dispute, in an earlier session")
        if len(self._adverts) >= self._most:
            raise LargeCohort(sender, f"the cohort is full with {self._most} clients")
        self._check_signature(advert)
        self._check_keys(advert)
        self._adverts[sender] = advert

    def withdraw(self, member: int) -> None:
        """Remove the advert of client `member`, which left before the key list was made."""
        self._adverts.pop(member, None)

    def _check_signature(self, advert: Advert) -> None:
        if self._registry is None:
            return
        key = self._registry.members.get(advert.member)
        if key is None:
            raise UnknownPeer(advert.member, "is not in the registry")
        verify(key, advert.signature, "advert", self._context, advert.body, peer=advert.member)

    def _check_keys(self, advert: Advert) -> None:
        if advert.kem_key:
            check_kem_key(advert.kem_key, peer=advert.member)
        keys = [advert.channel_key, *advert.mask_keys]
        for key in keys:
            check_public_key(key, peer=advert.member)
        if len(set(keys)) < len(keys) or not self._keys.isdisjoint(keys):
            raise BadKey(advert.member, "advertised a key that is in use")
        self._keys.update(keys)

    def key_lists(
        self, topology: Topology, invitation: bytes, named: bool = False
    ) -> tuple[Cohort, list[Outgoing]]:
        """Return the cohort (clients that advertised keys), and frames that tell each client the keys of the
        others or, on a ring, of its neighbours and, if `named`, the ids of all."""
        adverts = tuple(self._adverts[member] for member in self.advertised)
        if topology.is_ring:
            members = encode_ids(self.advertised) if named else b""
            return self._ring(adverts, topology, invitation, members)
        blob = b"".join(advert.encode() for advert in adverts)
        frame = KeyList(self._context, topology.threshold, blob).encode()
        cohort = Cohort(session_id(invitation, frame), topology.threshold, adverts)
        return cohort, [Outgoing(cohort.ids, frame)]

    def _ring(
        self, adverts: tuple[Advert, ...], topology: Topology, invitation: bytes, members: bytes
    ) -> tuple[Cohort, list[Outgoing]]:
        """Return the cohort on a ring, and for each client a frame with its and its neighbours' adverts."""
        size, threshold, ring = len(adverts), topology.threshold, ring_digest(adverts)
        neighbours = topology.graph.neighbours
        session = ring_session_id(
            invitation, size=size, neighbours=neighbours, threshold=threshold, ring=ring, members=members
        )
        frames = []
        for position, advert in enumerate(adverts):
            around = topology.graph.neighbourhood(position)
            blob = encode_neighbours((peer, adverts[peer]) for peer in around)
            frame = Neighbours(self._context, size, threshold, ring, blob, members).encode()
            frames.append(Outgoing((advert.member,), frame))
        return Cohort(session, threshold, adverts, ring), frames

    # --- shares ---

    def add_shares(self, sender: int, message: Shares, cohort: Cohort, dealt: DealtShares) -> None:
        """Store the envelopes of `sender`, and the tags in `dealt`. Raises `PeerError` if one is invalid."""
        around = dealt.around(cohort.position[sender])
        envelopes = parse_envelopes(message.envelopes, self._form, len(around) - 1, sender=sender)
        if len(message.tags) != len(around) * self._form.tags_bytes:
            raise MalformedMessage(sender, f"not the tags of {len(around)} holders")
        for signature in (message.signature, message.tags_signature):
            if len(signature) != self._form.signature_bytes:
                raise MalformedMessage(sender, "a signature of the wrong length")
        if self._registry is not None:
            key = self._registry.members[sender]
            verify(key, message.signature, "key list", cohort.session, peer=sender)
            verify(key, message.tags_signature, "share tags", cohort.session, message.tags, peer=sender)
        self._envelopes[sender] = envelopes
        self._signatures[sender] = message.signature
        dealt.add(cohort.position[sender], message.tags, message.tags_signature)

    def deliveries(self, members: Iterable[int], cohort: Cohort, dealt: DealtShares) -> tuple[Outgoing, ...]:
        """Return a frame with the envelopes for each client in `members`. Forget all envelopes."""
        frames = tuple(
            Outgoing((member,), Delivery(cohort.session, parcels).encode())
            for member in members
            if (parcels := self.parcels_for(member, cohort, dealt))
        )
        self._envelopes.clear()
        dealt.recipients += [cohort.position[member] for packet in frames for member in packet.receivers]
        return frames

    def parcels_for(self, receiver: int, cohort: Cohort, dealt: DealtShares) -> bytes:
        """Return the encoded parcels (sender, digest of tags, encrypted shares, signature) for client
        `receiver`, joined."""
        parcels = []
        for dealer, place in dealt.held_by(cohort.position[receiver]):
            sender = cohort.ids[dealer]
            if sender != receiver:
                tags = tags_digest(dealt.tags_for(dealer, place))
                envelope = self._envelopes[sender][place - (receiver > sender)]  # senders skip themselves
                parcels.append(Parcel(sender, tags, envelope, self._signatures[sender]).encode())
        return b"".join(parcels)

    def check_report(self, sender: int, cohort: Cohort, dealt: DealtShares) -> None:
        """Raise `OutOfOrder` if `sender` reports bad shares without having dealt any, twice, or too late."""
        position = cohort.position.get(sender, -1)
        if sender not in self._signatures or dealt.has_reported(position) or position in dealt.went_on:
            raise OutOfOrder(sender, "reports bad shares unasked, twice, or after its first input")


class Attendance:
    """Tracks, by client id, who was asked and who answered in the current stage, and who left the session."""

    def __init__(self) -> None:
        self.gone: set[int] = set()
        self.answered: set[int] = set()  # in this stage
        self._asked: frozenset[int] | None = None  # None: any client may answer
        self._waiting: set[int] = set()  # asked, and neither answered nor gone

    @property
    def waiting_for(self) -> tuple[int, ...]:
        return tuple(sorted(self._waiting))

    @property
    def is_full(self) -> bool:
        """Whether all clients asked have answered or left. False in the first stage, which is open to all."""
        return self._asked is not None and not self._waiting

    def here(self, members: Iterable[int]) -> tuple[int, ...]:
        """Return those client ids in `members` whose clients have not left the session."""
        return tuple(member for member in members if member not in self.gone)

    def expect(self, asked: Iterable[int]) -> None:
        """Begin a stage: forget earlier answers, and wait for those clients in `asked` that have not left."""
        self._asked = frozenset(asked)
        self._waiting = set(self._asked - self.gone)
        self.answered = set()

    def check(self, sender: int, stage: str) -> None:
        """Raise `OutOfOrder` if `sender` was not asked, or has answered. The error text names `stage`."""
        if sender in self.answered:
            raise OutOfOrder(sender, f"a second answer while {stage}")
        if self._asked is not None and sender not in self._asked:
            raise OutOfOrder(sender, "was not asked")

    def answer(self, sender: int) -> None:
        self.answered.add(sender)
        self._waiting.discard(sender)

    def lose(self, member: int) -> None:
        """Record that client `member` has left the session for good."""
        self.gone.add(member)
        self._waiting.discard(member)
