"""How a client gets to know its neighbours on a ring, and everything that it refuses about them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from secagg import messages as m
from secagg.bitmap import PositionSet
from secagg.client import ClientMachine
from secagg.cohort_members import Cohort, Neighbourhood, ring_session_id
from secagg.errors import (
    SERVER,
    BadKey,
    BadRoster,
    FewContributors,
    LargeCohort,
    MalformedMessage,
    PeerError,
    RepeatedSession,
    SmallCohort,
    SmallThreshold,
    UnknownPeer,
    WrongSession,
)
from secagg.events import EnvelopeLost, Joined
from secagg.graph_parameters import least_connected
from secagg.key_list_checks import fewest_contributors
from secagg.message_records import Advert, Format, Parcel, encode_neighbours, parse_neighbours, parse_parcels
from secagg.policy import Policy
from secagg.transitions import ClientState
from secagg.trust_levels import MAX_COMPLETE, Trust
from tests.secagg.rings import HALF, LEAST, SMALL, THRESHOLD, RingSession
from tests.secagg.share_log import LoggedWire
from tests.secagg.snapshots import insecure_copy
from tests.secagg.truth import decoded

FORM = Format(4, signed=False)
SIZE = len(SMALL.members)


@dataclass
class Newcomer:
    """A client that is about to be told its neighbours, and what an honest server would tell it."""

    client: ClientMachine
    message: m.Neighbours
    rows: dict[int, Advert]

    def told(self, rows: dict[int, Advert] | None = None, **changes: Any) -> bytes:
        blob = encode_neighbours((self.rows if rows is None else rows).items())
        return replace(self.message, adverts=blob, **changes).encode()

    def others(self) -> list[int]:
        """The positions of its neighbours."""
        return [position for position, row in self.rows.items() if row.member != self.client.member]

    def without(self, *positions: int) -> dict[int, Advert]:
        return {position: row for position, row in self.rows.items() if position not in positions}

    def with_row(self, position: int, **changes: Any) -> dict[int, Advert]:
        return {**self.rows, position: replace(self.rows[position], **changes)}


def set_up() -> tuple[LoggedWire, Newcomer]:
    """Everybody has advertised keys; the lists of neighbours are under way."""
    session = RingSession()
    wire = session.wire()
    wire.invite()
    wire.run()
    wire.close_stage()
    (member,) = session.at(5)
    (packet,) = (packet for packet in wire.waiting if packet.receiver == member)
    message = decoded(packet.frame)
    assert isinstance(message, m.Neighbours)
    rows = parse_neighbours(message.adverts, FORM, size=SIZE, most=MAX_COMPLETE)
    return wire, Newcomer(wire.clients[member], message, rows)


@pytest.fixture
def newcomer() -> Newcomer:
    return set_up()[1]


def refuse(newcomer: Newcomer, frame: bytes, error: type[PeerError], why: str) -> None:
    with pytest.raises(error, match=why):
        newcomer.client.receive(frame)
    assert newcomer.client.state is ClientState.FAILED
    assert newcomer.client._vault._mask_keys == {}


# --- what is accepted --------------------------------------------------------------------------------


def test_a_client_deals_shares_to_the_neighbours_it_is_told(newcomer: Newcomer) -> None:
    (reply,) = newcomer.client.receive(newcomer.told()).frames
    shares = decoded(reply)
    assert isinstance(shares, m.Shares)
    assert len(shares.envelopes) == 2 * HALF * FORM.envelope_bytes
    assert shares.context == ring_session_id(
        newcomer.client._invitation,
        size=SIZE,
        neighbours=2 * HALF,
        threshold=THRESHOLD,
        ring=newcomer.message.ring,
    )


@pytest.mark.parametrize("threshold", range(THRESHOLD, 2 * HALF + 2))
def test_any_threshold_out_of_the_colluders_reach_will_do(newcomer: Newcomer, threshold: int) -> None:
    newcomer.client.receive(newcomer.told(threshold=threshold))
    assert newcomer.client.state is ClientState.SHARED


# --- the size ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "error", "why"),
    [
        (SMALL.corrupt + 1, SmallCohort, "3 clients; this client needs 4"),
        (0, SmallCohort, "0 clients; this client needs 4"),
        (SIZE + 1, LargeCohort, "21 clients; this client allows 20"),
        (m.MAX_COHORT, LargeCohort, "1048576 clients; this client allows 20"),
    ],
)
def test_a_cohort_too_small_or_too_large(
    newcomer: Newcomer, size: int, error: type[PeerError], why: str
) -> None:
    refuse(newcomer, newcomer.told(size=size), error, why)


def test_a_position_outside_of_the_cohort(newcomer: Newcomer) -> None:
    refuse(
        newcomer, newcomer.told(size=max(newcomer.rows)), MalformedMessage, "out of order or of the cohort"
    )


def test_more_neighbours_than_anybody_may_have(newcomer: Newcomer) -> None:
    """However large the cohort and the frames that a client allows."""
    introduction = newcomer.client._introduction()
    introduction = replace(introduction, policy=replace(introduction.policy, max_cohort=4096))
    advert = newcomer.client._advert
    rows = {position: replace(advert, member=position) for position in range(MAX_COMPLETE + 1)}
    message = replace(newcomer.message, size=4096, adverts=encode_neighbours(rows.items()))
    with pytest.raises(LargeCohort, match="a list of more than 1024 records"):
        introduction.by_neighbours(message)


# --- the neighbours ----------------------------------------------------------------------------------


def test_a_list_without_ourselves(newcomer: Newcomer) -> None:
    own = newcomer.client._advert
    rows = {position: row for position, row in newcomer.rows.items() if row != own}
    refuse(newcomer, newcomer.told(rows), BadRoster, "the key list lacks this client")


@pytest.mark.parametrize("part", ["channel_key", "mask_keys", "commitments"])
def test_keys_of_our_own_that_were_changed(newcomer: Newcomer, part: str) -> None:
    (own,) = set(newcomer.rows) - set(newcomer.others())
    other = newcomer.rows[newcomer.others()[0]]
    rows = newcomer.with_row(own, **{part: getattr(other, part)})
    refuse(newcomer, newcomer.told(rows), BadKey, "changed this client's own keys")


@pytest.mark.parametrize("left", [0, 1, 3, 5])
def test_no_neighbours_or_an_odd_number_of_them(newcomer: Newcomer, left: int) -> None:
    rows = newcomer.without(*newcomer.others()[left:])
    refuse(newcomer, newcomer.told(rows), BadRoster, f"{left} neighbours on a ring of 20")


def test_a_key_that_occurs_twice(newcomer: Newcomer) -> None:
    """Two neighbours' keys, one's own two keys, or one of ours in another's hands."""
    one, other = newcomer.others()[:2]
    keys = newcomer.rows[one].mask_keys
    changes: list[dict[str, Any]] = [
        {"channel_key": newcomer.rows[one].channel_key},
        {"channel_key": newcomer.rows[other].mask_keys[0]},
        {"mask_keys": keys},
        {"channel_key": newcomer.client._advert.channel_key},
    ]
    for change in changes:
        target = Newcomer(insecure_copy(newcomer.client), newcomer.message, newcomer.rows)
        refuse(target, newcomer.told(newcomer.with_row(other, **change)), BadKey, "occurs twice")


