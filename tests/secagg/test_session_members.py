"""Admission: the server turns one bad client away, so that honest ones need not stop."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

import pytest

from secagg import messages as m
from secagg.admission_and_attendance import Admission
from secagg.cohort_members import Cohort, invitation_digest, ring_digest, ring_session_id, session_id
from secagg.dealt_shares import DealtShares
from secagg.errors import BadKey, BadSignature, Barred, LargeCohort, MalformedMessage, OutOfOrder, UnknownPeer
from secagg.events import Outgoing
from secagg.hybrid_keys import KeyAgreement
from secagg.message_records import Advert, parse_adverts, parse_neighbours, parse_parcels
from secagg.share_tags import tags_digest
from secagg.topology import CompleteGraph, Graph, RingGraph, Topology
from secagg.trust_levels import Trust
from tests.attacks.rig import Rig

BOTH = pytest.mark.parametrize("trust", list(Trust))
CLIENTS = 4
COMPLETE = CompleteGraph(CLIENTS)


class Desk:
    """Honest clients before a real admission."""

    def __init__(
        self, trust: Trust, *, most: int = CLIENTS, barred: Collection[int] = (), hybrid: bool = False
    ) -> None:
        agreement = KeyAgreement.HYBRID if hybrid else KeyAgreement.X25519
        self.rig = Rig(CLIENTS, trust, sums=2, policy_changes={"key_agreement": agreement})
        self.invitation = self.rig.invitation()
        self.context = invitation_digest(self.invitation)
        self.adverts = self.rig.advertise(self.invitation)
        self.admission = Admission(
            self.rig.form, context=self.context, registry=self.rig.registry, most=most, barred=barred
        )

    def add(self, member: int, advert: Advert | None = None) -> None:
        chosen = advert or self.adverts[member]
        self.admission.add_advert(member, m.Advertisement(self.context, chosen.encode()))

    def signed(self, member: int, **changes: Any) -> Advert:
        """A changed advert with a good signature of the member on it."""
        changed = replace(self.adverts[member], **changes)
        if self.rig.registry is None:
            return changed
        signature = self.rig.identity(member).sign("advert", self.context, changed.body)
        return replace(changed, signature=signature)

    def cohort(self) -> tuple[Cohort, bytes]:
        for member in range(CLIENTS):
            self.add(member)
        cohort, frame = self.key_list(COMPLETE, threshold=3)
        self.dealt = DealtShares(cohort, COMPLETE, self.rig.form)
        return cohort, frame

    def key_list(self, graph: Graph, *, threshold: int) -> tuple[Cohort, bytes]:
        cohort, (packet,) = self.admission.key_lists(
            Topology(graph, threshold, least=threshold), invitation=self.invitation
        )
        assert packet.receivers == cohort.ids
        return cohort, packet.frame


# --- adverts ---------------------------------------------------------------------------------------


@BOTH
def test_adverts_become_a_cohort_in_order_of_id(trust: Trust) -> None:
    desk = Desk(trust)
    for member in (2, 0, 3):
        desk.add(member)
    assert desk.admission.advertised == (0, 2, 3)
    cohort, frame = desk.key_list(CompleteGraph(3), threshold=2)
    assert cohort == Cohort(session_id(desk.invitation, frame), 2, tuple(desk.adverts[k] for k in (0, 2, 3)))
    message = m.decode(frame, sender="server", limit=1 << 20)
    assert isinstance(message, m.KeyList)
    assert (message.context, message.threshold) == (desk.context, 2)
    assert parse_adverts(message.adverts, desk.rig.form, most=CLIENTS) == cohort.adverts


def test_on_a_ring_everybody_gets_the_keys_of_its_neighbours() -> None:
    desk = Desk(Trust.CURIOUS)
    for member in range(CLIENTS):
        desk.add(member)
    graph = RingGraph((0, 2, 1, 3), neighbours=2)
    cohort, packets = desk.admission.key_lists(Topology(graph, 2, least=3), invitation=desk.invitation)
    adverts = tuple(desk.adverts[k] for k in range(CLIENTS))
    ring = ring_digest(adverts)
    session = ring_session_id(desk.invitation, size=CLIENTS, neighbours=2, threshold=2, ring=ring)
    assert cohort == Cohort(session, 2, adverts, ring)
    told = {}
    for packet in packets:
        message = m.decode(packet.frame, sender="server", limit=1 << 20)
        assert isinstance(message, m.Neighbours)
        assert replace(message, adverts=b"x") == m.Neighbours(desk.context, CLIENTS, 2, ring, b"x", b"")
        (receiver,) = packet.receivers
        rows = parse_neighbours(message.adverts, desk.rig.form, size=CLIENTS, most=3)
        assert all(advert == desk.adverts[position] for position, advert in rows.items())
        told[receiver] = list(rows)
    assert told == {0: [0, 2, 3], 1: [1, 2, 3], 2: [0, 1, 2], 3: [0, 1, 3]}


@BOTH
def test_whoever_leaves_before_the_key_list_is_not_in_it(trust: Trust) -> None:
    desk = Desk(trust)
    for member in range(CLIENTS):
        desk.add(member)
    desk.admission.withdraw(1)
    desk.admission.withdraw(9)
    assert desk.admission.advertised == (0, 2, 3)


@BOTH
def test_an_advert_in_anothers_name_is_refused(trust: Trust) -> None:
    desk = Desk(trust)
    with pytest.raises(UnknownPeer, match="client 1: advertised keys as client 0"):
        desk.add(1, desk.adverts[0])
    assert desk.admission.advertised == ()


@BOTH
def test_a_full_cohort_takes_nobody_else(trust: Trust) -> None:
    desk = Desk(trust, most=2)
    desk.add(0)
    desk.add(1)
    with pytest.raises(LargeCohort, match="client 2: the cohort is full with 2 clients"):
        desk.add(2)
    assert desk.admission.advertised == (0, 1)


@BOTH
def test_an_advert_of_another_length_is_refused(trust: Trust) -> None:
    desk = Desk(trust)
    with pytest.raises(MalformedMessage, match="client 1: an advert of the wrong length"):
        desk.admission.add_advert(1, m.Advertisement(desk.context, desk.adverts[1].encode()[:-1]))


@BOTH
def test_a_key_of_small_order_is_refused(trust: Trust) -> None:
    desk = Desk(trust)
    first, second = desk.adverts[1].mask_keys
    for changes in (
        {"channel_key": bytes(32)},
        {"mask_keys": (bytes(32), second)},
        {"mask_keys": (first, bytes(32))},
    ):
        with pytest.raises(BadKey, match="client 1: not the canonical encoding"):
            desk.add(1, desk.signed(1, **changes))


@BOTH
def test_a_key_that_is_in_use_is_refused(trust: Trust) -> None:
    """Its own or another's: an echoed key makes two masks the same."""
    desk = Desk(trust)
    desk.add(0)
    own, others = desk.adverts[1], desk.adverts[0]
    echoes: list[dict[str, Any]] = [
        {"channel_key": own.mask_keys[0]},
        {"mask_keys": (own.mask_keys[0], own.mask_keys[0])},
        {"channel_key": others.channel_key},
        {"channel_key": others.mask_keys[1]},
        {"mask_keys": (own.mask_keys[0], others.mask_keys[0])},
    ]
    for changes in echoes:
        with pytest.raises(BadKey, match="client 1: advertised a key that is in use"):
            desk.add(1, desk.signed(1, **changes))
    desk.add(1)
    assert desk.admission.advertised == (0, 1)


