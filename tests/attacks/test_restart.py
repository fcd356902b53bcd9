"""A server that restarts in the midst of a session: the session fails cleanly, and nobody reveals more."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest

from secagg.errors import GroupReopened, OutOfOrder, StateError, WrongSession
from secagg.events import Asked, Excluded, Outgoing, ServerEvent, SumReleased
from secagg.server import ServerMachine
from secagg.session_params import SessionParams
from secagg.transitions import ServerState
from secagg.trust_levels import Trust
from tests.attacks.guards import BOTH, assert_refused
from tests.attacks.rig import KIND, PART, Rig

EVERYONE = range(4)


class Deployment:
    """Clients with identities and memories that outlive machines, and servers that do not."""

    def __init__(self, trust: Trust) -> None:
        self.rig = Rig(4, trust, sums=3)
        self.clients = self.rig.machines
        self.server = self.new_server()

    def new_server(self) -> ServerMachine:
        return ServerMachine(
            table=self.rig.table,
            params=SessionParams(
                trust=self.rig.trust,
                sums=3,
                corrupt=0,
                dropout=0.25,
                min_cohort=2,
                max_cohort=8,
                min_contributors=2,
            ),
            registry=self.rig.registry,
        )

    def send(self, outgoing: Iterable[Outgoing]) -> dict[int, tuple[bytes, ...]]:
        """Hand frames to clients; what they want to send back, answers included."""
        replies: dict[int, tuple[bytes, ...]] = {}
        for packet in outgoing:
            for member in packet.receivers:
                step = self.clients[member].receive(packet.frame)
                replies[member] = step.frames + tuple(
                    self.clients[member].answer(event.sum_index, {PART: self.rig.vectors[member]}).frame
                    for event in step.events
                    if isinstance(event, Asked)
                )
        return replies

    def collect(self, replies: dict[int, tuple[bytes, ...]]) -> None:
        for member, frames in replies.items():
            for frame in frames:
                self.server.receive(member, frame)

    def open(self) -> None:
        self.collect(self.send([Outgoing(tuple(EVERYONE), self.server.invitation)]))
        for _ in range(2):
            self.collect(self.send(self.server.close_stage().outgoing))

    def start_again(self) -> None:
        """New machines on both sides; only the clients' memories are left of the old session."""
        self.rig.restart(seed=b"again")
        self.server = self.new_server()
        self.open()

    def ask(self, **query: Any) -> dict[int, tuple[bytes, ...]]:
        return self.send(self.server.ask(KIND, **query).outgoing)


@pytest.mark.parametrize("trust", BOTH)
@pytest.mark.parametrize("told", [False, True], ids=["masked", "told the survivors"])
def test_old_frames_mean_nothing_to_a_new_server(trust: Trust, told: bool) -> None:
    world = Deployment(trust)
    world.open()
    old = world.ask(payload=b"model", round_number=0)
    if told:
        world.collect(old)
        old = world.send(world.server.close_stage().outgoing)
    world.server = world.new_server()
    for member, (frame,) in old.items():
        events = world.server.receive(member, frame)
        assert [type(event) for event in events] == [Excluded]
        (excluded,) = events
        assert isinstance(excluded, Excluded)
        assert type(excluded.error) is WrongSession
    with pytest.raises(StateError):
        world.server.ask(KIND, b"model", round_number=0)
    assert world.server.state is ServerState.INVITING


@pytest.mark.parametrize("trust", BOTH)
@pytest.mark.parametrize("told", [False, True], ids=["masked", "told the survivors"])
def test_old_clients_reveal_nothing_to_a_new_server(trust: Trust, told: bool) -> None:
    world = Deployment(trust)
    world.open()
    replies = world.ask(payload=b"model", round_number=0)
    if told:
        world.collect(replies)
        world.send(world.server.close_stage().outgoing)
    new = world.new_server()
    for client in world.clients.values():
        with pytest.raises(OutOfOrder):
            client.receive(new.invitation)
        assert_refused(client)


@pytest.mark.parametrize("trust", BOTH)
def test_another_sessions_messages_fail_an_old_client(trust: Trust) -> None:
    """A server that takes up a new session with the others cannot go on with a client of the old one."""
    world, other = Deployment(trust), Deployment(trust)
    world.open()
    other.open()
    (packet,) = other.server.ask(KIND, b"model", round_number=0).outgoing
    with pytest.raises(WrongSession):
        world.clients[0].receive(packet.frame)
    assert_refused(world.clients[0])


@pytest.mark.parametrize("trust", BOTH)
def test_clients_and_server_start_again(trust: Trust) -> None:
    world = Deployment(trust)
    world.open()
    world.ask(payload=b"model", round_number=0)
    world.start_again()
    world.collect(world.ask(payload=b"next model", round_number=1))
    events: list[ServerEvent] = []
    while world.server.state is not ServerState.READY:
        step = world.server.close_stage()
        world.collect(world.send(step.outgoing))
        events += step.events
    (released,) = (event for event in events if isinstance(event, SumReleased))
    expected = np.sum(list(world.rig.vectors.values()), axis=0, dtype=np.uint32)
    assert (released.total[PART] == expected).all()


@pytest.mark.parametrize("trust", BOTH)
def test_a_lost_sum_is_not_retried(trust: Trust) -> None:
    """The server forgot that it asked, but its clients know: their inputs are with somebody already."""
    world = Deployment(trust)
    world.open()
    world.ask(payload=b"model", round_number=0)
    world.start_again()
    with pytest.raises(GroupReopened):
        world.ask(payload=b"model", round_number=0)
    assert_refused(world.clients[0])
