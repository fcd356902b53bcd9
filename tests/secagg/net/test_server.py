"""A server's connections: who is who, who comes back, who has to go, and what all of it costs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from secagg import messages as m
from secagg.errors import ParameterError, SlowReader
from secagg.net import packets
from secagg.net.notices import MAX_CLIENT_NOTICE
from secagg.net.open_client_and_server import open_server, serve_sums
from secagg.net.packets import MAX_BODY, PacketKind, Reason
from secagg.net.reliable_link import MAX_UNREAD
from secagg.net.server import Server
from secagg.net.settings import Address, Capacity, Deadlines, Patience
from secagg.trust_levels import Trust
from tests.secagg.net.rig import ADDRESS, LINK, Knocker, Line, Network, World, on_network, run

PATIENCE = Patience(handshake=10, silence=60, grace=20, farewell=2)
OTHER = b"M" * packets.LINK_BYTES
JUNK = m.Decline(bytes(32), 0).encode()


def play(world: World, main: Callable[[World, Network], Awaitable[None]], **settings: Any) -> World:
    on_network(lambda network: main(world, network), **settings)
    return world


# --- reconnecting ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("when", [m.KeyList, m.Delivery, m.Query, m.Survivors, m.Confirmations])
@pytest.mark.parametrize("direction", ["up", "down"])
def test_a_client_that_is_cut_off_within_a_stage_comes_back_and_the_sum_is_exact(
    when: type[m.Message], direction: str
) -> None:
    async def main(world: World, network: Network) -> None:
        async def unlucky() -> None:
            async with world.client(3) as client:
                machine = client._machine
                receive = machine.receive

                def cut_off(frame: bytes, *, now: int | None = None) -> Any:
                    if len(network.lines) == 4 and m.message_type(frame, sender="server") is when:
                        # What it says next gets lost in midst of it, or the server's next word to it does.
                        getattr(network.line_of(3), direction).left = 30
                    return receive(frame, now=now)

                machine.receive = cut_off  # type: ignore[method-assign]
                async for asked in client:
                    await client.answer(asked, world.values(3, asked))

        async with world.server() as server, world.all_clients(0, 1, 2), trio.open_nursery() as nursery:
            nursery.start_soon(unlucky)
            async with world.session(server) as session:
                for _ in range(3):
                    world.check(await world.ask(session), session, 0, 1, 2, 3)
            assert len(network.lines) == 5
            nursery.cancel_scope.cancel()

    world = play(World(trust=Trust.MALICIOUS), main)
    assert world.diary.members("reconnected") == [3]
    assert not world.diary.facts("left")


def test_a_client_that_is_cut_off_all_the_time_is_still_counted_once() -> None:
    async def main(world: World, network: Network) -> None:
        async with world.server() as server, world.all_clients(), trio.open_nursery() as nursery:

            async def nuisance() -> None:
                while True:
                    await trio.sleep(0.3)
                    for line in network.lines[-4:]:
                        line.cut()

            nursery.start_soon(nuisance)
            async with world.session(server) as session:
                for _ in range(3):
                    world.check(await world.ask(session), session, 0, 1, 2, 3)
                    await trio.sleep(1)
            nursery.cancel_scope.cancel()
        assert len(network.lines) > 8

    play(World(size=40_000), main, capacity=100_000)


def test_a_client_without_a_connection_can_be_asked_until_its_grace_is_over() -> None:
    async def main(world: World, network: Network) -> None:
        async with world.server(patience=PATIENCE) as server, world.all_clients():
            async with world.session(server) as session:
                line = network.line_of(2)
                network.up = False
                line.cut()
                await trio.sleep(2)
                assert list(server.connected) == [0, 1, 3]
                network.up = True
                world.check(await world.ask(session), session, 0, 1, 2, 3)
                assert list(server.connected) == [0, 1, 2, 3]
                network.up = False
                network.line_of(2).cut()
                await trio.sleep(PATIENCE.grace + 1)
                network.up = True
                world.check(await world.ask(session), session, 0, 1, 3)
            await server.wait_for_clients(4)
            async with world.session(server) as session:
                world.check(await world.ask(session), session, 0, 1, 2, 3)

    world = play(World(), main)
    assert world.diary.facts("left") == [{"member": 2, "reason": "lost its connection"}]
    assert world.diaries[2].reasons("session lost") == ["the server does not know it any more"]


@pytest.mark.parametrize("offset", [-0.001, 0.001])
def test_whoever_comes_back_at_the_last_moment_is_welcome_as_before_or_as_new(offset: float) -> None:
    """There is no moment in between at which it is told that somebody else has taken its place."""

    async def main(world: World, network: Network) -> None:
        async with world.server(patience=PATIENCE) as server:
            await (await network.dial(1)).welcomed()
            network.lines[0].cut()
            await world.diary.has("disconnected")
            lost = trio.current_time() - 1
            await trio.sleep_until(lost + PATIENCE.grace - 5)
            second = Knocker(await network.open_tcp_stream("127.0.0.1", 7443))
            greeting = packets.hello(1, LINK, 0)
            await second.send(greeting[:-1])
            await trio.sleep(4)
            # Its greeting is complete while the clock moves on: tasks that both wake now run in any order.
            network.lines[1].up.feed(greeting[-1:])
            clock = trio.lowlevel.current_clock()
            assert isinstance(clock, MockClock)
            clock.jump(1 + offset)
            resumed.add((await second.welcomed()).resumed)
            for _ in range(10):
                await trio.sleep(PATIENCE.grace / 5)
                await second.send(packets.packet(PacketKind.ALIVE))
            assert list(server.connected) == [1]

    resumed: set[bool] = set()
    for _ in range(20):
        play(World(), main)
    assert resumed == ({True} if offset < 0 else {True, False})


def test_a_restarted_process_has_left_the_session_and_takes_part_in_the_next() -> None:
    async def main(world: World, network: Network) -> None:
        async with (
            world.server(patience=PATIENCE) as server,
            world.all_clients(0, 1, 2),
            trio.open_nursery() as nursery,
        ):
            async with world.all_clients(3) as scopes, world.session(server) as session:
                world.check(await world.ask(session), session, 0, 1, 2, 3)
                network.line_of(3).cut()
                network.up = False
                scopes[3].cancel()
                await trio.sleep(5)
                network.up = True
                world.forget(3)
                nursery.start_soon(world.answering, 3)
                await world.diary.has("left")
                world.check(await world.ask(session), session, 0, 1, 2)
            async with world.session(server) as session:
                world.check(await world.ask(session), session, 0, 1, 2, 3)
                await trio.sleep(2 * PATIENCE.grace)  # that of its last connection is over, too
                world.check(await world.ask(session), session, 0, 1, 2, 3)
            nursery.cancel_scope.cancel()

    world = play(World(), main)
    assert world.diary.facts("left") == [{"member": 3, "reason": "its process was restarted"}]


@pytest.mark.parametrize("restarted", [True, False])
def test_whoever_is_away_when_a_session_begins_is_invited_when_it_comes(restarted: bool) -> None:
    """The same process or another: its last connection has not been forgotten yet."""

    async def main(world: World, network: Network) -> None:
        async def return_soon() -> None:
            await trio.sleep(2)
            network.up = True
            if restarted:
                await world.answering(3)

        async with (
            world.server(patience=PATIENCE) as server,
            world.all_clients(0, 1, 2),
            world.all_clients(3) as scopes,
            trio.open_nursery() as nursery,
        ):
            await server.wait_for_clients(4)
            network.up = False
            network.line_of(3).cut()
            if restarted:
                scopes[3].cancel()
            await world.diary.has("disconnected")
            nursery.start_soon(return_soon)
            began = trio.current_time()
            async with world.session(server, deadlines=Deadlines(join=100)) as session:
                assert trio.current_time() < began + PATIENCE.grace
                world.check(await world.ask(session), session, 0, 1, 2, 3)
            nursery.cancel_scope.cancel()

    world = play(World(), main)
    assert not world.diary.facts("left")


def test_a_process_that_restarts_while_clients_are_joining_does_not_keep_the_others_waiting() -> None:
    async def main(world: World, network: Network) -> None:
        async with world.server(patience=PATIENCE) as server:
            first = await network.dial(3, link=LINK)
            await first.welcomed()
            deadlines = Deadlines(join=1000)
            began = trio.current_time()
            async with trio.open_nursery() as nursery:

                async def restart() -> None:
                    await first.frame()
                    async with world.all_clients():
                        await trio.sleep(500)

                nursery.start_soon(restart)
                async with world.session(server, deadlines=deadlines) as session:
                    assert trio.current_time() < began + 10
                    assert set(session.members) >= {0, 1, 2}
                nursery.cancel_scope.cancel()

    play(World(), main)


def test_the_older_of_two_processes_with_one_identity_is_sent_away() -> None:
    async def main(world: World, network: Network) -> None:
        async with world.server() as server:
            first = await network.dial(1, link=LINK)
            await first.welcomed()
            second = await network.dial(1, link=OTHER)
            assert not (await second.welcomed()).resumed
            assert await first.dismissal() is Reason.REPLACED
            assert await first.gone()
            assert list(server.connected) == [1]

    play(World(), main)


def test_of_many_connections_of_one_process_only_the_last_one_stays() -> None:
    async def main(world: World, network: Network) -> None:
        async with world.server() as server:
            first = await network.dial(1)
            await first.welcomed()
            knockers = [await network.dial(1) for _ in range(50)]
            await trio.sleep(5)
            assert sum(not line.far.closed for line in network.lines) == 1
            assert (await knockers[-1].welcomed()).resumed
            assert list(server.connected) == [1]

    play(World(), main)


def test_of_many_processes_with_one_identity_only_the_last_one_stays() -> None:
    async def main(world: World, network: Network) -> None:
        async with world.server() as server:
            for number in range(50):
                await network.dial(1, link=bytes([number]) * packets.LINK_BYTES)
            await trio.sleep(5)
            assert sum(not line.far.closed for line in network.lines) == 1
            assert list(server.connected) == [1]

    play(World(), main)


def test_a_half_open_connection_is_given_up_for_the_next_one() -> None:
    """The client knows that its connection is dead; the server does not."""

    async def main(world: World, network: Network) -> None:
        async with world.server() as server:
            await (await network.dial(1)).welcomed()
            began = trio.current_time()
            assert (await (await network.dial(1)).welcomed()).resumed
            assert trio.current_time() == began
            assert list(server.connected) == [1]

    play(World(), main)


def test_whoever_is_excluded_while_it_waits_for_its_turn_is_told_so() -> None:
    async def main(world: World, network: Network) -> None:
        async with world.server() as server:
            await (await network.dial(1)).welcomed()
            link = server._links[1]
            network.lines[0].cut()
            await world.diary.has("disconnected")
            async with link.run_lock:
                again = await network.dial(1)
                await trio.sleep(1)
                server._exclude(link, SlowReader(1, "does not read"))
            assert await again.dismissal() is Reason.EXCLUDED
            assert await again.gone()
            assert list(server.connected) == []

    play(World(), main)


def test_whoever_is_replaced_while_it_waits_for_its_turn_is_told_so() -> None:
    async def main(world: World, network: Network) -> None:
        async with world.server() as server:
            await (await network.dial(1)).welcomed()
            network.lines[0].cut()
            await world.diary.has("disconnected")
            async with server._links[1].run_lock:
                again = await network.dial(1)
                await trio.sleep(1)
                await (await network.dial(1, link=OTHER)).welcomed()
            assert await again.dismissal() is Reason.REPLACED
            assert await again.gone()
            assert list(server.connected) == [1]

    play(World(), main)


def test_a_connection_is_closed_at_its_end_whoever_brought_it() -> None:
    async def main(world: World, network: Network) -> None:
        async with world.server() as server, trio.open_nursery() as nursery:
            line = Line()
            nursery.start_soon(server.handle_connection, line.far)
            knocker = Knocker(line.near)
            await knocker.send(packets.hello(1, LINK, 0))
            await knocker.welcomed()
            await line.near.aclose()
        assert line.far.closed

    play(World(), main)


def test_whoever_is_excluded_when_its_place_is_taken_takes_nobody_with_it() -> None:
    async def main(world: World, network: Network) -> None:
        async with world.server() as server:
            await (await network.dial(1)).welcomed()
            stale = server._links[1]
            second = await network.dial(1, link=OTHER)
            await second.welcomed()
            server._exclude(stale, SlowReader(1, "does not read"))
            await trio.sleep(1)
            assert list(server.connected) == [1]

    play(World(), main)


# --- those who break the rules -----------------------------------------------------------------------------


def oversize(world: World) -> bytes:
    return packets.begin(max(MAX_CLIENT_NOTICE, world.machine().frame_limit) + 1, 1)


BAD = {
    "an oversize frame": lambda world: oversize(world),
    "garbage": lambda world: b"\xff" * 1000,
    "a frame that is no message": lambda world: (
        packets.begin(7, 1) + packets.packet(PacketKind.PIECE, b"garbage")
    ),
    "a frame of another session": lambda world: (
        packets.begin(len(JUNK), 1) + packets.packet(PacketKind.PIECE, JUNK)
    ),
    "an acknowledgement of nothing": lambda world: packets.ack(99),
    "a piece of no frame": lambda world: packets.packet(PacketKind.PIECE, b"x"),
    "a second hello": lambda world: packets.hello(3, LINK, 0),
}


@pytest.mark.parametrize("what", BAD)
def test_whoever_breaks_the_rules_is_out_until_the_session_ends(what: str) -> None:
    async def main(world: World, network: Network) -> None:
        async with world.server() as server, world.all_clients(0, 1, 2):
            bad = await network.dial(3)
            await bad.welcomed()
            await server.wait_for_clients(4)
            async with trio.open_nursery() as nursery:
                tried = trio.Event()

                async def misbehave() -> None:
                    await bad.frame()
                    await bad.send(BAD[what](world))
                    assert await bad.dismissal() is Reason.EXCLUDED
                    assert await bad.gone()
                    for link in (LINK, OTHER):
                        again = await network.dial(3, link=link)
                        assert await again.dismissal() is Reason.EXCLUDED
                        assert await again.gone()
                    tried.set()

                nursery.start_soon(misbehave)
                began = trio.current_time()
                async with world.session(server) as session:
                    assert trio.current_time() < began + 5  # nobody waits for it any more
                    world.check(await world.ask(session), session, 0, 1, 2)
                    await tried.wait()
            async with world.all_clients(3):
                await server.wait_for_clients(4)
                async with world.session(server) as session:
                    world.check(await world.ask(session), session, 0, 1, 2, 3)

    world = play(World(), main)
    assert [facts["member"] for facts in world.diary.facts("excluded")] == [3]
    assert all(world.diary.reasons("excluded"))


def test_before_the_first_session_only_notices_are_small_enough() -> None:
    async def main(world: World, network: Network) -> None:
        async with world.server() as server:
            early = await network.dial(3)
            await early.welcomed()
            await early.send(packets.begin(MAX_CLIENT_NOTICE + 1, 0))
            assert await early.dismissal() is Reason.EXCLUDED
            async with world.all_clients(), world.session(server) as session:
                assert 3 in session.members  # with the first session it may come again

    world = play(World(), main)
    assert [facts["error"] for facts in world.diary.facts("excluded")] == ["OversizeMessage"]


def test_a_few_frames_may_come_after_a_session_and_no_more() -> None:
    async def main(world: World, network: Network) -> None:
        async with world.server() as server, world.all_clients(0, 1, 2):
            late = await network.dial(3)
            await late.welcomed()
            async with world.session(server, expected=3):
                await late.frame()
                await late.frame()  # a farewell: it was not quick enough
            for _ in range(8):
                await late.send_frame(JUNK, seen=2)
                await late.next(PacketKind.ACK)
            await late.send_frame(JUNK, seen=2)
            assert await late.dismissal() is Reason.EXCLUDED

    world = play(World(), main)
    assert world.diary.reasons("excluded") == ["sends messages that belong to no session"]


def test_strays_are_forgiven_with_the_next_session() -> None:
    async def main(world: World, network: Network) -> None:
        async with world.server() as server, world.all_clients(0, 1, 2):
            late = await network.dial(3)
            await late.welcomed()
            for turn in range(3):
                async with world.session(server, expected=3):
                    pass
                for _ in range(8):
                    await late.send_frame(JUNK, seen=2 * turn)
                await trio.sleep(1)
            assert 3 in server.connected

    play(World(), main)


def test_a_frame_that_was_made_for_an_earlier_session_is_not_held_against_its_sender() -> None:
    async def main(world: World, network: Network) -> None:
        async with world.server() as server, world.all_clients(0, 1, 2):
            slow = await network.dial(3)
            await slow.welcomed()
            async with world.session(server, expected=3):
                await slow.frame()
                await slow.frame()
            async with trio.open_nursery() as nursery:

                async def answer() -> None:
                    await slow.frame()  # the second invitation, which it has not seen when it made the frame
                    await slow.send_frame(JUNK, seen=2)
                    await slow.next(PacketKind.ACK)
                    await slow.send_frame(JUNK, seen=3)
                    assert await slow.dismissal() is Reason.EXCLUDED

                nursery.start_soon(answer)
                async with world.session(server, expected=4) as session:
                    world.check(await world.ask(session), session, 0, 1, 2)

    world = play(World(), main)
    assert [facts["error"] for facts in world.diary.facts("excluded")] == ["WrongSession"]


def test_a_client_that_never_reads_is_found_out_and_holds_up_nobody() -> None:
    async def main(world: World, network: Network) -> None:
        async with world.server() as server, world.all_clients(0, 1, 2):
            deaf = await network.dial(3)
            await deaf.welcomed()
            await server.wait_for_clients(4)
            for _ in range(MAX_UNREAD):
                async with world.session(server, expected=3) as session:
                    world.check(await world.ask(session), session, 0, 1, 2)
            assert await deaf.dismissal() is Reason.EXCLUDED

    world = play(World(), main)
    assert [facts["error"] for facts in world.diary.facts("excluded")] == ["SlowReader"]


def test_a_member_of_a_session_that_stops_reading_is_dropped_from_it() -> None:
    """It answers, so that it is asked; but it acknowledges nothing."""

    async def main(world: World, network: Network) -> None:
        async def hard_of_hearing() -> None:
            async with world.client(3) as client:
                await anext(client)
                network.line_of(3).up.capacity = 0  # nothing comes from it any more
                await trio.sleep_forever()

        sums = MAX_UNREAD + 2
        async with world.server() as server, world.all_clients(0, 1, 2), trio.open_nursery() as nursery:
            nursery.start_soon(hard_of_hearing)
            deadlines = Deadlines(mask=1)  # all of them before silence is taken for death
            async with world.session(server, deadlines=deadlines) as session:
                for _ in range(sums):
                    world.check(await world.ask(session), session, 0, 1, 2)
                assert session.members == (0, 1, 2)
            nursery.cancel_scope.cancel()

    world = play(World(sums=MAX_UNREAD + 2), main)
    assert [facts["error"] for facts in world.diary.facts("excluded")] == ["SlowReader"]
    assert len(world.diary.facts("missing")) == 1  # however often


@pytest.mark.parametrize("forever", [True, False])
def test_uploads_that_stall_do_not_hold_up_the_others(forever: bool) -> None:
    """There is room for one upload, and the first to come stops in the midst of it."""

    async def main(world: World, network: Network) -> None:
        def stall(frame: bytes, sent: int) -> None:
            if len(frame) > MAX_BODY and sent > MAX_BODY and (forever or len(network.lines) == 4):
                network.line_of(3).up.quota = 0

        async def others(member: int) -> None:
            async with world.client(member) as client:
                async for asked in client:
                    await trio.sleep(1)
                    await client.answer(asked, world.values(member, asked))

        async with (
            world.server(capacity=Capacity(uploads=1, slowest=1e6)) as server,
            world.all_clients(3, progress=stall),
            trio.open_nursery() as nursery,
        ):
            for member in range(3):
                nursery.start_soon(others, member)
            await server.wait_for_clients(4)
            async with world.session(server, deadlines=Deadlines(mask=30)) as session:
                began = trio.current_time()
                total = await world.ask(session)
                world.check(total, session, *range(3 if forever else 4))
                if not forever:
                    assert trio.current_time() < began + 10
            nursery.cancel_scope.cancel()

    world = play(World(size=60_000), main)
    reasons = [facts["reason"] for facts in world.diary.facts("disconnected") if facts["member"] == 3]
    assert "its slow upload made room for others" in reasons


def test_strangers_do_not_disturb_a_session() -> None:
    async def main(world: World, network: Network) -> None:
        async with (
            world.server(capacity=Capacity(strangers=4)) as server,
            world.all_clients(),
            trio.open_nursery() as nursery,
        ):

            async def crowd() -> None:
                while True:
                    await network.open_tcp_stream("127.0.0.1", 7443)  # and says nothing
                    noisy = Knocker(await network.open_tcp_stream("127.0.0.1", 7443))
                    await noisy.send(b"\0" * 1000)
                    await network.dial(77)
                    await trio.sleep(0.01)

            await server.wait_for_clients(4)
            nursery.start_soon(crowd)
            async with world.session(server) as session:
                for _ in range(3):
                    world.check(await world.ask(session), session, 0, 1, 2, 3)
                    await trio.sleep(1)
            nursery.cancel_scope.cancel()

    world = play(World(), main)
    assert len(world.diary.facts("refused")) == 3
    assert len(world.diary.facts("repeated")) >= 2


# --- the end -----------------------------------------------------------------------------------------------


def test_a_server_that_is_told_to_stop_tells_its_clients() -> None:
    async def main(world: World, network: Network) -> None:
        async def mute(member: int) -> None:
            async with world.client(member) as client:
                async for _asked in client:
                    stop.cancel()

        async with trio.open_nursery() as nursery:
            for member in range(4):
                nursery.start_soon(mute, member)
            with trio.CancelScope() as stop:
                async with world.server() as server, world.session(server) as session:
                    await world.ask(session)
            assert stop.cancelled_caught
            for member in range(4):
                await world.diaries[member].has("dismissed")
            nursery.cancel_scope.cancel()

    world = play(World(), main)
    for member in range(4):
        assert len(world.diaries[member].facts("session over")) == 1
        assert world.diaries[member].reasons("dismissed") == ["closing"]
        assert not world.diaries[member].facts("session lost")
    assert len(world.diary.facts("aborted")) == 1


def test_a_client_that_does_not_listen_does_not_keep_a_server_from_stopping() -> None:
    async def main(world: World, network: Network) -> None:
        async with world.server(patience=PATIENCE) as server:
            deaf = await network.dial(3)
            await deaf.welcomed()
            network.lines[0].down.capacity = 0
            with trio.move_on_after(10):
                async with world.session(server):
                    raise AssertionError("nobody should get here")
            began = trio.current_time()
        assert PATIENCE.farewell <= trio.current_time() - began <= PATIENCE.farewell + 2

    play(World(), main)


def test_with_somebody_who_listens_it_stops_at_once() -> None:
    async def main(world: World, network: Network) -> None:
        async with world.server(patience=PATIENCE):
            knocker = await network.dial(3)
            await knocker.welcomed()
            began = trio.current_time()
        assert trio.current_time() == began
        assert await knocker.dismissal() is Reason.CLOSING

    play(World(), main)


def test_without_anybody_connected_it_stops_at_once() -> None:
    async def main(world: World, network: Network) -> None:
        async with world.server(patience=PATIENCE):
            knocker = await network.dial(3)
            await knocker.welcomed()
            network.lines[0].cut()
            await world.diary.has("disconnected")
            began = trio.current_time()
        assert trio.current_time() == began

    play(World(), main)


def test_what_the_block_raises_comes_out_as_it_is() -> None:
    async def main(world: World, network: Network) -> None:
        async with world.server():
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        play(World(), main)


def test_a_port_in_use_is_an_error_of_the_system() -> None:
    async def main(world: World, network: Network) -> None:
        async with world.server():
            with pytest.raises(OSError, match="in use"):
                async with world.server():
                    raise AssertionError("nobody should get here")

    play(World(), main)


def test_nothing_goes_in_the_clear_unless_it_was_asked_for() -> None:
    async def main() -> None:
        with pytest.raises(ParameterError, match="insecure_plain_tcp"):
            async with open_server(ADDRESS, members={}):
                raise AssertionError("nobody should get here")
        with pytest.raises(ParameterError, match="not on this machine"):
            async with open_server(Address("10.0.0.1", 1), members={}, insecure_plain_tcp=True):
                raise AssertionError("nobody should get here")

    run(main)


def test_a_server_can_be_one_task_of_a_nursery() -> None:
    async def main(world: World, network: Network) -> None:
        async def conduct(server: Server) -> None:
            async with world.session(server) as session:
                world.check(await world.ask(session), session, 0, 1, 2, 3)
            done.set()
            await trio.sleep_forever()

        done = trio.Event()
        async with trio.open_nursery() as nursery, world.all_clients():
            settings = {"members": world.registry.members, "insecure_plain_tcp": True}
            address = await nursery.start(
                lambda task_status: serve_sums(conduct, ADDRESS, task_status=task_status, **settings)
            )
            assert address == Address.parse(ADDRESS)
            await done.wait()
            nursery.cancel_scope.cancel()

    play(World(), main)


def test_connected_clients_are_counted() -> None:
    async def main(world: World, network: Network) -> None:
        async with world.server() as server, trio.open_nursery() as nursery:
            assert list(server.connected) == []
            await server.wait_for_clients(0)
            nursery.start_soon(server.wait_for_clients, 2)
            await trio.sleep(1)
            for member in (3, 1):
                await (await network.dial(member)).welcomed()
            await server.wait_for_clients(2)
            assert list(server.connected) == [1, 3]

    play(World(), main)


def test_a_client_that_has_not_read_that_its_link_is_unknown_may_ask_again() -> None:
    """A server that was restarted remembers nothing of a greeting whose answer may have been lost."""

    async def main(world: World, network: Network) -> None:
        async with world.server() as server, world.all_clients(0, 1, 2):
            await server.wait_for_clients(3)
            for _ in range(3):
                lost = await network.dial(3, received=5)
                assert not (await lost.welcomed()).resumed
                assert await lost.gone()
            assert 3 not in server.connected
            anew = await network.dial(3)
            assert not (await anew.welcomed()).resumed
            assert 3 in server.connected

    world = play(World(), main)
    assert not world.diary.facts("excluded")
