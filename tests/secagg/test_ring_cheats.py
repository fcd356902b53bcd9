"""Bad clients on a ring: shares lie at places in a neighbourhood, and the blame must find the right ids."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TypeVar

import numpy as np
import pytest
from numpy.typing import ArrayLike

from secagg import messages as m
from secagg.client import ClientMachine
from secagg.client_memory import VolatileMemory
from secagg.errors import (
    Dispute,
    Disputed,
    FalseDealing,
    FalseReport,
    MalformedMessage,
    ManyDisputes,
    OutOfOrder,
    PeerError,
    UnreadableShares,
    Unrecoverable,
    WrongShare,
)
from secagg.events import Answer, Convicted, EnvelopeLost, Excluded, SumReleased
from secagg.shamir import PRIME, SHARE_BYTES
from secagg.share_tags import TAG_BYTES
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


def convicted(wire: LoggedWire) -> dict[int, PeerError]:
    """Whoever lied; there is no evidence, as nothing is signed on a ring."""
    found = [event for event in wire.server_events if isinstance(event, Convicted)]
    assert all(event.evidence is None for event in found)
    return {event.peer: event.error for event in found}


# --- holders -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("liar", [*SMALL.members[:5], *SMALL.members[-2:]])
def test_a_wrong_share_names_its_holder_and_its_dealer(liar: int) -> None:
    session = RingSession()
    wire = session.wire()
    replace_client(wire, liar, LyingHolder)
    wire.open()
    assert session.ask(wire, b"0", round_number=0) == session.without()
    # It is caught at the first of its neighbours, or at its share of its own secret.
    first = min(neighbourhoods(wire.sent, session.sums)[liar])
    ((member, error),) = convicted(wire).items()
    assert isinstance(error, WrongShare)
    assert (member, error.peer, error.dealer) == (liar, liar, first)
    assert excluded(wire) == {liar: error}
    assert session.ask(wire, b"1", round_number=1) == session.without(liar)


AROUND = 2 * HALF + 1  # a neighbourhood, and so the shares that each of it holds


@pytest.mark.parametrize(
    ("dealers", "shares", "hidden", "error"),
    [
        (b"\xff", AROUND + 1, AROUND + 1, MalformedMessage),  # the eighth of a neighbourhood of seven
        (b"\x7f\x00", AROUND, AROUND, MalformedMessage),
        (b"\x7f\x00\x00", AROUND, AROUND, MalformedMessage),  # a bitmap over the cohort
        (b"\x7f", AROUND - 1, AROUND, MalformedMessage),
        (b"\x7f", AROUND + 1, AROUND, MalformedMessage),
        (b"\x7f", AROUND, AROUND - 1, MalformedMessage),
        (b"\x7f", AROUND, AROUND + 1, MalformedMessage),
        (b"\x3f", AROUND - 1, AROUND - 1, MalformedMessage),  # one share is withheld
    ],
)
def test_a_reveal_that_is_not_over_the_neighbourhood_is_refused(
    dealers: bytes, shares: int, hidden: int, error: type[PeerError]
) -> None:
    session = RingSession()
    wire = session.opened()
    wire.begin("sum", b"0", round_number=0)
    wire.run()
    wire.close_stage()
    (holder,) = session.at(3)
    blob = PRIME.to_bytes(SHARE_BYTES, "big") * shares
    reveal = m.Reveal(session_of(wire), 0, dealers, blob, bytes(TAG_BYTES * hidden), b"")
    wire.server_events += wire.server.receive(holder, reveal.encode())
    assert {k: type(why) for k, why in excluded(wire).items()} == {holder: error}
    assert convicted(wire) == {}
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
    assert gone in around
    shares, hidden = bytes(SHARE_BYTES * AROUND), bytes(TAG_BYTES * AROUND)
    reveal = m.Reveal(session_of(wire), 0, b"\x7f", shares, hidden, b"")
    (event,) = wire.server.receive(holder, reveal.encode())
    assert isinstance(event, Excluded)
    assert event.error.why == "not just the shares that it holds of the roster"


# --- masks on the count ------------------------------------------------------------------------------


class WordLiar(ClientMachine):
    """Claims other masks on its count for the first `lies` of its neighbours."""

    lies: int

    def answer(self, sum_index: int, values: Mapping[str, ArrayLike]) -> Answer:
        message = decoded(super().answer(sum_index, values).frame)
        assert isinstance(message, m.MaskedInput)
        words = np.frombuffer(message.words, "<u8").copy()
        words[: self.lies] += np.uint64(1)
        return Answer(replace(message, words=words.tobytes()).encode(), {})


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("lies", [1, THRESHOLD - 1, THRESHOLD])
def test_whoever_contradicts_its_neighbours_is_excluded_with_one_of_them_or_convicted(
    place: int, lies: int
) -> None:
    """Two of a neighbourhood may be lying; contradictions with a third convict."""
    session = RingSession()
    (liar,) = session.at(place)
    wire = session.wire()
    replace_client(wire, liar, WordLiar).lies = lies
    wire.open()
    victims = sorted(neighbourhoods(wire.sent, session.sums)[liar] - {liar})[:lies]
    with pytest.raises(Disputed) as caught:
        wire.ask("sum", b"0")
    assert {frozenset(pair) for pair in caught.value.pairs} == {frozenset((liar, each)) for each in victims}
    if lies == THRESHOLD:
        assert {k: type(why) for k, why in convicted(wire).items()} == {liar: ManyDisputes}
        gone = {liar}
    else:
        assert convicted(wire) == {}
        gone = {liar, min(victims)}
        assert {k: type(why) for k, why in excluded(wire).items()} == dict.fromkeys(gone, Dispute)
    assert set(excluded(wire)) == gone
    assert session.ask(wire, b"1", round_number=1) == session.without(*gone)


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
    believed = spoiled == THRESHOLD
    verdict = {dealer: UnreadableShares} if believed else {}
    assert {k: type(why) for k, why in excluded(wire).items()} == verdict
    assert {k: type(why) for k, why in convicted(wire).items()} == verdict
    wanted = session.without(dealer) if believed else session.without()
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


def test_a_report_of_more_neighbours_than_may_lie_convicts_the_reporter() -> None:
    session = RingSession()
    wire = session.opened()
    (one,) = session.at(3)
    events = wire.server.receive(one, m.Lost(session_of(wire), b"\x07").encode())
    assert [type(event) for event in events] == [Convicted, Excluded]
    wire.server_events += events
    assert {k: type(why) for k, why in convicted(wire).items()} == {one: FalseReport}
    assert session.ask(wire, b"0", round_number=0) == session.without(one)


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
    assert [(type(error), error.peer) for error in caught.value.liars] == [(FalseDealing, dealer)]
    assert not any(isinstance(event, SumReleased) for event in wire.server_events)
    assert {k: type(why) for k, why in excluded(wire).items()} == {dealer: FalseDealing}
    assert {k: type(why) for k, why in convicted(wire).items()} == {dealer: FalseDealing}
    assert session.ask(wire, b"1", round_number=1) == session.without(dealer)


def test_everybody_seals_an_envelope_for_every_neighbour_and_for_nobody_else() -> None:
    session = RingSession()
    wire = session.opened()
    form = wire.server._admission._form
    shares = [message for packet in wire.sent if isinstance(message := decoded(packet.frame), m.Shares)]
    assert {len(message.envelopes) for message in shares} == {2 * HALF * form.envelope_bytes}
    fresh = session.wire()
    fresh.invite()
    fresh.run()
    fresh.close_stage()
    assert {len(message.tags) for message in shares} == {AROUND * form.tags_bytes}
    envelopes, tags = bytes(2 * HALF * form.envelope_bytes), bytes(AROUND * form.tags_bytes)
    longer = {
        "not 6 envelopes": (envelopes + bytes(form.envelope_bytes), tags),
        "not the tags of 7 holders": (envelopes, tags + bytes(form.tags_bytes)),
    }
    for (why, (more, other)), member in zip(longer.items(), session.at(5, 6), strict=True):
        message = m.Shares(session_of(wire), more, b"", other, b"")
        (event,) = fresh.server.receive(member, message.encode())
        assert isinstance(event, Excluded)
        assert event.error.why == why
