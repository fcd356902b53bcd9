"""A rig for attacks: honest clients, real machines, and a server that does as the attacker pleases.

The rig plays the server by hand. It knows what any server knows: frames. The clients' vectors are kept
apart, to compare with at the end. `recover` and friends are what a cheating server can compute.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from secagg import messages as m
from secagg import shamir
from secagg.bitmap import PositionSet, pack_positions, unpack_positions
from secagg.client import ClientMachine
from secagg.client_memory import Memory, VolatileMemory
from secagg.cohort_members import Cohort, invitation_digest, session_id
from secagg.differencing_rules import ContentOf, whole_payload
from secagg.events import Asked, ClientEvent
from secagg.identity_registry import Registry
from secagg.input_encoding import Encoding
from secagg.insecure_seeds import seeded_identity, seeded_registry
from secagg.keys import Agreement, Identity, pair_info, self_mask_seed
from secagg.mask_keystream import apply_masks
from secagg.message_records import Advert, Format, Parcel, parse_advert, parse_envelopes
from secagg.policy import Policy
from secagg.query_context import Question, query_digest
from secagg.residue_packing import Residues
from secagg.share_tags import tags_digest
from secagg.sum_spec import Part, Residue, SumSpec, Table
from secagg.testing import InsecureSeededClient
from secagg.trust_levels import Trust

PART = "x"
KIND = "vector"


def residue_table(
    size: int = 4,
    *,
    bits: int = 32,
    times: int = 1,
    kinds: Sequence[str] = (KIND,),
    group: str | None = None,
) -> Table:
    """A table of raw residue vectors: what is recovered can be compared bit for bit."""
    part = Part(name=PART, size=size, bits=bits, bound=Residue())
    spec = SumSpec(parts=(part,), times=times, group=group)
    return Table(dict.fromkeys(kinds, spec))


class Dealt(NamedTuple):
    """What a client dealt: envelopes in cohort order, its signature, the tags of every holder's shares."""

    envelopes: tuple[bytes, ...]
    signature: bytes
    tags: tuple[bytes, ...]


