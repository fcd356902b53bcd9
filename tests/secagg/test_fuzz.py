"""Hostile frames, by the thousand, to both machines in every state.

No exception but the typed ones, none at all out of a server; whatever is accepted has one encoding only, and
a general MessagePack decoder reads the same from it; memory stays within four times the frame limit.
"""

from __future__ import annotations

import random
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from itertools import cycle, islice
from typing import TypeAlias

import msgpack
import numpy as np
import pytest

from secagg import messages as m
from secagg.client import ClientMachine
from secagg.cohort import invitation_digest
from secagg.errors import BadRoster, PeerError
from secagg.events import Asked, Excluded, Late, SatOut
from secagg.hashing import VERSION
from secagg.records import Advert
from secagg.server import ServerMachine
from secagg.spec import Part, Residue, SumSpec, Table
from secagg.testing.mutations import Chooser, Mutator, bombs, random_frame
from secagg.testing.snapshots import insecure_copy
from secagg.testing.wire import Wire
from secagg.thresholds import Trust
from secagg.transitions import CLIENT_MOVES, COLLECTED, ClientState, ServerState
from tests.secagg.states import MEMBERS, TABLE, Recording, recording
from tests.secagg.truth import decoded, seeded_machines

MEMORY = 4  # times the frame limit
QUICK, FULL = 10_000, 500_000
AMOUNTS = [pytest.param(QUICK, id="quick"), pytest.param(FULL, id="full", marks=pytest.mark.slow)]
Make: TypeAlias = Callable[[bytes, Chooser], bytes]

# --- what must hold ----------------------------------------------------------------------------------


@contextmanager
def bounded_memory(limit: int) -> Iterator[None]:
    """The body allocates at most `MEMORY` times `limit` at any moment."""
    tracemalloc.start(1)
    try:
        yield
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak <= MEMORY * limit


def check_codec(frame: bytes) -> m.Message | None:
    """What decodes has exactly one encoding, and means the same to msgpack."""
    message = decoded(frame)
    if message is not None:
        values = [getattr(message, column.name) for column in fields(message)]
        assert message.encode() == frame
        assert m.decode(message.encode(), sender="server", limit=len(frame)) == message
        assert msgpack.unpackb(frame) == [VERSION, message.TYPE, *values]
    return message


def try_client(base: ClientMachine, trust: Trust, frame: bytes) -> str:
    """Feed one frame to a copy of a client; what became of it."""
    client = insecure_copy(base)
    try:
        with bounded_memory(client.frame_limit):
            step = client.receive(frame)
    except PeerError as error:
        check_failed(client)
        return type(error).__name__
    message = check_codec(frame)
    assert message is not None
    sat_out = any(isinstance(event, SatOut) for event in step.events)
    wanted = ClientState.READY if sat_out else CLIENT_MOVES[trust][base.state, type(message)]
    assert client.state is wanted
    for event in step.events:
        if isinstance(event, Asked):
            client.answer(event.sum_index, {"x": np.ones(5, np.uint32)})
    return "accepted"


def check_failed(client: ClientMachine) -> None:
    assert client.state is ClientState.FAILED
    vault = client._vault
    assert [vault._channel, vault._mask_keys, vault._self_masks, vault._held] == [b"", {}, {}, {}]


def try_server(base: ServerMachine, sender: int, frame: bytes) -> str:
    """Feed one frame to a copy of a server, then close its stage; what became of the frame."""
    server = insecure_copy(base)
    with bounded_memory(server.frame_limit):
        events = server.receive(sender, frame)
    assert server.state is base.state
    if any(isinstance(event, Late) for event in events):
        return "late"
    excluded = [event for event in events if isinstance(event, Excluded)]
    if excluded:
        for event in excluded:
            assert server.receive(event.peer, frame) == ()
            assert event.peer not in server.members
        return type(excluded[0].error).__name__
    message = check_codec(frame)
    if not isinstance(message, m.Lost):
        assert isinstance(message, (m.Decline, COLLECTED[base.state]))
        server.close_stage()
    return "accepted"


# --- the fuzzers -------------------------------------------------------------------------------------


def honest_frame(recorded: Recording, state: ClientState | ServerState, choose: Chooser) -> bytes:
    """Every other time a frame that would be accepted in this state, else any."""
    if choose(2):
        fitting = [frame for (at, _), frame in recorded.to_client.items() if at is state]
        fitting += [frame for (at, _), (_, frame) in recorded.to_server.items() if at is state]
        if fitting:
            return fitting[choose(len(fitting))]
    return recorded.frames[choose(len(recorded.frames))]


def fuzz(amount: int, make: Make, seed: int) -> Counter[tuple[str, str]]:
    """`amount` frames by `make`, to all states in turn; (state, outcome) -> how often."""
    choose = random.Random(seed).randrange
    seen: Counter[tuple[str, str]] = Counter()
    targets: list[tuple[Recording, ClientMachine | ServerMachine]] = []
    for recorded in (recording(trust) for trust in Trust):
        targets += [(recorded, client) for client in recorded.clients.values()]
        targets += [(recorded, server) for server in (*recorded.servers.values(), *recorded.deserted)]
    for recorded, machine in islice(cycle(targets), amount):
        frame = make(honest_frame(recorded, machine.state, choose), choose)
        check_codec(frame)
        if isinstance(machine, ClientMachine):
            outcome = try_client(machine, recorded.trust, frame)
        else:
            outcome = try_server(machine, MEMBERS[choose(len(MEMBERS))], frame)
        seen[str(machine.state), outcome] += 1
    return seen