def test_a_stranger_to_the_registry_is_refused() -> None:
    desk = Desk(Trust.MALICIOUS)
    stranger = replace(desk.adverts[0], member=77)
    with pytest.raises(UnknownPeer, match="client 77: is not in the registry"):
        desk.add(77, stranger)


def test_an_advert_that_is_not_signed_by_its_member_is_refused() -> None:
    desk = Desk(Trust.MALICIOUS)
    good = desk.adverts[1]
    other_context = desk.rig.identity(1).sign("advert", bytes(32), good.body)
    bad = [
        replace(good, signature=bytes(64)),
        replace(good, signature=other_context),
        replace(good, signature=desk.rig.identity(2).sign("advert", desk.context, good.body)),
        replace(good, commitments=(bytes(32), bytes(32))),
        replace(good, channel_key=desk.adverts[2].channel_key),
    ]
    for advert in bad:
        with pytest.raises(BadSignature, match="client 1: signature for 'advert'"):
            desk.add(1, advert)
    assert desk.admission.advertised == ()


# --- shares ----------------------------------------------------------------------------------------


def shares(desk: Desk, member: int, frame: bytes) -> m.Shares:
    (message,) = desk.rig.send(member, frame)
    assert isinstance(message, m.Shares)
    return message


@BOTH
def test_envelopes_reach_the_one_they_were_sealed_for(trust: Trust) -> None:
    desk = Desk(trust)
    cohort, frame = desk.cohort()
    sent = {member: shares(desk, member, frame) for member in (0, 1, 3)}
    for member, message in sent.items():
        desk.admission.add_shares(member, message, cohort, desk.dealt)
    assert desk.admission.shared == (0, 1, 3)
    for receiver in range(CLIENTS):
        parcels = parse_parcels(
            desk.admission.parcels_for(receiver, cohort, desk.dealt), desk.rig.form, most=CLIENTS
        )
        assert [parcel.sender for parcel in parcels] == [k for k in (0, 1, 3) if k != receiver]
        assert all(parcel.signature == sent[parcel.sender].signature for parcel in parcels)
        for parcel in parcels:
            tags = sent[parcel.sender].tags[receiver * 32 : (receiver + 1) * 32]  # of two sums
            assert parcel.tags == tags_digest(tags)
    delivery = m.Delivery(cohort.session, desk.admission.parcels_for(2, cohort, desk.dealt)).encode()
    shares(desk, 2, frame)
    assert desk.rig.send(2, delivery) == []
    assert [type(event).__name__ for event in desk.rig.events[2]] == ["Joined"]  # and no envelope lost


