"""A session over real sockets, and peers that speak its transport by hand and as they please.

Everything runs in one process, on a clock that jumps as soon as nobody has had anything to do for a moment:
deadlines are generous, none is waited for, and a busy machine does not make anybody late.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypeAlias, TypeVar

import numpy as np
import pytest
import trio
from numpy.typing import NDArray
from trio.testing import MockClock

from secagg import messages as m
from secagg.client import ClientMachine
from secagg.client_memory import VolatileMemory
from secagg.errors import SERVER
from secagg.events import Asked
from secagg.identity_registry import Registry
from secagg.keys import Identity
from secagg.net import packets
from secagg.net.certificates import make_certificate
from secagg.net.client import Client
from secagg.net.connection import Connection
from secagg.net.event_log import EventLog, Fact
from secagg.net.handshake import ClientAuthenticator
from secagg.net.nursery_and_threads import inline
from secagg.net.open_client_and_server import open_client, open_server
from secagg.net.packets import PacketKind, Welcome
from secagg.net.server import Server
from secagg.net.server_session import Session
from secagg.net.settings import Address, Capacity, Deadlines, Patience
from secagg.net.tls import client_context, server_context
from secagg.policy import Policy
from secagg.server import ServerMachine
from secagg.sum_spec import Part, Residue, SumSpec, Table
from secagg.trust_levels import Trust
from tests.secagg.flat_params import with_params

T = TypeVar("T")
KIND: Final = "sum"
PART: Final = "x"
BITS: Final = 32
FOREVER: Final = 20_000.0  # seconds of the clock that jumps, after which a test is taken to hang
_MOMENT: Final = 0.03  # real seconds for which nobody has anything to do before the clock jumps
_HANG: Final = 240.0  # real seconds after which a test is taken to hang


def run(main: Callable[[], Awaitable[T]]) -> T:
    """On the clock that jumps."""

    async def bounded() -> T:
        with trio.fail_after(FOREVER):
            return await main()

    return trio.run(bounded, clock=MockClock(autojump_threshold=_MOMENT))


def run_live(main: Callable[[], Awaitable[T]]) -> T:
    """On the real clock, for what goes on in several processes."""

    async def bounded() -> T:
        with trio.fail_after(_HANG):
            return await main()

    return trio.run(bounded)


class Diary(list[tuple[str, Mapping[str, Fact]]]):
    """What was written to an operator's log until the scene was over, when all clients leave."""

    _changed: trio.Event | None = None
    over = False

    def __call__(self, event: str, facts: Mapping[str, Fact]) -> None:
        if not self.over:
            self.append((event, dict(facts)))
        if self._changed is not None:
            self._changed.set()

    def of(self, event: str, **facts: Fact) -> list[Mapping[str, Fact]]:
        """The entries with this name and these facts."""
        return [said for name, said in self if name == event and facts.items() <= said.items()]

    def reasons(self, event: str, **facts: Fact) -> list[Fact]:
        return [said["reason"] for said in self.of(event, **facts)]

    async def has(self, event: str, **facts: Fact) -> None:
        """Wait for an entry."""
        while not self.of(event, **facts):
            self._changed = trio.Event()
            await self._changed.wait()


Attack: TypeAlias = Callable[["Scene"], Awaitable[None]]
Proxy: TypeAlias = Callable[..., Awaitable[None]]  # (address), and `task_status.started(its own address)`