def test_a_key_of_small_order(newcomer: Newcomer) -> None:
    rows = newcomer.with_row(newcomer.others()[0], channel_key=bytes(32))
    refuse(newcomer, newcomer.told(rows), BadKey, "not the canonical encoding")


# --- the parameters ----------------------------------------------------------------------------------


@pytest.mark.parametrize("threshold", [0, 1, 2 * HALF + 2, 1 << 16])
def test_a_threshold_that_no_neighbourhood_has(newcomer: Newcomer, threshold: int) -> None:
    why = f"threshold {threshold} among 6 neighbours"
    refuse(newcomer, newcomer.told(threshold=threshold), SmallThreshold, why)


def test_a_threshold_within_the_colluders_reach(newcomer: Newcomer) -> None:
    why = "threshold 2 of 6 neighbours is within reach of 2"
    refuse(newcomer, newcomer.told(threshold=THRESHOLD - 1), SmallThreshold, why)


def test_a_ring_that_colluders_can_cut(newcomer: Newcomer) -> None:
    rows = newcomer.without(*newcomer.others()[2:])
    refuse(newcomer, newcomer.told(rows), SmallCohort, "2 clients can cut a ring of 2 neighbours")


def test_the_fewest_contributors_hold_a_ring_together() -> None:
    policy = Policy(
        trust=Trust.CURIOUS,
        corrupt=2,
        min_cohort=4,
        max_cohort=SIZE,
        min_contributors=4,
        max_sums=1,
        unnoised_sums=1,
        security_bits=1,
    )
    adverts = {k: Advert(k, b"", b"", (), ()) for k in range(7)}
    ring = Neighbourhood(bytes(32), THRESHOLD, SIZE, bytes(32), adverts)
    assert least_connected(SIZE, 6, corrupt=2, sigma=1) == LEAST
    assert fewest_contributors(ring, policy) == LEAST
    assert fewest_contributors(replace(ring, threshold=15), policy) == 15
    assert fewest_contributors(ring, replace(policy, min_contributors=16, min_cohort=16)) == 16
    assert fewest_contributors(ring, replace(policy, security_bits=40)) > LEAST
    complete = Cohort(bytes(32), THRESHOLD, tuple(adverts.values()))
    assert fewest_contributors(complete, policy) == 4
    assert fewest_contributors(replace(complete, threshold=6), policy) == 6


