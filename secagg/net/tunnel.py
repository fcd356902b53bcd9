"""A tunnel: connections of clients to a server that an engine carries in its messages.

An engine such as Flower or NVFlare already connects a server with nodes. It sends a message to a node, and
the node replies. The two ends of a tunnel turn this into byte streams, on which a `Server` and its `Client`s
speak TLS as on sockets. The engine sees sizes and times of encrypted letters. It authenticates nobody for us.

    server:  async with open_tunnel(carrier) as listener:
                 async with open_server(listener, members=..., context=...) as server: ...

    node:    async with carried(engine):
                 async with open_client(engine.dialer, member=..., context=...) as client: ...

A node cannot begin. Therefore the server leaves at least one letter with every node, which replies to it as
soon as it has something to send.
"""

from __future__ import annotations

import math
import re
import secrets
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from functools import partial
from typing import Final, Protocol

import trio

from secagg.errors import SERVER, MalformedMessage, Peer
from secagg.net.nursery_and_threads import background_nursery
from secagg.net.tunnel_letters import INSTANCE_BYTES, KEY_BYTES, MAX_SEGMENTS, Letter, Segment, parse_letter
from secagg.net.tunnel_stream import WINDOW, TunnelStream

HOLD: Final = 20.0  # seconds for which a node keeps a letter while it has nothing to send
GATHER: Final = 0.03  # seconds in which further bytes join those that are about to be sent
FAREWELL: Final = 5.0  # seconds to send what is left at the end
_IDLE: Final = 1.0  # seconds after which a node without a letter gets an empty one
_LOOK: Final = 1.0  # seconds between two looks at which nodes there are
_MAX_LETTERS: Final = 4  # that a node has not answered
_MAX_STREAMS: Final = 4  # of one node; a client has one, and opens another after a loss
_MEMBER: Final = re.compile(r".*-([0-9]{1,10})")
UNKNOWN_NODE: Final = -1  # the id of a peer that has not authenticated


def member_of_node(name: str) -> int | None:
    """Return the id of the client for which a node's name stands: the number after its last hyphen, or None.

    >>> member_of_node("member-4"), member_of_node("berlin")
    (4, None)
    """
    found = _MEMBER.fullmatch(name)
    return None if found is None else int(found[1])


class TunnelEnd:
    """The streams of one node, at either end of the tunnel. `on_output` is called when one has something to
    carry."""

    def __init__(self, peer: Peer, *, window: int, on_output: Callable[[], None]) -> None:
        self._peer = peer
        self._window = window
        self._on_output = on_output
        self._streams: dict[bytes, TunnelStream] = {}
        self._resets: list[bytes] = []  # streams of which the other side is told that they are lost

    def add(self, key: bytes, *, opens: bool, node: str = "", member: int | None = None) -> TunnelStream:
        """Return a new stream. If there are too many, the oldest one is lost."""
        while len(self._streams) >= _MAX_STREAMS:
            self._lose(next(iter(self._streams)))
        stream = self._streams[key] = TunnelStream(
            key,
            peer=self._peer,
            node=node,
            member=member,
            opens=opens,
            window=self._window,
            on_output=self._on_output,
        )
        return stream

    @property
    def has_output(self) -> bool:
        return bool(self._resets) or any(each.has_output for each in self._streams.values())

    def letter(self, instance: bytes) -> bytes:
        """Return the next letter to send. It may be empty."""
        segments, room = [Segment(key=key, is_reset=True) for key in self._resets], self._window
        self._resets = []
        for stream in [each for each in self._streams.values() if each.has_output]:
            segments.append(stream.next_segment(room))
            room -= len(segments[-1].data)
        self._streams = {key: each for key, each in self._streams.items() if not each.is_over}
        return Letter(instance, tuple(segments), has_more=self.has_output).encode()

    def parse(self, content: bytes) -> Letter:
        return parse_letter(content, sender=self._peer, most=self._window)

    def take(self, letter: Letter, accept: Callable[[bytes], TunnelStream] | None = None) -> None:
        """Take the segments of a letter. `accept` makes the streams that the other side opens. Raises
        `MalformedMessage` if the other side breaks the rules of a stream."""
        for segment in letter.segments:
            stream = self._streams.get(segment.key)
            if stream is None and segment.is_first and accept is not None:
                stream = accept(segment.key)
            if stream is not None:
                stream.take(segment)
            elif not segment.is_reset and (segment.data or not segment.is_last):
                self._reset(segment.key)
        self._streams = {key: each for key, each in self._streams.items() if not each.is_over}

    def _reset(self, key: bytes) -> None:
        if len(self._resets) < MAX_SEGMENTS - _MAX_STREAMS and key not in self._resets:
            self._resets.append(key)
        self._on_output()

    def _lose(self, key: bytes) -> None:
        self._streams.pop(key).break_off()
        self._reset(key)

    def lose_all(self) -> None:
        """Break all streams, because a letter was lost. The client connects again."""
        for key in list(self._streams):
            self._lose(key)


# --- the node ---


