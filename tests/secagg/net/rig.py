"""A network in memory whose clock jumps, and machines to put on it.

`Network` stands in for trio's two calls that open sockets. Its connections can be cut after any byte and hold
as few bytes as a test wants. Whatever waits for a time gets it at once, so nothing sleeps and nothing races.
"""

from __future__ import annotations

import errno
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, TypeVar
from unittest import mock

import numpy as np
import trio
from trio.testing import MockClock

from secagg.client_memory import Memory, VolatileMemory
from secagg.errors import SERVER
from secagg.events import Asked
from secagg.hybrid_keys import KeyAgreement
from secagg.insecure_seeds import seeded_identity, seeded_registry
from secagg.net import packets
from secagg.net.client import Client
from secagg.net.connection import Connection
from secagg.net.event_log import EventLog, Fact
from secagg.net.nursery_and_threads import inline
from secagg.net.open_client_and_server import open_client, open_server
from secagg.net.packets import HEADER, PacketKind, Welcome
from secagg.net.server import Server
from secagg.net.server_session import Session
from secagg.policy import Policy
from secagg.server import ServerMachine
from secagg.sum_spec import Part, Residue, SumSpec, Table, Total
from secagg.trust_levels import Trust
from tests.secagg.flat_params import with_params

T = TypeVar("T")
SEED = b"network"
PART = "x"
KIND = "sum"
ADDRESS = "127.0.0.1:7443"
LONG = 20_000.0  # seconds, none of which passes; whoever waits so long hangs
LINK = b"L" * packets.LINK_BYTES


def run(main: Callable[[], Awaitable[T]]) -> T:
    """On a clock that jumps to the next thing that is due."""

    async def bounded() -> T:
        with trio.fail_after(LONG):
            return await main()

    return trio.run(bounded, clock=MockClock(autojump_threshold=0))


def run_live(main: Callable[[], Awaitable[T]]) -> T:
    """On the real clock, for sockets and threads."""

    async def bounded() -> T:
        with trio.fail_after(60):
            return await main()

    return trio.run(bounded)


# --- wires -------------------------------------------------------------------------------------------


class Pipe:
    """Bytes in one direction: at most `capacity` on their way.

    After the `left` next ones it breaks; after the `quota` next ones it stalls, and nobody notices.
    """

    def __init__(self, capacity: float = math.inf) -> None:
        self._capacity = capacity
        self.left = math.inf
        self.quota = math.inf
        self.log = bytearray()
        self.broken = False
        self.ended = False
        self._data = bytearray()
        self._lot = trio.lowlevel.ParkingLot()

    @property
    def capacity(self) -> float:
        return self._capacity

    @capacity.setter
    def capacity(self, capacity: float) -> None:
        self._capacity = capacity
        self._lot.unpark_all()

    async def put(self, data: bytes) -> None:
        await trio.lowlevel.checkpoint()
        view = memoryview(data)
        while view or not self.left:
            if self.broken or self.ended:
                raise trio.BrokenResourceError
            room = int(min(self.capacity - len(self._data), self.left, self.quota, len(view)))
            self.feed(view[:room])
            view = view[room:]
            if not self.left:
                self.break_down()
            elif view:
                await self._lot.park()

    def feed(self, data: bytes | memoryview) -> None:
        """Put bytes in at this very moment."""
        if data:
            self._data += data
            self.log += data
            self.left -= len(data)
            self.quota -= len(data)
            self._lot.unpark_all()

    async def get(self, most: int) -> bytes:
        await trio.lowlevel.checkpoint()
        while not self._data:
            if self.broken:
                raise trio.BrokenResourceError
            if self.ended:
                return b""
            await self._lot.park()
        taken = bytes(self._data[:most])
        del self._data[:most]
        self._lot.unpark_all()
        return taken

    def break_down(self) -> None:
        """What is on its way still arrives."""
        self.broken = True
        self._lot.unpark_all()

    def end(self) -> None:
        self.ended = True
        self._lot.unpark_all()


class End(trio.abc.Stream):
    """One end of a line."""

    def __init__(self, out: Pipe, into: Pipe) -> None:
        self._out = out
        self._into = into
        self.closed = False

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        if self.closed:
            raise trio.ClosedResourceError
        try:
            await self._out.put(bytes(data))
        except trio.BrokenResourceError:
            self._into.break_down()  # a connection that is cut is cut in both directions
            raise

    async def wait_send_all_might_not_block(self) -> None:
        raise NotImplementedError

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        if self.closed:
            raise trio.ClosedResourceError
        try:
            return await self._into.get(max_bytes or 1 << 16)
        except trio.BrokenResourceError:
            self._out.break_down()
            raise

    async def aclose(self) -> None:
        self.closed = True
        self._out.end()
        self._into.break_down()
        await trio.lowlevel.checkpoint()


