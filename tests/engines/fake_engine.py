"""An engine in this process, for tests: it carries letters between a server and nodes, slowly, or loses them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

import trio

from secagg.errors import MalformedMessage
from secagg.net.tunnel import TunnelDialer


@dataclass
class FakeNode:
    """A node of a `FakeEngine`. Implements `NodeEngine`."""

    engine: FakeEngine
    name: str
    dialer: TunnelDialer = field(default_factory=TunnelDialer)

    async def run(self) -> None:
        """Be a node of the engine until the task is cancelled, as a process until it is killed."""
        self.engine.running[self.name] = self
        try:
            await trio.sleep_forever()
        finally:
            if self.engine.running.get(self.name) is self:
                del self.engine.running[self.name]


@dataclass
class FakeEngine:
    """Implements `Carrier`. `names` are the nodes that the engine lists, whether or not their process runs.
    A letter to a node without a process waits for one, as in an engine with a queue."""

    names: set[str]
    delay: float = 0.0  # seconds for each way
    letters: list[tuple[str, bytes]] = field(default_factory=list)  # to nodes
    replies: list[tuple[str, bytes]] = field(default_factory=list)
    lose: set[int] = field(default_factory=set)  # numbers of exchanges of which the reply is lost
    running: dict[str, FakeNode] = field(default_factory=dict)

    def node(self, name: str) -> FakeNode:
        return FakeNode(self, name)

    async def nodes(self) -> Collection[str]:
        await trio.lowlevel.checkpoint()
        return set(self.names)

    async def exchange(self, node: str, letter: bytes) -> bytes | None:
        self.letters.append((node, letter))
        number = len(self.letters)
        await trio.sleep(self.delay)
        while node not in self.running:
            await trio.sleep(0.05)
        try:
            reply = await self.running[node].dialer.answer(letter)
        except MalformedMessage:
            return None
        await trio.sleep(self.delay)
        self.replies.append((node, reply))
        return None if number in self.lose else reply
