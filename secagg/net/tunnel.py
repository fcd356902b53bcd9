"""A tunnel, at the server: connections of clients to a server that an engine carries in its messages.

An engine such as Flower or NVFlare already connects a server with nodes. It sends a message to a node, and
the node replies. The two ends of a tunnel turn this into byte streams, on which a `Server` and its `Client`s
speak TLS as on sockets. The engine sees sizes and times of encrypted letters. We do not trust the
identities that it claims.

    server:  async with open_tunnel(carrier) as listener:
                 async with open_server(listener, members=..., context=...) as server: ...

    node:    async with carried(engine):
                 async with open_client(engine.dialer, member=..., context=...) as client: ...

A node cannot begin. Therefore the server leaves at least one letter with every node, which replies to it as
soon as it has something to send. If an engine loses, changes or confuses letters, the streams break, and the
clients connect again.
"""

from __future__ import annotations

import logging
import math
import re
import secrets
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from typing import Final, Protocol

import trio

from secagg.errors import MalformedMessage
from secagg.net.nursery_and_threads import background_nursery
from secagg.net.trio_check import check_trio_runs
from secagg.net.tunnel_letters import FAREWELL, GATHER, INSTANCE_BYTES, MAX_LETTERS, Letter, parse_letter
from secagg.net.tunnel_stream import WINDOW, TunnelEnd, TunnelStream, check_window

_IDLE: Final = 1.0  # seconds after which a node without a letter gets an empty one
_LOOK: Final = 1.0  # seconds between two looks at which nodes there are
_MEMBER: Final = re.compile(r".*-([0-9]{1,10})")
UNKNOWN_NODE: Final = -1  # the id of a peer that has not authenticated
_logger: Final = logging.getLogger("secagg.net")


def member_of_node(name: str) -> int | None:
    """Return the id of the client for which a node's name stands: the number after its last hyphen, or None.

    >>> member_of_node("member-4"), member_of_node("berlin")
    (4, None)
    """
    found = _MEMBER.fullmatch(name)
    return None if found is None else int(found[1])


class Carrier(Protocol):
    """An engine, as the server's end of a tunnel uses it.

    `nodes`     returns the names of the nodes that can be reached now.
    `exchange`  carries a letter to a node, and returns its reply; None if either is lost. Several exchanges
                with a node may run at a time.
    `run`       does the engine's own work in the background, until it is cancelled.

    If `nodes` or `exchange` raises an `Exception`, it is logged: then the nodes are those of before, or the
    letter is lost.
    """

    async def nodes(self) -> Collection[str]: ...
    async def exchange(self, node: str, letter: bytes) -> bytes | None: ...
    async def run(self) -> None: ...


