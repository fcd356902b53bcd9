"""Whoever sits between clients and server: it reads, replays, and cuts connections.

A recording proxy keeps every byte of both directions. What the machines were given is recorded too, to look
for it in there.
"""

from __future__ import annotations

import random
import socket
import struct
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np
import pytest
import trio

from secagg import messages as m
from secagg.client import ClientMachine
from secagg.errors import SERVER
from secagg.events import ClientStep, ServerEvent
from secagg.net import packets
from secagg.net.packets import HEADER, PacketKind
from secagg.net.settings import Address, Patience
from secagg.residue_packing import Residues, unpack
from secagg.server import ServerMachine
from secagg.trust_levels import Trust
from tests.attacks.network import BITS, Site, run, scene
from tests.secagg.chance import chi_square, chi_square_limit

SIZE = 2000
WINDOW = 16
RESET = struct.pack("ii", 1, 0)  # close a socket without a goodbye


@dataclass
class Recording:
    """One connection through the proxy."""

    up: bytearray = field(default_factory=bytearray)
    down: bytearray = field(default_factory=bytearray)


class Proxy:
    """Stands between clients and server. `cuts` gives for each connection after how many bytes it is cut."""

    def __init__(self, cuts: Iterator[int] | None = None) -> None:
        self.recordings: list[Recording] = []
        self.cut = 0
        self._cuts = cuts

    async def __call__(self, target: Address, *, task_status: trio.TaskStatus[Address]) -> None:
        self._target = target
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        task_status.started(Address("127.0.0.1", listeners[0].socket.getsockname()[1]))
        await trio.serve_listeners(self._carry, listeners)

    async def _carry(self, near: trio.SocketStream) -> None:
        recording = Recording()
        self.recordings.append(recording)
        left = [next(self._cuts)] if self._cuts is not None else None
        far = await trio.open_tcp_stream(self._target.host, self._target.port)
        async with far, trio.open_nursery() as nursery:
            nursery.start_soon(self._pump, near, far, recording.up, left, nursery)
            nursery.start_soon(self._pump, far, near, recording.down, left, nursery)

    async def _pump(
        self,
        source: trio.SocketStream,
        sink: trio.SocketStream,
        record: bytearray,
        left: list[int] | None,
        nursery: trio.Nursery,
    ) -> None:
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            while data := await source.receive_some(4096):
                if left is not None:
                    data = data[: left[0]]
                    left[0] -= len(data)
                record += data
                await sink.send_all(data)
                if left == [0]:
                    self.cut += 1
                    _break(source, sink, abruptly=self.cut % 2 == 0)
                    break
        nursery.cancel_scope.cancel()


def _break(*streams: trio.SocketStream, abruptly: bool) -> None:
    for stream in streams:
        if abruptly:
            stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        stream.socket.close()


@dataclass
class Frames:
    """What reached the machines, by client."""

    up: dict[int, list[bytes]] = field(default_factory=lambda: defaultdict(list))
    down: dict[int, list[bytes]] = field(default_factory=lambda: defaultdict(list))

    def watch(self, patch: pytest.MonkeyPatch) -> None:
        at_server, at_client = ServerMachine.receive, ClientMachine.receive

        def server(machine: ServerMachine, sender: int, frame: bytes) -> tuple[ServerEvent, ...]:
            self.up[sender].append(frame)
            return at_server(machine, sender, frame)

        def client(machine: ClientMachine, frame: bytes, *, now: int | None = None) -> ClientStep:
            self.down[machine.member].append(frame)
            return at_client(machine, frame, now=now)

        patch.setattr(ServerMachine, "receive", server)
        patch.setattr(ClientMachine, "receive", client)

    def everything(self) -> list[bytes]:
        return [frame for way in (self.up, self.down) for frames in way.values() for frame in frames]


def sums_through(proxy: Proxy, site: Site) -> None:
    async def main() -> None:
        async with scene(site, proxy=proxy) as place, place.session() as session:
            for _ in range(site.sums):
                await place.sum(session)

    run(main)


@pytest.fixture
def frames(monkeypatch: pytest.MonkeyPatch) -> Frames:
    watched = Frames()
    watched.watch(monkeypatch)
    return watched


# --- reading ------------------------------------------------------------------------------------------


def windows(data: bytes) -> set[bytes]:
    return {data[at : at + WINDOW] for at in range(len(data) - WINDOW + 1)}


def common(proxy: Proxy, frames: Frames) -> int:
    """How many frames have 16 bytes in a row, at any place, in common with what the proxy has seen."""
    ways = [bytes(way) for each in proxy.recordings for way in (each.up, each.down)]
    seen = set().union(*map(windows, ways))
    return sum(not seen.isdisjoint(windows(frame)) for frame in frames.everything())


@pytest.mark.parametrize("trust", list(Trust))
def test_under_tls_nothing_of_a_frame_is_on_the_wire(trust: Trust, frames: Frames) -> None:
    """No 16 bytes in a row of any frame, in either direction. The guard: TLS; see the next test."""
    site, proxy = Site(hostile=0, size=SIZE, sums=1, trust=trust), Proxy()
    sums_through(proxy, site)
    assert len(frames.everything()) >= 7 * site.honest
    assert common(proxy, frames) == 0
    assert len(proxy.recordings) == site.honest
    assert all(min(len(each.up), len(each.down)) > 1000 for each in proxy.recordings)


