"""Engines and nodes that carry the connections of clients, and do as an attacker pleases."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

import trio

from secagg.net.server import Server
from secagg.net.tunnel_letters import INSTANCE_BYTES, Letter
from tests.engines.fake_engine import FakeEngine
from tests.secagg.net.tunnel_rig import EngineSite

Write: TypeAlias = Callable[[Letter], Letter]  # (letter of the server, without its segments) -> reply
_INSTANCE = slice(16, 16 + INSTANCE_BYTES)  # in the bytes of a letter
_NUMBER = slice(_INSTANCE.stop, _INSTANCE.stop + 8)


async def forge(engine: FakeEngine, name: str, write: Write) -> None:
    """A node that makes its replies by hand, at once."""
    while True:
        carried = await engine.queues[name].get.receive()
        number = int.from_bytes(carried.letter[_NUMBER], "big")
        carried.reply = write(Letter(carried.letter[_INSTANCE], number)).encode()
        carried.done.set()


async def sum_of(site: EngineSite, server: Server, members: Iterable[int], count: int = 2) -> None:
    """Sums in a session of exactly these clients."""
    present = tuple(members)
    await server.wait_for_clients(len(present))
    async with site.world.session(server, expected=len(present)) as session:
        for _ in range(count):
            site.world.check(await site.world.ask(session), session, *present)


@asynccontextmanager
async def scene(site: EngineSite, *honest: int, **changes: Any) -> AsyncIterator[tuple[Server, trio.Nursery]]:
    """A server, the nodes of honest clients, and a nursery for the attackers."""
    async with site.all_nodes(*honest), site.server(**changes) as server, trio.open_nursery() as nursery:
        yield server, nursery
        nursery.cancel_scope.cancel()


def refusals(site: EngineSite) -> list[tuple[object, object]]:
    """Who was refused by the server, and why."""
    return [(facts["host"], facts["reason"]) for facts in site.world.diary.facts("refused")]
