"""Bad clients on a ring: shares lie at places in a neighbourhood, and the blame must find the right ids."""

from __future__ import annotations

from typing import TypeVar

import pytest

from secagg import messages as m
from secagg.client import ClientMachine
from secagg.client_memory import VolatileMemory
from secagg.errors import BadShare, CorruptDealer, MalformedMessage, OutOfOrder, PeerError, Unrecoverable
from secagg.events import EnvelopeLost, Excluded, SumReleased, WrongShares
from secagg.shamir import PRIME, SHARE_BYTES
from tests.attacks.attackers.bad_clients import ForgingDealer, LyingHolder, ScatteringDealer, UnreadableDealer
from tests.secagg.rings import HALF, SMALL, THRESHOLD, RingSession, neighbourhoods
from tests.secagg.share_log import LoggedWire
from tests.secagg.truth import decoded, session_of

Bad = TypeVar("Bad", bound=ClientMachine)
PLACES = (0, 3, 11, 19)


def replace_client(wire: LoggedWire, member: int, bad: type[Bad]) -> Bad:
    """Put a bad client in a good one's place."""
    policy, table = wire.clients[member]._policy, wire.clients[member]._table
    wire.clients[member] = client = bad(member=member, table=table, policy=policy, memory=VolatileMemory())
    return client


def excluded(wire: LoggedWire) -> dict[int, PeerError]:
    return {event.peer: event.error for event in wire.server_events if isinstance(event, Excluded)}


# --- holders -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("liar", [*SMALL.members[:5], *SMALL.members[-2:]])
def test_a_wrong_share_names_its_holder_and_its_dealer(liar: int) -> None:
    session = RingSession()
    wire = session.wire()
    replace_client(wire, liar, LyingHolder)
    wire.open()
    assert session.ask(wire, b"0", round_number=0) == session.without()
    wrong = [event for event in wire.server_events if isinstance(event, WrongShares)]
    # It is caught at the first dealer that it is one of the first holders of, and asked last from then on.
    hoods = neighbourhoods(wire.sent, session.sums)
    victims = [dealer for dealer in sorted(hoods) if liar in sorted(hoods[dealer])[:THRESHOLD]]
    assert wrong == [WrongShares(dealer, (liar,)) for dealer in victims[:1]]
    assert bool(victims) == (liar < 155)
    assert excluded(wire) == {}


@pytest.mark.parametrize(
    ("dealers", "shares", "error"),
    [
        (b"\x80", SHARE_BYTES, MalformedMessage),  # the eighth of a neighbourhood of seven
        (b"\x01\x00", SHARE_BYTES, MalformedMessage),
        (b"\x01\x00\x00", SHARE_BYTES, MalformedMessage),  # a bitmap over the cohort
        (b"\x03", SHARE_BYTES, MalformedMessage),
        (b"\x01", SHARE_BYTES + 1, MalformedMessage),
        (b"\x01", 0, BadShare),
    ],
)
def test_a_reveal_that_is_not_over_the_neighbourhood_is_refused(
    dealers: bytes, shares: int, error: type[PeerError]
) -> None:
    session = RingSession()
    wire = session.opened()
    wire.begin("sum", b"0", round_number=0)
    wire.run()
    wire.close_stage()
    (holder,) = session.at(3)
    blob = bytes(shares) if shares else PRIME.to_bytes(SHARE_BYTES, "big")
    wire.server_events += wire.server.receive(holder, m.Reveal(session_of(wire), 0, dealers, blob).encode())
    assert {k: type(why) for k, why in excluded(wire).items()} == {holder: error}
    wire.run()
    (released,) = wire.finish()
    assert set(released.contributors) == session.without()  # its input is in; the others' shares do


def test_a_share_for_a_neighbour_that_was_not_asked_is_refused() -> None:
    session = RingSession()
    wire = session.opened()
    holder, gone = session.at(3, 4)
    wire.server_events += wire.server.drop(gone)
    wire.begin("sum", b"0", round_number=0)
    wire.run()
    wire.close_stage()
    around = sorted(neighbourhoods(wire.sent, session.sums)[holder])
    reveal = m.Reveal(session_of(wire), 0, bytes([1 << around.index(gone)]), bytes(SHARE_BYTES))
    (event,) = wire.server.receive(holder, reveal.encode())
    assert isinstance(event, Excluded)
    assert event.error.why == "shares that do not match the roster"


# --- dealers -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("spoiled", [THRESHOLD - 1, THRESHOLD])
def test_envelopes_that_do_not_open_convict_a_dealer_if_enough_neighbours_say_so(
    place: int, spoiled: int
) -> None:
    """Two of a neighbourhood may be lying; a third report is proof."""
    session = RingSession()
    (dealer,) = session.at(place)
    wire = session.wire()
    replace_client(wire, dealer, UnreadableDealer).spoiled = spoiled
    wire.open()
    around = sorted(neighbourhoods(wire.sent, session.sums)[dealer] - {dealer})
    lost = {member for member, event in wire.client_events if event == EnvelopeLost(dealer)}
    assert lost == set(around[:spoiled])
    convicted = spoiled == THRESHOLD
    assert {k: type(why) for k, why in excluded(wire).items()} == (
        {dealer: CorruptDealer} if convicted else {}
    )
    wanted = session.without(dealer) if convicted else session.without()
    assert session.ask(wire, b"0", round_number=0) == wanted


def test_a_report_is_over_the_reporters_neighbourhood_and_comes_once() -> None:
    session = RingSession()
    wire = session.opened()
    one, other = session.at(3, 4)
    context = session_of(wire)
    (event,) = wire.server.receive(one, m.Lost(context, b"\x80").encode())
    assert isinstance(event, Excluded)
    assert type(event.error) is MalformedMessage
    assert wire.server.receive(other, m.Lost(context, b"\x01").encode()) == ()
    (event,) = wire.server.receive(other, m.Lost(context, b"\x01").encode())
    assert isinstance(event, Excluded)
    assert type(event.error) is OutOfOrder


@pytest.mark.parametrize("bad", [ForgingDealer, ScatteringDealer])
@pytest.mark.parametrize("place", PLACES[:2])
def test_a_dealer_of_garbage_costs_one_sum_and_its_place(bad: type[ClientMachine], place: int) -> None:
    session = RingSession()
    (dealer,) = session.at(place)
    wire = session.wire()
    replace_client(wire, dealer, bad)
    wire.open()
    with pytest.raises(Unrecoverable) as caught:
        wire.ask("sum", b"0")
    assert [(error.peer, error.proven) for error in caught.value.dealers] == [(dealer, True)]
    assert not any(isinstance(event, SumReleased) for event in wire.server_events)
    assert {k: type(why) for k, why in excluded(wire).items()} == {dealer: CorruptDealer}
    assert session.ask(wire, b"1", round_number=1) == session.without(dealer)


def test_everybody_seals_an_envelope_for_every_neighbour_and_for_nobody_else() -> None:
    session = RingSession()
    wire = session.opened()
    form = wire.server._admission._form
    shares = [message for packet in wire.sent if isinstance(message := decoded(packet.frame), m.Shares)]
    assert {len(message.envelopes) for message in shares} == {2 * HALF * form.envelope_bytes}
    (sender,) = session.at(5)
    fresh = session.wire()
    fresh.invite()
    fresh.run()
    fresh.close_stage()
    one_too_many = m.Shares(session_of(wire), bytes((2 * HALF + 1) * form.envelope_bytes), b"").encode()
    (event,) = fresh.server.receive(sender, one_too_many)
    assert isinstance(event, Excluded)
    assert event.error.why == "not 6 envelopes"