@dataclass
class Site:
    """Who takes part, with which settings. The hostile ones are registered too; their ids come last."""

    honest: int = 4
    hostile: int = 1
    size: int = 4
    sums: int = 2
    tls: bool = True
    trust: Trust = Trust.CURIOUS
    patience: Patience = field(default_factory=lambda: Patience(handshake=20, silence=400, grace=5))
    capacity: Capacity = field(default_factory=Capacity)
    deadlines: Deadlines = field(default_factory=Deadlines)
    diary: Diary = field(default_factory=Diary)
    go: trio.Event | None = None  # what honest clients wait for before they answer

    def __post_init__(self) -> None:
        now = int(time.time())
        self.members = range(self.honest + self.hostile)
        self.identities = {member: Identity.generate() for member in self.members}
        self.certificates = {k: make_certificate(key, now=now) for k, key in self.identities.items()}
        self.server_identity = Identity.generate()
        self.server_certificate = make_certificate(self.server_identity, now=now)
        self.registry = Registry(0, {k: key.public for k, key in self.identities.items()})
        part = Part(name=PART, size=self.size, bits=BITS, bound=Residue())
        self.table = Table({KIND: SumSpec(parts=(part,), times=64)})
        self.policy = Policy(
            trust=self.trust, corrupt=0, min_cohort=2, max_cohort=64, min_contributors=2,
            max_sums=self.sums, unnoised_sums=1000,
        )  # fmt: skip
        self.client_diaries = {member: Diary() for member in self.members}

    @property
    def insider(self) -> int:
        """The first of the hostile clients."""
        return self.honest

    def machine(self, **changes: Any) -> ServerMachine:
        settings: dict[str, Any] = {
            "table": self.table,
            "trust": self.trust,
            "sums": self.sums,
            "corrupt": 0,
            "dropout": 0.4,
            "min_cohort": 2,
            "max_cohort": 64,
            "min_contributors": 2,
            "registry": self.registry if self.trust is Trust.MALICIOUS else None,
        }
        return ServerMachine(**with_params({**settings, **changes}))

    def context(self, member: int) -> ssl.SSLContext:
        return client_context(self.identities[member], self.certificates[member], self.server_certificate)

    def server(self) -> AbstractAsyncContextManager[Server]:
        trusted = list(self.certificates.values())
        context = server_context(self.server_identity, self.server_certificate, trusted) if self.tls else None
        return open_server(
            "127.0.0.1:0",
            members=self.registry.members,
            context=context,
            insecure_plain_tcp=not self.tls,
            patience=self.patience,
            capacity=self.capacity,
            on_event=EventLog(self.diary),
        )

    def client(self, member: int, address: Address, **changes: Any) -> AbstractAsyncContextManager[Client]:
        signed = self.trust is Trust.MALICIOUS
        settings: dict[str, Any] = {
            "context": self.context(member) if self.tls else None,
            "insecure_plain_tcp": not self.tls,
            "memory": VolatileMemory(),
            "identity": self.identities[member] if signed else None,
            "registry": self.registry if signed else None,
            "on_event": EventLog(self.client_diaries[member]),
            "patience": self.patience,
            "work": inline,
        }
        return open_client(
            address, member=member, table=self.table, policy=self.policy, **{**settings, **changes}
        )

    def client_machine(self, member: int) -> ClientMachine:
        signed = self.trust is Trust.MALICIOUS
        return ClientMachine(
            member=member,
            table=self.table,
            policy=self.policy,
            memory=VolatileMemory(),
            identity=self.identities[member] if signed else None,
            registry=self.registry if signed else None,
        )

    def vector(self, member: int, round_number: int) -> NDArray[np.uint32]:
        """What a client adds: no two sets of clients and rounds have the same sum."""
        first = (1 << (3 * member)) + (round_number << 26)
        return np.arange(first, first + self.size, dtype=np.uint32)

    async def answer_all(self, member: int, address: Address, **changes: Any) -> None:
        """An honest client."""
        async with self.client(member, address, **changes) as client:
            async for asked in client:
                if self.go is not None:
                    await self.go.wait()
                await client.answer(asked, {PART: self.vector(member, asked.round)})