@BOTH
def test_delivered_envelopes_are_forgotten(trust: Trust) -> None:
    desk = Desk(trust)
    cohort, frame = desk.cohort()
    desk.admission.add_shares(0, shares(desk, 0, frame), cohort, desk.dealt)
    parcels = desk.admission.parcels_for(1, cohort, desk.dealt)
    assert len(parcels) == desk.rig.form.parcel_bytes
    frames = desk.admission.deliveries((0, 1), cohort, desk.dealt)
    assert frames == (Outgoing((1,), m.Delivery(cohort.session, parcels).encode()),)  # none for client 0
    assert desk.admission.shared == (0,)
    assert desk.dealt.published(0)
    with pytest.raises(KeyError):
        desk.admission.parcels_for(1, cohort, desk.dealt)


@BOTH
@pytest.mark.parametrize("change", [-1, 1, -148])
def test_another_number_of_envelopes_is_refused(change: int, trust: Trust) -> None:
    desk = Desk(trust)
    cohort, frame = desk.cohort()
    good = shares(desk, 1, frame)
    blob = good.envelopes[:change] if change < 0 else good.envelopes + b"\0"
    assert desk.rig.form.envelope_bytes == 148
    with pytest.raises(MalformedMessage, match="client 1: not 3 envelopes"):
        desk.admission.add_shares(1, replace(good, envelopes=blob), cohort, desk.dealt)
    assert desk.admission.shared == ()


@BOTH
@pytest.mark.parametrize("change", [-1, 1, -32])
def test_tags_of_another_number_of_holders_are_refused(change: int, trust: Trust) -> None:
    desk = Desk(trust)
    cohort, frame = desk.cohort()
    good = shares(desk, 1, frame)
    tags = good.tags[:change] if change < 0 else good.tags + b"\0"
    assert len(good.tags) == CLIENTS * 32
    with pytest.raises(MalformedMessage, match="client 1: not the tags of 4 holders"):
        desk.admission.add_shares(1, replace(good, tags=tags), cohort, desk.dealt)
    assert desk.admission.shared == ()


