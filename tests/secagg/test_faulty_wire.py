"""The fake wire itself, and sessions on a hostile one: a total is exact, or there is none."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secagg import messages as m
from secagg.errors import SERVER, BadSignature, Departed, Peer, PeerError, SumFailed, UnknownPeer
from secagg.events import Excluded, Late
from secagg.keys import SIGNATURE_BYTES
from secagg.local_session import Stage
from secagg.message_records import ID_BYTES
from secagg.testing.faulty_wire import (
    DELIVER,
    DUPLICATE,
    OVERTAKE,
    Damage,
    Packet,
    PacketDelivery,
    Schedule,
    flip,
    insert,
    random_faults,
    truncate,
)
from secagg.transitions import ClientState
from secagg.trust_levels import Trust
from tests.secagg.rings import RingSession
from tests.secagg.truth import (
    MEMBERS,
    Question,
    Session,
    check_share_log,
    check_total,
    decoded,
    without,
)

BOTH = pytest.mark.parametrize("trust", list(Trust))
FAULTS = ("drop", "delay", "duplicate", "overtake", "corrupt")


def only(sender: Peer, message: type[m.Message], delivery: PacketDelivery, *, sum_index: int = 0) -> Schedule:
    """One kind of message of one sender in one sum has this delivery."""

    def schedule(packet: Packet) -> PacketDelivery:
        hit = packet.sender == sender and packet.sum_index == sum_index
        return delivery if hit and isinstance(decoded(packet.frame), message) else DELIVER

    return schedule


@BOTH
def test_a_masked_input_that_comes_late_is_ignored_and_its_sender_stays_welcome(trust: Trust) -> None:
    session = Session(trust)
    wire = session.opened(only(5, m.MaskedInput, PacketDelivery(delay=1)))
    assert session.ask(wire, b"0", round_number=0) == without(5)
    assert Late(5) in wire.server_events
    assert session.ask(wire, b"1", round_number=1) == MEMBERS


@BOTH
def test_a_masked_input_that_comes_a_whole_sum_late_is_ignored_too(trust: Trust) -> None:
    session = Session(trust)
    stages = 2 if trust is Trust.CURIOUS else 3
    wire = session.opened(only(5, m.MaskedInput, PacketDelivery(delay=stages + 1)))
    assert session.ask(wire, b"0", round_number=0) == without(5)
    assert session.ask(wire, b"1", round_number=1) == MEMBERS
    assert Late(5) in wire.server_events


@BOTH
def test_a_reveal_that_comes_late_does_not_matter(trust: Trust) -> None:
    session = Session(trust)
    wire = session.opened(only(5, m.Reveal, PacketDelivery(delay=1)))
    assert session.ask(wire, b"0", round_number=0) == MEMBERS
    assert Late(5) in wire.server_events


@BOTH
def test_an_abandoned_sum_is_followed_by_the_next(trust: Trust) -> None:
    session = Session(trust)
    wire = session.opened()
    wire.begin("sum", b"0", round_number=0)
    wire.abandon()
    wire.run()
    assert session.ask(wire, b"1", round_number=1) == MEMBERS


@BOTH
def test_machines_that_are_replaced_begin_a_session_anew(trust: Trust) -> None:
    session = Session(trust)
    wire, other = session.opened(), Session(trust).wire()
    wire.restart_server(other.server)
    for member, client in other.clients.items():
        wire.restart_client(member, client)
    wire.open()
    assert session.ask(wire, b"0", round_number=0) == MEMBERS


@BOTH
def test_a_duplicated_input_excludes_its_sender_for_good_and_counts_once(trust: Trust) -> None:
    session = Session(trust)
    wire = session.opened(only(5, m.MaskedInput, DUPLICATE))
    assert session.ask(wire, b"0", round_number=0) == MEMBERS
    assert [event.peer for event in wire.server_events if isinstance(event, Excluded)] == [5]
    sent = len(wire.sent)
    assert session.ask(wire, b"1", round_number=1) == without(5)
    assert not any(packet.receiver == 5 for packet in wire.sent[sent:])
    assert wire.server.receive(5, b"anything") == ()


@BOTH
@pytest.mark.parametrize("damage", [flip(5), insert(0, b"\x00"), truncate(3)])
def test_a_damaged_query_fails_its_receiver_alone(trust: Trust, damage: Damage) -> None:
    def schedule(packet: Packet) -> PacketDelivery:
        hit = packet.receiver == 5 and packet.stage is Stage.MASK
        return PacketDelivery(damage=damage) if hit else DELIVER

    session = Session(trust)
    wire = session.opened(schedule)
    assert session.ask(wire, b"0", round_number=0) == without(5)
    assert isinstance(wire.failures[5], PeerError)
    assert wire.clients[5].state is ClientState.FAILED
    departed = [event for event in wire.server_events if isinstance(event, Excluded)]
    assert [(event.peer, type(event.error)) for event in departed] == [(5, Departed)]


@pytest.mark.parametrize(("left_out", "error"), [(0, UnknownPeer), (1, BadSignature)])
def test_a_client_shown_other_survivors_reveals_nothing_whatever_it_is_shown_next(
    left_out: int, error: type[PeerError]
) -> None:
    """It signs what it saw; the signatures of all others are on something else."""

    def schedule(packet: Packet) -> PacketDelivery:
        message = decoded(packet.frame)
        if packet.receiver == 5 and isinstance(message, m.Survivors):
            fewer = replace(message, survivors=b"\x1e").encode()  # without the first member
            return PacketDelivery(damage=lambda _frame: fewer)
        return DELIVER

    session = Session(Trust.MALICIOUS)
    wire = session.opened(schedule)
    assert session.ask(wire, b"0", round_number=0) == MEMBERS
    excluded = [event for event in wire.server_events if isinstance(event, Excluded)]
    assert [(event.peer, type(event.error)) for event in excluded] == [(5, BadSignature)]
    assert wire.clients[5].state is ClientState.SIGNED
    confirmations = next(
        message for packet in wire.sent if isinstance(message := decoded(packet.frame), m.Confirmations)
    )
    signatures = confirmations.signatures[left_out * (ID_BYTES + SIGNATURE_BYTES) :]
    wire.send(SERVER, 5, replace(confirmations, signatures=signatures).encode())
    wire.run()
    assert type(wire.failures[5]) is error
    assert 5 not in {entry.holder for entry in wire.shares.entries}


@BOTH
def test_packets_that_overtake_each_other_change_nothing(trust: Trust) -> None:
    session = Session(trust)
    wire = session.opened(lambda packet: OVERTAKE if packet.number % 3 else DELIVER)
    assert session.ask(wire, b"0", round_number=0) == MEMBERS
    arrived = [packet.number for packet in wire.transcript]
    assert sorted(arrived) == list(range(len(arrived))) != arrived


def check_hostile(
    seed: bytes, trust: Trust, rates: Mapping[str, float], session: Session | RingSession | None = None
) -> int:
    """Run a session on a faulty wire; the number of totals, each of them exact."""
    session = session or Session(trust)
    wire = session.wire(authentic(random_faults(seed, **rates), trust))
    released = 0
    try:
        wire.open()
    except SumFailed:
        return 0
    for index in range(session.sums):
        question = Question("sum", index, b"%d" % index)
        try:
            total = wire.ask(question.kind, question.payload, round_number=index)
        except SumFailed:
            continue
        finally:
            check_share_log(wire)
        released += 1
        check_total(wire, session.truth, question, total)
    return released


def authentic(schedule: Schedule, trust: Trust) -> Schedule:
    """Under `curious_server` nothing but the channel protects survivors and positions: neither is damaged."""

    def delivery(packet: Packet) -> PacketDelivery:
        spared = trust is Trust.CURIOUS and isinstance(decoded(packet.frame), (m.Survivors, m.Neighbours))
        chosen = schedule(packet)
        return replace(chosen, damage=None) if spared else chosen

    return delivery


@settings(deadline=None, derandomize=True, database=None, max_examples=50)
@given(
    st.binary(min_size=8, max_size=8),
    st.sampled_from(Trust),
    st.fixed_dictionaries({name: st.sampled_from((0.0, 0.02, 0.1)) for name in FAULTS}),
)
def test_on_a_hostile_wire_a_total_is_exact_or_there_is_none(
    seed: bytes, trust: Trust, rates: dict[str, float]
) -> None:
    check_hostile(seed, trust, rates)


@BOTH
def test_some_sums_survive_a_hostile_wire(trust: Trust) -> None:
    """The test above would also pass if no sum ever succeeded."""
    rates = {"drop": 0.02, "delay": 0.05, "duplicate": 0.01, "overtake": 0.2, "corrupt": 0.01}
    assert sum(check_hostile(b"%d" % seed, trust, rates) for seed in range(8)) >= 8


def test_some_sums_on_a_ring_survive_a_hostile_wire() -> None:
    rates = {"drop": 0.005, "delay": 0.02, "duplicate": 0.002, "overtake": 0.2, "corrupt": 0.005}
    released = [check_hostile(b"%d" % k, Trust.CURIOUS, rates, RingSession()) for k in range(8)]
    assert sum(released) >= 8


@BOTH
def test_the_same_schedule_gives_the_same_run(trust: Trust) -> None:
    def transcript() -> list[Packet]:
        wire = Session(trust).wire(random_faults(b"again", drop=0.1, overtake=0.3, corrupt=0.05))
        wire.open()
        with suppress(SumFailed):
            wire.ask("sum", b"0")
        wire.end()
        wire.run()
        return wire.transcript

    assert transcript() == transcript()
