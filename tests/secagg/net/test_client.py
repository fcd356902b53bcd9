"""A client: it comes back, begins anew where it must, answers one question at a time and never twice."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import trio

from secagg import messages as m
from secagg.client_memory import AnswerEntry, VolatileMemory
from secagg.errors import SERVER, InputError, LedgerError, ParameterError, StateError, TooManySums
from secagg.events import Asked
from secagg.identity_registry import Registry
from secagg.insecure_seeds import seeded_registry
from secagg.net import packets
from secagg.net.client import Client
from secagg.net.connection import ConnectionLost
from secagg.net.handshake import backoff
from secagg.net.notices import Topic, parse_notice
from secagg.net.packets import PacketKind, Reason
from secagg.net.reliable_link import MAX_UNREAD
from secagg.net.server import Server
from secagg.net.settings import Deadlines, Patience
from secagg.transitions import ClientState
from secagg.trust_levels import Trust
from tests.secagg.net.rig import ADDRESS, PART, SEED, Knocker, Network, World, on_network

PATIENCE = Patience(handshake=10, silence=60, grace=20, farewell=2)


def play(world: World, main: Callable[[World, Network], Awaitable[None]], **settings: Any) -> World:
    on_network(lambda network: main(world, network), **settings)
    return world


# --- questions and answers ---------------------------------------------------------------------------------


@asynccontextmanager
async def asked_once(
    world: World, member: int = 3, **changes: Any
) -> AsyncIterator[tuple[Client, Asked, Any]]:
    """A client with its first question, and a function that waits for the total of that sum."""
    async with (
        world.server() as server,
        world.all_clients(*(set(range(world.clients)) - {member})),
        world.client(member, **changes) as client,
        trio.open_nursery() as nursery,
    ):
        results: list[Any] = []
        done = trio.Event()

        async def conduct() -> None:
            async with world.session(server, deadlines=Deadlines(mask=100)) as session:
                results.extend((await world.ask(session), session))
                done.set()
                await trio.sleep_forever()

        async def total() -> Any:
            await done.wait()
            return results

        nursery.start_soon(conduct)
        yield client, await anext(client), total
        nursery.cancel_scope.cancel()


def test_a_question_is_answered_once() -> None:
    async def main(world: World, network: Network) -> None:
        async with asked_once(world) as (client, asked, total):
            assert await client.answer(asked, world.values(3, asked))
            assert not await client.answer(asked, world.values(3, asked))
            assert not await client.decline(asked)
            world.check(*await total(), 0, 1, 2, 3)

    play(World(), main)


def test_after_a_flush_the_server_has_the_answer() -> None:
    async def main(world: World, network: Network) -> None:
        async with asked_once(world) as (client, asked, total):
            assert await client.answer(asked, world.values(3, asked))
            before = len(network.lines[-1].up.log)
            await client.flush()
            assert len(network.lines[-1].up.log) > before
            world.check(*await total(), 0, 1, 2, 3)

    play(World(), main)


def test_values_that_do_not_fit_leave_the_question_open() -> None:
    async def main(world: World, network: Network) -> None:
        async with asked_once(world) as (client, asked, total):
            for wrong in ({}, {PART: np.zeros(3, np.uint32)}, {PART: [1.5] * 4}):
                with pytest.raises(InputError):
                    await client.answer(asked, wrong)
            assert await client.answer(asked, world.values(3, asked))
            world.check(*await total(), 0, 1, 2, 3)

    play(World(), main)


def test_an_answer_that_comes_too_late_goes_nowhere() -> None:
    async def main(world: World, network: Network) -> None:
        async with (
            world.server() as server,
            world.all_clients(0, 1, 2),
            world.client(3) as client,
            world.session(server, deadlines=Deadlines(mask=10)) as session,
            trio.open_nursery() as nursery,
        ):

            async def ask_twice() -> None:
                world.check(await world.ask(session), session, 0, 1, 2)
                world.check(await world.ask(session), session, 0, 1, 2, 3)

            nursery.start_soon(ask_twice)
            first = await anext(client)
            second = await anext(client)
            assert second.sum_index == first.sum_index + 1
            assert not await client.answer(first, world.values(3, first))
            assert not await client.decline(first)
            assert await client.answer(second, world.values(3, second))

    world = play(World(), main)
    assert not world.diary.facts("excluded")


def test_a_question_of_a_session_that_is_over_is_no_longer_open() -> None:
    async def main(world: World, network: Network) -> None:
        async with (
            world.server() as server,
            world.all_clients(0, 1, 2),
            world.client(3) as client,
            world.session(server) as session,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(world.ask, session)
            asked = await anext(client)
            nursery.cancel_scope.cancel()
            with trio.CancelScope(shield=True):
                await world.diaries[3].has("abandoned")
                assert not await client.answer(asked, world.values(3, asked))

    play(World(), main)


def test_an_answer_waits_for_its_connection() -> None:
    async def main(world: World, network: Network) -> None:
        async with asked_once(world) as (client, asked, total):
            network.up = False
            network.line_of(3).cut()
            await trio.sleep(1)
            assert await client.answer(asked, world.values(3, asked))
            await trio.sleep(1)
            network.up = True
            world.check(*await total(), 0, 1, 2, 3)

    play(World(), main)


# --- what goes wrong on this side --------------------------------------------------------------------------


class FullDisk(VolatileMemory):
    """A memory that cannot be written from some point on."""

    def __init__(self, point: str) -> None:
        super().__init__()
        self._point = point

    def remember_session(self, session: bytes) -> None:
        self._fail("session")
        super().remember_session(session)

    def remember_answer(self, answer: AnswerEntry, budget: Any) -> None:
        self._fail("answer")
        super().remember_answer(answer, budget)

    def remember_registry(self, version: int, digest: bytes) -> None:
        if self._registry[0] == version:
            self._fail("registry")
        super().remember_registry(version, digest)

    def _fail(self, point: str) -> None:
        if point == self._point:
            raise LedgerError("disk full")


def test_a_failure_while_answering_surfaces_there_and_from_then_on() -> None:
    async def main(world: World, network: Network) -> None:
        async with asked_once(world) as (client, asked, total):
            for _ in range(2):
                with pytest.raises(LedgerError, match="disk full"):
                    await client.answer(asked, world.values(3, asked))
            with pytest.raises(LedgerError, match="disk full"):
                await anext(client)
            world.check(*await total(), 0, 1, 2)  # the server was told, and does not wait

    world = World(memories={3: FullDisk("answer")})
    play(world, main)
    assert world.diary.facts("left") == [{"member": 3, "reason": "left the session"}]


def test_a_failure_while_a_session_is_set_up_surfaces_where_questions_are_waited_for() -> None:
    async def main(world: World, network: Network) -> None:
        async with world.server() as server, world.all_clients(0, 1, 2), trio.open_nursery() as nursery:

            async def failing() -> None:
                with pytest.raises(LedgerError, match="disk full"):
                    await world.answering(3)

            nursery.start_soon(failing)
            async with world.session(server, deadlines=Deadlines(share=50)) as session:
                began = trio.current_time()
                world.check(await world.ask(session), session, 0, 1, 2)
                assert trio.current_time() < began + 1

    world = World(memories={3: FullDisk("session")})
    play(world, main)
    assert world.diary.facts("left") == [{"member": 3, "reason": "left the session"}]


def test_a_failure_between_two_sessions_surfaces_too() -> None:
    """A machine for the next session cannot be made."""

    async def main(world: World, network: Network) -> None:
        async with world.server() as server, world.all_clients(0, 1, 2), trio.open_nursery() as nursery:
            failed = trio.Event()

            async def failing() -> None:
                with pytest.raises(LedgerError, match="disk full"):
                    await world.answering(3)
                failed.set()

            nursery.start_soon(failing)
            async with world.session(server) as session:
                world.check(await world.ask(session), session, 0, 1, 2, 3)
            async with world.session(server) as session:
                world.check(await world.ask(session), session, 0, 1, 2)
            await failed.wait()

    play(World(trust=Trust.MALICIOUS, memories={3: FullDisk("registry")}), main)


def test_after_a_failure_no_other_session_is_joined() -> None:
    async def main(world: World, network: Network) -> None:
        async with world.server() as server, world.all_clients(0, 1, 2), world.client(3) as client:
            for _ in range(2):
                async with world.session(server, deadlines=Deadlines(join=20)) as session:
                    world.check(await world.ask(session), session, 0, 1, 2)
            with pytest.raises(LedgerError, match="disk full"):
                await anext(client)

    world = play(World(memories={3: FullDisk("session")}), main)
    assert len(world.diaries[3].facts("refused")) == 1


def test_settings_that_do_not_fit_are_refused_at_once() -> None:
    async def main(world: World, network: Network) -> None:
        for wrong in ({"insecure_plain_tcp": False}, {"address": "10.0.0.1:1"}, {"address": "nowhere"}):
            with pytest.raises(ParameterError):
                async with world.client(0, **wrong):
                    raise AssertionError("nobody should get here")
        assert not network.attempts

    play(World(), main)


def test_what_the_block_raises_comes_out_as_it_is() -> None:
    async def main(world: World, network: Network) -> None:
        async with world.client(0):
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        play(World(), main)


# --- sessions that end early -------------------------------------------------------------------------------


def test_a_server_that_was_restarted_is_joined_anew() -> None:
    async def main(world: World, network: Network) -> None:
        async with world.all_clients():
            async with trio.open_nursery() as nursery:

                async def first_life() -> None:
                    async with world.server() as server, world.session(server) as session:
                        world.check(await world.ask(session), session, 0, 1, 2, 3)
                        for line in network.lines:  # it is killed: nobody hears a word from it
                            line.cut()
                            line.far.closed = True
                        network.listeners.clear()
                        nursery.cancel_scope.cancel()
                        network.listeners[7443] = None  # type: ignore[assignment]
                        await trio.sleep_forever()

                nursery.start_soon(first_life)
            async with world.server() as server, world.session(server) as session:
                world.check(await world.ask(session), session, 0, 1, 2, 3)

    world = play(World(), main)
    for member in range(4):
        assert world.diaries[member].reasons("session lost") == ["the server does not know it any more"]


@pytest.mark.parametrize("state", ["asked", "answered"])
def test_a_session_is_lost_in_any_state(state: str) -> None:
    async def main(world: World, network: Network) -> None:
        async with world.all_clients(0, 1, 2), world.client(3) as client:
            async with (
                world.server(patience=Patience(farewell=0.1)) as server,
                trio.open_nursery() as nursery,
            ):

                async def conduct() -> None:
                    async with world.session(server) as session:
                        await world.ask(session)

                nursery.start_soon(conduct)
                asked = await anext(client)
                line = network.line_of(3)
                line.up.capacity = 0
                if state == "answered":
                    assert await client.answer(asked, world.values(3, asked))
                line.cut()
                network.up = False
                nursery.cancel_scope.cancel()
            network.up = True
            async with world.server() as server, trio.open_nursery() as nursery:
                nursery.start_soon(answer_one, world, client)
                async with world.session(server) as session:
                    assert not await client.answer(asked, world.values(3, asked))
                    world.check(await world.ask(session), session, 0, 1, 2, 3)

    async def answer_one(world: World, client: Client) -> None:
        asked = await anext(client)
        assert await client.answer(asked, world.values(3, asked))

    world = play(World(), main)
    assert len(world.diaries[3].facts("session lost")) == 1


def test_an_answer_that_is_being_computed_when_the_session_is_lost_goes_nowhere() -> None:
    """It must not reach the next session, where its sender would be taken for a cheat."""

    async def main(world: World, network: Network) -> None:
        slow = trio.Event()
        computing = trio.Event()

        async def work(function: Callable[[], Any]) -> Any:
            if slow.is_set():
                result = function()
                computing.set()
                with trio.CancelScope(shield=True):
                    await trio.sleep(5)
                return result
            await trio.lowlevel.checkpoint()
            return function()

        async with (
            world.all_clients(0, 1, 2),
            world.client(3, work=work) as client,
            trio.open_nursery() as nursery,
        ):
            with trio.CancelScope() as life:
                async with (
                    world.server() as server,
                    world.session(server) as session,
                    trio.open_nursery() as inner,
                ):
                    inner.start_soon(world.ask, session)
                    asked = await anext(client)
                    slow.set()
                    nursery.start_soon(client.answer, asked, world.values(3, asked))
                    await computing.wait()
                    slow = trio.Event()
                    network.line_of(3).cut()
                    life.cancel()
            async with world.server() as server:

                async def answer_one() -> None:
                    again = await anext(client)
                    assert await client.answer(again, world.values(3, again))

                nursery.start_soon(answer_one)
                async with world.session(server) as session:
                    world.check(await world.ask(session), session, 0, 1, 2, 3)

    world = play(World(), main)
    assert not world.diary.facts("excluded")
    assert not world.diaries[3].facts("refused")


def test_a_session_that_a_client_has_to_refuse_is_left_and_the_next_is_looked_at_afresh() -> None:
    async def main(world: World, network: Network) -> None:
        async with world.server() as server, world.all_clients():
            strange = World(size=5)  # another table than the clients'
            with pytest.raises(Exception, match="only 0 clients came"):
                async with world.session(server, machine=strange.machine(), deadlines=Deadlines(join=5)):
                    raise AssertionError("nobody should get here")
            async with world.session(server) as session:
                world.check(await world.ask(session), session, 0, 1, 2, 3)

    world = play(World(), main)
    assert [facts["error"] for facts in world.diaries[0].facts("refused")] == ["WrongTable"]
    assert len(world.diary.facts("left")) == 4


def test_a_refusal_while_answering_leaves_the_session_and_not_the_block() -> None:
    """Between question and answer, another process may have spent what was left."""

    class Spent(VolatileMemory):
        def remember_answer(self, answer: AnswerEntry, budget: Any) -> None:
            if answer.round_number == 1:
                raise TooManySums(SERVER, "another process has answered meanwhile")
            super().remember_answer(answer, budget)

    async def main(world: World, network: Network) -> None:
        async with world.server() as server, world.all_clients():
            async with world.session(server) as session:
                world.check(await world.ask(session), session, 0, 1, 2)
            async with world.session(server) as session:
                world.check(await world.ask(session), session, 0, 1, 2, 3)

    play(World(memories={3: Spent()}), main)


def test_frames_of_a_session_that_was_left_are_passed_over() -> None:
    async def main(world: World, network: Network) -> None:
        async with hand_made_server(world, network) as server:
            await server.invite(world)
            assert await server.frame_type() is m.Advertisement
            await server.send_frame(m.KeyList(bytes(32), 2, b"x").encode(), seen=0)
            why = parse_notice(await server.frame(), sender=0)
            assert (why.topic, why.body) == (Topic.REFUSAL, b"WrongSession")
            assert await server.frame_type() is m.Leave
            for _ in range(3):
                await server.send_frame(m.GroupClosed(bytes(32), 0).encode(), seen=0)
                await server.next(PacketKind.ACK)
            await server.invite(world)
            assert await server.frame_type() is m.Advertisement

    world = play(World(), main)
    assert len(world.diaries[0].facts("refused")) == 1


# --- hostile servers ---------------------------------------------------------------------------------------


class HandMade(Knocker):
    """A server's end of a connection."""

    async def invite(self, world: World) -> None:
        await self.send_frame(world.machine().invitation, seen=0)

    async def frame_type(self) -> type[m.Message]:
        return m.message_type(await self.frame(), sender=0)


