"""An engine in this process, for tests: it carries letters between a server and nodes, or loses them."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass, field

import trio

from secagg.errors import MalformedMessage
from secagg.net.tunnel_dialer import TunnelDialer


@dataclass
class _Carried:
    """A letter in the queue of a node, and its reply."""

    number: int
    letter: bytes
    reply: bytes | None = None
    done: trio.Event = field(default_factory=trio.Event)


class _Queue:
    def __init__(self) -> None:
        self.put, self.get = trio.open_memory_channel[_Carried](math.inf)


@dataclass
class FakeNode:
    """A node of a `FakeEngine`. Implements `NodeEngine`."""

    engine: FakeEngine
    name: str
    dialer: TunnelDialer = field(default_factory=TunnelDialer)
    life: trio.CancelScope = field(default_factory=trio.CancelScope)

    def kill(self) -> None:
        """End its process without a word. The letters that it has are not answered."""
        self.life.cancel()

    async def run(self) -> None:
        """Answer letters until the task is cancelled, or the process is killed."""
        with self.life:
            await self._answer_all()

    async def _answer_all(self) -> None:
        async with trio.open_nursery() as nursery:
            while True:
                nursery.start_soon(self._answer, await self.engine.queues[self.name].get.receive())

    async def _answer(self, carried: _Carried) -> None:
        try:
            reply = await self.dialer.answer(carried.letter)
        except MalformedMessage:
            return  # the engine waits in vain
        with trio.CancelScope(shield=True):
            await trio.sleep(self.engine.delay)
        if self.life.cancel_called:
            return
        self.engine.replies.append((self.name, reply))
        if carried.number not in self.engine.lose:
            carried.reply = reply
        carried.done.set()


@dataclass
class FakeEngine:
    """Implements `Carrier`. `names` are the nodes that the engine lists, whether or not their process runs.
    Letters to a node without a process wait for one. The exchanges with numbers in `lose`, from 1 on, have no
    reply, and the letters of those in `drop` do not arrive. A letter without a reply counts as lost after
    `patience` seconds."""

    names: set[str]
    delay: float = 0.0  # seconds for each way
    patience: float = 60.0
    letters: list[tuple[str, bytes]] = field(default_factory=list)  # to nodes
    replies: list[tuple[str, bytes]] = field(default_factory=list)
    lose: set[int] = field(default_factory=set)
    drop: set[int] = field(default_factory=set)
    queues: dict[str, _Queue] = field(default_factory=lambda: defaultdict(_Queue))

    def node(self, name: str) -> FakeNode:
        return FakeNode(self, name)

    async def nodes(self) -> Collection[str]:
        await trio.lowlevel.checkpoint()
        return set(self.names)

    async def run(self) -> None:
        await trio.sleep_forever()

    async def exchange(self, node: str, letter: bytes) -> bytes | None:
        self.letters.append((node, letter))
        carried = _Carried(len(self.letters), letter)
        with trio.CancelScope(shield=True):
            await trio.sleep(self.delay)
        if carried.number in self.drop:
            return None
        self.queues[node].put.send_nowait(carried)
        with trio.move_on_after(self.patience):
            await carried.done.wait()
        return carried.reply
