"""Whole sessions in one process: stages, absences, failures, and what is counted on the way."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import ArrayLike

from secagg import messages as m
from secagg.client import ClientMachine
from secagg.client_budget import Budget
from secagg.client_memory import AnswerEntry, VolatileMemory
from secagg.distributed_noise import Noise, NoiseAssumptions
from secagg.errors import (
    SERVER,
    BudgetExceeded,
    CohortChanged,
    GroupReopened,
    InputError,
    LedgerError,
    MalformedMessage,
    ParameterError,
    SpecError,
    StateError,
    SumFailed,
    TooFewClients,
    TooManySums,
    WrongRegistry,
)
from secagg.events import (
    Abandoned,
    Asked,
    ClientEvent,
    Confirmed,
    Declined,
    Joined,
    Missing,
    SessionFailed,
    SessionReady,
    SumAborted,
    SumReleased,
)
from secagg.insecure_seeds import SeededRandom, seeded_identity
from secagg.keys import Identity
from secagg.ledger import ClientLedger, ServerLedger, read_ledger
from secagg.local_session import Absent, LocalSession, Stage, local_machines, nobody_absent
from secagg.machine_hooks import ClientHooks, ServerHooks
from secagg.noise.zcdp_cost import rho_of
from secagg.server import ServerMachine
from secagg.session_params import SessionParams
from secagg.sum_spec import Count, LInf, Part, SumSpec, Table
from secagg.transitions import ClientState, ServerState
from secagg.trust_levels import Trust

CLIENTS = 5
SPEC = SumSpec(parts=(Part(name="x", size=3, bits=16, bound=Count(1000)),), times=3, group="g")
TABLE = Table({"first": SPEC, "second": SPEC})
BOTH = pytest.mark.parametrize("trust", list(Trust))


def values(member: int, _asked: Asked) -> Mapping[str, ArrayLike]:
    return {"x": [1, member, 10**member % 1000]}


def expected(*members: int) -> list[int]:
    return np.sum([[1, k, 10**k % 1000] for k in members], axis=0).tolist()  # type: ignore[no-any-return]


def session(
    trust: Trust, *, absent: Absent = nobody_absent, answer: Any = values, **extra: Any
) -> LocalSession:
    server, clients = local_machines(
        table=TABLE, params=SessionParams(trust=trust, corrupt=0, dropout=0, sums=4), members=range(CLIENTS)
    )
    return LocalSession(server, clients, answer, absent=absent, **extra)


def gone(*members: int, stage: Stage, sums: range = range(-1, 99)) -> Absent:
    return lambda member, at, index: member in members and at is stage and index in sums


@BOTH
def test_several_sums_after_one_set_up(trust: Trust) -> None:
    local = session(trust)
    local.open()
    for round_number, kind in enumerate(("first", "second", "first")):
        total = local.ask(kind, bytes([round_number]), round_number=round_number)
        assert total["x"].tolist() == expected(0, 1, 2, 3, 4)
        assert (total.count, total.invited) == (5, 5)
    local.end()
    assert {client.state for client in local._clients.values()} == {ClientState.ENDED}
    assert local._server.state is ServerState.ENDED
    kinds = [type(event) for event in local.events]
    assert kinds.count(SumReleased) == 3
    assert kinds.count(SessionReady) == 1


@BOTH
@pytest.mark.parametrize(
    ("stage", "invited", "counted"),
    [
        (Stage.ADVERTISE, 4, (0, 1, 2, 4)),
        (Stage.SHARE, 4, (0, 1, 2, 4)),
        (Stage.MASK, 5, (0, 1, 2, 4)),
        (Stage.CONFIRM, 5, (0, 1, 2, 3, 4)),
        (Stage.REVEAL, 5, (0, 1, 2, 3, 4)),
    ],
)
def test_a_client_may_go_missing_at_any_stage(
    stage: Stage, invited: int, counted: tuple[int, ...], trust: Trust
) -> None:
    local = session(trust, absent=gone(3, stage=stage))
    local.open()
    total = local.ask("first")
    assert total["x"].tolist() == expected(*counted)
    assert (total.count, total.invited) == (len(counted), invited)
    missed = [event for event in local.events if isinstance(event, Missing)]
    skipped = stage is Stage.ADVERTISE or (stage is Stage.CONFIRM and trust is Trust.CURIOUS)
    assert [event.peers for event in missed] == ([] if skipped else [(3,)])


@BOTH
@pytest.mark.parametrize("stage", [Stage.ADVERTISE, Stage.SHARE])
def test_too_few_in_set_up_are_no_session(stage: Stage, trust: Trust) -> None:
    local = session(trust, absent=gone(0, 1, 2, 4, stage=stage))
    with pytest.raises(TooFewClients):
        local.open()
    assert local._server.state is ServerState.FAILED
    assert [type(event) for event in local.events].count(SessionFailed) == 1
    with pytest.raises(StateError):
        local.ask("first")


@BOTH
@pytest.mark.parametrize("stage", [Stage.MASK, Stage.REVEAL])
def test_too_few_in_a_sum_release_nothing_and_the_session_lives_on(stage: Stage, trust: Trust) -> None:
    local = session(trust, absent=gone(0, 1, 2, stage=stage, sums=range(1)))
    local.open()
    with pytest.raises(TooFewClients):
        local.ask("first", b"a")
    assert [type(event) for event in local.events].count(SumAborted) == 1
    assert not any(isinstance(event, SumReleased) for event in local.events)
    total = local.ask("first", b"b", round_number=1)
    assert total["x"].tolist() == expected(0, 1, 2, 3, 4)


def test_a_consistency_round_needs_a_threshold() -> None:
    local = session(Trust.MALICIOUS, absent=gone(0, 1, 2, stage=Stage.CONFIRM))
    local.open()
    with pytest.raises(TooFewClients, match="only 2 clients confirmed; 3 are needed"):
        local.ask("first")


@BOTH
def test_a_group_that_lost_somebody_is_over_before_anyone_is_asked(trust: Trust) -> None:
    local = session(trust, absent=gone(4, stage=Stage.MASK, sums=range(1, 2)))
    local.open()
    local.ask("first", b"a")
    with pytest.raises(CohortChanged):
        local.ask("second", b"b")
    with pytest.raises(CohortChanged):
        local.ask("second", b"c")
    assert local.ask("second", b"d", round_number=1).count == 5


@BOTH
def test_a_client_whose_vector_does_not_fit_costs_a_sum_and_no_session(trust: Trust) -> None:
    bad = {"now": True}

    def answer(member: int, asked: Asked) -> Mapping[str, ArrayLike]:
        return {"x": [-1, 0, 0]} if member == 2 and bad["now"] else values(member, asked)

    local = session(trust, answer=answer)
    local.open()
    with pytest.raises(InputError, match="integers from 0 to 1000"):
        local.ask("first", b"a")
    assert not any(isinstance(event, SumReleased) for event in local.events)
    bad["now"] = False
    assert local.ask("first", b"b", round_number=1)["x"].tolist() == expected(0, 1, 2, 3, 4)


def test_a_client_that_left_is_not_spoken_to() -> None:
    local = session(Trust.CURIOUS)
    local.open()
    local._clients[1].leave()
    total = local.ask("first")
    assert total["x"].tolist() == expected(0, 2, 3, 4)


def test_the_observer_sees_exactly_what_the_server_sees() -> None:
    seen: list[tuple[int, bytes]] = []
    local = session(Trust.MALICIOUS, observer=lambda sender, frame: seen.append((sender, frame)))
    local.open()
    local.ask("first")
    types = [type(m.decode(frame, sender=0, limit=1 << 20)) for _, frame in seen]
    stages = (m.Advertisement, m.Shares, m.MaskedInput, m.Confirmation, m.Reveal)
    assert [types.count(kind) for kind in stages] == [CLIENTS] * 5
    assert {sender for sender, _ in seen} == set(range(CLIENTS))
    assert sum(local.bytes_up.values()) == sum(len(frame) for _, frame in seen)
    assert set(local.bytes_down) == set(Stage) - {Stage.DEPOSIT}


@BOTH
def test_clipping_is_reported_per_client_and_sum(trust: Trust) -> None:
    part = Part(name="x", size=1, bits=32, bound=LInf(1.0))
    table = Table({"a": SumSpec(parts=(part,)), "b": SumSpec(parts=(part,))})
    server, clients = local_machines(
        table=table, params=SessionParams(trust=trust, corrupt=0, dropout=0, sums=2), members=(4, 6)
    )
    local = LocalSession(server, clients, lambda member, asked: {"x": [member - 4 + 4 * asked.sum_index]})
    local.open()
    local.ask("a")
    local.ask("b", b"1")
    assert local.clipped == {
        (6, 0): {"x": pytest.approx(1 / 2)},
        (4, 1): {"x": pytest.approx(1 / 4)},
        (6, 1): {"x": pytest.approx(1 / 6)},
    }


def test_no_identities_where_nothing_is_signed() -> None:
    settings: dict[str, Any] = {"table": TABLE, "members": (1, 2)}
    _, curious = local_machines(**settings, params=SessionParams(trust=Trust.CURIOUS, corrupt=0))
    _, malicious = local_machines(**settings, params=SessionParams(trust=Trust.MALICIOUS, corrupt=0))
    assert all(client._identity is None and client._registry is None for client in curious.values())
    assert len({client._identity for client in malicious.values()}) == 2
    assert not nobody_absent(1, Stage.MASK, 0)


def test_an_abandoned_sum_is_a_failed_one() -> None:
    assert issubclass(TooFewClients, SumFailed)
    assert issubclass(CohortChanged, SumFailed)


def test_a_session_is_opened_once_and_not_harmed_by_a_second_attempt() -> None:
    spec = SumSpec(parts=(Part(name="x", size=1, bits=8, bound=Count(1)),))
    server, clients = local_machines(
        table=Table({"sum": spec}),
        params=SessionParams(trust=Trust.CURIOUS, corrupt=0, dropout=0, sums=1),
        members=range(4),
    )
    session = LocalSession(server, clients, lambda _member, _asked: {"x": [1]})
    session.open()
    with pytest.raises(StateError, match="opened before"):
        session.open()
    assert session.ask("sum").count == 4


def test_members_have_ids_of_their_own() -> None:
    spec = SumSpec(parts=(Part(name="x", size=1, bits=8, bound=Count(1)),))
    with pytest.raises(ParameterError, match="an id of its own"):
        local_machines(
            table=Table({"sum": spec}),
            params=SessionParams(trust=Trust.CURIOUS, corrupt=0, dropout=0, sums=1),
            members=[1, 1, 2],
        )


# --- ledgers -------------------------------------------------------------------------------------------


def noisy_table() -> Table:
    noise = Noise(scale=64, variance=Fraction(64**2))
    part = Part(name="x", size=3, bits=24, bound=Count(1, 1), noise=noise)
    return Table(
        {"vote": SumSpec(parts=(part,), promise=NoiseAssumptions(clients=CLIENTS, dropouts=0, colluders=0))}
    )


def test_ledgers_of_clients_and_server_agree_on_what_was_spent(tmp_path: Path) -> None:
    memories = {k: ClientLedger.create(tmp_path / f"client{k}", member=k) for k in range(CLIENTS)}
    table = noisy_table()
    server, clients = local_machines(
        table=table,
        params=SessionParams(trust=Trust.CURIOUS, corrupt=0, dropout=0, sums=2),
        members=range(CLIENTS),
        memories=memories,
        max_rho=1.0,
    )
    with ServerLedger.create(tmp_path / "server") as ledger:
        local = LocalSession(server, clients, lambda *_: {"x": [1, 0, 0]}, ledger=ledger)
        local.open()
        local.ask("vote", b"a")
        local.ask("vote", b"b", round_number=1)
        assert {memory.spend for memory in memories.values()} == {ledger.spend}
        assert ledger.spend.noised == 2
        assert rho_of(ledger.spend.charge) == pytest.approx(1.0, rel=1e-9)
    entries = [row.body["entry"] for row in read_ledger(tmp_path / "server").rows]
    assert entries.count("asked") == entries.count("released") == 2
    for memory in memories.values():
        memory.close()


def test_a_budget_that_would_be_exceeded_refuses() -> None:
    server, clients = local_machines(
        table=noisy_table(),
        params=SessionParams(trust=Trust.CURIOUS, corrupt=0, dropout=0, sums=2),
        members=range(CLIENTS),
        max_rho=0.75,
    )
    local = LocalSession(server, clients, lambda *_: {"x": [1, 0, 0]})
    local.open()
    local.ask("vote", b"a")
    with pytest.raises(TooFewClients, match="only 0 clients sent inputs") as caught:
        local.ask("vote", b"b", round_number=1)
    assert isinstance(caught.value.__cause__, BudgetExceeded)
    assert {type(error) for error in local.refusals.values()} == {BudgetExceeded}


def test_one_client_that_refuses_is_a_drop_out() -> None:
    server, clients = local_machines(
        table=TABLE,
        params=SessionParams(trust=Trust.CURIOUS, corrupt=0, dropout=0.4, sums=2),
        members=range(CLIENTS),
    )
    local = LocalSession(server, clients, values)
    local.open()
    clients[2]._memory.remember_answer(
        AnswerEntry(group="g", round_number=0, content=bytes(32), charge=None), Budget(unnoised_sums=9)
    )
    assert local.ask("first").count == CLIENTS - 1
    assert isinstance(local.refusals[2], GroupReopened)
    assert local.ask("second", b"x", round_number=1).count == CLIENTS - 1


def test_a_sum_that_cannot_be_written_down_is_abandoned(tmp_path: Path) -> None:
    server, clients = local_machines(
        table=TABLE,
        params=SessionParams(trust=Trust.CURIOUS, corrupt=0, dropout=0, sums=2),
        members=range(CLIENTS),
    )
    ledger = ServerLedger.create(tmp_path / "server")
    local = LocalSession(server, clients, values, ledger=ledger)
    local.open()
    ledger.close()
    with pytest.raises(LedgerError):
        local.ask("first")
    assert server.state is ServerState.READY


def test_memories_are_everybodys_or_nobodys() -> None:
    with pytest.raises(ParameterError, match="every member needs a memory"):
        local_machines(
            table=TABLE,
            params=SessionParams(trust=Trust.CURIOUS, corrupt=0, dropout=0, sums=1),
            members=range(3),
            memories={0: VolatileMemory(), 1: VolatileMemory()},
        )


@pytest.mark.parametrize("removable", [False, True])
def test_noise_that_cannot_be_accounted_for_is_refused(removable: bool) -> None:
    """On the grid of the counts themselves, everybody adds a variance of a sixth, or less."""
    noise = Noise(scale=1, variance=Fraction(1, 2))
    part = Part(name="x", size=3, bits=8, bound=Count(1, 1), noise=noise)
    promise = NoiseAssumptions(clients=CLIENTS, dropouts=2, colluders=0, removable=removable)
    with pytest.raises(SpecError, match="finer than its grid"):
        local_machines(
            table=Table({"vote": SumSpec(parts=(part,), promise=promise)}),
            params=SessionParams(trust=Trust.CURIOUS, corrupt=0, dropout=0, sums=1),
            members=range(CLIENTS),
        )


# --- what a simulation adds ----------------------------------------------------------------------------


@BOTH
def test_a_client_that_has_nothing_to_say_declines_and_stays(trust: Trust) -> None:
    silent = {2}

    def answer(member: int, asked: Asked) -> Mapping[str, ArrayLike] | None:
        return None if member in silent else values(member, asked)

    local = session(trust, answer=answer)
    local.open()
    assert local.ask("first", b"a")["x"].tolist() == expected(0, 1, 3, 4)
    assert [event.peer for event in local.events if isinstance(event, Declined)] == [2]
    assert local._clients[2].state is ClientState.READY
    assert local.refusals == {}
    silent.clear()
    assert local.ask("first", b"b", round_number=1).count == 5


@BOTH
def test_a_client_whose_answer_is_a_refusal_leaves_and_the_others_go_on(trust: Trust) -> None:
    """What a query says may be wrong in ways that only whoever answers it can see."""

    def answer(member: int, asked: Asked) -> Mapping[str, ArrayLike]:
        if member == 1:
            raise MalformedMessage(SERVER, "a question that nobody asks")
        return values(member, asked)

    local = session(trust, answer=answer)
    local.open()
    assert local.ask("first", b"a")["x"].tolist() == expected(0, 2, 3, 4)
    assert isinstance(local.refusals[1], MalformedMessage)


@BOTH
def test_who_declines_in_mid_group_changes_the_cohort(trust: Trust) -> None:
    local = session(trust, answer=lambda k, asked: None if asked.sum_index and k == 1 else values(k, asked))
    local.open()
    local.ask("first", b"a")
    with pytest.raises(CohortChanged):
        local.ask("second", b"b")


@BOTH
def test_the_listener_hears_what_clients_are_told(trust: Trust) -> None:
    heard: list[tuple[int, ClientEvent]] = []
    local = session(
        trust,
        absent=gone(3, stage=Stage.REVEAL, sums=range(1)),
        listener=lambda member, event: heard.append((member, event)),
    )
    local.open()
    assert {member for member, event in heard if isinstance(event, Joined)} == set(range(CLIENTS))
    local.ask("first", b"a")
    confirmed = [(member, event) for member, event in heard if isinstance(event, Confirmed)]
    assert confirmed == [(member, Confirmed(0, CLIENTS)) for member in (0, 1, 2, 4)]
    asked = [event.kind for _, event in heard if isinstance(event, Asked)]
    assert asked == ["first"] * CLIENTS
    with pytest.raises(CohortChanged):
        local.ask("first", b"b")
    local.ask("first", b"c", round_number=1)
    assert len([event for _, event in heard if isinstance(event, Confirmed)]) == 4 + CLIENTS


def test_clients_confirm_before_it_is_known_whether_enough_did() -> None:
    heard: list[int] = []
    local = session(
        Trust.CURIOUS,
        absent=gone(0, 1, 2, stage=Stage.REVEAL),
        listener=lambda member, event: heard.append(member) if isinstance(event, Confirmed) else None,
    )
    local.open()
    with pytest.raises(TooFewClients, match="revealed shares"):
        local.ask("first")
    assert heard == [3, 4]


def test_the_listener_hears_of_a_sum_that_was_given_up() -> None:
    heard: list[tuple[int, ClientEvent]] = []
    local = session(
        Trust.CURIOUS,
        absent=gone(0, 1, 2, 3, stage=Stage.MASK, sums=range(1)),
        listener=lambda member, event: heard.append((member, event)),
    )
    local.open()
    with pytest.raises(TooFewClients):
        local.ask("first")
    assert (4, Abandoned(0)) in heard


def test_machines_and_identities_of_ones_own() -> None:
    made: list[object] = []

    def identity(member: int) -> Identity:
        made.append(member)
        return seeded_identity(b"seed", member)

    def machines() -> tuple[ServerMachine, dict[int, ClientMachine]]:
        return local_machines(
            table=TABLE,
            params=SessionParams(trust=Trust.MALICIOUS, corrupt=0, dropout=0, sums=2),
            members=(3, 1),
            server_hooks=ServerHooks(random=SeededRandom(b"server")),
            client_hooks=lambda member: ClientHooks(random=SeededRandom(bytes([member]))),
            make_identity=identity,
        )

    server, clients = machines()
    assert made == [3, 1]
    again, others = machines()
    assert server.invitation == again.invitation
    assert clients[3].receive(server.invitation) == others[3].receive(server.invitation)
    made.clear()
    assert server._registry is not None
    assert server._registry.members[3] == seeded_identity(b"seed", 3).public
    local_machines(
        table=TABLE,
        params=SessionParams(trust=Trust.CURIOUS, corrupt=0, dropout=0, sums=1),
        members=(1, 2),
        make_identity=identity,
    )
    assert made == [], "where nothing is signed, nobody needs one"


def test_clients_that_remember_meet_again_in_other_cohorts() -> None:
    """The registry stays what it was, because all who are enrolled are in it, here or not."""
    memories = {member: VolatileMemory() for member in range(4)}
    settings: dict[str, Any] = {
        "table": TABLE,
        "params": SessionParams(trust=Trust.MALICIOUS, corrupt=0),
        "memories": memories,
        "unnoised_sums": 9,
        "make_identity": lambda member: seeded_identity(b"seed", member),
    }
    for number, members in enumerate([(0, 1, 2), (1, 2, 3)]):
        server, clients = local_machines(members=members, enrolled=range(4), **settings)
        local = LocalSession(server, clients, values)
        local.open()
        assert local.ask("first", bytes([number]), round_number=number)["x"].tolist() == expected(*members)
        local.end()
    with pytest.raises(WrongRegistry):
        local_machines(members=(0, 1, 2), **settings)
    with pytest.raises(ParameterError, match="must be enrolled"):
        local_machines(members=(0, 1, 9), enrolled=range(4), **settings)


@pytest.mark.parametrize(("limit", "answered"), [(None, 4), (1, 1), (3, 3)])
def test_how_many_sums_without_noise_clients_answer(limit: int | None, answered: int) -> None:
    server, clients = local_machines(
        table=TABLE,
        params=SessionParams(trust=Trust.CURIOUS, corrupt=0, dropout=0, sums=4),
        members=range(CLIENTS),
        unnoised_sums=limit,
    )
    local = LocalSession(server, clients, values)
    local.open()
    for number in range(answered):
        assert local.ask("first", bytes([number]), round_number=number).count == CLIENTS
    if limit is not None:
        with pytest.raises(TooFewClients) as caught:
            local.ask("first", b"one more", round_number=9)
        assert isinstance(caught.value.__cause__, TooManySums)


def test_a_budget_and_sums_without_noise_together() -> None:
    """By default a budget leaves none of those; whoever wants some says how many."""
    for unnoised, count in ((None, 0), (1, 1)):
        server, clients = local_machines(
            table=TABLE,
            params=SessionParams(trust=Trust.CURIOUS, corrupt=0, dropout=0, sums=2),
            members=range(CLIENTS),
            max_rho=1.0,
            unnoised_sums=unnoised,
        )
        assert {client._policy.unnoised_sums for client in clients.values()} == {count}
        assert server.sums_left == 2