@asynccontextmanager
async def hand_made_server(
    world: World, network: Network, *, answer: bytes | None = None
) -> AsyncIterator[HandMade]:
    """A server without manners, to which client 0 has just said hello."""
    (listener,) = await network.open_tcp_listeners(7443, host="127.0.0.1", backlog=1)
    async with world.client(0, patience=PATIENCE):
        server = HandMade(await listener.accept())
        await server.next(PacketKind.HELLO)
        await server.send(packets.welcome(resumed=False, received=0) if answer is None else answer)
        yield server


@pytest.mark.parametrize("reason", [Reason.EXCLUDED, Reason.UNKNOWN])
def test_a_client_that_is_sent_away_comes_back_as_if_new(reason: Reason) -> None:
    async def main(world: World, network: Network) -> None:
        async with hand_made_server(world, network) as server:
            await server.invite(world)
            await server.frame()
            await server.send(packets.bye(reason))
            again = HandMade(await network.listeners[7443].accept())
            hello = packets.parse_hello(await again.next(PacketKind.HELLO), sender=0)
            first = network.lines[0].up.log
            assert hello.link not in bytes(first)
            assert hello.received == 0
            await again.send(packets.welcome(resumed=False, received=0))
            await again.invite(world)
            assert await again.frame_type() is m.Advertisement

    world = play(World(), main)
    assert world.diaries[0].reasons("dismissed") == [reason.name.lower()]
    assert world.diaries[0].reasons("session lost") == ["the server has sent us away"]


