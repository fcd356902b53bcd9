"""The coordinator and the client runtime, connected by nothing but queues of bytes."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from queue import SimpleQueue
from threading import Thread
from types import FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import pytest

from protocols.algorithm import AnyAlgorithm
from protocols.fedavg import FedAvg
from protocols.participant import Participant
from protocols.quadratic_learner import QuadraticLearner
from protocols.query_encoding import query_content
from protocols.rounds import RoundInfo
from protocols.run import Run
from protocols.scaffold import Scaffold
from secagg import Identity, Policy, Registry, ServerMachine, Trust
from secagg.client import ClientMachine
from secagg.client_memory import VolatileMemory
from secagg.events import Abandoned, Asked, Confirmed, Joined, Outgoing, ServerEvent, SumReleased
from secagg.local_session import Stage
from secagg.sum_spec import Total
from secagg.transitions import ServerState
from sims.coordination.client_runtime import ClientRuntime, RunOutcome
from sims.coordination.coordinator import Coordinator
from sims.coordination.sum_settings import SumSettings
from sims.coordination.transport import SessionGraph, SessionPlan, SumStats
from sims.runtime import SessionChannel, Setting, insecure_plain_sum, secure_sum
from sims.runtime.insecure_seed_hooks import client_hooks
from sims.runtime.session_channel import SimulatedSessionPlan

DIM, MEMBERS, SEED = 3, (0, 1, 2, 3, 4), b"bytes"
SUMS = 20
END = b""
ALGORITHMS: list[AnyAlgorithm] = [
    FedAvg(dim=DIM, clients=len(MEMBERS), clip=10.0),
    Scaffold(dim=DIM, clients=len(MEMBERS), clip=10.0, rate=0.1, steps=5),
]


class ByteQueue(SimpleQueue[bytes]):
    """Carries bytes, and fails for anything else."""

    def put(self, item: bytes, *_: Any, **__: Any) -> None:
        assert type(item) is bytes
        super().put(item)

    def take(self) -> bytes:
        return self.get(timeout=60)


# --- the clients' side: everything a client owns is made in its thread -----------------------------------


def learner(member: int) -> QuadraticLearner:
    return QuadraticLearner(np.random.default_rng(member).normal(size=DIM))


def identity(member: int) -> Identity:
    return Identity.from_secret(bytes([member + 1]) * 32)


REGISTRY = Registry(0, {member: identity(member).public for member in MEMBERS})


def client_machine(algorithm: AnyAlgorithm, trust: Trust, member: int) -> ClientMachine:
    assert algorithm.table is not None
    signed = trust is Trust.MALICIOUS
    return ClientMachine(
        member=member,
        table=algorithm.table,
        policy=Policy(
            trust=trust,
            corrupt=0,
            min_cohort=2,
            max_cohort=len(MEMBERS),
            min_contributors=2,
            max_sums=SUMS,
            unnoised_sums=SUMS,
        ),
        memory=VolatileMemory(),
        identity=identity(member) if signed else None,
        registry=REGISTRY if signed else None,
        content_of=query_content,
        hooks=client_hooks(member, seed=SEED, number=0, tamper=None),
    )


def run_client(algorithm: AnyAlgorithm, trust: Trust, member: int, down: ByteQueue, up: ByteQueue) -> None:
    machine = client_machine(algorithm, trust, member)
    runtime = ClientRuntime(Participant(algorithm, learner(member), trust=trust, member=member))
    while frame := down.take():
        step = machine.receive(frame)
        for reply in step.frames:
            up.put(reply)
        for event in step.events:
            runtime.on_event(event)
            if isinstance(event, Asked):
                values = runtime.answer(event)
                assert values is not None
                up.put(machine.answer(event.sum_index, values).frame)


# --- the server's side: it has the queues, and no other object of a client --------------------------------


class ByteSession:
    """The least session that a coordinator needs: all clients answer every frame with one of their own."""

    is_plain = False
    graph: SessionGraph | None = None

    def __init__(self, machine: ServerMachine, plan: SessionPlan, queues: Queues) -> None:
        self._machine = machine
        self._members = plan.members
        self._queues = queues
        self.stats = SumStats()
        self.contributors: tuple[int, ...] = ()
        self.informed: set[int] = set()
        self.bytes_up: Counter[Stage] = Counter()
        self.bytes_down: Counter[Stage] = Counter()
        self.frames_up: Counter[Stage] = Counter()
        self.frames_down: Counter[Stage] = Counter()

    def open(self) -> None:
        self._send((Outgoing(self._members, self._machine.invitation),))
        self._receive(self._members)
        self._send(self._machine.close_stage().outgoing)
        self._finish_stages()

    def ask(self, kind: str, payload: bytes = b"", *, round_number: int = 0) -> Total:
        self._send(self._machine.ask(kind, payload, round_number=round_number).outgoing)
        released = next(each for each in self._finish_stages() if isinstance(each, SumReleased))
        self.contributors, self.informed = released.contributors, set(released.contributors)
        return released.total

    def end(self) -> None:
        pass

    def _finish_stages(self) -> list[ServerEvent]:
        events: list[ServerEvent] = []
        while self._machine.state is not ServerState.READY:
            self._receive(self._machine.waiting_for)
            step = self._machine.close_stage()
            self._send(step.outgoing)
            events += step.events
        return events

    def _send(self, outgoing: tuple[Outgoing, ...]) -> None:
        for packet in outgoing:
            for member in packet.receivers:
                self._queues[member][0].put(packet.frame)

    def _receive(self, members: tuple[int, ...]) -> None:
        for member in members:
            self._machine.receive(member, self._queues[member][1].take())


Queues = dict[int, tuple[ByteQueue, ByteQueue]]  # down and up, by client


class ByteTransport:
    needs_new_session = False

    def __init__(self, queues: Queues) -> None:
        self._queues = queues

    def clients(self) -> tuple[int, ...]:
        return tuple(self._queues)

    def session(self, plan: SessionPlan) -> ByteSession:
        machine = ServerMachine(
            table=plan.table,
            params=replace(plan.settings.params, max_cohort=len(plan.members)),
            registry=REGISTRY if plan.settings.params.trust is Trust.MALICIOUS else None,
            history=plan.history,
            content_of=query_content,
        )
        return ByteSession(machine, plan, self._queues)

    def announce(self, _round_info: RoundInfo) -> None:
        pass


@contextmanager
def remote_clients(algorithm: AnyAlgorithm, trust: Trust) -> Iterator[ByteTransport]:
    queues = {member: (ByteQueue(), ByteQueue()) for member in MEMBERS}
    threads = [
        Thread(target=run_client, args=(algorithm, trust, member, *pair), daemon=True)
        for member, pair in queues.items()
    ]
    for thread in threads:
        thread.start()
    try:
        yield ByteTransport(queues)
    finally:
        for down, _ in queues.values():
            down.put(END)
        for thread in threads:
            thread.join()


def rounds(algorithm: AnyAlgorithm, channel: Any) -> list[float]:
    run: Run[Any] = Run(algorithm, channel, algorithm.start(np.zeros(DIM)))
    assert all(run.round().completed for _ in range(4))
    return [float(each) for each in run.model]


@pytest.mark.parametrize("trust", list(Trust))
@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=["fedavg", "scaffold"])
def test_queues_of_bytes_are_transport_enough(algorithm: AnyAlgorithm, trust: Trust) -> None:
    """The model is that of a simulation, to the last bit, even if clients keep control variates."""
    with remote_clients(algorithm, trust) as transport:
        model = rounds(algorithm, Coordinator(algorithm, transport, SumSettings(trust=trust, sums=SUMS)))

    simulated = secure_sum(
        algorithm, {k: learner(k) for k in MEMBERS}, Setting(trust=trust, insecure_seed=SEED)
    )
    assert model == rounds(algorithm, simulated)


def reachable(start: object) -> Iterator[object]:
    """Objects that ``start`` holds, directly or not, apart from code."""
    seen, waiting = {id(start)}, [start]
    while waiting:
        found = waiting.pop()
        yield found
        for each in gc.get_referents(found):
            if id(each) not in seen and not isinstance(each, type | ModuleType | FunctionType | MethodType):
                seen.add(id(each))
                waiting.append(each)


def test_a_coordinator_holds_nothing_of_a_client() -> None:
    algorithm, owned = ALGORITHMS[1], (Participant, ClientRuntime, ClientMachine, QuadraticLearner)
    with remote_clients(algorithm, Trust.CURIOUS) as transport:
        coordinator = Coordinator(algorithm, transport, SumSettings(sums=SUMS))
        rounds(algorithm, coordinator)
        held = list(reachable(coordinator))

    assert any(isinstance(each, ServerMachine) for each in held)
    assert not [each for each in held if isinstance(each, owned)]


def test_a_simulated_server_does_not_know_how_clients_behave() -> None:
    """Its settings are those of any server, without tampering, drop-outs and seeds."""
    plans: list[SimulatedSessionPlan] = []

    def make(plan: SimulatedSessionPlan) -> Any:
        plans.append(plan)
        raise ZeroDivisionError

    setting = Setting(corrupt=1, insecure_seed=SEED)
    channel = SessionChannel(ALGORITHMS[0], {k: learner(k) for k in MEMBERS}, setting, make)
    with pytest.raises(ZeroDivisionError):
        channel.begin(RoundInfo())

    assert type(plans[0].settings) is SumSettings
    assert plans[0].settings.params == setting.params
    assert plans[0].settings.barred is setting.barred


# --- one client's side -------------------------------------------------------------------------------


class Kept:
    """A store in memory."""

    def __init__(self) -> None:
        self.states: list[bytes] = []

    def load(self) -> bytes | None:
        return self.states[-1] if self.states else None

    def save(self, state: bytes) -> None:
        self.states.append(state)


class Recording(Participant):
    """A participant that records what its runtime reports of its answers."""

    def __init__(self) -> None:
        super().__init__(ALGORITHMS[0], learner(0), trust=Trust.CURIOUS)
        self.reported: list[str] = []

    def answer(self, kind: str, payload: bytes, *, round_number: int, invited: int) -> Any:
        return {}

    def confirmed(self) -> None:
        self.reported.append("confirmed")

    def abandoned(self) -> None:
        self.reported.append("abandoned")


def asked(sum_index: int) -> Asked:
    assert ALGORITHMS[0].table is not None
    return Asked(sum_index, 0, "update", b"", ALGORITHMS[0].table["update"], len(MEMBERS))


Act = Callable[[ClientRuntime], object]
ASKED = asked(2)


@pytest.mark.parametrize(
    ("acts", "reported"),
    [
        ([lambda it: it.answer(asked(2)), lambda it: it.on_event(Abandoned(2))], ["abandoned"]),
        ([lambda it: it.answer(asked(2)), lambda it: it.on_event(Confirmed(2, 5))], ["confirmed"]),
        ([lambda it: it.answer(asked(2)), lambda it: it.on_event(Abandoned(1))], []),
        ([lambda it: it.answer(ASKED), lambda it: it.too_late(ASKED)], ["abandoned"]),
        ([lambda it: it.answer(ASKED), lambda it: it.too_late(asked(2))], []),  # another session's question
        # The sums of the next session are counted from 0 again.
        (
            [
                lambda it: it.answer(asked(0)),
                lambda it: it.on_event(Joined(b"", 5, 3)),
                lambda it: it.on_event(Abandoned(0)),
            ],
            [],
        ),
    ],
)
def test_a_runtime_tells_its_participant_what_became_of_its_answer(
    acts: list[Act], reported: list[str]
) -> None:
    participant = Recording()
    runtime = ClientRuntime(participant)
    for act in acts:
        act(runtime)

    assert participant.reported == reported


def test_with_a_store_the_state_is_kept_before_an_answer_leaves_and_after_a_round() -> None:
    store = Kept()
    runtime = ClientRuntime(Recording(), store)
    assert store.states == []

    runtime.answer(asked(0))
    assert len(store.states) == 1

    runtime.finish(RunOutcome(RoundInfo().next(completed=True), np.zeros(DIM)))
    assert len(store.states) == 2


class Listening(ClientRuntime):
    """A runtime that records the events that it is told."""

    def __init__(self, participant: Participant) -> None:
        super().__init__(participant)
        self.events: list[type] = []

    def on_event(self, event: object) -> None:
        if not isinstance(event, Asked):
            self.events.append(type(event))
        super().on_event(event)


def test_clients_are_told_the_same_in_plain_and_secure_sums() -> None:
    told = []
    for make in (insecure_plain_sum, secure_sum):
        channel = make(ALGORITHMS[0], {k: learner(k) for k in MEMBERS}, Setting(each_round=True))
        listening = channel.runtimes[0] = Listening(channel.participants[0])
        rounds(ALGORITHMS[0], channel)
        told.append(listening.events)

    assert told[0] == told[1] == [Joined, Confirmed] * 4
