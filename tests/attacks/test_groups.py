"""Sums of one private vector: whoever leaves between two of them is revealed by their difference."""

from __future__ import annotations

import numpy as np
import pytest

from secagg import client_checks
from secagg.errors import CohortChanged, GroupChanged, GroupReopened
from secagg.events import Abandoned, SatOut, SumAborted
from secagg.local_session import LocalSession, Stage, local_machines
from secagg.messages import GroupClosed
from secagg.session_params import SessionParams
from secagg.sum_group_rules import GroupBook
from secagg.transitions import ClientState, ServerState
from secagg.trust_levels import Trust
from tests.attacks.attackers.cheated_sum import CheatedSum, Vector
from tests.attacks.attackers.colluder import Colluder, set_up_with
from tests.attacks.attackers.differencing import difference, dropped, in_the_dark, left_out, total_over
from tests.attacks.guards import BOTH, allow, assert_refused
from tests.attacks.rig import KIND, PART, Rig, residue_table

VICTIM = 4
EVERYONE = range(5)
ONE, TWO = {"payload": b"one"}, {"payload": b"two"}


def group_rig(trust: Trust) -> Rig:
    """Each round may sum the private vector three times."""
    return Rig(5, trust, table=residue_table(times=3))


# --- the victim is left out of the second roster ---------------------------------------------------


@pytest.mark.parametrize("trust", BOTH)
def test_a_smaller_roster_reads_the_vector(trust: Trust, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GroupBook, "check_roster", allow)
    rig = group_rig(trust)
    found = left_out(rig, rig.set_up(threshold=3), VICTIM, ONE, TWO)
    assert (found == rig.vectors[VICTIM]).all()


@pytest.mark.parametrize("trust", BOTH)
def test_a_smaller_roster_is_refused_before_masking(trust: Trust) -> None:
    rig = group_rig(trust)
    with pytest.raises(GroupChanged):
        left_out(rig, rig.set_up(threshold=3), VICTIM, ONE, TWO)
    assert_refused(rig.machines[0])
    assert rig.memories[0].spend.sums == 1  # the second query was never answered


def test_kinds_that_share_a_private_vector_are_one_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second kind of sum in the same group gets no further than the first kind would."""
    table = residue_table(kinds=("first", "second"), group="model")
    first, second = {"kind": "first"}, {"kind": "second"}
    rig = Rig(5, Trust.CURIOUS, table=table)
    with pytest.raises(GroupChanged):
        left_out(rig, rig.set_up(threshold=3), VICTIM, first, second)
    assert_refused(rig.machines[0])
    monkeypatch.setattr(GroupBook, "check_roster", allow)
    rig = Rig(5, Trust.CURIOUS, table=table)
    found = left_out(rig, rig.set_up(threshold=3), VICTIM, first, second)
    assert (found == rig.vectors[VICTIM]).all()


# --- the victim is dropped from the second survivors -----------------------------------------------


@pytest.mark.parametrize("trust", BOTH)
def test_fewer_survivors_read_the_vector(trust: Trust, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_checks, "check_group_survivors", allow)
    rig = group_rig(trust)
    found = dropped(rig, rig.set_up(threshold=3), VICTIM)
    assert (found == rig.vectors[VICTIM]).all()


@pytest.mark.parametrize("trust", BOTH)
def test_fewer_survivors_are_refused_before_signing(trust: Trust) -> None:
    rig = group_rig(trust)
    with pytest.raises(GroupChanged):
        dropped(rig, rig.set_up(threshold=3), VICTIM)
    assert_refused(rig.machines[0])


# --- whoever missed the confirmation ---------------------------------------------------------------


def dark_rig() -> tuple[Rig, Colluder]:
    """Four honest clients and a colluder; t = c + 1 is all that `curious_server` asks of the shares."""
    rig = Rig(4, Trust.CURIOUS, corrupt=1, table=residue_table(times=2))
    return rig, Colluder(rig, 4)


def test_clients_in_the_dark_read_the_vector(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those who never saw the first sum confirmed cannot tell that the second roster is smaller."""
    monkeypatch.setattr(GroupBook, "missed_confirmation", lambda *_: False)
    rig, colluder = dark_rig()
    found = in_the_dark(rig, set_up_with(rig, [colluder], threshold=2), 0, colluder)
    assert found is not None
    assert (found == rig.vectors[0]).all()


