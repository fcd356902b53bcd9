"""Hostile frames, by the thousand, to both machines in every state.

No exception but the typed ones, none at all out of a server; whatever is accepted has one encoding only, and
a general MessagePack decoder reads the same from it; memory stays within four times the frame limit.
"""

from __future__ import annotations

import random
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from itertools import cycle, islice
from typing import TypeAlias

import msgpack
import numpy as np
import pytest

from secagg import messages as m
from secagg.client import ClientMachine
from secagg.cohort_members import invitation_digest
from secagg.errors import BadRoster, PeerError
from secagg.events import Asked, Excluded, Late, SatOut
from secagg.hashing import VERSION
from secagg.message_records import Advert, encode_ids, encode_neighbours
from secagg.server import ServerMachine
from secagg.sum_spec import Part, Residue, SumSpec, Table
from secagg.testing.faulty_wire import Wire
from secagg.transitions import CLIENT_MOVES, COLLECTED, ClientState, ServerState
from secagg.trust_levels import Trust
from tests.secagg.frame_mutations import Chooser, Mutator, bombs, random_frame
from tests.secagg.snapshots import insecure_copy
from tests.secagg.states import (
    KINDS_OF_SESSION,
    MEMBERS,
    SIZE,
    TABLE,
    TARGET,
    Recording,
    SessionKind,
    recording,
    recordings,
)
from tests.secagg.truth import decoded, seeded_machines

MEMORY = 4  # times the frame limit
QUICK, FULL = 4_000, 500_000
AMOUNTS = [pytest.param(QUICK, id="quick"), pytest.param(FULL, id="full", marks=pytest.mark.slow)]
EVERY_KIND = pytest.mark.parametrize("kind", KINDS_OF_SESSION)
Make: TypeAlias = Callable[[bytes, Chooser], bytes]
_C, _S = ClientState, ServerState
RING = SessionKind(Trust.CURIOUS, ring=True)

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
            client.answer(event.sum_index, {"x": np.ones(SIZE, np.uint32)})
    return "accepted"


def check_failed(client: ClientMachine) -> None:
    assert client.state is ClientState.FAILED
    vault = client._vault
    assert [vault._channel, vault._mask_keys, vault._self_masks, vault._held] == [b"", {}, {}, {}]
    assert (vault._kem, vault._pair_secrets, vault._channels) == (None, {}, {})


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


def fuzz(amount: int, make: Mapping[SessionKind, Make], seed: int) -> Counter[tuple[str, str]]:
    """`amount` frames by `make`, to all states in turn; (state, outcome) -> how often."""
    choose = random.Random(seed).randrange
    seen: Counter[tuple[str, str]] = Counter()
    targets: list[tuple[Recording, ClientMachine | ServerMachine]] = []
    for recorded in recordings():
        targets += [(recorded, client) for client in recorded.clients.values()]
        targets += [(recorded, server) for server in (*recorded.servers.values(), *recorded.deserted)]
    for recorded, machine in islice(cycle(targets), amount):
        frame = make[recorded.kind](honest_frame(recorded, machine.state, choose), choose)
        check_codec(frame)
        if isinstance(machine, ClientMachine):
            outcome = try_client(machine, recorded.trust, frame)
        else:
            outcome = try_server(machine, recorded.members[choose(len(recorded.members))], frame)
        seen[str(machine.state), outcome] += 1
    return seen


def mutator(kind: SessionKind) -> Mutator:
    """It borrows from all sessions of the trust level, and from another one of each kind."""
    every = (*recordings(), *recordings(b"another session"))
    sessions = [one for one in every if one.trust is kind.trust]
    frames = [frame for one in sessions for frame in one.frames]
    return Mutator(form=recording(kind).form, limit=max(one.limit for one in sessions), others=frames)


@pytest.mark.parametrize("amount", AMOUNTS)
def test_mutated_frames_in_every_state(amount: int) -> None:
    seen = fuzz(amount, {kind: mutator(kind) for kind in KINDS_OF_SESSION}, seed=1)
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
    limit = recording(SessionKind(Trust.MALICIOUS)).limit

    def make(_frame: bytes, choose: Chooser) -> bytes:
        return random_frame(choose, limit=limit)

    seen = fuzz(amount, dict.fromkeys(KINDS_OF_SESSION, make), seed=2)
    assert seen.total() == amount
    assert not any(outcome == "accepted" for _, outcome in seen)


@pytest.mark.parametrize(
    "amount", [pytest.param(3_000, id="quick"), pytest.param(100_000, id="full", marks=pytest.mark.slow)]
)
def test_mutated_neighbours(amount: int) -> None:
    """A client that waits for its neighbours sees little else, and nothing worse happens than a refusal."""
    recorded, mutate = recording(RING), mutator(RING)
    client, frame = recorded.clients[_C.ADVERTISED], recorded.to_client[_C.ADVERTISED, m.Neighbours]
    choose = random.Random(3).randrange
    seen = Counter(try_client(client, Trust.CURIOUS, mutate(frame, choose)) for _ in range(amount))
    assert seen["accepted"] > amount // 100
    refused = {"BadKey", "BadRoster", "HiddenMembers", "LargeCohort", "MalformedMessage"}
    assert refused | {"SmallThreshold", "SmallCohort"} <= set(seen)


