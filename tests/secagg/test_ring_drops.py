"""Drop-outs on a ring, one by one: who is left out, which sums fail and why, and that the session lives on.

Everything is said in places around the circle. `CENTRE` has three neighbours on either side and needs three
of its neighbourhood, itself included.
"""

from __future__ import annotations

import pytest

from secagg.errors import SERVER, CohortChanged, TooFewClients
from secagg.events import Missing, SessionOver, SessionReady, Stranded
from secagg.graph_parameters import GraphChoice
from secagg.local_session import LocalSession, Stage, local_machines
from secagg.session_params import SessionParams
from secagg.testing import faulty_wire as schedules
from secagg.testing.faulty_wire import SET_UP, Schedule, losing
from secagg.transitions import ClientState, ServerState
from secagg.trust_levels import Trust
from tests.attacks.rig import residue_table
from tests.secagg.rings import HALF, LEAST, SMALL, THRESHOLD, RingSession
from tests.secagg.share_log import Kind, LoggedWire
from tests.secagg.truth import check_share_log, session_of

CENTRE = 7
AROUND = (4, 5, 6, 8, 9)  # five of its six neighbours: two are left of seven, itself included
APART = (4, 5, 6, 9, 10)  # the same, so that everybody else, missing or not, keeps three
CUT = (0, 1, 2, 10, 11, 12)  # three in a row, twice


@pytest.fixture
def session() -> RingSession:
    return RingSession()


def missing(session: RingSession, places: tuple[int, ...], stage: Stage, sum_index: int = 0) -> Schedule:
    return losing(schedules.explicit(*((member, stage, sum_index) for member in session.at(*places))))


def leave(wire: LoggedWire, members: list[int]) -> None:
    for member in members:
        wire.send(member, SERVER, wire.clients[member].leave())
    wire.run()


# --- the stranded ------------------------------------------------------------------------------------


def test_whoever_keeps_too_few_neighbours_in_set_up_is_left_out(session: RingSession) -> None:
    wire = session.opened(missing(session, AROUND, Stage.SHARE, SET_UP))
    (centre,) = session.at(CENTRE)
    members = session.without(centre, *session.at(*AROUND))
    stranded, ready = wire.server_events[-2:]
    assert stranded == Stranded((centre,))
    assert isinstance(ready, SessionReady)
    assert (ready.members, ready.threshold, ready.neighbours) == (tuple(sorted(members)), THRESHOLD, 2 * HALF)
    assert sum(ready.exchanged.values()) == LEAST
    assert wire.clients[centre].state is ClientState.SHARED  # nobody's shares were delivered to it
    assert len(members) == LEAST
    assert session.ask(wire, b"0", round_number=0) == members
    assert session.ask(wire, b"1", round_number=1) == members


def test_whoever_keeps_too_few_neighbours_later_is_left_out_from_then_on(session: RingSession) -> None:
    wire = session.opened()
    (centre,) = session.at(CENTRE)
    assert session.ask(wire, b"0", round_number=0) == session.without()
    leave(wire, session.at(*AROUND))
    assert centre in wire.server.members  # nobody has looked yet
    members = session.without(centre, *session.at(*AROUND))
    assert session.ask(wire, b"1", round_number=1) == members
    assert [event for event in wire.server_events if isinstance(event, Stranded)] == [Stranded((centre,))]
    assert set(wire.server.members) == members
    assert wire.clients[centre].state is ClientState.READY
    assert session.ask(wire, b"2", round_number=2) == members
    assert wire.failures == {}


def test_the_stranded_are_told_when_the_session_is_over(session: RingSession) -> None:
    wire = session.opened(missing(session, AROUND, Stage.SHARE, SET_UP))
    (centre,) = session.at(CENTRE)
    wire.end()
    wire.run()
    assert (centre, SessionOver()) in wire.client_events
    told = session.without(*session.at(*AROUND))
    assert {wire.clients[member].state for member in told} == {ClientState.ENDED}


def test_one_who_is_stranded_strands_the_next(session: RingSession) -> None:
    """With those at 4 to 6 and at 9 to 11 gone, 7 and 8 have only each other; neither can stay."""
    wire = session.wire(missing(session, (4, 5, 6, 9, 10, 11), Stage.SHARE, SET_UP))
    with pytest.raises(
        TooFewClients, match="only 12 clients dealt shares and keep enough neighbours; 14 are"
    ):
        wire.open()
    assert Stranded(tuple(sorted(session.at(7, 8)))) in wire.server_events
    assert wire.server.state is ServerState.FAILED


def test_who_was_stranded_is_told_even_if_the_next_sum_is_refused(session: RingSession) -> None:
    wire = session.opened()
    session.ask(wire, b"0", round_number=0)
    leave(wire, session.at(4, 5, 6, 8, 9))
    with pytest.raises(CohortChanged):
        wire.ask("sum", b"1")
    assert session.ask(wire, b"2", round_number=1) == session.without(*session.at(4, 5, 6, 7, 8, 9))
    assert Stranded(tuple(session.at(7))) in wire.server_events