# --- the session -------------------------------------------------------------------------------------


def test_a_list_of_another_session(newcomer: Newcomer) -> None:
    refuse(newcomer, newcomer.told(context=bytes(32)), WrongSession, "a message of another session")


def test_the_same_list_a_second_time(newcomer: Newcomer) -> None:
    """Even one whose client left in between: the keys, and with them the masks, would repeat."""
    again = insecure_copy(newcomer.client)
    newcomer.client.receive(newcomer.told())
    again._memory = newcomer.client._memory
    repeated = Newcomer(again, newcomer.message, newcomer.rows)
    refuse(repeated, newcomer.told(), RepeatedSession, "a session with this transcript was seen before")


@pytest.mark.parametrize(
    "changes", [{"size": SIZE - 1}, {"threshold": THRESHOLD + 1}, {"ring": bytes(32)}, {}]
)
def test_everything_that_neighbours_share_names_the_session(
    newcomer: Newcomer, changes: dict[str, Any]
) -> None:
    """What a client was told differently, it takes for another session, and its answers are refused."""
    newcomer.rows = {at: row for at, (_, row) in enumerate(newcomer.rows.items())}  # within any size
    honest, changed = insecure_copy(newcomer.client), newcomer.client
    honest.receive(newcomer.told())
    changed.receive(newcomer.told(**changes))
    assert (honest._context == changed._context) == (not changes)


# --- what only its neighbourhood can tell it ---------------------------------------------------------


def delivered(wire: LoggedWire, member: int) -> m.Delivery:
    (packet,) = (packet for packet in wire.waiting if packet.receiver == member)
    message = decoded(packet.frame)
    assert isinstance(message, m.Delivery)
    return message


def awaiting_delivery() -> tuple[Newcomer, m.Delivery]:
    wire, newcomer = set_up()
    wire.run()
    wire.close_stage()
    return newcomer, delivered(wire, newcomer.client.member)


def test_shares_of_a_threshold_of_the_neighbourhood_are_enough() -> None:
    newcomer, delivery = awaiting_delivery()
    parcels = parse_parcels(delivery.parcels, FORM, most=SIZE)
    assert len(parcels) == 2 * HALF
    few = b"".join(parcel.encode() for parcel in parcels[: THRESHOLD - 1])  # and our own
    step = newcomer.client.receive(replace(delivery, parcels=few).encode())
    assert step.events == (Joined(delivery.context, SIZE, THRESHOLD),)


def test_shares_of_fewer_are_not() -> None:
    newcomer, delivery = awaiting_delivery()
    parcels = parse_parcels(delivery.parcels, FORM, most=SIZE)
    few = b"".join(parcel.encode() for parcel in parcels[: THRESHOLD - 2])
    frame = replace(delivery, parcels=few).encode()
    refuse(newcomer, frame, FewContributors, "2 clients shared keys; 3 are needed")


def test_shares_of_a_stranger() -> None:
    newcomer, delivery = awaiting_delivery()
    neighbours = {row.member for row in newcomer.rows.values()}
    stranger = next(member for member in SMALL.members if member not in neighbours)
    parcel = Parcel(stranger, bytes(32), bytes(FORM.envelope_bytes), b"").encode()
    frame = replace(delivery, parcels=parcel).encode()
    refuse(newcomer, frame, UnknownPeer, f"client {stranger}: delivered shares, but is no neighbour")


def ready(*, lacking: int = 0) -> Newcomer:
    """A client that waits for a query, and holds no shares of the first `lacking` of its neighbours."""
    newcomer, delivery = awaiting_delivery()
    parcels = parse_parcels(delivery.parcels, FORM, most=SIZE)[lacking:]
    frame = replace(delivery, parcels=b"".join(parcel.encode() for parcel in parcels)).encode()
    newcomer.client.receive(frame)
    return newcomer


def query(newcomer: Newcomer, roster: set[int]) -> bytes:
    bitmap = PositionSet(roster).pack(SIZE)
    return m.Query(newcomer.client._context, 0, 0, "sum", bitmap, b"").encode()


def survivors(newcomer: Newcomer, positions: set[int]) -> bytes:
    return m.Survivors(newcomer.client._context, 0, PositionSet(positions).pack(SIZE)).encode()