@pytest.mark.parametrize("amount", AMOUNTS)
def test_mutated_frames_in_every_state(amount: int) -> None:
    ours, theirs = recording(Trust.MALICIOUS), recording(Trust.MALICIOUS, b"another session")
    mutate = Mutator(form=ours.form, limit=ours.limit, others=ours.frames + theirs.frames)
    seen = fuzz(amount, mutate, seed=1)
    assert seen.total() == amount
    # The mutations are worth something only if many of them get past the decoder.
    outcomes = Counter[str]()
    for (_, outcome), count in seen.items():
        outcomes[outcome] += count
    assert outcomes["accepted"] > amount // 100
    assert len(outcomes) >= 20
    assert outcomes["MalformedMessage"] < amount * 0.8


@pytest.mark.parametrize("amount", AMOUNTS)
def test_random_frames_in_every_state(amount: int) -> None:
    limit = recording(Trust.MALICIOUS).limit
    seen = fuzz(amount, lambda _, choose: random_frame(choose, limit=limit), seed=2)
    assert seen.total() == amount
    assert not any(outcome == "accepted" for _, outcome in seen)


@pytest.mark.parametrize("trust", list(Trust))
def test_bombs_in_every_state(trust: Trust) -> None:
    recorded = recording(trust)
    for frame in bombs(recorded.limit):
        for client in recorded.clients.values():
            assert try_client(client, trust, frame) != "accepted"
        for server in (*recorded.servers.values(), *recorded.deserted):
            assert try_server(server, MEMBERS[0], frame) != "accepted"


@pytest.mark.parametrize("trust", list(Trust))
def test_honest_frames_in_wrong_states(trust: Trust) -> None:
    """Every frame of a session, in every state and from every sender."""
    recorded = recording(trust)
    for frame in recorded.frames:
        for client in recorded.clients.values():
            try_client(client, trust, frame)
        for server in (*recorded.servers.values(), *recorded.deserted):
            for sender in MEMBERS:
                try_server(server, sender, frame)


@pytest.mark.parametrize("trust", list(Trust))
def test_honest_frames_of_another_session_are_never_accepted(trust: Trust) -> None:
    recorded = recording(trust)
    for frame in recording(trust, b"another session").frames:
        message = decoded(frame)
        for state, client in recorded.clients.items():
            outcome = try_client(client, trust, frame)
            if isinstance(message, m.Invitation) and state is ClientState.NEW:
                assert outcome == "accepted"
            else:
                assert outcome in ("WrongSession", "OutOfOrder")
        for server in (*recorded.servers.values(), *recorded.deserted):
            wanted = "Departed" if isinstance(message, m.Leave) else "WrongSession"
            assert {try_server(server, sender, frame) for sender in MEMBERS} == {wanted}


# --- the largest frames that are well-formed ---------------------------------------------------------


@pytest.mark.parametrize("bits", [1, 2, 3, 7, 8, 20, 33, 64])
def test_a_masked_input_of_full_size_is_added_within_the_memory_bound(bits: int) -> None:
    size = 1 << 20
    table = Table({"sum": SumSpec(parts=(Part(name="x", size=size, bits=bits, bound=Residue()),))})
    server, clients = seeded_machines(members=(1, 2), table=table, trust=Trust.CURIOUS, dropout=0)
    wire = Wire(server, clients, lambda _member, _asked: {"x": np.ones(size, np.uint8)})
    wire.open()
    wire.begin("sum", b"", round_number=0)
    for packet in wire.waiting[:2]:
        wire.deliver(packet)
    frame = wire.waiting[-1].frame
    with bounded_memory(server.frame_limit):
        assert not any(isinstance(event, Excluded) for event in server.receive(2, frame))


def test_a_key_list_of_full_size_is_refused_within_the_memory_bound() -> None:
    """As many strangers as the policy allows, all of it well-formed, but we are not among them."""
    sums, cohort = 16, 128
    _, clients = seeded_machines(
        members=(0, 1),
        table=TABLE,
        trust=Trust.CURIOUS,
        sums=sums,
        max_cohort=cohort,
        max_query_bytes=0,
    )
    client, noise = clients[0], random.Random(1).randbytes
    invitation = m.Invitation(b"", str(Trust.CURIOUS), sums, TABLE.digest, b"", bytes(32))
    client.receive(invitation.encode())
    adverts = [
        Advert(member, noise(32), cut(noise(32 * sums)), cut(noise(32 * sums))) for member in range(1, cohort)
    ]
    blob = b"".join(advert.encode() for advert in adverts)
    frame = m.KeyList(invitation_digest(invitation.encode()), cohort // 2 + 1, blob).encode()
    assert len(frame) > 0.9 * client.frame_limit
    with bounded_memory(client.frame_limit), pytest.raises(BadRoster):
        client.receive(frame)


def cut(blob: bytes) -> tuple[bytes, ...]:
    return tuple(blob[start : start + 32] for start in range(0, len(blob), 32))