def test_nobody_is_stranded_with_a_threshold_around_it(session: RingSession) -> None:
    wire = session.opened(missing(session, AROUND[:4], Stage.SHARE, SET_UP))
    assert not any(isinstance(event, Stranded) for event in wire.server_events)
    assert session.ask(wire, b"0", round_number=0) == session.without(*session.at(*AROUND[:4]))


def test_a_group_is_over_when_somebody_left_it(session: RingSession) -> None:
    wire = session.opened()
    assert session.ask(wire, b"0", round_number=0) == session.without()
    leave(wire, session.at(0))
    with pytest.raises(CohortChanged, match="its last total stands"):
        wire.ask("sum", b"1")
    assert session.ask(wire, b"2", round_number=1) == session.without(*session.at(0))


def test_too_few_in_set_up_are_no_session(session: RingSession) -> None:
    wire = session.wire(missing(session, tuple(range(7)), Stage.SHARE, SET_UP))
    with pytest.raises(TooFewClients, match="only 13 clients dealt shares; 14 are needed"):
        wire.open()
    assert wire.server.state is ServerState.FAILED


# --- a sum that fails --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("places", "why"),
    [
        (tuple(range(7)), "only 13 clients sent inputs; 14 are needed"),
        (APART, "only 2 of client {}'s neighbours are left; 3 are needed to remove its masks"),
        ((*APART, CENTRE), "only 1 of client {}'s neighbours are left; 3 are needed"),
        (CUT, "the drop-outs cut the ring apart; each part would show its own sum"),
    ],
    ids=["too few", "out of reach", "dropped and out of reach", "cut"],
)
def test_inputs_that_cannot_be_unmasked_safely_end_the_sum_before_anything_is_revealed(
    session: RingSession, places: tuple[int, ...], why: str
) -> None:
    wire = session.opened(missing(session, places, Stage.MASK))
    with pytest.raises(TooFewClients, match=why.format(session.at(CENTRE)[0])):
        wire.ask("sum", b"0")
    assert wire.shares.entries == []
    assert Missing(tuple(sorted(session.at(*places))), "masking") in wire.server_events
    assert session.ask(wire, b"1", round_number=1) == session.without()
    assert wire.failures == {}


def test_a_neighbourhood_that_reveals_too_little_ends_the_sum(session: RingSession) -> None:
    wire = session.opened(missing(session, APART, Stage.REVEAL))
    (centre,) = session.at(CENTRE)
    with pytest.raises(TooFewClients, match=f"only 2 of client {centre}'s neighbours are left"):
        wire.ask("sum", b"0")
    counts = wire.shares.counts(session_of(wire), 0)
    assert counts[centre, Kind.SELF_MASK] == 2
    assert {kind for _, kind in counts} == {Kind.SELF_MASK}
    check_share_log(wire)
    assert session.ask(wire, b"1", round_number=1) == session.without()


def test_fewer_reveals_than_a_threshold_are_counted_first(session: RingSession) -> None:
    wire = session.opened(missing(session, tuple(range(18)), Stage.REVEAL))
    with pytest.raises(TooFewClients, match="only 2 clients revealed shares; 3 are needed"):
        wire.ask("sum", b"0")


@pytest.mark.parametrize("places", [(0, 1, 2, 3, 10, 11), (0, 1, 2, 3), (0, 2, 4, 10, 12, 14)])
def test_as_many_drop_outs_elsewhere_do_no_harm(session: RingSession, places: tuple[int, ...]) -> None:
    """One of the two gaps is too short to cut, or there is one gap only, or there are none."""
    wire = session.opened(missing(session, places, Stage.MASK))
    assert session.ask(wire, b"0", round_number=0) == session.without(*session.at(*places))


# --- in one process ----------------------------------------------------------------------------------


def test_a_local_session_may_be_on_a_ring() -> None:
    """With the default bits of security: colluders and drop-outs that a ring of forty can bear."""
    table = residue_table(1, kinds=("sum",))
    server, clients = local_machines(
        table=table,
        params=SessionParams(
            trust=Trust.CURIOUS, corrupt=1, dropout=0.1, sums=1, graph=GraphChoice.RING, min_neighbours=15
        ),
        members=range(40),
    )
    session = LocalSession(server, clients, lambda member, _: {"x": [member]})
    session.open()
    assert session.ask("sum")["x"].tolist() == [sum(range(40))]
    (ready,) = (event for event in session.events if isinstance(event, SessionReady))
    assert 16 <= ready.neighbours < 39
    assert ready.neighbours % 2 == 0


def test_the_settings_of_these_tests_are_those_of_a_small_ring() -> None:
    assert len(SMALL.members) - LEAST == len(CUT) == 2 * HALF
    assert len(AROUND) == len(APART) == 2 * HALF + 1 - THRESHOLD + 1
