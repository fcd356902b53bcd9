"""Sessions for some of those who are connected, and what their owners hear and count."""

from __future__ import annotations

from collections import Counter
from functools import partial

import trio

from secagg.events import Confirmed, SessionOver
from secagg.local_session import Stage
from secagg.net.event_log import EventLog
from secagg.net.events import NetworkEvent
from tests.secagg.net.rig import Network, World, on_network


def test_who_is_not_chosen_stays_connected_and_is_asked_for_nothing() -> None:
    world = World(clients=5)

    async def main(network: Network) -> None:
        async with world.server() as server, world.all_clients():
            await server.wait_for_clients(5)
            for chosen in ((0, 1, 3), (1, 2, 4)):
                async with world.session(server, expected=3, members=chosen) as session:
                    assert session.members == chosen
                    world.check(await world.ask(session), session, *chosen)
            async with world.session(server) as session:
                world.check(await world.ask(session), session, 0, 1, 2, 3, 4)
        assert len(network.lines) == 5  # one connection each, for all of it

    on_network(main)
    assert [len(world.diaries[member].facts("asked")) for member in range(5)] == [2, 3, 2, 2, 2]


def test_a_client_s_owner_hears_that_it_is_in_a_sum_and_that_the_session_is_over() -> None:
    world = World()
    seen: list[NetworkEvent] = []

    log = EventLog(world.diaries[2])

    def on_event(event: NetworkEvent) -> None:
        seen.append(event)
        log(event)

    async def main(_network: Network) -> None:
        async with world.server() as server, trio.open_nursery() as nursery:
            for member in range(4):
                more = {"on_event": on_event} if member == 2 else {}
                nursery.start_soon(partial(world.answering, member, **more))
            async with world.session(server) as session:
                await world.ask(session)
            await world.diaries[2].has("session over")
            nursery.cancel_scope.cancel()

    on_network(main)
    assert Confirmed(0, 4) in seen
    assert SessionOver() in seen


def test_frames_are_counted_beside_their_bytes() -> None:
    world = World()
    counts: list[Counter[Stage]] = []

    async def main(_network: Network) -> None:
        async with world.server() as server, world.all_clients():
            async with world.session(server) as session:
                assert server.live is session
                await world.ask(session)
                await world.ask(session)
            counts.extend((session.frames_up, session.frames_down))

    on_network(main)
    up, down = counts
    assert up == {Stage.ADVERTISE: 4, Stage.SHARE: 4, Stage.MASK: 8, Stage.REVEAL: 8}
    assert down == {Stage.ADVERTISE: 4, Stage.SHARE: 8, Stage.MASK: 8, Stage.REVEAL: 12}