class Line:
    """A connection: `near` is the client's end, `far` the server's."""

    def __init__(self, capacity: float = math.inf) -> None:
        self.up, self.down = Pipe(capacity), Pipe(capacity)
        self.near, self.far = End(self.up, self.down), End(self.down, self.up)

    @property
    def member(self) -> int | None:
        """Who has said hello on it."""
        hello = packets.hello(0, LINK, 0)
        body = bytes(self.up.log[HEADER.size : HEADER.size + packets.HELLO_BYTES])
        return packets.parse_hello(body, sender=0).member if len(self.up.log) >= len(hello) else None

    def cut(self) -> None:
        self.up.break_down()
        self.down.break_down()


class _Listener(trio.abc.Listener[trio.abc.Stream]):
    def __init__(self, network: Network, port: int) -> None:
        self.socket = SimpleNamespace(getsockname=lambda: ("127.0.0.1", port))
        self._network = network
        self._port = port
        self.calls, self._queue = trio.open_memory_channel[trio.abc.Stream](math.inf)

    async def accept(self) -> trio.abc.Stream:
        return await self._queue.receive()

    async def aclose(self) -> None:
        del self._network.listeners[self._port]
        await trio.lowlevel.checkpoint()


@dataclass
class Network:
    """Where clients find servers. New connections have `capacity`; while it is not `up`, there are none."""

    capacity: float = math.inf
    up: bool = True
    listeners: dict[int, _Listener] = field(default_factory=dict)
    lines: list[Line] = field(default_factory=list)
    attempts: list[float] = field(default_factory=list)

    async def open_tcp_listeners(self, port: int, *, host: str, backlog: int) -> list[_Listener]:
        await trio.lowlevel.checkpoint()
        if port in self.listeners:
            raise OSError(errno.EADDRINUSE, "Address already in use")
        self.listeners[port] = _Listener(self, port)
        return [self.listeners[port]]

    async def open_tcp_stream(self, host: str, port: int) -> trio.abc.Stream:
        await trio.lowlevel.checkpoint()
        self.attempts.append(trio.current_time())
        if not self.up or port not in self.listeners:
            raise OSError(errno.ECONNREFUSED, "Connection refused")
        line = Line(self.capacity)
        self.lines.append(line)
        self.listeners[port].calls.send_nowait(line.far)
        return line.near

    def line_of(self, member: int) -> Line:
        """The last connection that this client made."""
        return next(line for line in reversed(self.lines) if line.member == member)

    async def dial(self, member: int, *, link: bytes = LINK, received: int = 0) -> Knocker:
        """A hand-made client that has said hello."""
        knocker = Knocker(await self.open_tcp_stream("127.0.0.1", 7443))
        await knocker.connection.write([packets.hello(member, link, received)])
        return knocker


class Knocker:
    """A client without manners: it sends and reads packets one by one."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self.stream = stream
        self.connection = Connection(stream, peer=SERVER, silence=LONG)

    async def send(self, *data: bytes) -> None:
        await self.connection.write(data)

    async def welcomed(self) -> Welcome:
        kind, body = await self.connection.read()
        assert kind is PacketKind.WELCOME
        return packets.parse_welcome(body, sender=SERVER)

    async def next(self, wanted: PacketKind) -> bytes:
        """The next packet of a kind; others are passed over."""
        while True:
            kind, body = await self.connection.read()
            if kind is wanted:
                return body

    async def frame(self) -> bytes:
        """The next frame, which is acknowledged by whoever wants to."""
        size = packets.parse_begin(await self.next(PacketKind.BEGIN)).size
        data = b""
        while len(data) < size:
            data += await self.next(PacketKind.PIECE)
        return data

    async def send_frame(self, frame: bytes, *, seen: int) -> None:
        await self.send(packets.begin(len(frame), seen), packets.packet(PacketKind.PIECE, frame))

    async def dismissal(self) -> packets.Reason:
        return packets.parse_bye(await self.next(PacketKind.BYE), sender=SERVER).reason

    async def gone(self) -> bool:
        """Wait until the other side has closed the connection."""
        while await self.stream.receive_some():
            pass
        return True


def on_network(main: Callable[[Network], Awaitable[T]], **settings: Any) -> T:
    """Run `main` where trio's calls for sockets reach a network in memory."""
    network = Network(**settings)
    with (
        mock.patch.object(trio, "open_tcp_listeners", network.open_tcp_listeners),
        mock.patch.object(trio, "open_tcp_stream", network.open_tcp_stream),
    ):
        return run(lambda: main(network))


# --- logs --------------------------------------------------------------------------------------------


class Diary(list[tuple[str, Mapping[str, Fact]]]):
    """What was written to an operator's log."""

    def __call__(self, event: str, facts: Mapping[str, Fact]) -> None:
        self.append((event, dict(facts)))

    def facts(self, event: str) -> list[Mapping[str, Fact]]:
        return [facts for name, facts in self if name == event]

    def reasons(self, event: str) -> list[Fact]:
        return [facts.get("reason") for facts in self.facts(event)]

    def members(self, event: str) -> list[Fact]:
        return [facts.get("member") for facts in self.facts(event)]

    async def has(self, event: str, times: int = 1) -> None:
        """Wait for it."""
        for _ in range(2000):
            if len(self.facts(event)) >= times:
                return
            await trio.sleep(1)
        raise AssertionError(f"{event} does not happen")