@pytest.mark.parametrize(
    ("state", "kind"), [(_S.SHARING, m.Shares), (_S.UNMASKING, m.Reveal), (_S.READY, m.Lost)]
)
def test_mutated_shares_and_reports_of_a_ring(state: ServerState, kind: type[m.Message]) -> None:
    """Their bitmaps and rows are those of a neighbourhood; the stage is closed over what was accepted."""
    recorded, mutate = recording(RING), mutator(RING)
    server = recorded.opened[0] if kind is m.Lost else recorded.servers[state]
    report = TARGET, m.Lost(server._context, b"\x02").encode()
    sender, frame = recorded.to_server.get((state, kind), report)
    choose = random.Random(4).randrange
    seen = Counter(try_server(server, sender, mutate(frame, choose)) for _ in range(700))
    # A report that is believed costs its dealer the place: nobody may be lying here.
    assert seen["accepted"] + seen["UnreadableShares"] + seen["FalseReport"] > 20
    assert seen["MalformedMessage"] > 20


@pytest.mark.parametrize(("state", "sent"), [(_S.DEPOSITING, m.Deposit), (_S.MASKING, m.MaskedInput)])
def test_mutated_deposits_and_hybrid_inputs(state: ServerState, sent: type[m.Message]) -> None:
    """They are signed, so what is not the sender's own is refused, whatever it was made of."""
    kind = SessionKind(Trust.MALICIOUS, hybrid=True)
    recorded, mutate = recording(kind), mutator(kind)
    sender, frame = recorded.to_server[state, sent]
    choose = random.Random(5).randrange
    frames = [each for each in (mutate(frame, choose) for _ in range(700)) if each != frame]
    seen = Counter(try_server(recorded.servers[state], sender, each) for each in frames)
    assert "accepted" not in seen
    assert {"MalformedMessage", "BadSignature", "WrongSession"} <= set(seen)
    assert try_server(recorded.servers[state], sender, frame) == "accepted"


@EVERY_KIND
def test_bombs_in_every_state(kind: SessionKind) -> None:
    recorded = recording(kind)
    for frame in bombs(recorded.limit):
        for client in recorded.clients.values():
            assert try_client(client, kind.trust, frame) != "accepted"
        for server in (*recorded.servers.values(), *recorded.deserted):
            assert try_server(server, MEMBERS[0], frame) != "accepted"


Choose: TypeAlias = Callable[[Sequence[bytes]], Sequence[bytes]]


def few_of_each_kind(frames: Sequence[bytes]) -> list[bytes]:
    """Those of other clients look the same."""
    kinds: dict[type, list[bytes]] = {}
    for frame in frames:
        kinds.setdefault(type(decoded(frame)), []).append(frame)
    return [frame for alike in kinds.values() for frame in alike[:3]]


SOME_OR_ALL = pytest.mark.parametrize(
    "choose",
    [pytest.param(few_of_each_kind, id="few"), pytest.param(list, id="all", marks=pytest.mark.slow)],
)


@SOME_OR_ALL
@EVERY_KIND
def test_honest_frames_in_wrong_states(kind: SessionKind, choose: Choose) -> None:
    """Frames of a session, in every state and from every sender."""
    recorded = recording(kind)
    for frame in choose(recorded.frames):
        for client in recorded.clients.values():
            try_client(client, kind.trust, frame)
        for server in (*recorded.servers.values(), *recorded.deserted):
            for sender in recorded.members:
                try_server(server, sender, frame)


@SOME_OR_ALL
@EVERY_KIND
def test_honest_frames_of_another_session_are_never_accepted(kind: SessionKind, choose: Choose) -> None:
    recorded = recording(kind)
    for frame in choose(recording(kind, b"another session").frames):
        message = decoded(frame)
        for state, client in recorded.clients.items():
            outcome = try_client(client, kind.trust, frame)
            if isinstance(message, m.Invitation) and state is ClientState.NEW:
                assert outcome == "accepted"
            else:
                assert outcome in ("WrongSession", "OutOfOrder")
        for server in (*recorded.servers.values(), *recorded.deserted):
            wanted = "Departed" if isinstance(message, m.Leave) else "WrongSession"
            assert {try_server(server, sender, frame) for sender in recorded.members} == {wanted}


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


@pytest.mark.parametrize("ring", [False, True])
def test_a_list_of_keys_of_full_size_is_refused_within_the_memory_bound(ring: bool) -> None:
    """As many strangers as the policy allows, all of it well-formed, but we are not among them."""
    sums, cohort = 32, 128
    _, clients = seeded_machines(
        members=(0, 1),
        table=TABLE,
        trust=Trust.CURIOUS,
        sums=sums,
        max_cohort=cohort,
        max_query_bytes=0,
    )
    client, noise = clients[0], random.Random(1).randbytes
    invitation = m.Invitation(b"", str(Trust.CURIOUS), "x25519", sums, TABLE.digest, b"", bytes(32))
    client.receive(invitation.encode())
    adverts = [
        Advert(member, noise(32), b"", cut(noise(32 * sums)), cut(noise(32 * sums)))
        for member in range(1, cohort)
    ]
    context, threshold = invitation_digest(invitation.encode()), cohort // 2 + 1
    blob = b"".join(advert.encode() for advert in adverts)
    frame = m.KeyList(context, threshold, blob).encode()
    if ring:
        blob = encode_neighbours(enumerate(adverts))
        ids = encode_ids(range(cohort))
        frame = m.Neighbours(context, cohort, threshold, bytes(32), blob, ids).encode()
    assert len(frame) > 0.9 * client.frame_limit
    with bounded_memory(client.frame_limit), pytest.raises(BadRoster):
        client.receive(frame)


def cut(blob: bytes) -> tuple[bytes, ...]:
    return tuple(blob[start : start + 32] for start in range(0, len(blob), 32))