def everybody() -> set[int]:
    return set(range(SIZE))


@pytest.mark.parametrize("ask", [query, survivors])
def test_fewer_than_a_threshold_around_us(ask: Callable[[Newcomer, set[int]], bytes]) -> None:
    """Our own secrets would open to fewer than promised; the sum itself would be large enough."""
    newcomer = ready()
    if ask is survivors:
        newcomer.client.receive(query(newcomer, everybody()))
        newcomer.client.answer(0, {"x": [0] * SIZE})
    enough = insecure_copy(newcomer.client)
    enough.receive(ask(newcomer, everybody() - set(newcomer.others()[:4])))
    assert enough.state is not ClientState.FAILED
    left = everybody() - set(newcomer.others()[:5])
    assert len(left) > LEAST
    refuse(newcomer, ask(newcomer, left), FewContributors, "2 around this client; 3 are needed")


@pytest.mark.parametrize("ask", [query, survivors])
def test_fewer_than_hold_a_ring_together(ask: Callable[[Newcomer, set[int]], bytes]) -> None:
    newcomer = ready()
    if ask is survivors:
        newcomer.client.receive(query(newcomer, everybody()))
        newcomer.client.answer(0, {"x": [0] * SIZE})
    far = sorted(everybody() - set(newcomer.rows))
    enough = insecure_copy(newcomer.client)
    enough.receive(ask(newcomer, everybody() - set(far[: SIZE - LEAST])))
    assert enough.state is not ClientState.FAILED
    frame = ask(newcomer, everybody() - set(far[: SIZE - LEAST + 1]))
    refuse(newcomer, frame, FewContributors, f"13.*this client needs {LEAST}")


def test_a_roster_with_a_neighbour_whose_shares_we_lack() -> None:
    newcomer = ready(lacking=1)
    assert newcomer.client.receive(query(newcomer, everybody() - {newcomer.others()[0]})).events
    newcomer = ready(lacking=1)
    why = "the roster names a client whose shares were not delivered"
    refuse(newcomer, query(newcomer, everybody()), UnknownPeer, why)


def test_a_roster_over_the_neighbourhood_only() -> None:
    """Rosters and survivors are of the whole cohort; only what a client reveals is of its neighbourhood."""
    newcomer = ready()
    frame = m.Query(newcomer.client._context, 0, 0, "sum", b"\x7f", b"").encode()
    refuse(newcomer, frame, MalformedMessage, f"{SERVER}: a bitmap that is not over 20 members")


def test_a_reveal_is_over_the_neighbourhood() -> None:
    newcomer = ready()
    newcomer.client.receive(query(newcomer, everybody()))
    newcomer.client.answer(0, {"x": [0] * SIZE})
    gone = newcomer.others()[1]
    (reply,) = newcomer.client.receive(survivors(newcomer, everybody() - {gone})).frames
    reveal = decoded(reply)
    assert isinstance(reveal, m.Reveal)
    assert reveal.dealers == b"\x7f"
    assert len(reveal.shares) == 7 * 33


def test_a_lost_envelope_is_reported_by_its_place() -> None:
    newcomer, delivery = awaiting_delivery()
    parcels = list(parse_parcels(delivery.parcels, FORM, most=SIZE))
    spoiled = parcels[4].sender
    parcels[4] = replace(parcels[4], envelope=bytes(FORM.envelope_bytes))
    blob = b"".join(parcel.encode() for parcel in parcels)
    (reply,) = newcomer.client.receive(replace(delivery, parcels=blob).encode()).frames
    place = [row.member for row in newcomer.rows.values()].index(spoiled)
    assert decoded(reply) == m.Lost(delivery.context, bytes([1 << place]))


def test_shares_that_do_not_fit_their_tags_are_reported_and_not_held() -> None:
    newcomer, delivery = awaiting_delivery()
    parcels = list(parse_parcels(delivery.parcels, FORM, most=SIZE))
    spoiled = parcels[2].sender
    parcels[2] = replace(parcels[2], tags=bytes(32))
    blob = b"".join(parcel.encode() for parcel in parcels)
    step = newcomer.client.receive(replace(delivery, parcels=blob).encode())
    places = [row.member for row in newcomer.rows.values()]
    (reply,) = step.frames
    assert decoded(reply) == m.Lost(delivery.context, bytes([1 << places.index(spoiled)]))
    assert EnvelopeLost(spoiled) in step.events
    held = newcomer.client._vault._held[0]
    assert newcomer.client._cohort.position[spoiled] not in held
    assert len(held) == len(places) - 1