def test_without_tls_all_of_every_frame_is_on_the_wire(frames: Frames) -> None:
    """The same test with its guard removed: so it finds what is there."""
    site, proxy = Site(hostile=0, size=SIZE, sums=1, tls=False), Proxy()
    sums_through(proxy, site)
    assert common(proxy, frames) == len(frames.everything())


# --- masked inputs without TLS ------------------------------------------------------------------------

MANY = 1 << 13
VECTORS = 8
COMPARISONS = 4 * (VECTORS + 1)  # each byte of every vector, and of all of them together
CHANCE = 1e-7 / COMPARISONS  # of a false alarm: machines draw their randomness from the operating system


def recorded_inputs(proxy: Proxy) -> list[Residues]:
    """What the recordings show of the clients' vectors."""
    found = []
    for recording in proxy.recordings:
        for frame in recorded_frames(bytes(recording.up)):
            message = m.decode(frame, sender=SERVER, limit=len(frame))
            if isinstance(message, m.MaskedInput):
                found.append(unpack(message.data, MANY, BITS))
    return found


def recorded_frames(data: bytes) -> Iterator[bytes]:
    frame, size = b"", 0
    while data:
        kind, length = HEADER.unpack(data[: HEADER.size])
        body, data = data[HEADER.size :][:length], data[HEADER.size + length :]
        if kind == PacketKind.BEGIN:
            frame, size = b"", packets.parse_begin(body).size
        elif kind == PacketKind.PIECE:
            frame += body
            if len(frame) == size:
                yield frame


def looks_uniform(values: Residues) -> bool:
    """Whether each byte of the numbers does."""
    cells = [(values >> np.uint32(shift)) & np.uint32(255) for shift in (0, 8, 16, 24)]
    limit = chi_square_limit(256, CHANCE)
    return all(chi_square(np.bincount(cell.astype(np.int64), minlength=256)) < limit for cell in cells)


def test_without_tls_masked_inputs_look_uniform() -> None:
    """All comparisons together raise a false alarm with a probability below 1e-7. Plain inputs raise it."""
    site, proxy = Site(hostile=0, size=MANY, sums=2, tls=False), Proxy()
    sums_through(proxy, site)
    inputs = recorded_inputs(proxy)
    assert len(inputs) == VECTORS == site.honest * site.sums
    assert all(map(looks_uniform, [*inputs, np.concatenate(inputs)]))
    plain = [site.vector(member, k) for member in range(site.honest) for k in (1, 2)]
    assert not any(map(looks_uniform, [*plain, np.concatenate(plain)]))


# --- replaying ----------------------------------------------------------------------------------------


def test_a_recorded_connection_is_worth_nothing() -> None:
    """A stranger sends the bytes that a client sent, hello and all. The guard: TLS, with keys of its own."""
    site, proxy = Site(hostile=0, sums=2), Proxy()

    async def main() -> None:
        async with scene(site, proxy=proxy) as place, place.session() as session:
            await place.sum(session)
            for recording in list(proxy.recordings):
                stream = await place.tcp()
                with suppress(trio.BrokenResourceError):
                    await stream.send_all(recording.up)
                    while await stream.receive_some():
                        pass
            await place.sum(session)

    run(main)
    assert len(proxy.recordings) == 2 * site.honest
    (reason,) = site.diary.reasons("refused")
    assert str(reason).startswith("TLS: ")
    assert len(site.diary.of("connected")) == site.honest
    assert not site.diary.of("disconnected")


# --- cutting ------------------------------------------------------------------------------------------


def cuts(seed: int) -> Iterator[int]:
    """Enough for a handshake at least, now and then for a vector too."""
    chance = random.Random(seed)
    while True:
        yield chance.choice((chance.randrange(1, 5_000), chance.randrange(5_000, 40_000)))


def assert_exact_despite_cuts(seed: int, trust: Trust, frames: Frames, least: int) -> None:
    site = Site(hostile=0, size=SIZE, sums=4, trust=trust, patience=Patience(grace=3600))
    proxy = Proxy(cuts(seed))
    sums_through(proxy, site)
    assert proxy.cut >= least
    assert site.diary.of("reconnected")
    assert not site.diary.of("left") + site.diary.of("excluded") + site.diary.of("missing")
    for way in (frames.up, frames.down):
        assert sorted(way) == list(range(site.honest))
        assert all(len(set(each)) == len(each) for each in way.values())


@pytest.mark.parametrize(("seed", "trust"), [(1, Trust.CURIOUS), (2, Trust.MALICIOUS)])
def test_connections_that_are_cut_again_and_again(seed: int, trust: Trust, frames: Frames) -> None:
    """At any byte, in both directions, in all stages: nothing is lost, and nothing reaches a machine twice.

    The guards: frames are kept until they are acknowledged, and counted, in `Link`. Without the count, the
    machine sees a frame twice; without the other, the stage waits for ever.
    """
    assert_exact_despite_cuts(seed, trust, frames, 8)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3, 23))
@pytest.mark.parametrize("trust", list(Trust))
def test_connections_that_are_cut_in_many_ways(seed: int, trust: Trust, frames: Frames) -> None:
    assert_exact_despite_cuts(seed, trust, frames, 4)