class TunnelDialer:
    """The node's end of a tunnel, for one client. Give it to `open_client` in place of an address."""

    def __init__(self, *, hold: float = HOLD, window: int = WINDOW) -> None:
        self._hold = hold
        self._changed = trio.Event()
        self._end = TunnelEnd(SERVER, window=window, on_output=self._notify)
        self._instance = bytes(INSTANCE_BYTES)
        self._letters = 0

    async def open_stream(self) -> TunnelStream:
        """Return a new stream to the server, as soon as a first letter has come from there."""
        while not self._letters:
            await self._changed.wait()
        return self._end.add(secrets.token_bytes(KEY_BYTES), opens=True)

    async def answer(self, letter: bytes) -> bytes:
        """Take a letter, and return the reply: when there is something to send, a newer letter arrives, or
        after `hold` seconds. Raises `MalformedMessage` if the bytes are not a letter of an honest server."""
        self._take(self._end.parse(letter))
        number = self._letters
        with trio.move_on_after(self._hold):
            while not self._end.has_output and number == self._letters:
                await self._changed.wait()
        if self._end.has_output:
            await trio.sleep(GATHER)
        reply = self._end.letter(self._instance)
        self._notify()
        return reply

    async def flush(self) -> None:
        """Wait until there is nothing to send."""
        while self._end.has_output:
            await self._changed.wait()

    def _take(self, letter: Letter) -> None:
        if letter.instance != self._instance:
            self.lose_streams()  # another process of the server, which does not know them
            self._instance = letter.instance
        self._letters += 1
        self._end.take(letter)
        self._notify()

    def lose_streams(self) -> None:
        """Break all streams, because a reply could not be sent."""
        self._end.lose_all()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = trio.Event()


class NodeEngine(Protocol):
    """An engine, as a node uses it: `run` hands every letter that arrives to `dialer.answer`, and carries the
    reply, until it is cancelled. A reply that `answer` has returned is still carried."""

    dialer: TunnelDialer

    async def run(self) -> None: ...


@asynccontextmanager
async def carried(engine: NodeEngine, *, farewell: float = FAREWELL) -> AsyncIterator[None]:
    """Let `engine` carry the letters of a node during the block, and then what is left, for at most
    `farewell` seconds."""
    async with background_nursery() as nursery:
        nursery.start_soon(engine.run)
        try:
            yield
        finally:
            with trio.move_on_after(farewell, shield=True):
                await engine.dialer.flush()


# --- the server ---


class Carrier(Protocol):
    """An engine, as the server's end of a tunnel uses it.

    `nodes`     returns the names of the nodes that can be reached now.
    `exchange`  carries a letter to a node, and returns its reply; None if either is lost. Several exchanges
                with a node may run at a time.
    `run`       does the engine's own work in the background, until it is cancelled.
    """

    async def nodes(self) -> Collection[str]: ...
    async def exchange(self, node: str, letter: bytes) -> bytes | None: ...
    async def run(self) -> None: ...


class TunnelListener(trio.abc.Listener[TunnelStream]):
    """The server's end of a tunnel, which `open_tunnel` makes. Give it to `open_server` in place of an
    address. A node with the name of a client (`member_of_node`) may connect as this client only."""

    def __init__(self, *, window: int = WINDOW) -> None:
        self.window = window
        self.instance = secrets.token_bytes(INSTANCE_BYTES)
        self.nodes: dict[str, _Node] = {}
        self._send, self._receive = trio.open_memory_channel[TunnelStream](math.inf)

    async def accept(self) -> TunnelStream:
        return await self._receive.receive()

    async def aclose(self) -> None:
        await self._receive.aclose()

    def offer(self, stream: TunnelStream) -> None:
        """Let `accept` return a stream that a node has opened."""
        self._send.send_nowait(stream)

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
        self._letters = 0
        self._unanswered = 0  # letters that were not empty
        self._wanted = True  # whether the node needs an empty letter at once

    async def exchange(self, carrier: Carrier, letter: bytes, *, is_empty: bool) -> None:
        """Carry a letter of `next_letter` to the node, and take its reply."""
        reply = await carrier.exchange(self.name, letter)
        self._letters -= 1
        self._unanswered -= not is_empty
        self._take(reply)

    async def next_letter(self) -> tuple[bytes, bool]:
        """Wait until a letter should be sent. Return it, and whether it is empty."""
        while not self._is_due:
            wait = _IDLE if self._letters == 0 else math.inf
            with trio.move_on_after(wait) as scope:
                await self._changed.wait()
            if scope.cancelled_caught:
                break
        await trio.sleep(GATHER)
        self._wanted, is_empty = False, not self._end.has_output
        self._letters += 1
        self._unanswered += not is_empty
        return self._end.letter(self._listener.instance), is_empty

    async def flush(self) -> None:
        """Wait until the node has received everything: an engine may lose what is on its way when the server
        ends."""
        while self._end.has_output or self._unanswered:
            await self._changed.wait()

    @property
    def _is_due(self) -> bool:
        if self._letters >= _MAX_LETTERS:
            return False
        return self._end.has_output or (self._wanted and self._letters == 0)

    def _take(self, reply: bytes | None) -> None:
        """Take the reply to a letter, or None if one of them was lost."""
        try:
            if reply is None:
                self.lose()
            else:
                letter = self._end.parse(reply)
                self._wanted = letter.has_more
                self._end.take(letter, self._accept)
        except MalformedMessage:
            self.lose()
        self.notify()

    def _accept(self, key: bytes) -> TunnelStream:
        stream = self._end.add(key, opens=False, node=self.name, member=self._member)
        self._listener.offer(stream)
        return stream

    def lose(self) -> None:
        self._end.lose_all()

    def notify(self) -> None:
        self._changed.set()
        self._changed = trio.Event()


@asynccontextmanager
async def open_tunnel(
    carrier: Carrier, *, window: int = WINDOW, farewell: float = FAREWELL
) -> AsyncIterator[TunnelListener]:
    """Exchange letters with the nodes of an engine during the block. Then send what is left, for at most
    `farewell` seconds. `window` bounds the bytes of a node that wait to be read."""
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
            names = set(await carrier.nodes())
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
    try:
        with scope:
            async with trio.open_nursery() as nursery:
                while True:
                    letter, is_empty = await node.next_letter()
                    nursery.start_soon(partial(node.exchange, carrier, letter, is_empty=is_empty))
    finally:
        node.lose()