class Scene:
    """A server that listens, its honest clients, and whoever else is there until the end."""

    def __init__(self, site: Site, server: Server, address: Address, nursery: trio.Nursery) -> None:
        self.site = site
        self.server = server
        self.address = address  # what clients dial
        self.nursery = nursery
        self.rounds = 0
        self.begun = trio.Event()  # set when a session is set up by a server in another process
        self.streams: list[trio.SocketStream] = []

    async def sum(
        self, session: Session, members: Iterable[int] | None = None, *, payload: bytes = b""
    ) -> None:
        """One sum, of exactly these clients or else the honest ones."""
        self.rounds += 1
        present = tuple(range(self.site.honest) if members is None else members)
        question = bytes([self.rounds]) + payload
        total = await session.ask(KIND, question, round_number=self.rounds)
        assert session.contributors == present
        assert total.count == len(present)
        expected = sum((self.site.vector(k, self.rounds) for k in present), np.uint32(0))
        assert np.array_equal(total[PART], expected)

    @asynccontextmanager
    async def session(self, *, expected: int | None = None, **changes: Any) -> AsyncIterator[Session]:
        """With all clients, hostile or not, unless told otherwise. It lasts for as long as the block."""
        settings: dict[str, Any] = {"deadlines": self.site.deadlines, "work": inline, **changes}
        all_clients = len(self.site.members) if expected is None else expected
        async with self.server.session(self.site.machine(), expected=all_clients, **settings) as session:
            yield session

    async def tcp(self) -> trio.SocketStream:
        """A connection that nobody has spoken on yet. The scene closes it, if nobody else does."""
        stream = await trio.open_tcp_stream(self.address.host, self.address.port)
        self.streams.append(stream)
        return stream

    async def tls(self, context: ssl.SSLContext) -> trio.SSLStream[trio.SocketStream]:
        """Connected, with whatever certificate is in the context."""
        stream = trio.SSLStream(await self.tcp(), context, https_compatible=True)
        await stream.do_handshake()
        return stream

    async def intrude(self, member: int) -> Intruder:
        """A connection with the certificate of a registered client, which has said nothing yet."""
        if not self.site.tls:
            return Intruder(await self.tcp())
        return Intruder(await self.tls(self.site.context(member)))

    async def join(self, member: int, *, link: bytes | None = None, received: int = 0) -> Intruder:
        """The same, after hello and welcome."""
        intruder = await self.intrude(member)
        await intruder.hello(member, link=link, received=received)
        intruder.received = received if (await intruder.welcomed()).resumed else 0
        return intruder

    async def puppet(self, member: int) -> Puppet:
        return Puppet(self.site, member, await self.join(member))


@asynccontextmanager
async def scene(site: Site, *, proxy: Proxy | None = None, **changes: Any) -> AsyncIterator[Scene]:
    """Server and honest clients, which are connected; a proxy may stand between them."""
    async with trio.open_nursery() as nursery, site.server() as server:
        address = server.address if proxy is None else await nursery.start(proxy, server.address)
        for member in range(site.honest):
            nursery.start_soon(partial(site.answer_all, member, address, **changes))
        await server.wait_for_clients(site.honest)
        place = Scene(site, server, address, nursery)
        try:
            yield place
        finally:
            site.diary.over = True
            nursery.cancel_scope.cancel()
            for stream in place.streams:
                stream.socket.close()


def endure(
    site: Site, attack: Attack, *, members: Iterable[int] | None = None, expected: int | None = None
) -> None:
    """Sums while an attack goes on, and one more when it is over: all are exactly those of `members`."""

    async def main() -> None:
        async with scene(site) as place:
            over = trio.Event()

            async def attacker() -> None:
                await attack(place)
                over.set()

            place.nursery.start_soon(attacker)
            async with place.session(expected=expected) as session:
                for _ in range(site.sums - 1):
                    await place.sum(session, members)
                await over.wait()
                await place.sum(session, members)

    run(main)