def test_a_client_whose_server_closes_keeps_its_session_and_tries_again() -> None:
    async def main(world: World, network: Network) -> None:
        async with hand_made_server(world, network) as server:
            await server.invite(world)
            await server.frame()
            await server.send(packets.bye(Reason.CLOSING))
            again = HandMade(await network.listeners[7443].accept())
            hello = packets.parse_hello(await again.next(PacketKind.HELLO), sender=0)
            assert hello.link in bytes(network.lines[0].up.log)
            assert hello.received == 1

    world = play(World(), main)
    assert not world.diaries[0].facts("session lost")


@pytest.mark.parametrize("at", ["door", "later"])
def test_who_is_replaced_twice_gives_up(at: str) -> None:
    """Once may be the greeting of an earlier process that was held up on its way."""

    async def main(world: World, network: Network) -> None:
        bye = packets.bye(Reason.REPLACED)
        (listener,) = await network.open_tcp_listeners(7443, host="127.0.0.1", backlog=1)
        times = []
        async with world.client(0, patience=PATIENCE) as client:
            for _ in range(2):
                server = HandMade(await listener.accept())
                times.append(trio.current_time())
                await server.next(PacketKind.HELLO)
                if at == "later":
                    await server.send(packets.welcome(resumed=False, received=0))
                await server.send(bye)
            await trio.sleep(1000)
            with pytest.raises(StateError, match="another process has joined as client 0"):
                await anext(client)
        assert len(network.attempts) == 2
        assert times[1] - times[0] >= PATIENCE.handshake

    play(World(), main)


