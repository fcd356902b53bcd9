"""Messages out of turn. What each would cost is shown where it costs something; here, that none gets through.

A second key list and a second request to unmask open an input (`test_share_kinds`), skipped or repeated
lists of survivors shrink a sum (`test_split_view`). The other moves that the table lacks are defence in
depth; the last tests here say why.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from secagg import client_checks
from secagg import messages as m
from secagg.bitmap import pack_positions
from secagg.cohort_members import Cohort
from secagg.errors import OutOfOrder, RepeatedSum, SecretReused, SessionLive, TooManySums
from secagg.message_records import encode_neighbours, encode_signatures
from secagg.transitions import CLIENT_MOVES, ClientState
from secagg.trust_levels import Trust
from tests.attacks.attackers.cheated_sum import CheatedSum
from tests.attacks.guards import BOTH, allow, allow_move, assert_refused
from tests.attacks.rig import Rig

SIZE = 4
EVERYONE = range(SIZE)
THRESHOLD = 3
C = ClientState


class Stage:
    """Client 0 brought to a state by an honest server, and any frame that server could send it next."""

    def __init__(self, trust: Trust, state: ClientState) -> None:
        self.rig = rig = Rig(SIZE, trust)
        self.machine = rig.machines[0]
        invitation = rig.invitation()
        if state is C.NEW:
            self.frames = self._frames(bytes(32), invitation, b"", b"", b"")
            return
        adverts = rig.advertise(invitation)
        key_list = rig.key_list(invitation, adverts, THRESHOLD)
        self.cohort = cohort = rig.cohort(invitation, key_list, adverts, THRESHOLD)
        ring = encode_neighbours(enumerate(cohort.adverts))
        context = m.decode(key_list, sender="server", limit=1 << 20).context
        if state is C.ADVERTISED:
            self.frames = self._frames(context, invitation, key_list, ring, b"")
            return
        shares = {k: rig.share(k, key_list, SIZE) for k in adverts}
        parcels = b"".join(parcel.encode() for parcel in rig.parcels(cohort, shares, 0))
        # The context is always the one that the client expects: nothing but the order is wrong.
        again = m.KeyList(cohort.session, THRESHOLD, b"".join(a.encode() for a in cohort.adverts))
        self.frames = self._frames(cohort.session, invitation, again.encode(), ring, parcels)
        if state is not C.SHARED:
            for member in adverts:
                rig.send(member, rig.delivery(cohort, rig.parcels(cohort, shares, member)))
            self._sum(cohort, state)

    def _sum(self, cohort: Cohort, state: ClientState) -> None:
        cheated = CheatedSum(self.rig, cohort, self.rig.query(cohort, 0, EVERYONE))
        if state is C.ASKED:
            self.rig.send(0, cheated.query)
        if state in (C.MASKED, C.SIGNED):
            cheated.ask(EVERYONE)
        if state is C.SIGNED:
            cheated.tell(EVERYONE, EVERYONE)

    def _frames(
        self, context: bytes, invitation: bytes, key_list: bytes, ring: bytes, parcels: bytes
    ) -> dict[type[m.Message], bytes]:
        everyone = pack_positions(EVERYONE, SIZE)
        signatures = encode_signatures([(k, bytes(64)) for k in EVERYONE])
        return {
            m.Invitation: invitation,
            m.KeyList: key_list or m.KeyList(context, THRESHOLD, b"-").encode(),
            m.Delivery: m.Delivery(context, parcels or b"-").encode(),
            m.Query: m.Query(context, 0, 0, "vector", everyone, b"").encode(),
            m.Survivors: m.Survivors(context, 0, everyone).encode(),
            m.Confirmations: m.Confirmations(context, 0, signatures).encode(),
            m.GroupClosed: m.GroupClosed(context, 0).encode(),
            m.Farewell: m.Farewell(context).encode(),
            m.Neighbours: m.Neighbours(context, SIZE, THRESHOLD, bytes(32), ring or b"-", b"").encode(),
        }


def illegal_moves() -> list[tuple[Trust, ClientState, type[m.Message]]]:
    reachable = {
        Trust.CURIOUS: [C.NEW, C.ADVERTISED, C.SHARED, C.READY, C.ASKED, C.MASKED],
        Trust.MALICIOUS: [C.NEW, C.ADVERTISED, C.SHARED, C.READY, C.ASKED, C.MASKED, C.SIGNED],
    }
    return [
        (trust, state, message)
        for trust in Trust
        for state in reachable[trust]
        for message in m.FROM_SERVER
        if (state, message) not in CLIENT_MOVES[trust]
    ]


@pytest.mark.parametrize(("trust", "state", "message"), illegal_moves())
def test_a_message_out_of_turn_is_refused(trust: Trust, state: ClientState, message: type[m.Message]) -> None:
    stage = Stage(trust, state)
    assert stage.machine.state is state
    with pytest.raises(OutOfOrder):
        stage.machine.receive(stage.frames[message])
    assert_refused(stage.machine)


# A move that the table must never gain, whatever else is changed: each is an attack elsewhere in this suite,
# or would be one together with another mistake.
FORBIDDEN: list[tuple[ClientState, type[m.Message]]] = [
    (C.SHARED, m.KeyList),
    (C.SHARED, m.Neighbours),
    (C.READY, m.Delivery),
    (C.READY, m.Survivors),
    (C.ASKED, m.Survivors),
    (C.READY, m.Confirmations),
    (C.MASKED, m.Confirmations),
    (C.SIGNED, m.Survivors),
    (C.ADVERTISED, m.Invitation),
    (C.READY, m.Invitation),
]


@pytest.mark.parametrize("trust", BOTH)
@pytest.mark.parametrize(("state", "message"), FORBIDDEN)
def test_the_table_forbids(trust: Trust, state: ClientState, message: type[m.Message]) -> None:
    assert (state, message) not in CLIENT_MOVES[trust]


@pytest.mark.parametrize("trust", BOTH)
@pytest.mark.parametrize("end", [C.ENDED, C.FAILED])
def test_nothing_leads_out_of_an_end(trust: Trust, end: ClientState) -> None:
    assert not [state for state, _ in CLIENT_MOVES[trust] if state is end]


@pytest.mark.parametrize("trust", BOTH)
def test_a_client_speaks_of_one_sum_at_a_time(trust: Trust) -> None:
    """Survivors of a sum that the client has left behind, or has not been asked for."""
    for told, current in ((0, 1), (2, 1)):
        rig = Rig(SIZE, trust)
        cohort = rig.set_up(threshold=THRESHOLD)
        CheatedSum(rig, cohort, rig.query(cohort, current, EVERYONE)).ask(EVERYONE)
        with pytest.raises(OutOfOrder):
            rig.send(0, rig.survivors(cohort, told, EVERYONE))
        assert_refused(rig.machines[0])


# --- defence in depth: the table alone is taken away -----------------------------------------------


def test_two_invitations_are_stopped_by_the_one_live_session(monkeypatch: pytest.MonkeyPatch) -> None:
    allow_move(monkeypatch, Trust.CURIOUS, C.ADVERTISED, m.Invitation, C.ADVERTISED)
    rig = Rig(SIZE, Trust.CURIOUS)
    rig.advertise(rig.invitation())
    context = rig.machines[0]._context
    rig.machines[0]._context = b""  # an invitation has no context; this takes away a second guard
    assert context
    with pytest.raises(SessionLive):
        rig.send(0, rig.invitation(nonce=b"second".ljust(32)))
    assert_refused(rig.machines[0])


def test_a_second_delivery_finds_no_key_to_open_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The channel's secret is erased with the first: there is nothing to open other envelopes with."""
    allow_move(monkeypatch, Trust.CURIOUS, C.READY, m.Delivery, C.READY)
    stage = Stage(Trust.CURIOUS, C.READY)
    assert stage.machine._vault._channel == b""
    with pytest.raises(SecretReused):
        stage.machine.receive(stage.frames[m.Delivery])
    assert_refused(stage.machine)


