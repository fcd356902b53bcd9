"""Clients, a server and a hostile wire, driven at random by Hypothesis; and every move, one by one.

The wire loses, repeats, reorders, damages and replays anything it ever saw, also from earlier sessions and in
other names; clients crash and come back with their memory; the server is restarted. Whatever happens: a total
is exact or does not exist, no two kinds of share for one client leave, and a machine that has failed is mute.
"""

from __future__ import annotations

import random
from collections.abc import Collection
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from secagg import messages as m
from secagg.client import ClientMachine
from secagg.client_memory import VolatileMemory
from secagg.errors import (
    SERVER,
    Departed,
    OutOfOrder,
    PeerError,
    StateError,
    SumFailed,
    WrongSession,
)
from secagg.events import Abandoned, Asked, Excluded, Late, SatOut, SumAborted, SumReleased
from secagg.hybrid_keys import KeyAgreement
from secagg.message_records import Format, parse_neighbours
from secagg.sum_spec import Part, Residue, SumSpec, Table
from secagg.testing.faulty_wire import Packet
from secagg.transitions import CLIENT_MOVES, COLLECTED, ClientState, ServerState
from secagg.trust_levels import MAX_COMPLETE, Trust
from tests.secagg.frame_mutations import Mutator
from tests.secagg.share_log import LoggedWire
from tests.secagg.snapshots import insecure_copy
from tests.secagg.states import (
    KINDS_OF_SESSION,
    MEMBERS,
    RING_MEMBERS,
    SIZE,
    TARGET,
    Recording,
    SessionKind,
    recording,
    recordings,
)
from tests.secagg.truth import (
    Question,
    Truth,
    check_share_log,
    check_total,
    decoded,
    seeded_machines,
)

_C, _S = ClientState, ServerState
SUMS = 3

# --- at random ---------------------------------------------------------------------------------------


class CheckedWire(LoggedWire):
    """A wire that checks every step a client takes."""

    trust: Trust

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.floors: dict[int, int] = {}  # member -> the least sum for which it may still reveal shares
        self.last_asked: dict[int, int] = {}

    def restart_client(self, member: int, client: ClientMachine) -> None:
        super().restart_client(member, client)
        self.floors[member], self.last_asked[member] = 0, -1

    def _to_client(self, member: int, frame: bytes) -> None:
        client = self.clients[member]
        before, events, replies = client.state, len(self.client_events), len(self.sent)
        released = len(self.shares.entries)
        super()._to_client(member, frame)
        news = [event for _, event in self.client_events[events:]]
        sent = [decoded(packet.frame) for packet in self.sent[replies:]]
        if client.state is _C.FAILED:
            assert news == []
            # Whoever was gone before stays mute; whoever goes now says no more than that.
            wanted = [] if before in (_C.ENDED, _C.FAILED) else [m.Leave]
            assert [type(message) for message in sent] == wanted
            check_erased(client)
        else:
            self._check_move(member, before, frame, news)
        self._check_floor(member, news, released)

    def _check_move(self, member: int, before: ClientState, frame: bytes, news: list[Any]) -> None:
        message = decoded(frame)
        assert message is not None
        after = CLIENT_MOVES[self.trust][before, type(message)]
        if after is _C.ASKED:  # the wire lets its clients answer at once
            after = _C.READY if any(isinstance(event, SatOut) for event in news) else _C.MASKED
        assert self.clients[member].state is after

    def _check_floor(self, member: int, news: list[Any], released: int) -> None:
        """Sums go forward only, and nothing is revealed for one that is over."""
        floor = self.floors.get(member, 0)
        assert all(entry.sum_index >= floor for entry in self.shares.entries[released:])
        for event in news:
            if isinstance(event, (Asked, SatOut)):
                assert event.sum_index > self.last_asked.get(member, -1)
                self.last_asked[member] = event.sum_index
                self.floors[member] = event.sum_index + isinstance(event, SatOut)
            elif isinstance(event, Abandoned):
                assert event.sum_index >= self.last_asked.get(member, -1)
                self.floors[member], self.last_asked[member] = event.sum_index + 1, event.sum_index