class Intruder:
    """A connection whose packets are made and read one by one."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self.stream = stream
        self.connection = Connection(stream, peer=SERVER, silence=FOREVER)
        self.received = 0

    @property
    def tcp(self) -> trio.socket.SocketType:
        """Below TLS."""
        stream = self.stream.transport_stream if isinstance(self.stream, trio.SSLStream) else self.stream
        assert isinstance(stream, trio.SocketStream)
        return stream.socket

    async def hello(self, member: int, *, link: bytes | None = None, received: int = 0) -> None:
        name = link or member.to_bytes(packets.LINK_BYTES, "big")
        await self.send(packets.hello(member, name, received))

    async def welcomed(self) -> Welcome:
        kind, body = await self.connection.read()
        assert kind is PacketKind.WELCOME
        return packets.parse_welcome(body, sender=SERVER)

    async def send(self, *data: bytes) -> None:
        await self.connection.write(data)

    async def next(self, wanted: PacketKind) -> bytes:
        """The next packet of a kind; others are passed over."""
        while True:
            kind, body = await self.connection.read()
            if kind is wanted:
                return body

    async def frame(self, *, ack: bool = True) -> bytes:
        size = packets.parse_begin(await self.next(PacketKind.BEGIN)).size
        data = b""
        while len(data) < size:
            data += await self.next(PacketKind.PIECE)
        self.received += 1
        if ack:
            await self.send(packets.ack(self.received))
        return data

    async def send_frame(self, frame: bytes, *, seen: int | None = None) -> None:
        await self.send(*in_packets(frame, self.received if seen is None else seen))

    async def dismissal(self) -> packets.Reason:
        return packets.parse_bye(await self.next(PacketKind.BYE), sender=SERVER).reason

    async def until_closed(self) -> None:
        """Whatever comes is ignored, until nothing more does."""
        try:
            while await self.stream.receive_some():
                pass
        except trio.BrokenResourceError:
            pass

    async def vanish(self) -> None:
        await trio.aclose_forcefully(self.stream)


class Puppet:
    """A registered client with an honest machine, whose transport is the attacker's."""

    def __init__(self, site: Site, member: int, intruder: Intruder) -> None:
        self.site = site
        self.member = member
        self.intruder = intruder
        self.machine = site.client_machine(member)
        self.said: list[bytes] = []  # every frame it has sent

    async def play(self, until: type[m.Message], *, sum_index: int = 0) -> bytes:
        """Take part up to its own message of that kind, which is returned instead of sent."""
        while True:
            for frame in self._answers(await self.intruder.frame()):
                message = m.decode(frame, sender=self.member, limit=len(frame))
                if isinstance(message, until) and getattr(message, "sum_index", sum_index) == sum_index:
                    return frame
                self.said.append(frame)
                await self.intruder.send_frame(frame)

    def _answers(self, frame: bytes) -> list[bytes]:
        step = self.machine.receive(frame)
        frames = list(step.frames)
        for event in step.events:
            if isinstance(event, Asked):
                values = {PART: self.site.vector(self.member, event.round)}
                frames.append(self.machine.answer(event.sum_index, values).frame)
        return frames


def in_packets(frame: bytes, seen: int) -> list[bytes]:
    """A frame as an honest sender cuts it."""
    most = packets.MAX_BODY
    pieces = [frame[start : start + most] for start in range(0, len(frame), most)]
    return [
        packets.begin(len(frame), seen),
        *(packets.packet(PacketKind.PIECE, piece) for piece in pieces),
    ]


def crowd(patch: pytest.MonkeyPatch) -> set[int]:
    """Collects how many strangers were at the door, whenever one more had come."""
    seen: set[int] = set()
    inside = [0]
    identify = ClientAuthenticator._identify

    async def counted(self: ClientAuthenticator, stream: trio.abc.Stream) -> object:
        inside[0] += 1
        seen.add(inside[0])
        try:
            return await identify(self, stream)
        finally:
            inside[0] -= 1

    patch.setattr(ClientAuthenticator, "_identify", counted)
    return seen