def test_unmasking_before_masking_leaves_nothing_to_unmask(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shares of a sum in which the client has no input yet: afterwards it will not give one."""
    allow_move(monkeypatch, Trust.CURIOUS, C.ASKED, m.Survivors, C.READY)
    rig = Rig(SIZE, Trust.CURIOUS)
    cohort = rig.set_up(threshold=THRESHOLD)
    cheated = CheatedSum(rig, cohort, rig.query(cohort, 0, EVERYONE))
    cheated.ask(range(1, SIZE))
    rig.send(0, cheated.query)
    with pytest.raises(AssertionError):  # a sum is confirmed only after it was answered
        cheated.tell([0], EVERYONE)
    assert_refused(rig.machines[0])


@pytest.mark.parametrize("trust", BOTH)
def test_a_sum_beyond_the_session_has_no_secrets(trust: Trust, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rule is one of two: the vault holds secrets for exactly the sums of the session."""
    rig = Rig(SIZE, trust, sums=2)
    cohort = rig.set_up(threshold=THRESHOLD)
    with pytest.raises(TooManySums):
        rig.send(0, rig.query(cohort, 2, EVERYONE))
    assert_refused(rig.machines[0])
    monkeypatch.setattr(client_checks, "check_sum_index", allow)
    rig = Rig(SIZE, trust, sums=2)
    cohort = rig.set_up(threshold=THRESHOLD)
    rig.send(0, rig.query(cohort, 2, EVERYONE))
    with pytest.raises(SecretReused):
        rig.answer(0)
    assert_refused(rig.machines[0])


Frame = Callable[[Rig, Cohort], bytes]


@pytest.mark.parametrize("trust", BOTH)
@pytest.mark.parametrize(
    "frame",
    [
        lambda rig, cohort: rig.query(cohort, 1, EVERYONE, payload=b"new", round_number=5),
        lambda rig, cohort: rig.query(cohort, 0, EVERYONE, payload=b"new", round_number=5),
        lambda _, cohort: m.GroupClosed(cohort.session, 0).encode(),
    ],
    ids=["the index again", "an earlier index", "an earlier sum closed"],
)
def test_an_index_that_was_only_asked_is_used_up(trust: Trust, frame: Frame) -> None:
    rig = Rig(SIZE, trust)
    cohort = rig.set_up(threshold=THRESHOLD)
    rig.send(0, rig.query(cohort, 1, EVERYONE))
    with pytest.raises(RepeatedSum):
        rig.send(0, frame(rig, cohort))
    assert_refused(rig.machines[0])
