"""A program that does not run trio is told so at its first call, before anything happens."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from secagg.errors import LocalError, WrongEventLoop
from secagg.events import Asked
from secagg.net import open_client, open_server, serve_sums
from secagg.net.client import Client
from secagg.net.server import Server
from secagg.net.server_session import Session
from tests.secagg.net.rig import KIND, PART, Network, World, on_network

Call = Callable[[], Awaitable[Any]]


def under_asyncio(call: Call) -> None:
    async def main() -> None:
        await call()

    asyncio.run(main())


def without_a_loop(call: Call) -> None:
    call().__await__().__next__()


RUNS = pytest.mark.parametrize("run", [under_asyncio, without_a_loop])


async def conduct(server: Server) -> None:
    raise AssertionError("no server can be open here")


def openings(world: World) -> list[Call]:
    """Ways to begin. Their arguments are wrong as well, and nothing looks at them."""
    wrong: dict[str, Any] = {"member": 0, "table": world.table, "policy": world.policy, "memory": None}
    return [
        lambda: open_client("no address", **wrong).__aenter__(),
        lambda: open_server("no address", members={}).__aenter__(),
        lambda: serve_sums(conduct, "no address", members={}),
    ]


@RUNS
@pytest.mark.parametrize("number", range(3))
def test_nothing_opens_outside_trio(run: Callable[[Call], None], number: int) -> None:
    with pytest.raises(WrongEventLoop) as caught:
        run(openings(World())[number])
    assert isinstance(caught.value, LocalError)
    assert "trio.run" in str(caught.value)
    assert "secagg.net.connect" in str(caught.value)


def opened() -> tuple[World, Server, Session, Client, Asked]:
    """What a program has when it takes them out of the loop that they belong to."""
    world = World(clients=2)

    async def main(network: Network) -> tuple[Server, Session, Client, Asked]:
        async with (
            world.server() as server,
            world.all_clients(1),
            world.client(0) as client,
            world.session(server) as session,
        ):
            spec = world.table[KIND]
            asked = Asked(sum_index=0, round=0, kind=KIND, payload=b"", spec=spec, invited=2)
            return server, session, client, asked

    return world, *on_network(main)


@RUNS
@pytest.mark.parametrize("number", range(7))
def test_nothing_that_is_open_can_be_used_outside_trio(run: Callable[[Call], None], number: int) -> None:
    world, server, session, client, asked = opened()
    calls: list[Call] = [
        client.__anext__,
        lambda: client.answer(asked, {PART: [0]}),
        lambda: client.answer_with(asked, lambda: {PART: [0]}),
        lambda: client.decline(asked),
        client.flush,
        lambda: server.wait_for_clients(1),
        lambda: server.session(world.machine()).__aenter__(),
        lambda: session.ask(KIND),
    ]
    with pytest.raises(WrongEventLoop):
        run(calls[number])
