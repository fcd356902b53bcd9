"""A server and its clients, joined by an engine in this process that carries their connections."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import trio

from secagg.errors import SERVER
from secagg.net.event_log import EventLog
from secagg.net.open_client_and_server import open_server
from secagg.net.server import Server
from secagg.net.settings import Patience
from secagg.net.tunnel import open_tunnel
from secagg.net.tunnel_dialer import TunnelDialer, carried
from secagg.net.tunnel_letters import Letter, parse_letter
from secagg.net.tunnel_stream import WINDOW
from tests.engines.fake_engine import FakeEngine, FakeNode
from tests.secagg.net.rig import World, each_in_scope
from tests.secagg.net.tls_contexts import context_of, host_context

PATIENT = Patience(handshake=120, silence=120, grace=60, farewell=10)


def name_of(member: int) -> str:
    return f"member-{member}"


@dataclass
class EngineSite:
    """The clients of a `World`, each in the process of a node of `engine`."""

    world: World = field(default_factory=World)
    engine: FakeEngine = field(default_factory=lambda: FakeEngine(set()))
    window: int = WINDOW
    patience: Patience = PATIENT

    def __post_init__(self) -> None:
        self.nodes: dict[int, FakeNode] = {}
        self.engine.names |= {name_of(member) for member in range(self.world.clients)}

    @asynccontextmanager
    async def server(self, **changes: Any) -> AsyncIterator[Server]:
        world = self.world
        settings: dict[str, Any] = {
            "members": world.registry.members,
            "context": host_context(world),
            "patience": self.patience,
            "on_event": EventLog(world.diary),
            **changes,
        }
        async with (
            open_tunnel(self.engine, window=self.window) as listener,
            open_server(listener, **settings) as server,
        ):
            yield server

    def node(self, member: int, name: str | None = None) -> FakeNode:
        return FakeNode(self.engine, name or name_of(member), TunnelDialer(window=self.window))

    async def answering(self, member: int, *, name: str | None = None, **changes: Any) -> None:
        """A well-behaved client in the process of a node, until it is cancelled."""
        node = self.nodes[member] = self.node(member, name)
        settings = {"context": context_of(member), "insecure_plain_tcp": False, "patience": self.patience}
        async with carried(node):
            await self.world.answering(member, address=node.dialer, **{**settings, **changes})

    @asynccontextmanager
    async def all_nodes(self, *members: int, **changes: Any) -> AsyncIterator[dict[int, trio.CancelScope]]:
        """Nodes with well-behaved clients around a block, each with a scope to end it by."""
        async with each_in_scope(members or range(self.world.clients), self.answering, **changes) as scopes:
            yield scopes

    # --- what the engine has carried ---

    def letters(self, member: int) -> list[Letter]:
        return [parse_letter(data, sender=0) for name, data in self.engine.letters if name == name_of(member)]

    def replies(self, member: int) -> list[Letter]:
        found = [data for name, data in self.engine.replies if name == name_of(member)]
        return [parse_letter(data, sender=SERVER) for data in found]