# --- machines ----------------------------------------------------------------------------------------


def table(size: int = 4) -> Table:
    part = Part(name=PART, size=size, bits=32, bound=Residue())
    return Table({KIND: SumSpec(parts=(part,), times=64)})


@asynccontextmanager
async def each_in_scope(
    members: Iterable[int], answering: Callable[..., Awaitable[None]], **changes: Any
) -> AsyncIterator[dict[int, trio.CancelScope]]:
    """Run `answering(member, **changes)` for each member around a block, in a scope to end it by."""
    scopes = {member: trio.CancelScope() for member in members}

    async def guarded(member: int) -> None:
        with scopes[member]:
            await answering(member, **changes)

    async with trio.open_nursery() as nursery:
        for member in scopes:
            nursery.start_soon(guarded, member)
        yield scopes
        nursery.cancel_scope.cancel()


@dataclass
class World:
    """The settings that servers and clients of one test share, and what they remember."""

    clients: int = 4
    size: int = 4
    trust: Trust = Trust.CURIOUS
    agreement: KeyAgreement = KeyAgreement.X25519
    sums: int = 3
    least: int = 2
    memories: dict[int, Memory] = field(default_factory=dict)
    diary: Diary = field(default_factory=Diary)
    diaries: dict[int, Diary] = field(default_factory=dict)
    round: int = 0

    def __post_init__(self) -> None:
        self.table = table(self.size)
        members = list(range(self.clients))
        self.registry = seeded_registry(SEED, members)
        self.diaries = {member: Diary() for member in members}
        for member in members:
            self.memories.setdefault(member, VolatileMemory())

    @property
    def policy(self) -> Policy:
        return Policy(
            trust=self.trust, corrupt=0, min_cohort=2, max_cohort=max(self.clients, 2), min_contributors=2,
            max_sums=self.sums, unnoised_sums=1000, key_agreement=self.agreement,
        )  # fmt: skip

    def machine(self, **changes: Any) -> ServerMachine:
        settings: dict[str, Any] = {
            "table": self.table,
            "trust": self.trust,
            "sums": self.sums,
            "key_agreement": self.agreement,
            "corrupt": 0,
            "dropout": 0,
            "min_cohort": self.least,
            "max_cohort": max(self.clients, 2),
            "min_contributors": 2,
            "registry": self.registry if self.trust is Trust.MALICIOUS else None,
        }
        return ServerMachine(**with_params({**settings, **changes}))

    def server(self, **changes: Any) -> AbstractAsyncContextManager[Server]:
        settings: dict[str, Any] = {
            "members": self.registry.members,
            "insecure_plain_tcp": True,
            "on_event": EventLog(self.diary),
            **changes,
        }
        return open_server(ADDRESS, **settings)

    def session(self, server: Server, **changes: Any) -> AbstractAsyncContextManager[Session]:
        settings: dict[str, Any] = {"expected": self.clients, "work": inline, **changes}
        return server.session(settings.pop("machine", None) or self.machine(), **settings)

    def client(self, member: int, **changes: Any) -> AbstractAsyncContextManager[Client]:
        settings: dict[str, Any] = {
            "table": self.table,
            "policy": self.policy,
            "memory": self.memories[member],
            "insecure_plain_tcp": True,
            "on_event": EventLog(self.diaries[member]),
            "work": inline,
            **changes,
        }
        if self.trust is Trust.MALICIOUS:
            settings = {"identity": seeded_identity(SEED, member), "registry": self.registry, **settings}
        return open_client(settings.pop("address", ADDRESS), member=member, **settings)

    async def answering(self, member: int, **changes: Any) -> None:
        """A well-behaved client, until it is cancelled."""
        async with self.client(member, **changes) as client:
            async for asked in client:
                await client.answer(asked, self.values(member, asked))

    def values(self, member: int, asked: Asked) -> dict[str, Any]:
        return {PART: self.vector(member, asked.round)}

    def vector(self, member: int, round_number: int) -> Any:
        """No two clients and no two rounds have the same, nor do any two sets of clients add up to it."""
        first = (1 << (5 * member)) + (round_number << 24)
        return np.arange(first, first + self.size, dtype=np.uint32)

    async def ask(self, session: Session) -> Total:
        self.round += 1
        return await session.ask(KIND, self.round.to_bytes(2, "big"), round_number=self.round)

    def check(self, total: Total, session: Session, *members: int) -> None:
        """The total is that of `members`, each once."""
        assert session.contributors == members
        assert total.count == len(members)
        expected = sum(self.vector(member, self.round) for member in members)
        assert np.array_equal(total[PART], expected)

    def forget(self, member: int) -> None:
        """What a process knows that has just begun."""
        self.memories[member] = VolatileMemory()

    @asynccontextmanager
    async def all_clients(self, *members: int, **changes: Any) -> AsyncIterator[dict[int, trio.CancelScope]]:
        """Well-behaved clients around a block, each with a scope to end it by."""
        async with each_in_scope(members or range(self.clients), self.answering, **changes) as scopes:
            yield scopes