@pytest.mark.parametrize("name", ["signature", "tags_signature"])
def test_a_signature_where_none_belongs_is_refused(name: str) -> None:
    desk = Desk(Trust.CURIOUS)
    cohort, frame = desk.cohort()
    changes: dict[str, Any] = {name: bytes(64)}
    signed = replace(shares(desk, 1, frame), **changes)
    with pytest.raises(MalformedMessage, match="client 1: a signature of the wrong length"):
        desk.admission.add_shares(1, signed, cohort, desk.dealt)
    assert desk.admission.shared == ()


def test_shares_without_a_good_signature_on_the_key_list_are_refused() -> None:
    desk = Desk(Trust.MALICIOUS)
    cohort, frame = desk.cohort()
    good = shares(desk, 1, frame)
    with pytest.raises(MalformedMessage, match="a signature of the wrong length"):
        desk.admission.add_shares(1, replace(good, signature=b""), cohort, desk.dealt)
    for signature in (bytes(64), desk.rig.identity(1).sign("key list", bytes(32))):
        with pytest.raises(BadSignature, match="client 1: signature for 'key list'"):
            desk.admission.add_shares(1, replace(good, signature=signature), cohort, desk.dealt)
    assert desk.admission.shared == ()


def test_tags_without_a_good_signature_are_refused() -> None:
    desk = Desk(Trust.MALICIOUS)
    cohort, frame = desk.cohort()
    good, identity = shares(desk, 1, frame), desk.rig.identity(1)
    with pytest.raises(MalformedMessage, match="a signature of the wrong length"):
        desk.admission.add_shares(1, replace(good, tags_signature=b""), cohort, desk.dealt)
    bad = [
        replace(good, tags_signature=bytes(64)),
        replace(good, tags_signature=identity.sign("share tags", bytes(32), good.tags)),
        replace(good, tags_signature=desk.rig.identity(2).sign("share tags", cohort.session, good.tags)),
        replace(good, tags=good.tags[::-1]),
    ]
    for message in bad:
        with pytest.raises(BadSignature, match="client 1: signature for 'share tags'"):
            desk.admission.add_shares(1, message, cohort, desk.dealt)
    assert desk.admission.shared == ()
    desk.admission.add_shares(1, good, cohort, desk.dealt)
    assert desk.dealt.published(1) == (good.tags, good.tags_signature)


# --- reports of bad shares -------------------------------------------------------------------------


@BOTH
def test_bad_shares_are_reported_once_by_those_who_dealt_some_and_before_their_first_input(
    trust: Trust,
) -> None:
    desk = Desk(trust)
    cohort, frame = desk.cohort()
    for member in (0, 1, 2):
        desk.admission.add_shares(member, shares(desk, member, frame), cohort, desk.dealt)
        desk.admission.check_report(member, cohort, desk.dealt)
    desk.dealt.report(0, [1])
    desk.dealt.went_on.add(1)  # its first input, or its deposit, came
    why = "reports bad shares unasked, twice, or after its first input"
    for sender in (0, 1, 3, 99):  # reported, went on, dealt nothing, is no member
        with pytest.raises(OutOfOrder, match=f"client {sender}: {why}"):
            desk.admission.check_report(sender, cohort, desk.dealt)
    desk.admission.check_report(2, cohort, desk.dealt)


# --- clients that lied before ----------------------------------------------------------------------


@BOTH
def test_a_client_that_is_barred_is_refused(trust: Trust) -> None:
    desk = Desk(trust, barred=(1, 9))
    with pytest.raises(Barred, match="client 1: lied, or was in a dispute, in an earlier session"):
        desk.add(1)
    desk.add(0)
    assert desk.admission.advertised == (0,)


# --- hybrid key agreement --------------------------------------------------------------------------


@BOTH
def test_a_kem_key_is_checked_like_the_others(trust: Trust) -> None:
    desk = Desk(trust, hybrid=True)
    size = len(desk.adverts[1].kem_key)
    with pytest.raises(BadKey, match="client 1: not a public key of ML-KEM-768"):
        desk.add(1, desk.signed(1, kem_key=b"\xff" * size))
    desk.add(1)
    assert desk.admission.advertised == (1,)
    with pytest.raises(MalformedMessage, match="client 0: an advert of the wrong length"):
        desk.add(0, desk.signed(0, kem_key=b""))