def check_erased(client: ClientMachine) -> None:
    vault = client._vault
    assert [vault._channel, vault._mask_keys, vault._self_masks, vault._held] == [b"", {}, {}, {}]
    assert (vault._kem, vault._pair_secrets, vault._channels) == (None, {}, {})


def table_for(members: Collection[int]) -> Table:
    part = Part(name="x", size=len(members), bits=20, bound=Residue())
    return Table({"sum": SumSpec(parts=(part,), times=2)})


def positions_in(frame: bytes) -> dict[int, int]:
    """Where a client of a ring is told that its neighbours are."""
    message = decoded(frame)
    if not isinstance(message, m.Neighbours):
        return {}
    form = Format(SUMS, signed=False)
    with suppress(PeerError):
        adverts = parse_neighbours(message.adverts, form, size=message.size, most=MAX_COMPLETE)
        return {advert.member: position for position, advert in adverts.items()}
    return {}


class HostileWorld(RuleBasedStateMachine):
    """Everything that may happen to sessions of five clients, or of nine on a ring."""

    kind: SessionKind

    def __init__(self) -> None:
        super().__init__()
        self.trust = self.kind.trust
        self.agreement = KeyAgreement.HYBRID if self.kind.hybrid else KeyAgreement.X25519
        self.machines = 0
        self.round_number = 0
        self.asked: dict[int, Question] = {}
        self.results: list[int] = []
        self.payloads = 0
        self.seen_events = 0

    @initialize(calm=st.booleans())
    def start(self, calm: bool) -> None:
        self.members = RING_MEMBERS if self.kind.ring else MEMBERS
        self.table = table_for(self.members)
        self.memories = {member: VolatileMemory() for member in self.members}
        self.truth = Truth(self.members, self.table, len(self.members))
        self.wire = CheckedWire(*self.new_machines(), self.truth.answer)
        self.wire.trust = self.trust
        self.open(calm)

    def new_machines(self) -> tuple[Any, dict[int, Any]]:
        self.machines += 1
        return seeded_machines(
            members=self.members,
            table=self.table,
            trust=self.trust,
            dropout=0.2,
            sums=SUMS,
            seed=b"%d" % self.machines,
            memories=self.memories,
            graph="ring" if self.kind.ring else "complete",
            key_agreement=self.agreement,
            security_bits=8,
            liveness_bits=4,
        )

    def open(self, calm: bool) -> None:
        """Invite everybody; on a calm day, nobody meddles with the set-up."""
        self.wire.waiting = self.wire.waiting * (not calm)
        self.wire.invite()
        if calm:
            self.finish()

    def finish(self) -> None:
        with suppress(SumFailed):
            self.wire.run()
            self.wire.finish()

    # --- the honest side ---

    @precondition(lambda self: self.wire.server.state in COLLECTED)
    @rule(delivered=st.booleans())
    def close_stage(self, delivered: bool) -> None:
        if delivered:
            self.wire.run()
        self.wire.close_stage()

    @rule()
    def finish_what_was_begun(self) -> None:
        self.finish()

    @precondition(lambda self: self.wire.server.state is _S.READY and self.wire.server.sums_left)
    @rule(same_round=st.booleans(), calm=st.booleans())
    def ask(self, same_round: bool, calm: bool) -> None:
        self.round_number += not same_round
        self.payloads += 1
        question = Question("sum", self.round_number, b"%d" % self.payloads)
        index = SUMS - self.wire.server.sums_left
        # A group may be closed or used up, and too few may be left: then nobody is asked.
        with suppress(SumFailed, StateError):
            self.wire.begin(question.kind, question.payload, round_number=question.round_number)
            self.asked[index] = question
        if calm:
            self.finish()

    # --- the wire ---

    @precondition(lambda self: self.wire.waiting)
    @rule(data=st.data(), times=st.integers(1, 3))
    def deliver_in_any_order(self, data: st.DataObject, times: int) -> None:
        for _ in range(min(times, len(self.wire.waiting))):
            self.wire.deliver(self.take(data))

    @precondition(lambda self: self.wire.waiting)
    @rule(data=st.data(), twice=st.booleans())
    def lose_or_duplicate(self, data: st.DataObject, twice: bool) -> None:
        packet = self.take(data)
        for _ in range(2 * twice):
            self.wire.deliver(packet)

    @precondition(lambda self: self.wire.waiting)
    @rule(data=st.data(), seed=st.integers(0, 1 << 32))
    def damage(self, data: st.DataObject, seed: int) -> None:
        packet = self.take(data)
        frames = [other.frame for other in self.wire.sent]
        form = Format(SUMS, signed=self.trust is Trust.MALICIOUS, agreement=self.agreement)
        mutate = Mutator(form=form, limit=1 << 14, others=frames)
        spoiled = mutate(packet.frame, random.Random(seed).randrange)
        if not self.forges_what_is_not_signed(packet, spoiled):
            self.wire.deliver(replace(packet, frame=spoiled))

    def forges_what_is_not_signed(self, packet: Packet, frame: bytes) -> bool:
        """Under `curious_server` nothing but the channel protects the survivors and the order of bits."""
        if self.trust is Trust.MALICIOUS or packet.receiver == SERVER or frame == packet.frame:
            return False
        if isinstance(decoded(frame), m.Survivors):
            return True
        told = positions_in(packet.frame)
        return any(told.get(member, position) != position for member, position in positions_in(frame).items())

    @rule(data=st.data())
    def replay(self, data: st.DataObject) -> None:
        """Any frame ever sent, also of an earlier session, perhaps to another or in another's name."""
        packet = data.draw(st.sampled_from(self.wire.sent))
        member = data.draw(st.none() | st.sampled_from(self.members))
        if member is not None and packet.receiver == SERVER:
            packet = replace(packet, sender=member)
        elif member is not None:
            packet = replace(packet, receiver=member)
        self.wire.deliver(packet)

    def take(self, data: st.DataObject) -> Packet:
        return self.wire.waiting.pop(data.draw(st.integers(0, len(self.wire.waiting) - 1)))

    # --- crashes ---

    @rule(data=st.data(), politely=st.booleans())
    def lose_a_client(self, data: st.DataObject, politely: bool) -> None:
        """It leaves, or its machine is lost with everything in it; the memory of answers is not."""
        member = data.draw(st.sampled_from(self.members))
        if politely:
            self.wire.send(member, SERVER, self.wire.clients[member].leave())
        else:
            self.memories[member].close_session()
            self.wire.restart_client(member, self.new_machines()[1][member])

    @precondition(lambda self: self.wire.server.state in (_S.MASKING, _S.CONFIRMING, _S.UNMASKING))
    @rule()
    def abandon(self) -> None:
        self.wire.abandon()

    @rule(politely=st.booleans(), calm=st.booleans())
    def new_session(self, politely: bool, calm: bool) -> None:
        """The server ends the session or crashes; the clients join another one."""
        if politely:
            self.wire.end()
            self.wire.run()
        for client in self.wire.clients.values():
            client.leave()
        server, clients = self.new_machines()
        self.wire.restart_server(server)
        for member, client in clients.items():
            self.wire.restart_client(member, client)
        self.asked, self.results = {}, []
        self.round_number += 1
        self.open(calm)

    # --- what always holds ---

    @invariant()
    def totals_are_exact_and_indices_increase(self) -> None:
        news = self.wire.server_events[self.seen_events :]
        self.seen_events += len(news)
        for event in news:
            if isinstance(event, (SumReleased, SumAborted)):
                assert event.sum_index > max(self.results, default=-1)
                self.results.append(event.sum_index)
            if isinstance(event, SumReleased):
                check_total(self.wire, self.truth, self.asked[event.sum_index], event.total)

    @invariant()
    def no_client_can_be_read(self) -> None:
        check_share_log(self.wire)

    @invariant()
    def whoever_failed_has_nothing_left(self) -> None:
        for client in self.wire.clients.values():
            if client.state in (_C.FAILED, _C.ENDED):
                check_erased(client)