def test_who_is_replaced_again_much_later_does_not_give_up() -> None:
    async def main(world: World, network: Network) -> None:
        (listener,) = await network.open_tcp_listeners(7443, host="127.0.0.1", backlog=1)
        async with world.client(0, patience=replace(PATIENCE, silence=10_000)):
            for _ in range(2):
                server = HandMade(await listener.accept())
                await server.next(PacketKind.HELLO)
                await server.send(packets.welcome(resumed=False, received=0))
                await trio.sleep(700)
                await server.send(packets.bye(Reason.REPLACED))
            server = HandMade(await listener.accept())
            await server.next(PacketKind.HELLO)

    play(World(), main)


def test_two_real_processes_with_one_identity_do_not_chase_each_other() -> None:
    async def main(world: World, network: Network) -> None:
        async with world.server() as server, world.all_clients(1, 2, 3), trio.open_nursery() as nursery:

            async def older() -> None:
                with pytest.raises(StateError, match="another process"):
                    await world.answering(0)
                gone.set()

            gone = trio.Event()
            nursery.start_soon(older)
            await server.wait_for_clients(4)
            async with world.session(server) as session:
                world.check(await world.ask(session), session, 0, 1, 2, 3)
                world.forget(0)
                nursery.start_soon(world.answering, 0)
                await gone.wait()
                world.check(await world.ask(session), session, 1, 2, 3)
            async with world.session(server) as session:
                world.check(await world.ask(session), session, 0, 1, 2, 3)
            nursery.cancel_scope.cancel()

    world = play(World(), main)
    assert len(world.diary.facts("left")) == 1