@dataclass
class Rig:
    """`clients` honest machines and the attacker's notes about them."""

    clients: int
    trust: Trust
    corrupt: int = 0
    sums: int = 4
    table: Table = field(default_factory=residue_table)
    registered: int = 0  # members of the registry beyond the honest clients: the attacker's own
    seed: bytes = b"rig"
    min_contributors: int = 0
    policy_changes: Mapping[str, Any] = field(default_factory=dict)
    static: Sequence[str] = ()
    content_of: ContentOf = whole_payload

    def __post_init__(self) -> None:
        members = list(range(self.clients + self.registered))
        self.registry: Registry | None = None
        if self.trust is Trust.MALICIOUS:
            self.registry = seeded_registry(self.seed, members)
        settings: dict[str, Any] = {
            "trust": self.trust,
            "corrupt": self.corrupt,
            "min_cohort": max(self.corrupt + 2, self.min_contributors),
            "max_cohort": 64,
            "min_contributors": max(self.corrupt + 2, self.min_contributors),
            "max_sums": self.sums,
            "unnoised_sums": 100,
        }
        self.policy = Policy(**{**settings, **self.policy_changes})
        self.memories: dict[int, Memory] = {k: VolatileMemory() for k in range(self.clients)}
        self.machines: dict[int, ClientMachine] = {}
        self.events: dict[int, list[ClientEvent]] = {k: [] for k in range(self.clients)}
        rng = np.random.default_rng(7)
        size = self.table[next(iter(self.table))].parts[0].size
        self.vectors = {k: rng.integers(0, 2**32, size, dtype=np.uint32) for k in range(self.clients)}
        self.restart()

    def restart(self, *, seed: bytes | None = None, members: Iterable[int] | None = None) -> None:
        """New machines (a new session) for the same identities and memories."""
        for member in self.machines if members is None else members:
            self.machines[member].leave()
        for member in range(self.clients) if members is None else members:
            self.machines[member] = self.new_client(member, seed=seed or self.seed)

    def new_client(self, member: int, *, seed: bytes) -> ClientMachine:
        signed = self.trust is Trust.MALICIOUS
        return InsecureSeededClient(
            seed=seed,
            member=member,
            table=self.table,
            policy=self.policy,
            memory=self.memories[member],
            identity=self.identity(member) if signed else None,
            registry=self.registry,
            static=self.static,
            content_of=self.content_of,
        )

    def identity(self, member: int) -> Identity:
        """The signing key of a member: the attacker may use only those of its own colluders."""
        return seeded_identity(self.seed, member)

    @property
    def form(self) -> Format:
        return Format(
            self.sums,
            signed=self.trust is Trust.MALICIOUS,
            seeds=self.table.seeds,
            agreement=self.policy.key_agreement,
        )

    # --- frames to and from one client ---

    def send(self, member: int, frame: bytes) -> list[m.Message]:
        """Deliver a frame; the replies, decoded. Errors of the machine come through."""
        step = self.machines[member].receive(frame)
        self.events[member] += step.events
        return [m.decode(reply, sender=member, limit=1 << 30) for reply in step.frames]

    def answer(self, member: int, values: NDArray[Any] | None = None) -> m.MaskedInput:
        """Let the client answer the query it was just asked, with its private vector by default."""
        asked = [event for event in self.events[member] if isinstance(event, Asked)][-1]
        vector = self.vectors[member] if values is None else values
        frame = self.machines[member].answer(asked.sum_index, {PART: vector}).frame
        message = m.decode(frame, sender=member, limit=1 << 30)
        assert isinstance(message, m.MaskedInput)
        return message

    # --- an honest set-up, with places to cheat ---

    def invitation(self, **changes: Any) -> bytes:
        fields: dict[str, Any] = {
            "context": b"",
            "trust": str(self.trust),
            "agreement": str(self.policy.key_agreement),
            "sums": self.sums,
            "table": self.table.digest,
            "registry": self.registry.digest if self.registry else b"",
            "nonce": bytes(32),
        }
        return m.Invitation(**{**fields, **changes}).encode()

    def advertise(self, invitation: bytes, members: Iterable[int] | None = None) -> dict[int, Advert]:
        adverts = {}
        for member in range(self.clients) if members is None else members:
            (message,) = self.send(member, invitation)
            assert isinstance(message, m.Advertisement)
            adverts[member] = parse_advert(message.advert, self.form, sender=member)
        return adverts

    def key_list(self, invitation: bytes, adverts: Mapping[int, Advert], threshold: int) -> bytes:
        blob = b"".join(adverts[k].encode() for k in sorted(adverts))
        return m.KeyList(invitation_digest(invitation), threshold, blob).encode()

    def cohort(
        self, invitation: bytes, key_list: bytes, adverts: Mapping[int, Advert], threshold: int
    ) -> Cohort:
        ordered = tuple(adverts[k] for k in sorted(adverts))
        return Cohort(session_id(invitation, key_list), threshold, ordered)

    def share(self, member: int, key_list: bytes, size: int) -> Dealt:
        """What one client deals to all others."""
        (message,) = self.send(member, key_list)
        assert isinstance(message, m.Shares)
        envelopes = parse_envelopes(message.envelopes, self.form, size - 1, sender=member)
        width = self.form.tags_bytes
        tags = tuple(message.tags[at : at + width] for at in range(0, len(message.tags), width))
        return Dealt(envelopes, message.signature, tags)

    def delivery(self, cohort: Cohort, parcels: Iterable[Parcel]) -> bytes:
        rows = sorted(parcels, key=lambda parcel: parcel.sender)
        return m.Delivery(cohort.session, b"".join(row.encode() for row in rows)).encode()

    def parcels(self, cohort: Cohort, shares: Mapping[int, Dealt], receiver: int) -> list[Parcel]:
        place = cohort.position[receiver]
        return [
            Parcel(
                sender,
                tags_digest(dealt.tags[place]),
                dealt.envelopes[place - (receiver > sender)],
                dealt.signature,
            )
            for sender, dealt in shares.items()
            if sender != receiver
        ]

    def set_up(
        self, *, threshold: int, members: Iterable[int] | None = None, nonce: bytes = bytes(32)
    ) -> Cohort:
        """Run set-up as an honest server would, among honest clients only."""
        invitation = self.invitation(nonce=nonce)
        adverts = self.advertise(invitation, members)
        key_list = self.key_list(invitation, adverts, threshold)
        cohort = self.cohort(invitation, key_list, adverts, threshold)
        shares = {k: self.share(k, key_list, cohort.size) for k in adverts}
        for member in adverts:
            self.send(member, self.delivery(cohort, self.parcels(cohort, shares, member)))
        return cohort

    # --- one sum by hand ---

    def query(self, cohort: Cohort, sum_index: int, roster: Collection[int], *, payload: bytes = b"",
              kind: str = KIND, round_number: int = 0) -> bytes:  # fmt: skip
        """`roster` and all sets below are ids."""
        bitmap = self.bitmap(cohort, roster)
        return m.Query(cohort.session, sum_index, round_number, kind, bitmap, payload).encode()

    def bitmap(self, cohort: Cohort, members: Collection[int]) -> bytes:
        return pack_positions((cohort.position[k] for k in members), cohort.size)

    def masked(self, frame: bytes, members: Iterable[int]) -> dict[int, m.MaskedInput]:
        """Ask each of `members` the query in `frame`; their masked inputs."""
        inputs = {}
        for member in members:
            assert self.send(member, frame) == []
            inputs[member] = self.answer(member)
        return inputs

    def survivors(self, cohort: Cohort, sum_index: int, members: Collection[int]) -> bytes:
        return m.Survivors(cohort.session, sum_index, self.bitmap(cohort, members)).encode()

    def reveals(self, frame: bytes, members: Iterable[int]) -> list[tuple[int, m.Reveal]]:
        """Send an unmask request to each of `members` under `curious_server`; what they reveal."""
        found = []
        for member in members:
            (message,) = self.send(member, frame)
            assert isinstance(message, m.Reveal)
            found.append((member, message))
        return found

    def question(self, cohort: Cohort, frame: bytes) -> Question:
        """The attacker's view of a query that it sent."""
        query = m.decode(frame, sender="server", limit=1 << 30)
        assert isinstance(query, m.Query)
        roster = PositionSet.parse(query.roster, cohort.size, sender="server")
        return Question(cohort, self.table[query.kind], query, query_digest(frame), roster, False)

    # --- what a cheating server can compute ---

    def shares_of(
        self, cohort: Cohort, dealer: int, reveals: Iterable[tuple[int, m.Reveal]]
    ) -> dict[int, int]:
        """Point -> share of `dealer` in what was revealed."""
        found: dict[int, int] = {}
        for holder, reveal in reveals:
            dealers = unpack_positions(reveal.dealers, cohort.size, sender=holder)
            if cohort.position[dealer] in dealers:
                at = dealers.index(cohort.position[dealer]) * shamir.SHARE_BYTES
                value = int.from_bytes(reveal.shares[at : at + shamir.SHARE_BYTES], "big")
                found[cohort.position[holder] + 1] = value
        return found

    def secret_of(self, cohort: Cohort, shares: Mapping[int, int]) -> bytes | None:
        """Interpolate; None with too few shares, or where they are not of one secret."""
        if len(shares) < cohort.threshold:
            return None
        points = sorted(shares)[: cohort.threshold]
        return shamir.interpolate(shamir.lagrange_weights(points), [shares[x] for x in points])

    def residues(self, question: Question, data: bytes) -> list[Residues]:
        return list(question.encoding.unpack(data))

    def remove_self_mask(
        self, residues: Sequence[Residues], question: Question, owner: int, secret: bytes
    ) -> None:
        seed = self_mask_seed(
            secret, session=question.cohort.session, context=question.mask_context, owner=owner
        )
        apply_masks(residues, minus=[seed])

    def remove_pair_masks(self, residues: Sequence[Residues], question: Question, owner: int, secret: bytes,
                          peers: Iterable[int]) -> None:  # fmt: skip
        """Take from `owner`'s residues the masks it shares with `peers`, given its mask key."""
        cohort, agreement = question.cohort, Agreement(secret)
        for peer in peers:
            if peer == owner:
                continue
            key = cohort.adverts[cohort.position[peer]].mask_keys[question.sum_index]
            info = pair_info(question.mask_context, owner, peer)
            seed = agreement.derive(key, salt=cohort.session, info=info)
            apply_masks(residues, plus=[seed] if owner < peer else [], minus=[seed] if owner > peer else [])

    def vector(self, question: Question, residues: Sequence[Residues]) -> NDArray[Any]:
        """The (first) part of unmasked residues, as the private vectors are stored."""
        Encoding.pack(question.encoding, residues)
        return residues[0].astype(np.uint32)