def run_world(session: SessionKind, examples: int, steps: int) -> None:
    run_state_machine_as_test(
        type("World", (HostileWorld,), {"kind": session}),
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            derandomize=True,
            database=None,
        ),
    )


def name_of(session: SessionKind) -> str:
    return str(session.trust) + "-ring" * session.ring + "-hybrid" * session.hybrid


EVERY_KIND = pytest.mark.parametrize("session", KINDS_OF_SESSION, ids=name_of)


@EVERY_KIND
def test_a_hostile_world(session: SessionKind) -> None:
    run_world(session, 8, 50)


@pytest.mark.slow
@EVERY_KIND
def test_a_hostile_world_at_length(session: SessionKind) -> None:
    run_world(session, 250, 100)


# --- every move --------------------------------------------------------------------------------------

MESSAGES = (*m.FROM_SERVER, *m.FROM_CLIENT)


CLIENT_CASES = [
    pytest.param(session, state, kind, id=f"{name_of(session)}-{state.value}-{kind.__name__}")
    for session in KINDS_OF_SESSION
    for state in ClientState
    for kind in MESSAGES
    if session.trust is Trust.MALICIOUS or state is not _C.SIGNED
]
SERVER_CASES = [
    pytest.param(session, state, kind, id=f"{name_of(session)}-{state.value}-{kind.__name__}")
    for session in KINDS_OF_SESSION
    for state in ServerState
    for kind in MESSAGES
    if session.trust is Trust.MALICIOUS or state is not _S.CONFIRMING
    if session.hybrid or state is not _S.DEPOSITING
]


