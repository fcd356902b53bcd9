"""Notices between server and client: they reach everybody, they are bounded, and they cost nothing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
import trio
import trio.testing

from secagg.errors import SERVER, MalformedMessage
from secagg.net import events as net_events
from secagg.net.event_log import EventLog, printable, render
from secagg.net.notices import MAX_CLIENT_NOTICE, Notice, Topic, is_notice, parse_notice
from secagg.net.packets import Reason
from secagg.net.reliable_link import MAX_UNREAD
from secagg.net.settings import Patience
from tests.secagg.net.rig import Network, World, on_network


def play(world: World, main: Callable[[World, Network], Awaitable[None]]) -> World:
    on_network(lambda network: main(world, network))
    return world


TERMS = Notice(Topic.TERMS, b"the terms")
LATER = Notice(Topic.TERMS, b"later terms")
ENDED = Notice(Topic.RUN_ENDED, b"a model")


def test_a_notice_comes_back_and_does_not_show_its_body() -> None:
    assert is_notice(TERMS.encode())
    assert parse_notice(TERMS.encode(), sender=SERVER) == TERMS
    assert "terms" not in repr(TERMS)


@pytest.mark.parametrize("frame", [b"\xc1", b"\xc1\x00", b"\xc1\xff body"])
def test_a_notice_of_no_topic_is_malformed(frame: bytes) -> None:
    with pytest.raises(MalformedMessage):
        parse_notice(frame, sender=3)


def test_text_of_a_peer_cannot_act_on_a_terminal() -> None:
    assert printable("a\x1b[2J\nb\u202ec".encode() + b"\xff") == "a?[2J?b?c�"


def test_the_log_names_the_topic() -> None:
    line = render(net_events.NoticeReceived(TERMS))
    assert line is not None
    assert line.facts == {"topic": "terms"}
    line = render(net_events.ClientNotice(3, Notice(Topic.REFUSAL, b"WrongTable")))
    assert line is not None
    assert line.facts == {"member": 3, "topic": "refusal", "reason": "WrongTable"}


def test_whoever_connects_is_told_the_newest_notice_of_each_topic() -> None:
    async def main(world: World, network: Network) -> None:
        async with world.server() as server:
            server.post(TERMS)
            first = await network.dial(3)
            await first.welcomed()
            assert parse_notice(await first.frame(), sender=SERVER) == TERMS
            server.post(LATER)
            server.post(ENDED)
            assert parse_notice(await first.frame(), sender=SERVER) == LATER
            assert parse_notice(await first.frame(), sender=SERVER) == ENDED
            second = await network.dial(2)
            await second.welcomed()
            told = [parse_notice(await second.frame(), sender=SERVER) for _ in range(2)]
            assert told == [LATER, ENDED]

    play(World(), main)


def test_a_client_that_reads_no_notices_is_excluded() -> None:
    async def main(world: World, network: Network) -> None:
        async with world.server() as server:
            client = await network.dial(3)
            await client.welcomed()
            for _ in range(MAX_UNREAD + 1):
                server.post(TERMS)
            await trio.testing.wait_all_tasks_blocked()
            assert server.connected == ()

    world = play(World(), main)
    assert [facts["error"] for facts in world.diary.facts("excluded")] == ["SlowReader"]


@pytest.mark.parametrize(
    ("frame", "times"),
    [
        (b"\xc1\x03" + bytes(MAX_CLIENT_NOTICE), 1),
        (Notice(Topic.REFUSAL, b"again").encode(), 9),
        (b"\xc1\x63", 1),
    ],
)
def test_too_many_too_long_or_unknown_notices_exclude_a_client(frame: bytes, times: int) -> None:
    async def main(world: World, network: Network) -> None:
        async with world.server() as server:
            client = await network.dial(3)
            await client.welcomed()
            for _ in range(times):
                await client.send_frame(frame, seen=0)
            assert await client.gone()
            async with world.all_clients(), world.session(server) as session:
                assert 3 in session.members  # with the next session it may come again

    world = play(World(), main)
    assert world.diary.facts("excluded")


def test_without_a_session_a_client_is_excluded_for_a_while_only() -> None:
    """Otherwise, a client that was often started by mistake would keep a server waiting for ever."""

    async def main(world: World, network: Network) -> None:
        async with world.server(patience=Patience(grace=50)) as server, world.all_clients(0, 1, 2):
            for attempt in range(9):
                client = await network.dial(3, link=bytes([attempt]) * 16)
                await client.welcomed()
                await client.send_frame(TERMS.encode(), seen=0)
                await trio.sleep(1)
                await client.stream.aclose()
            await world.diary.has("excluded")
            refused = await network.dial(3)
            assert await refused.dismissal() is Reason.EXCLUDED
            await trio.sleep(50)
            async with world.all_clients(3):
                await server.wait_for_clients(4)

    play(World(), main)


def test_a_session_that_allows_longer_messages_allows_no_longer_notices() -> None:
    async def main(world: World, network: Network) -> None:
        async with (
            world.server() as server,
            world.all_clients(0, 1, 2),
            world.client(3) as client,
            world.session(server) as session,
        ):
            assert session.members == (0, 1, 2, 3)
            client._link.send(bytes([0xC1, Topic.REFUSAL]) + bytes(MAX_CLIENT_NOTICE))
            await world.diary.has("excluded")

    world = play(World(size=2 * MAX_CLIENT_NOTICE), main)
    assert [facts["error"] for facts in world.diary.facts("excluded")] == ["OversizeMessage"]


def test_client_and_server_tell_each_other() -> None:
    async def main(world: World, network: Network) -> None:
        async with world.server() as server, world.all_clients(0, 1, 2), world.client(3) as client:
            server.post(TERMS)
            await world.diaries[3].has("notice")
            client.tell(Notice(Topic.TERMS, b"mine differ"))
            await world.diary.has("notice")
            for diary in world.diaries.values():
                await diary.has("notice")
            await server.flush()

    world = play(World(), main)
    assert world.diary.facts("notice") == [{"member": 3, "topic": "terms", "reason": "mine differ"}]
    assert all(diary.facts("notice") == [{"topic": "terms"}] for diary in world.diaries.values())


def test_a_server_that_is_away_or_reads_nothing_gets_no_notice() -> None:
    async def main(world: World, network: Network) -> None:
        async with world.client(3) as client:
            client.tell(TERMS)
            async with world.server():
                await world.diaries[3].has("connected")
                network.line_of(3).up.quota = 0
                for _ in range(MAX_UNREAD + 1):
                    client.tell(TERMS)
                await trio.testing.wait_all_tasks_blocked()

    assert play(World(), main).diary.facts("notice") == []


def test_a_client_that_refuses_a_notice_closes_the_connection_and_comes_again() -> None:
    refusals: list[Notice] = []

    async def main(world: World, network: Network) -> None:
        log = EventLog(world.diaries[3])

        def refuse_first(event: net_events.ClientNetworkEvent) -> None:
            log(event)
            if isinstance(event, net_events.NoticeReceived) and not refusals:
                refusals.append(event.notice)
                raise MalformedMessage(SERVER, "a false end")

        async with world.server() as server, world.client(3, on_event=refuse_first):
            server.post(ENDED)
            await world.diaries[3].has("disconnected")
            await world.diaries[3].has("reconnected")
            await server.flush()

    world = play(World(), main)
    assert refusals == [ENDED]
    assert len(world.diaries[3].facts("disconnected")) == 1
