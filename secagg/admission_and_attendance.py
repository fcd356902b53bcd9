"""The server's record of its clients: accepted keys and shares, and which clients answered or left. The
server checks keys and signatures just as clients do, so that it can exclude a client with bad keys and
continue the session. Otherwise every honest client would refuse the key list, and the session would end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from secagg.bitmap import unpack_positions
from secagg.cohort_members import Cohort, ring_digest, ring_session_id, session_id
from secagg.errors import BadKey, LargeCohort, MalformedMessage, OutOfOrder, UnknownPeer
from secagg.events import Outgoing
from secagg.identity_registry import Registry
from secagg.keys import check_public_key, verify
from secagg.message_records import Advert, Format, Parcel, encode_neighbours, parse_advert, parse_envelopes
from secagg.messages import Advertisement, KeyList, Lost, Neighbours, Shares
from secagg.topology import Graph, Topology


class Admission:
    """Collects clients' public keys (adverts) and encrypted shares (envelopes), and counts bad envelopes."""

    def __init__(self, form: Format, *, context: bytes, registry: Registry | None, most: int) -> None:
        self._form = form
        self._context = context
        self._registry = registry
        self._most = most
        self._adverts: dict[int, Advert] = {}
        self._keys: set[bytes] = set()
        self._envelopes: dict[int, tuple[bytes, ...]] = {}
        self._signatures: dict[int, bytes] = {}
        self._reporters: set[int] = set()
        self._lost: Counter[int] = Counter()  # sender of envelopes -> number of reports that one did not open

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
        keys = [advert.channel_key, *advert.mask_keys]
        for key in keys:
            check_public_key(key, peer=advert.member)
        if len(set(keys)) < len(keys) or not self._keys.isdisjoint(keys):
            raise BadKey(advert.member, "advertised a key that is in use")
        self._keys.update(keys)

    def key_lists(self, topology: Topology, *, invitation: bytes) -> tuple[Cohort, list[Outgoing]]:
        """Return the cohort (clients that advertised keys), and frames that tell each client the keys of the
        others or, on a ring, of its neighbours."""
        adverts = tuple(self._adverts[member] for member in self.advertised)
        if topology.is_ring:
            return self._ring(adverts, topology, invitation)
        blob = b"".join(advert.encode() for advert in adverts)
        frame = KeyList(self._context, topology.threshold, blob).encode()
        cohort = Cohort(session_id(invitation, frame), topology.threshold, adverts)
        return cohort, [Outgoing(cohort.ids, frame)]

    def _ring(
        self, adverts: tuple[Advert, ...], topology: Topology, invitation: bytes
    ) -> tuple[Cohort, list[Outgoing]]:
        """Return the cohort on a ring, and for each client a frame with its and its neighbours' adverts."""
        size, threshold, ring = len(adverts), topology.threshold, ring_digest(adverts)
        neighbours = topology.graph.neighbours
        session = ring_session_id(
            invitation, size=size, neighbours=neighbours, threshold=threshold, ring=ring
        )
        frames = []
        for position, advert in enumerate(adverts):
            around = topology.graph.neighbourhood(position)
            blob = encode_neighbours((peer, adverts[peer]) for peer in around)
            frame = Neighbours(self._context, size, threshold, ring, blob).encode()
            frames.append(Outgoing((advert.member,), frame))
        return Cohort(session, threshold, adverts, ring), frames

    # --- shares ---

    def add_shares(self, sender: int, message: Shares, cohort: Cohort, graph: Graph) -> None:
        envelopes = parse_envelopes(message.envelopes, self._form, graph.neighbours, sender=sender)
        if len(message.signature) != self._form.signature_bytes:
            raise MalformedMessage(sender, "a signature of the wrong length")
        if self._registry is not None:
            key = self._registry.members[sender]
            verify(key, message.signature, "key list", cohort.session, peer=sender)
        self._envelopes[sender] = envelopes
        self._signatures[sender] = message.signature

    def parcels_for(self, receiver: int, cohort: Cohort, graph: Graph) -> bytes:
        """Return the encoded parcels (sender, encrypted shares, signature) for client `receiver`, joined."""
        position, parcels = cohort.position[receiver], []
        for peer, place in zip(graph.neighbourhood(position), graph.places(position), strict=True):
            sender = cohort.ids[peer]
            if sender != receiver and sender in self._envelopes:
                envelope = self._envelopes[sender][place - (receiver > sender)]  # senders skip themselves
                parcels.append(Parcel(sender, envelope, self._signatures[sender]).encode())
        return b"".join(parcels)

    def forget_envelopes(self) -> None:
        """Delete all envelopes (encrypted shares). Call this after they were delivered."""
        self._envelopes.clear()

    def add_lost(self, sender: int, message: Lost, cohort: Cohort, graph: Graph) -> None:
        """Record the dealers whose encrypted shares `sender` reports that it cannot open. Raises `OutOfOrder`
        if it has reported before, or dealt no shares itself, and `MalformedMessage` for an invalid bitmap."""
        if sender not in self._signatures or sender in self._reporters:
            raise OutOfOrder(sender, "reports lost envelopes unasked, or twice")
        around = graph.neighbourhood(cohort.position[sender])
        places = unpack_positions(message.dealers, len(around), sender=sender)
        self._reporters.add(sender)
        self._lost.update(cohort.ids[around[place]] for place in places)

    def convicted(self, *, corrupt: int) -> tuple[int, ...]:
        """Return the ids of the clients whose encrypted shares more than `corrupt` others could not open. At
        least one of these others is honest, so the client must have sent unreadable ones."""
        return tuple(sorted(dealer for dealer, count in self._lost.items() if count > corrupt))


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