def last_of(recorded: Recording, kind: type[m.Message]) -> Any:
    """The last message of this type in a session; some types occur in signed sessions or on rings only."""
    frames = [frame for other in (*recordings(), recorded) for frame in other.frames]
    return [message for frame in frames if isinstance(message := decoded(frame), kind)][-1]


def frame_for(recorded: Recording, state: ClientState, kind: type[m.Message]) -> bytes:
    """A frame of this type that a client in this state has no other reason to refuse than its type."""
    client = recorded.clients[state]
    session = client._context or bytes(32)
    if kind is m.Invitation:
        return recorded.to_client[_C.NEW, m.Invitation]
    if kind is m.Farewell:
        return m.Farewell(client._invited or bytes(32)).encode()
    if kind is m.GroupClosed:
        return m.GroupClosed(session, max(client._last_sum, 0)).encode()
    if (state, kind) in recorded.to_client:
        return recorded.to_client[state, kind]
    if state is _C.ADVERTISED and kind in (m.KeyList, m.Neighbours) and recorded.trust is Trust.CURIOUS:
        # Both sessions of this trust level have the same invitation: their keys fit a client of either.
        other = recorded.kind._replace(ring=not recorded.kind.ring)
        return recording(other).to_client[state, kind]
    # Of several queries the last one is news to a client that was asked the first.
    frame: bytes = replace(last_of(recorded, kind), context=session).encode()
    return frame


@pytest.mark.parametrize(("session", "state", "kind"), CLIENT_CASES)
def test_a_client_accepts_exactly_the_moves_in_the_table(
    session: SessionKind, state: ClientState, kind: type[m.Message]
) -> None:
    recorded = recording(session)
    client = insecure_copy(recorded.clients[state])
    frame = frame_for(recorded, state, kind)
    wanted = CLIENT_MOVES[recorded.trust].get((state, kind))
    if wanted is not None:
        client.receive(frame)
        assert client.state is wanted
        return
    with pytest.raises(OutOfOrder, match=state.value):
        client.receive(frame)
    check_failed_for_good(client, recorded)