class TunnelListener(trio.abc.Listener[TunnelStream]):
    """The server's end of a tunnel, which `open_tunnel` makes. Give it to `open_server` in place of an
    address. A node with the name of a client (`member_of_node`) may connect as this client only. Raises
    `ParameterError` if the window is too small."""

    def __init__(self, *, window: int = WINDOW) -> None:
        check_window(window)
        self.window = window
        self.nodes: dict[str, _Node] = {}
        self._waiting: list[TunnelStream] = []
        self._closed = False
        self._changed = trio.Event()

    async def accept(self) -> TunnelStream:
        await trio.lowlevel.checkpoint()
        while not self._closed:
            if self._waiting:
                return self._waiting.pop(0)
            await self._changed.wait()
        raise trio.ClosedResourceError

    async def aclose(self) -> None:
        self._closed = True
        self._notify()
        await trio.lowlevel.checkpoint()

    def offer(self, stream: TunnelStream) -> bool:
        """Let `accept` return a stream that a node has opened. Return False if the listener is closed."""
        if self._closed:
            return False
        # A node has few streams that are not lost. So those that wait are few, whatever a node opens.
        self._waiting = [*(each for each in self._waiting if not each.is_broken), stream]
        self._notify()
        return True

    def _notify(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    async def flush(self) -> None:
        """Wait until all nodes have received everything."""
        for node in list(self.nodes.values()):
            await node.flush()


class _Node:
    """What the server knows of a node: its streams, and the letters that it has not answered."""

    def __init__(self, name: str, listener: TunnelListener) -> None:
        self.name = name
        self._member = member_of_node(name)
        self._listener = listener
        self._changed = trio.Event()
        self._end = TunnelEnd(UNKNOWN_NODE, window=listener.window, on_output=self.notify)
        self._instance = secrets.token_bytes(INSTANCE_BYTES)
        self._told = False  # whether a letter of this instance was sent
        self._number = 0  # of the last letter
        self._letters = 0
        self._in_doubt = 0  # letters with parts of streams that the node has not answered
        self._wanted = True  # whether the node needs an empty letter at once

    async def next_letter(self) -> Letter:
        """Wait until a letter should be sent, and return it."""
        while not self._is_due:
            may_send = self._letters == 0 or (not self._told and self._letters < MAX_LETTERS)
            wait = _IDLE if may_send else math.inf
            with trio.move_on_after(wait) as scope:
                await self._changed.wait()
            if scope.cancelled_caught:
                break
        await trio.sleep(GATHER)
        self._letters, self._number = self._letters + 1, self._number + 1
        self._told, self._wanted = True, False
        letter = self._end.letter(self._instance, self._number)
        self._in_doubt += letter.has_stream
        self.notify()
        return letter

    async def flush(self) -> None:
        """Wait until the node has received everything: an engine may lose what is on its way when the server
        ends."""
        while self._end.has_output or self._in_doubt:
            await self._changed.wait()

    @property
    def _is_due(self) -> bool:
        if self._letters >= MAX_LETTERS:
            return False
        return self._end.has_output or (self._wanted and self._letters == 0)

    def take(self, letter: Letter, reply: bytes | None) -> None:
        """Take the reply to a letter, or None if one of them was lost."""
        self._letters -= 1
        self._in_doubt -= letter.has_stream
        try:
            if letter.instance == self._instance:  # otherwise its streams are lost already
                self._read(letter, reply)
        except MalformedMessage:
            self.lose()
        self.notify()

    def _read(self, letter: Letter, reply: bytes | None) -> None:
        if reply is None:
            raise MalformedMessage(UNKNOWN_NODE, "no reply")
        answer = parse_letter(reply, sender=UNKNOWN_NODE)
        if (answer.instance, answer.number) != (letter.instance, letter.number):
            raise MalformedMessage(UNKNOWN_NODE, "a reply to another letter")
        self._wanted = answer.has_more
        self._end.take(answer, self._accept)

    def _accept(self, key: bytes) -> TunnelStream:
        stream = self._end.add(key, opens=False, node=self.name, member=self._member)
        if not self._listener.offer(stream):
            self._end.lose(key)
        return stream

    def lose(self) -> None:
        """Break all streams. The node learns it from the next letter, which has another instance. It may have
        opened streams of which the server does not know."""
        self._end.start_over()
        self._instance, self._told = secrets.token_bytes(INSTANCE_BYTES), False

    def notify(self) -> None:
        self._changed.set()
        self._changed = trio.Event()


@asynccontextmanager
async def open_tunnel(
    carrier: Carrier, *, window: int = WINDOW, farewell: float = FAREWELL
) -> AsyncIterator[TunnelListener]:
    """Exchange letters with the nodes of an engine during the block. Then send what is left, for at most
    `farewell` seconds. `window` bounds the bytes of a stream that wait to be read."""
    check_trio_runs("open_tunnel")
    listener = TunnelListener(window=window)
    async with background_nursery() as nursery:
        nursery.start_soon(carrier.run)
        nursery.start_soon(_serve, listener, carrier)
        try:
            yield listener
        finally:
            with trio.move_on_after(farewell, shield=True):
                await listener.flush()


async def _serve(listener: TunnelListener, carrier: Carrier) -> None:
    scopes: dict[str, trio.CancelScope] = {}
    async with trio.open_nursery() as nursery:
        while True:
            names = await _names(carrier, scopes.keys())
            for name in scopes.keys() - names:
                scopes.pop(name).cancel()
                del listener.nodes[name]
            for name in sorted(names - scopes.keys()):
                node, scope = _Node(name, listener), trio.CancelScope()
                listener.nodes[name], scopes[name] = node, scope
                nursery.start_soon(_attend, node, carrier, scope)
            await trio.sleep(_LOOK)


async def _attend(node: _Node, carrier: Carrier, scope: trio.CancelScope) -> None:
    """Exchange letters with a node until `scope` is cancelled, because the node is gone."""

    async def exchange(letter: Letter) -> None:
        node.take(letter, await _carry(carrier, node.name, letter.encode()))

    try:
        with scope:
            async with trio.open_nursery() as nursery:
                while True:
                    nursery.start_soon(exchange, await node.next_letter())
    finally:
        node.lose()


async def _names(carrier: Carrier, before: Collection[str]) -> set[str]:
    """Return the names of the nodes, or those of `before` if the engine fails to tell them."""
    try:
        return set(await carrier.nodes())
    except Exception:
        _logger.warning("an engine failed to list its nodes", exc_info=True)
        return set(before)


async def _carry(carrier: Carrier, node: str, letter: bytes) -> bytes | None:
    """Return the reply of a node, or None if the engine fails: the other nodes are not disturbed."""
    try:
        return await carrier.exchange(node, letter)
    except Exception:
        _logger.warning("an engine failed to carry a letter to %r", node, exc_info=True)
        return None