def test_clients_in_the_dark_sit_the_group_out() -> None:
    """No failure: the client declines this group and takes part in the next."""
    rig, colluder = dark_rig()
    cohort = set_up_with(rig, [colluder], threshold=2)
    assert in_the_dark(rig, cohort, 0, colluder) is None
    assert rig.events[1][-1] == SatOut(1, KIND)
    assert rig.machines[1].state is ClientState.READY
    assert 1 not in rig.machines[1]._vault._held  # what it could have revealed is erased
    query = rig.query(cohort, 2, [0, 1, 2, 3], payload=b"next", round_number=1)
    total = total_over(rig, cohort, query, range(4))
    assert total is not None
    assert (total == sum(rig.vectors.values())).all()


# --- a group that is over --------------------------------------------------------------------------


@pytest.mark.parametrize("trust", BOTH)
def test_a_closed_group_is_not_reopened(trust: Trust, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server closes a group in which it lost a client, then goes on with the rest of it."""
    rig = group_rig(trust)
    with pytest.raises(GroupReopened):
        reopened(rig)
    assert_refused(rig.machines[0])
    monkeypatch.setattr(GroupBook, "check_new", allow)
    rig = group_rig(trust)
    assert (reopened(rig) == rig.vectors[VICTIM]).all()


def reopened(rig: Rig) -> Vector:
    """Sum 0 over everybody; sum 1 is closed in want of the victim; sum 2 goes on without it."""
    cohort = rig.set_up(threshold=3)
    rest = [member for member in EVERYONE if member != VICTIM]
    one = total_over(rig, cohort, rig.query(cohort, 0, EVERYONE, payload=b"one"), EVERYONE)
    query = rig.query(cohort, 1, EVERYONE, payload=b"two")
    CheatedSum(rig, cohort, query).ask(rest)
    for member in rest:
        rig.send(member, GroupClosed(cohort.session, 1).encode())
        assert rig.events[member][-1] == Abandoned(1)
    two = total_over(rig, cohort, rig.query(cohort, 2, rest, payload=b"three"), rest)
    return difference(one, two)


# --- an honest server ------------------------------------------------------------------------------


@pytest.mark.parametrize("trust", BOTH)
@pytest.mark.parametrize("back", [False, True], ids=["gone for good", "back in the next round"])
def test_an_honest_server_closes_the_group_and_keeps_the_session(trust: Trust, back: bool) -> None:
    server, clients = local_machines(
        table=residue_table(times=3),
        params=SessionParams(trust=trust, corrupt=0, dropout=0.4, sums=6),
        members=EVERYONE,
    )
    vectors = {k: np.full(4, 10**k, np.uint32) for k in EVERYONE}

    def absent(member: int, stage: Stage, sum_index: int) -> bool:
        return member == VICTIM and stage is Stage.MASK and sum_index >= 1 and not (back and sum_index > 1)

    session = LocalSession(server, clients, lambda k, _: {PART: vectors[k]}, absent=absent)
    session.open()
    first = session.ask(KIND, b"one")
    assert (first[PART] == 11111).all()
    with pytest.raises(CohortChanged):  # the victim sends nothing in the midst of the group
        session.ask(KIND, b"two")
    aborted = [event for event in session.events if isinstance(event, SumAborted)]
    assert [type(event.error) for event in aborted] == [CohortChanged]
    assert server.state is ServerState.READY
    for k in range(4):  # GroupClosed arrived, and the sum's secrets are erased
        assert clients[k].state is ClientState.READY
        assert set(clients[k]._vault._held) == {2, 3, 4, 5}
    with pytest.raises(CohortChanged):  # the rest of the group is not even asked
        session.ask(KIND, b"three")
    total = session.ask(KIND, b"four", round_number=1)
    assert (total[PART] == (11111 if back else 1111)).all()