def check_failed_for_good(client: ClientMachine, recorded: Recording) -> None:
    assert client.state is _C.FAILED
    check_erased(client)
    for frame in recorded.frames:
        with pytest.raises(PeerError):
            client.receive(frame)
        assert client.state is _C.FAILED
    with pytest.raises(StateError):
        client.answer(0, {"x": np.ones(SIZE, np.uint32)})
    with pytest.raises(StateError):
        client.decline(0)
    assert isinstance(decoded(client.leave()), m.Leave)
    assert client.state is _C.FAILED


SET_UP_KINDS = (m.Advertisement, m.Shares, m.Deposit)
INPUT_KINDS = (m.MaskedInput, m.Decline)
BEFORE: dict[ServerState, tuple[type[m.Message], ...]] = {  # what is late in which stage
    _S.INVITING: (),
    _S.SHARING: (m.Advertisement,),
    _S.DEPOSITING: (m.Advertisement, m.Shares),
    _S.READY: (*SET_UP_KINDS, *INPUT_KINDS, m.Confirmation, m.Reveal),
    _S.MASKING: SET_UP_KINDS,
    _S.CONFIRMING: (*SET_UP_KINDS, *INPUT_KINDS),
    _S.UNMASKING: (*SET_UP_KINDS, *INPUT_KINDS, m.Confirmation),
    _S.ENDED: (*SET_UP_KINDS, *INPUT_KINDS, m.Confirmation, m.Reveal, m.Lost),
    _S.FAILED: (*SET_UP_KINDS, m.Lost),
}


def message_for(recorded: Recording, state: ServerState, kind: type[m.Message]) -> tuple[int, bytes]:
    """A frame of this type from somebody who has not answered, as it would be in this stage and sum."""
    server = recorded.servers[state]
    if (state, kind) in recorded.to_server:
        return recorded.to_server[state, kind]
    message = last_of(recorded, kind)
    changes: dict[str, Any] = {"context": server._context}
    if kind is m.Advertisement:
        changes["context"] = server._invited
    if kind is m.Invitation:
        changes["context"] = b""
    if hasattr(message, "sum_index"):
        changes["sum_index"] = max(server._agenda.next_sum - 1, 0)
    return TARGET, replace(message, **changes).encode()


def verdict_on(kind: type[m.Message], state: ServerState) -> type[PeerError]:
    if kind is m.Invitation:
        return WrongSession  # it is the one message without a session
    return Departed if kind is m.Leave else OutOfOrder


@pytest.mark.parametrize(("session", "state", "kind"), SERVER_CASES)
def test_a_server_takes_what_its_stage_collects_and_ignores_or_excludes_the_rest(
    session: SessionKind, state: ServerState, kind: type[m.Message]
) -> None:
    recorded = recording(session)
    server = insecure_copy(recorded.servers[state])
    sender, frame = message_for(recorded, state, kind)
    events = [event for event in server.receive(sender, frame) if isinstance(event, (Excluded, Late))]
    assert server.state is state
    if COLLECTED.get(state) is kind or (state, kind) in ((_S.MASKING, m.Decline), (_S.DEPOSITING, m.Lost)):
        assert events == []
    elif kind in BEFORE[state]:
        assert events == [Late(sender)]
    else:
        (event,) = events
        assert isinstance(event, Excluded)
        assert type(event.error) is verdict_on(kind, state)
        assert server.receive(sender, frame) == ()


@EVERY_KIND
def test_a_report_of_bad_shares_is_taken_until_the_reporter_says_what_it_holds(session: SessionKind) -> None:
    """By its first input or, with hybrid keys, its deposit."""
    recorded = recording(session)
    server = insecure_copy(recorded.servers[_S.DEPOSITING] if session.hybrid else recorded.opened[0])
    frame = [each for each in recorded.frames if isinstance(decoded(each), m.Lost)][-1]
    assert server.receive(TARGET, frame) == ()
    for late in (server, insecure_copy(recorded.servers[_S.READY])):
        (excluded, *_) = late.receive(TARGET, frame)
        assert isinstance(excluded, Excluded)
        assert (excluded.peer, type(excluded.error)) == (TARGET, OutOfOrder)
        assert late.receive(TARGET, frame) == ()
