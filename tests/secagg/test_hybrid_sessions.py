"""Sessions with hybrid key agreement: exact totals whoever drops out, and deposits that are not believed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from secagg import messages as m
from secagg.client import ClientMachine
from secagg.client_memory import VolatileMemory
from secagg.errors import (
    BadSignature,
    Dispute,
    MalformedMessage,
    ManyDisputes,
    OutOfOrder,
    TooFewClients,
    WrongKeyAgreement,
)
from secagg.events import ClientStep, Convicted, Excluded, Late, Missing, SessionOver, SessionReady
from secagg.hybrid_keys import DEPOSIT_BYTES, KeyAgreement
from secagg.local_session import Absent, LocalSession, Stage, local_machines, nobody_absent
from secagg.server import ServerMachine
from secagg.session_params import SessionParams
from secagg.sum_spec import Part, Residue, SumSpec, Table
from secagg.transitions import ClientState, ServerState
from secagg.trust_levels import Trust
from tests.secagg.truth import decoded

TABLE = Table({"sum": SumSpec(parts=(Part(name="x", size=1, bits=32, bound=Residue()),))})
SUMS = 3
BOTH = pytest.mark.parametrize("trust", list(Trust))
KINDS = pytest.mark.parametrize(
    ("trust", "graph", "size"),
    [
        (Trust.CURIOUS, "complete", 8),
        (Trust.MALICIOUS, "complete", 8),
        (Trust.CURIOUS, "ring", 40),
    ],
)


def machines(
    trust: Trust, *, size: int = 8, **changes: Any
) -> tuple[ServerMachine, dict[int, ClientMachine]]:
    terms: dict[str, Any] = {
        "trust": trust,
        "corrupt": 2,
        "sums": SUMS,
        "dropout": 0.2,
        "max_cohort": size,
        "key_agreement": KeyAgreement.HYBRID,
        "security_bits": 8,
        "liveness_bits": 8,
    }
    params = SessionParams(**{**terms, **changes})
    server, clients = local_machines(table=TABLE, params=params, members=range(1, size + 1))
    return server, dict(clients)


def session(
    server: ServerMachine, clients: dict[int, ClientMachine], absent: Absent = nobody_absent
) -> LocalSession:
    return LocalSession(server, clients, lambda member, _: {"x": [1 << member % 31]}, absent=absent)


def ask(local: LocalSession, number: int) -> tuple[int, ...]:
    """The contributors of an exact total."""
    total = local.ask("sum", b"%d" % number, round_number=number)
    expected = sum(1 << member % 31 for member in local.contributors) % 2**32
    assert total["x"].tolist() == [expected]
    return tuple(local.contributors)


# --- drop-outs ---------------------------------------------------------------------------------------


@KINDS
def test_a_session_in_which_nobody_drops_out(trust: Trust, graph: str, size: int) -> None:
    local = session(*machines(trust, graph=graph, size=size))
    local.open()
    for number in range(SUMS):
        assert ask(local, number) == tuple(range(1, size + 1))


@KINDS
@pytest.mark.parametrize("stage", [stage for stage in Stage if stage is not Stage.CONFIRM])
def test_a_total_is_exact_whenever_a_client_drops_out(
    trust: Trust, graph: str, size: int, stage: Stage
) -> None:
    def absent(member: int, at: Stage, _: int) -> bool:
        return member == 3 and at is stage

    local = session(*machines(trust, graph=graph, size=size), absent=absent)
    local.open()
    inside = stage is Stage.REVEAL
    for number in range(SUMS):
        assert ask(local, number) == tuple(k for k in range(1, size + 1) if inside or k != 3)


@BOTH
def test_whoever_makes_no_deposit_is_not_asked(trust: Trust) -> None:
    server, clients = machines(trust)

    def absent(member: int, at: Stage, _: int) -> bool:
        return member == 3 and at is Stage.DEPOSIT

    local = session(server, clients, absent=absent)
    local.open()
    assert 3 not in server.members
    assert Missing((3,), "depositing") in local.events
    (ready,) = (event for event in local.events if isinstance(event, SessionReady))
    assert ready.members == server.members == (1, 2, 4, 5, 6, 7, 8)


@BOTH
def test_a_late_depositor_is_asked_nothing_and_told_the_end(trust: Trust) -> None:
    """Its deposit is ignored: the others may already have been asked without it."""
    server, clients, deposits = depositing(trust)
    for member in sorted(clients.keys() - {3}):
        server.receive(member, deposits[member].encode())
    step = server.close_stage()
    assert step.events[0] == Missing((3,), "depositing")
    assert server.receive(3, deposits[3].encode()) == (Late(3),)
    (query,) = server.ask("sum", b"", round_number=0).outgoing
    assert query.receivers == (1, 2, 4, 5, 6, 7, 8)
    (closed,) = server.abandon().outgoing
    assert closed.receivers == query.receivers
    (farewell,) = server.end().outgoing
    assert farewell.receivers == (1, 2, 3, 4, 5, 6, 7, 8)
    assert clients[3].receive(farewell.frame).events == (SessionOver(),)
    assert clients[3].state is ClientState.ENDED


@BOTH
def test_a_session_fails_if_too_few_make_deposits(trust: Trust) -> None:
    def absent(member: int, at: Stage, _: int) -> bool:
        return member > 3 and at is Stage.DEPOSIT

    server, clients = machines(trust)
    with pytest.raises(TooFewClients, match="only 3 clients made deposits"):
        session(server, clients, absent=absent).open()
    assert server.state is ServerState.FAILED
    assert server.members == (1, 2, 3)


# --- deposits that do not fit ------------------------------------------------------------------------


class Depositor(ClientMachine):
    """Deposits what `change` makes of its deposits, and signs it."""

    change: Callable[[bytes], bytes]

    def receive(self, frame: bytes, *, now: int | None = None) -> ClientStep:
        step = super().receive(frame, now=now)
        return ClientStep(tuple(map(self._changed, step.frames)), step.events)

    def _changed(self, frame: bytes) -> bytes:
        message = decoded(frame)
        if not isinstance(message, m.Deposit):
            return frame
        deposits = self.change(message.deposits)
        signature = self._sign("deposit", self._context, self._receipt, deposits)
        return replace(message, deposits=deposits, signature=signature).encode()


def with_depositor(trust: Trust, change: Callable[[bytes], bytes], **changes: Any) -> LocalSession:
    """A session in which client 4 changes its deposits."""
    server, clients = machines(trust, **changes)
    good = clients[4]
    clients[4] = bad = Depositor(
        member=4,
        table=TABLE,
        policy=good._policy,
        memory=VolatileMemory(),
        identity=good._identity,
        registry=good._registry,
    )
    bad.change = change
    return session(server, clients)


def other_tags(count: int) -> Callable[[bytes], bytes]:
    """Another tag of the first sum for the first `count` peers: clients 1, 2, 3, 5 and so on."""

    def change(deposits: bytes) -> bytes:
        changed = bytearray(deposits)
        for k in range(count):
            changed[(k * SUMS + 1) * DEPOSIT_BYTES - 1] ^= 1
        return bytes(changed)

    return change


@BOTH
@pytest.mark.parametrize(
    "change", [lambda d: d[:-1], lambda d: d + b"\0", lambda d: d[: -SUMS * DEPOSIT_BYTES]]
)
def test_deposits_for_another_number_of_neighbours_are_refused(
    trust: Trust, change: Callable[[bytes], bytes]
) -> None:
    local = with_depositor(trust, change)
    local.open()
    (excluded,) = (event for event in local.events if isinstance(event, Excluded))
    assert (excluded.peer, type(excluded.error)) == (4, MalformedMessage)
    assert excluded.error.why == "not deposits for 7 neighbours"
    assert ask(local, 0) == (1, 2, 3, 5, 6, 7, 8)


@BOTH
@pytest.mark.parametrize("count", [1, 2])
def test_a_contradiction_excludes_both_before_anybody_sends_an_input(trust: Trust, count: int) -> None:
    local = with_depositor(trust, other_tags(count), dropout=0.2)
    local.open()
    excluded = {event.peer: event.error for event in local.events if isinstance(event, Excluded)}
    assert set(excluded) == {1, 4}
    assert all(isinstance(error, Dispute) for error in excluded.values())
    assert not any(isinstance(event, Convicted) for event in local.events)
    assert ask(local, 0) == (2, 3, 5, 6, 7, 8)


@BOTH
def test_more_contradictions_than_may_be_lies_convict(trust: Trust) -> None:
    local = with_depositor(trust, other_tags(3))
    local.open()
    (convicted,) = (event for event in local.events if isinstance(event, Convicted))
    assert (convicted.peer, type(convicted.error)) == (4, ManyDisputes)
    assert [event.peer for event in local.events if isinstance(event, Excluded)] == [4]
    assert ask(local, 0) == (1, 2, 3, 5, 6, 7, 8)


# --- messages out of place ---------------------------------------------------------------------------


@pytest.mark.parametrize("own", list(KeyAgreement))
def test_a_client_refuses_another_key_agreement(own: KeyAgreement) -> None:
    """Neither more nor less than its own policy says: nothing is negotiated."""
    _, clients = machines(Trust.CURIOUS, key_agreement=own)
    other = next(each for each in KeyAgreement if each is not own)
    server, _ = machines(Trust.CURIOUS, key_agreement=other)
    with pytest.raises(WrongKeyAgreement, match="proposes another key agreement; this client needs"):
        clients[1].receive(server.invitation)


def depositing(trust: Trust) -> tuple[ServerMachine, dict[int, ClientMachine], dict[int, m.Deposit]]:
    """A server that waits for deposits, and those of all clients."""
    server, clients = machines(trust)
    adverts = {k: client.receive(server.invitation).frames for k, client in clients.items()}
    replies = adverts
    for _ in range(2):
        for member, frames in replies.items():
            for frame in frames:
                server.receive(member, frame)
        step = server.close_stage()
        replies = {
            member: clients[member].receive(packet.frame).frames
            for packet in step.outgoing
            for member in packet.receivers
        }
    assert server.state is ServerState.DEPOSITING
    found = {}
    for member, (frame,) in replies.items():
        message = decoded(frame)
        assert isinstance(message, m.Deposit)
        found[member] = message
    return server, clients, found


def test_a_deposit_without_a_good_signature_is_refused() -> None:
    server, clients, deposits = depositing(Trust.MALICIOUS)
    for member, signature in ((1, bytes(64)), (2, deposits[3].signature), (5, b"")):
        events = server.receive(member, replace(deposits[member], signature=signature).encode())
        assert isinstance(events[0], Excluded)
        assert type(events[0].error) is BadSignature
    assert server._dealt.deposits.owners == set()
    assert clients[1].state.value == "ready"


def test_a_signature_where_none_belongs_is_refused() -> None:
    server, _, deposits = depositing(Trust.CURIOUS)
    events = server.receive(1, replace(deposits[1], signature=bytes(64)).encode())
    assert isinstance(events[0], Excluded)
    assert events[0].error.why == "a signature of the wrong length"


@BOTH
def test_a_second_deposit_is_refused(trust: Trust) -> None:
    server, _, deposits = depositing(trust)
    assert server.receive(1, deposits[1].encode()) == ()
    events = server.receive(1, deposits[1].encode())
    assert isinstance(events[0], Excluded)
    assert type(events[0].error) is OutOfOrder