@pytest.mark.parametrize(
    "answer",
    [
        packets.welcome(resumed=True, received=5),
        packets.welcome(resumed=False, received=1),
        packets.packet(PacketKind.WELCOME, b"\x05" + bytes(8)),
        packets.ack(1),
        packets.packet(PacketKind.BYE, b"\xff"),
        b"SSH-2.0-OpenSSH_9.2\r\n",
        packets.welcome(resumed=False, received=0) + b"\xff" * 20,
        packets.welcome(resumed=False, received=0) + packets.begin(1 << 31, 0),
        packets.welcome(resumed=False, received=0)
        + packets.begin(3, 0)
        + packets.packet(PacketKind.PIECE, b"abc"),
    ],
)
def test_nonsense_is_not_believed_and_tried_again_later_and_later(answer: bytes) -> None:
    async def main(world: World, network: Network) -> None:
        async with hand_made_server(world, network, answer=answer):
            for _ in range(8):
                server = HandMade(await network.listeners[7443].accept())
                await server.next(PacketKind.HELLO)
                await server.send(answer)
        waits = np.diff(network.attempts)
        assert all(waits[4:] > waits[:-4] * 2) or b"abc" in answer

    world = play(World(), main)
    written = [event for event, _ in world.diaries[0]]
    assert written.count("unreachable") + written.count("disconnected") == 1 or b"abc" in answer


