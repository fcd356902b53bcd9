"""A session waits for clients that can still come, says for which, and not for those that are gone."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from typing import Any, cast

import pytest
import trio

from secagg import messages as m
from secagg.errors import TooFewClients
from secagg.local_session import Stage
from secagg.net.event_log import EventLog
from secagg.net.events import ClientsAwaited, ServerNetworkEvent, SessionWaiting
from secagg.net.expected_clients import ConnectionState, ExpectedClients, JoinWait
from secagg.net.nursery_and_threads import inline
from secagg.net.packets import Reason
from secagg.net.settings import Deadlines, Patience
from secagg.server import ServerMachine
from secagg.trust_levels import Trust
from tests.secagg.net.rig import Diary, Network, World, on_network

DEADLINES = Deadlines(join=1000, absent=40, share=1010, mask=1020, confirm=1030, reveal=1040)
PATIENCE = Patience(handshake=10, silence=60, grace=15, farewell=2, report=100)


def play(world: World, main: Callable[[World, Network], Awaitable[None]]) -> World:
    on_network(lambda network: main(world, network))
    return world


# --- the rule ----------------------------------------------------------------------------------------------


@dataclass
class Joined:
    """What a machine says of clients that have joined."""

    advertised: tuple[int, ...]
    min_cohort: int


CON, OFF, ABS, GONE = (
    ConnectionState.CONNECTED,
    ConnectionState.OFFLINE,
    ConnectionState.ABSENT,
    ConnectionState.GONE,
)


@pytest.mark.parametrize(
    ("others", "expected", "wait"),
    [
        ([], 2, JoinWait.NO_MORE),
        ([CON, CON], 2, JoinWait.NO_MORE),
        ([], 4, JoinWait.NO_MORE),  # nobody else may join
        ([CON, OFF, ABS, GONE], 6, JoinWait.UNTIL_DEADLINE),
        ([OFF, GONE], 4, JoinWait.SHORTLY),
        ([ABS, GONE], 4, JoinWait.SHORTLY),
        ([GONE, GONE], 4, JoinWait.NO_MORE),
        ([GONE, GONE], None, JoinWait.UNTIL_DEADLINE),
    ],
)
@pytest.mark.parametrize("left", [(), (9,)])
def test_how_long_a_session_waits(
    others: list[ConnectionState], expected: int | None, wait: JoinWait, left: tuple[int, ...]
) -> None:
    """Clients 0 and 1 have joined, which is enough; client 9 may have left, which changes nothing."""
    presence = {0: CON, 1: GONE, 9: CON, **dict(enumerate(others, start=2))}
    clients = ExpectedClients(
        {*presence} - ({9} if not left else set()),
        expected=expected,
        presence=presence.__getitem__,
    )
    machine = cast(ServerMachine, Joined((0, 1), min_cohort=2))
    assert clients.wait(machine, left) is wait
    missing = {member for member, each in enumerate(others, start=2) if each is not GONE}
    assert clients.missing(machine, left) == missing
    assert clients.offline(missing) == sum(each in (OFF, ABS) for each in others)


@pytest.mark.parametrize("joined", [(), (0, 1)])
def test_nobody_is_waited_for_after_everybody_has_joined_or_left(joined: tuple[int, ...]) -> None:
    clients = ExpectedClients({*joined, 9}, expected=3, presence=lambda _member: CON)
    assert clients.wait(cast(ServerMachine, Joined(joined, min_cohort=3)), (9,)) is JoinWait.NO_MORE


@pytest.mark.parametrize("others", [[GONE], [ABS], [OFF]])
def test_too_few_clients_are_waited_for_until_the_deadline(others: list[ConnectionState]) -> None:
    presence = {0: CON, **dict(enumerate(others, start=1))}
    clients = ExpectedClients(presence, expected=2, presence=presence.__getitem__)
    assert clients.wait(cast(ServerMachine, Joined((0,), min_cohort=2)), ()) is JoinWait.UNTIL_DEADLINE


# --- sessions ----------------------------------------------------------------------------------------------


async def takes(world: World, server: Any, seconds: float, *members: int, **changes: Any) -> None:
    """A session begins after `seconds`, with `members`."""
    began = trio.current_time()
    async with world.session(server, deadlines=DEADLINES, **changes) as session:
        assert trio.current_time() == pytest.approx(began + seconds, abs=1)
        world.check(await world.ask(session), session, *members)


def test_who_never_came_is_waited_for_once_and_shortly() -> None:
    async def main(world: World, network: Network) -> None:
        async with world.server(patience=PATIENCE) as server, world.all_clients(0, 1, 2):
            await server.wait_for_clients(3)
            await takes(world, server, DEADLINES.absent, 0, 1, 2)
            await takes(world, server, 0, 0, 1, 2)
            async with world.all_clients(3):
                await server.wait_for_clients(4)
                await takes(world, server, 0, 0, 1, 2, 3)
            await takes(world, server, PATIENCE.grace, 0, 1, 2)
            await takes(world, server, 0, 0, 1, 2)

    play(World(), main)


def test_who_comes_while_it_is_waited_for_is_in_the_session() -> None:
    async def main(world: World, network: Network) -> None:
        async def late() -> None:
            await trio.sleep(DEADLINES.absent - 1)
            await world.answering(2)

        async with (
            world.server(patience=PATIENCE) as server,
            world.all_clients(0, 1),
            trio.open_nursery() as nursery,
        ):
            await server.wait_for_clients(2)
            nursery.start_soon(late)
            # Client 2 begins the time anew for client 3, which never comes.
            await takes(world, server, 2 * DEADLINES.absent - 1, 0, 1, 2)
            nursery.cancel_scope.cancel()

    play(World(), main)


def test_too_few_clients_wait_for_more_until_the_deadline() -> None:
    async def main(world: World, network: Network) -> None:
        async with world.server(patience=PATIENCE) as server, world.all_clients(0):
            for _ in range(2):
                began = trio.current_time()
                with pytest.raises(TooFewClients):
                    async with world.session(server, deadlines=DEADLINES):
                        raise AssertionError("nobody should get here")
                assert trio.current_time() == pytest.approx(began + DEADLINES.join, abs=1)

    play(World(), main)


@pytest.mark.parametrize("moment", ["before", "during"])
@pytest.mark.parametrize("absent", [DEADLINES.absent, 5.0])
def test_who_loses_its_connection_is_waited_for_shortly(moment: str, absent: float) -> None:
    """For its grace period, or for the time that absent clients have if that is shorter."""
    shorter = min(absent, PATIENCE.grace)

    async def main(world: World, network: Network) -> None:
        async with (
            world.server(patience=PATIENCE) as server,
            world.all_clients(0, 1, 2),
            world.all_clients(3) as scopes,
        ):
            await server.wait_for_clients(4)

            async def vanish() -> None:
                network.up = False
                network.line_of(3).cut()
                scopes[3].cancel()
                await world.diary.has("disconnected")

            network.line_of(3).up.capacity = 0  # the invitation is not answered
            if moment == "before":
                await vanish()
            began = trio.current_time()
            async with trio.open_nursery() as nursery:
                if moment == "during":
                    nursery.start_soon(vanish)
                deadlines = Deadlines(join=1000, absent=absent)
                async with world.session(server, deadlines=deadlines) as session:
                    assert trio.current_time() == pytest.approx(began + shorter, abs=2)
                    world.check(await world.ask(session), session, 0, 1, 2)
            await trio.sleep(PATIENCE.grace)  # it is forgotten, even if nobody waited so long
            await takes(world, server, 0, 0, 1, 2)

    play(World(), main)


def test_the_time_for_absent_clients_does_not_begin_anew_when_one_of_them_is_forgotten() -> None:
    async def main(world: World, network: Network) -> None:
        async with world.server(patience=PATIENCE) as server, world.all_clients(0, 1, 2):
            await server.wait_for_clients(3)
            await (await network.dial(3)).welcomed()
            network.line_of(3).cut()  # its grace ends before the time of client 4, which never comes
            await takes(world, server, DEADLINES.absent, 0, 1, 2)

    play(World(clients=5), main)


def test_who_is_excluded_is_not_waited_for_in_the_next_session_but_may_come() -> None:
    async def main(world: World, network: Network) -> None:
        async with world.server(patience=PATIENCE) as server, world.all_clients(0, 1, 2):
            intruder = await network.dial(3)
            await intruder.welcomed()

            async def misbehave() -> None:
                await intruder.frame()
                await intruder.send(b"\xff" * 5)
                assert await intruder.dismissal() is Reason.EXCLUDED

            async with trio.open_nursery() as nursery:
                nursery.start_soon(misbehave)
                await takes(world, server, 0, 0, 1, 2)
            await takes(world, server, 0, 0, 1, 2)
            async with world.all_clients(3):
                await server.wait_for_clients(4)
                await takes(world, server, 0, 0, 1, 2, 3)

    play(World(), main)


def test_who_comes_and_is_excluded_takes_the_place_of_nobody() -> None:
    """Otherwise liars would keep honest clients out of every session that limits its cohort."""

    async def main(world: World, network: Network) -> None:
        async with (
            world.server(patience=PATIENCE) as server,
            world.all_clients(0, 1),
            trio.open_nursery() as nursery,
        ):
            intruder = await network.dial(3)
            await intruder.welcomed()

            async def misbehave() -> None:
                await intruder.frame()
                await intruder.send(b"\xff" * 5)
                assert await intruder.dismissal() is Reason.EXCLUDED
                await world.answering(2)

            nursery.start_soon(misbehave)
            await server.wait_for_clients(3)
            await takes(world, server, 0, 0, 1, 2, expected=3)
            nursery.cancel_scope.cancel()

    play(World(), main)


def test_who_connects_while_the_server_computes_does_not_end_the_next_stage() -> None:
    """Closing a stage may take long, in another thread. Meanwhile all expected clients have joined."""

    async def main(world: World, network: Network) -> None:
        async def slow(function: Callable[[], Any]) -> Any:
            await trio.sleep(10)
            return await inline(function)

        async def late() -> None:
            await world.diary.has("connected", 3)
            await trio.sleep(3)
            await world.answering(3)

        async with (
            world.server(patience=PATIENCE) as server,
            world.all_clients(0, 1, 2),
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(late)
            async with world.session(server, work=slow, deadlines=DEADLINES, expected=3) as session:
                assert session.members == (0, 1, 2)
                world.check(await world.ask(session), session, 0, 1, 2)
            nursery.cancel_scope.cancel()

    play(World(), main)


class Vanishing:
    """A client that loses its connection for good as soon as a message of one kind reaches it."""

    def __init__(self, world: World, network: Network, kind: type[m.Message]) -> None:
        self._world, self._network, self._kind = world, network, kind

    async def run(self) -> None:
        with trio.CancelScope() as scope:
            async with self._world.client(3) as client:
                receive = client._machine.receive

                def vanish(frame: bytes, *, now: int | None = None) -> Any:
                    if m.message_type(frame, sender="server") is self._kind:
                        self._network.up = False
                        self._network.line_of(3).cut()
                        scope.cancel()
                    return receive(frame, now=now)

                client._machine.receive = vanish  # type: ignore[method-assign]
                async for asked in client:
                    await client.answer(asked, self._world.values(3, asked))


@pytest.mark.parametrize("kind", [m.KeyList, m.Query, m.Survivors, m.Confirmations])
def test_who_loses_its_connection_in_a_stage_holds_it_up_for_its_grace_and_no_more(
    kind: type[m.Message],
) -> None:
    async def main(world: World, network: Network) -> None:
        async with (
            world.server(patience=PATIENCE) as server,
            world.all_clients(0, 1, 2),
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(Vanishing(world, network, kind).run)
            await server.wait_for_clients(4)
            began = trio.current_time()
            async with world.session(server, deadlines=DEADLINES) as session:
                await world.ask(session)
                assert trio.current_time() == pytest.approx(began + PATIENCE.grace, abs=1)

    play(World(trust=Trust.MALICIOUS), main)


# --- what a server says ------------------------------------------------------------------------------------


CALM = Patience(silence=10_000, grace=10_000, farewell=2, report=100)


def waiting(seen: Collection[ServerNetworkEvent]) -> list[SessionWaiting]:
    return [event for event in seen if isinstance(event, SessionWaiting)]


def test_a_session_says_at_intervals_how_many_have_joined() -> None:
    seen: list[ServerNetworkEvent] = []

    async def main(world: World, network: Network) -> None:
        async with world.server(patience=CALM, on_event=seen.append) as server, world.all_clients(0, 1):
            await network.dial(2)  # it is connected, and says nothing more; client 3 is not
            await server.wait_for_clients(3)
            async with world.session(server, deadlines=Deadlines(join=250)) as session:
                assert session.members == (0, 1)

    play(World(), main)
    found = waiting(seen)
    assert [(each.stage, each.answered, each.expected, each.offline) for each in found] == [
        (Stage.ADVERTISE, 2, 4, 1),
        (Stage.ADVERTISE, 2, 4, 1),
    ]
    assert [each.seconds for each in found] == pytest.approx([100, 200], abs=1)


def test_a_sum_says_at_intervals_how_many_have_answered() -> None:
    seen: list[ServerNetworkEvent] = []

    async def main(world: World, network: Network) -> None:
        async def mute(member: int) -> None:
            async with world.client(member, patience=CALM) as client:
                async for _asked in client:
                    if member == 5:
                        network.up = False
                        network.line_of(5).cut()

        async with (
            world.server(patience=CALM, on_event=seen.append) as server,
            world.all_clients(0, 1, 2, 3, patience=CALM),
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(mute, 4)
            nursery.start_soon(mute, 5)
            async with world.session(server, deadlines=Deadlines(mask=250, reveal=100)) as session:
                await world.ask(session)
            nursery.cancel_scope.cancel()

    play(World(clients=6), main)
    found = waiting(seen)
    assert [(each.stage, each.answered, each.expected, each.offline) for each in found] == [
        (Stage.MASK, 4, 6, 1),
        (Stage.MASK, 4, 6, 1),
    ]
    assert [each.seconds for each in found] == pytest.approx([100, 200], abs=1)


def test_a_server_says_at_intervals_that_it_waits_for_clients_even_if_it_is_asked_often() -> None:
    seen: list[tuple[float, ServerNetworkEvent]] = []

    async def main(world: World, network: Network) -> None:
        def on_event(event: ServerNetworkEvent) -> None:
            seen.append((trio.current_time() - began, event))

        began = trio.current_time()
        async with world.server(patience=CALM, on_event=on_event) as server, world.all_clients(0):
            for _ in range(25):
                with trio.move_on_after(10):
                    await server.wait_for_clients(3, barred=[0, 9])
            assert server.connected == (0,)

    play(World(), main)
    found = [(time, event) for time, event in seen if isinstance(event, ClientsAwaited)]
    assert {event for _time, event in found} == {ClientsAwaited(connected=0, needed=3, barred=2)}
    assert [time for time, _event in found] == pytest.approx([0, 100, 200], abs=10)


def test_the_log_has_every_line_about_waiting() -> None:
    diary = Diary()
    log = EventLog(diary)
    for _ in range(2):
        log(ClientsAwaited(connected=1, needed=3, barred=0))
        log(SessionWaiting(Stage.ADVERTISE, 2, 4, 1, 30.004))
        log(SessionWaiting(Stage.MASK, 3, 4, 0, 60.0))
    assert [facts for _event, facts in diary] == 2 * [
        {"connected": 1, "needed": 3, "barred": 0},
        {"stage": "advertise", "joined": 2, "expected": 4, "offline": 1, "seconds": 30},
        {"stage": "mask", "answered": 3, "expected": 4, "offline": 0, "seconds": 60},
    ]
    assert {event for event, _facts in diary} == {"waiting"}
