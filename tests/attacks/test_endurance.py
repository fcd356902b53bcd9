"""Attempts to wear machines out: to stop every sum, to outgrow their memory, to keep a dead client's keys."""

from __future__ import annotations

import copy
import pickle
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest

from secagg import messages as m
from secagg.cohort_members import invitation_digest
from secagg.convictions import Convictions
from secagg.errors import FalseDealing, LargeCohort, SecretReused, Unrecoverable
from secagg.events import Excluded, Late
from secagg.local_session import LocalSession
from secagg.server import ServerMachine
from secagg.transitions import ServerState
from secagg.trust_levels import Trust
from tests.attacks.attackers.bad_clients import ScatteringDealer
from tests.attacks.guards import BOTH
from tests.attacks.rig import KIND, PART, Rig, residue_table
from tests.secagg.flat_params import with_params


def server_for(rig: Rig, **changes: Any) -> ServerMachine:
    settings: dict[str, Any] = {
        "trust": rig.trust,
        "sums": rig.sums,
        "corrupt": rig.corrupt,
        "min_cohort": rig.corrupt + 2,
        "max_cohort": 64,
        "min_contributors": rig.corrupt + 2,
    }
    return ServerMachine(table=rig.table, registry=rig.registry, **with_params({**settings, **changes}))


# --- a dealer of shares without a secret -----------------------------------------------------------


def scattered(trust: Trust, clients: int, corrupt: int) -> tuple[Rig, LocalSession]:
    rig = Rig(clients, trust, corrupt=corrupt, table=residue_table(3))
    signed = rig.registry is not None
    rig.machines[0] = ScatteringDealer(
        member=0,
        table=rig.table,
        policy=rig.policy,
        memory=rig.memories[0],
        identity=rig.identity(0) if signed else None,
        registry=rig.registry,
    )
    session = LocalSession(server_for(rig), rig.machines, lambda member, _: {PART: rig.vectors[member]})
    session.open()
    return rig, session


@pytest.mark.parametrize(("clients", "corrupt"), [(12, 3), (30, 7)])
def test_one_dealer_stops_one_sum_only(clients: int, corrupt: int) -> None:
    """Shares that fit their tags prove its guilt, although there are none to spare."""
    rig, session = scattered(Trust.MALICIOUS, clients, corrupt)
    with pytest.raises(Unrecoverable) as caught:
        session.ask(KIND, b"first", round_number=0)
    assert [(type(lie), lie.peer) for lie in caught.value.liars] == [(FalseDealing, 0)]
    assert [event.peer for event in session.events if isinstance(event, Excluded)] == [0]
    others = sum((rig.vectors[k] for k in range(1, clients)), 0 * rig.vectors[0])
    assert (session.ask(KIND, b"second", round_number=1)[PART] == others).all()


def test_without_convictions_every_sum_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Convictions, "convict", lambda *_: ())
    _, session = scattered(Trust.MALICIOUS, 12, 3)
    for k in range(4):
        with pytest.raises(Unrecoverable):
            session.ask(KIND, bytes([k]), round_number=k)


# --- reports to a server that is over --------------------------------------------------------------


@pytest.mark.parametrize("trust", BOTH)
def test_a_report_to_a_session_that_never_was_is_late(trust: Trust) -> None:
    for over in (ServerMachine.end, ServerMachine.close_stage):
        server = server_for(Rig(3, trust))
        over(server)
        assert server.state in (ServerState.ENDED, ServerState.FAILED)
        report = m.Lost(invitation_digest(server.invitation), b"\x01").encode()
        assert server.receive(0, report) == (Late(0),)


# --- lists that outgrow their frame ----------------------------------------------------------------

MEGABYTE = 1 << 20


def key_list(rig: Rig) -> tuple[int, Callable[[bytes], bytes]]:
    invitation = rig.invitation()
    rig.send(0, invitation)
    context = invitation_digest(invitation)
    return rig.form.advert_bytes, lambda blob: m.KeyList(context, 3, blob).encode()


def delivery(rig: Rig) -> tuple[int, Callable[[bytes], bytes]]:
    invitation = rig.invitation()
    adverts = rig.advertise(invitation)
    frame = rig.key_list(invitation, adverts, 3)
    cohort = rig.cohort(invitation, frame, adverts, 3)
    rig.share(0, frame, cohort.size)
    return rig.form.parcel_bytes, lambda blob: m.Delivery(cohort.session, blob).encode()


def confirmations(rig: Rig) -> tuple[int, Callable[[bytes], bytes]]:
    cohort = rig.set_up(threshold=3)
    rig.masked(rig.query(cohort, 0, range(4)), range(4))
    rig.send(0, rig.survivors(cohort, 0, range(4)))
    return 4 + 64, lambda blob: m.Confirmations(cohort.session, 0, blob).encode()


@pytest.mark.parametrize(
    ("trust", "prepare"),
    [
        (Trust.CURIOUS, key_list),
        (Trust.CURIOUS, delivery),
        (Trust.MALICIOUS, key_list),
        (Trust.MALICIOUS, delivery),
        (Trust.MALICIOUS, confirmations),
    ],
)
def test_a_list_is_counted_before_it_is_cut(
    trust: Trust, prepare: Callable[[Rig], tuple[int, Callable[[bytes], bytes]]]
) -> None:
    changes = {"max_query_bytes": 4 * MEGABYTE, "max_cohort": 8}
    rig = Rig(4, trust, sums=1, policy_changes=changes)
    size, frame_of = prepare(rig)
    client = rig.machines[0]
    rows = (client.frame_limit - 100) // size
    frame = frame_of(b"".join(row.to_bytes(4, "big") + bytes(size - 4) for row in range(rows)))
    tracemalloc.start()
    try:
        with pytest.raises(LargeCohort):
            client.receive(frame)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak + len(frame) <= 4 * client.frame_limit


# --- what a dead client still knows ----------------------------------------------------------------


@pytest.mark.parametrize("trust", BOTH)
def test_a_client_that_left_cannot_open_its_envelopes(trust: Trust) -> None:
    rig = Rig(4, trust)
    delivery(rig)
    client = rig.machines[0]
    client.leave()
    with pytest.raises(SecretReused):
        client._vault.channel(client._cohort.session)


@pytest.mark.parametrize("spread", [copy.copy, copy.deepcopy, pickle.dumps])
def test_one_time_secrets_are_neither_copied_nor_pickled(spread: Callable[[object], object]) -> None:
    rig = Rig(4, Trust.CURIOUS)
    rig.set_up(threshold=3)
    for holder in (rig.machines[0], rig.machines[0]._vault):
        with pytest.raises(TypeError, match="one-time secrets"):
            spread(holder)