def test_a_server_that_never_acknowledges_gets_nothing_more() -> None:
    async def main(world: World, network: Network) -> None:
        async with hand_made_server(world, network) as server:
            for _ in range(MAX_UNREAD + 5):
                await server.invite(world)
                await server.next(PacketKind.ACK)
            assert bytes(network.lines[0].up.log).count(m.Advertisement(bytes(32), b"x").encode()[:3]) <= (
                MAX_UNREAD
            )

    world = play(World(), main)
    errors = [facts["error"] for facts in world.diaries[0].facts("refused")]
    assert errors.count("SlowReader") >= 1
    assert set(errors) == {"SlowReader", "OutOfOrder"}


@pytest.mark.parametrize("how", ["answer", "decline"])
def test_not_even_an_answer_and_the_block_goes_on(how: str) -> None:
    async def main(world: World, network: Network) -> None:
        async with asked_once(world) as (client, asked, _total):
            network.line_of(3).down.capacity = 0
            for _ in range(MAX_UNREAD):
                client._link.send(b"unread")
            if how == "answer":
                assert not await client.answer(asked, world.values(3, asked))
            else:
                assert not await client.decline(asked)
            assert client._machine.state is ClientState.ENDED

    world = play(World(), main)
    assert [facts["error"] for facts in world.diaries[3].facts("refused")] == ["SlowReader"]


# --- connecting --------------------------------------------------------------------------------------------


def test_waits_grow_to_half_a_minute_and_are_never_the_same() -> None:
    for attempt in range(100):
        most = min(30.0, 0.25 * 2**attempt)
        waits = {backoff(attempt) for _ in range(20)}
        assert all(most / 2 <= wait < most for wait in waits)
        assert len(waits) > 1
    assert backoff(10**9) < 30


def test_a_server_that_cannot_be_reached_is_tried_again_and_again() -> None:
    async def main(world: World, network: Network) -> None:
        async with world.client(0):
            await trio.sleep(1000)
            assert 1000 / 30 < len(network.attempts) < 1000 / 15 + 10
            async with world.server() as server:
                await server.wait_for_clients(1)

    world = play(World(), main)
    assert world.diaries[0].reasons("unreachable") == [f"{ADDRESS} cannot be reached (Connection refused)"]


def test_a_server_that_does_not_answer_is_not_waited_for() -> None:
    async def main(world: World, network: Network) -> None:
        await network.open_tcp_listeners(7443, host="127.0.0.1", backlog=1)
        async with world.client(0, patience=PATIENCE):
            await trio.sleep(PATIENCE.handshake * 2.5)
            assert len(network.attempts) == 3
            assert [line.near.closed for line in network.lines] == [True, True, False]

    world = play(World(), main)
    assert world.diaries[0].reasons("unreachable") == [f"{ADDRESS} does not answer"]


def test_after_a_good_connection_the_next_attempt_comes_soon() -> None:
    async def main(world: World, network: Network) -> None:
        async with world.client(0):
            await trio.sleep(1000)  # waits have become long
            async with world.server() as server:
                await server.wait_for_clients(1)
                await world.diaries[0].has("connected")
                lost = trio.current_time()
                network.lines[-1].cut()
                await world.diary.has("reconnected")
                assert network.attempts[-1] - lost <= 0.25

    play(World(), main)


def test_a_silent_server_is_taken_for_dead() -> None:
    async def main(world: World, network: Network) -> None:
        async with hand_made_server(world, network):
            began = trio.current_time()
            await network.listeners[7443].accept()
            assert PATIENCE.silence <= trio.current_time() - began <= PATIENCE.silence + 1

    world = play(World(), main)
    assert world.diaries[0].reasons("disconnected") == ["no sign of life"]


def test_a_client_that_is_cancelled_says_goodbye() -> None:
    async def main(world: World, network: Network) -> None:
        async with world.server() as server, world.all_clients(0, 1, 2), trio.open_nursery() as nursery:

            async def mortal() -> None:
                with trio.move_on_after(5):
                    await world.answering(3)

            nursery.start_soon(mortal)
            async with world.session(server) as session:
                await trio.sleep(10)
                assert session.members == (0, 1, 2)

    world = play(World(), main)
    assert world.diary.facts("left") == [{"member": 3, "reason": "left the session"}]


@pytest.mark.parametrize("up", [True, False])
def test_a_goodbye_does_not_take_long(up: bool) -> None:
    async def main(world: World, network: Network) -> None:
        async with asked_once(world, patience=PATIENCE) as (_client, _asked, _total):
            line = network.line_of(3)
            if up:
                line.up.capacity = 0
            else:
                network.up = False
                line.cut()
                await trio.sleep(1)
            began = trio.current_time()
        assert trio.current_time() - began <= PATIENCE.farewell + 0.1

    play(World(), main)


def test_a_client_that_is_in_no_session_has_nothing_to_say() -> None:
    async def main(world: World, network: Network) -> None:
        async with world.server() as server:
            async with world.client(3):
                await server.wait_for_clients(1)
                began = trio.current_time()
            assert trio.current_time() == began

    world = play(World(), main)
    assert not world.diary.facts("excluded")


def test_a_registry_that_is_not_current_is_no_reason_to_give_up() -> None:
    """Another process of the same machine has seen a newer one: the operator will bring it here, too."""

    async def main(world: World, network: Network) -> None:
        async with world.server() as server, world.all_clients(0, 1, 2), world.client(3) as client:
            async with world.session(server) as session, trio.open_nursery() as nursery:
                nursery.start_soon(world.ask, session)
                asked = await anext(client)
                assert await client.answer(asked, world.values(3, asked))
            newer: Registry = seeded_registry(SEED, list(range(world.clients)), version=7)
            world.memories[3].remember_registry(newer.version, newer.digest)
            async with world.session(server) as session:
                world.check(await world.ask(session), session, 0, 1, 2)

    world = play(World(trust=Trust.MALICIOUS), main)
    assert [facts["error"] for facts in world.diaries[3].facts("refused")] == ["WrongRegistry"]


def test_a_client_that_is_closing_joins_no_other_session() -> None:
    async def main(world: World, network: Network) -> None:
        async with trio.open_nursery() as nursery, hand_made_server(world, network) as server:
            await server.invite(world)
            assert await server.frame_type() is m.Advertisement
            nursery.start_soon(as_it_closes, world, server)

    async def as_it_closes(world: World, server: HandMade) -> None:
        assert await server.frame_type() is m.Leave
        await server.invite(world)  # before the goodbye is acknowledged
        with pytest.raises(ConnectionLost):
            await server.frame_type()

    world = play(World(), main)
    world.memories[0].open_session()  # it is in none


@pytest.mark.parametrize("leave", [True, False])
def test_a_client_that_is_closed_in_the_midst_of_a_computation_leaves_nothing_behind(leave: bool) -> None:
    """The goodbye comes too late; yet the same identity can take part again, in this very process."""

    async def main(world: World, network: Network) -> None:
        computing = trio.Event()

        async def slow(function: Callable[[], Any]) -> Any:
            computing.set()
            with trio.CancelScope(shield=True):
                await trio.sleep(10 * PATIENCE.farewell)
            return function()

        async with world.server(patience=PATIENCE) as server, world.all_clients(0, 1, 2):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(first_session, world, server)
                with trio.CancelScope() as scope:
                    async with world.client(3, work=slow, patience=PATIENCE):
                        await computing.wait()
                        if not leave:
                            scope.cancel()
                            await trio.sleep_forever()
            async with world.all_clients(3), world.session(server) as session:
                world.check(await world.ask(session), session, 0, 1, 2, 3)

    async def first_session(world: World, server: Server) -> None:
        async with world.session(server, deadlines=Deadlines(join=5)):
            pass

    play(World(), main)
