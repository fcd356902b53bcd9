"""What hostile peers cost the server in memory, measured in a process that holds nothing but the server.

The bounds follow from the settings: so many strangers, so many uploads, so many unread frames for each
client. Honest clients and attackers are in the process of the test, on the real clock.
"""

from __future__ import annotations

import multiprocessing as mp
import random
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing.connection import Connection as Pipe

import pytest
import trio

from benchmarks.memory_growth import MemoryGrowth
from secagg.errors import SecaggError
from secagg.identity_registry import Registry
from secagg.net import packets, upload_slots
from secagg.net.certificates import certificate_key
from secagg.net.packets import MAX_BODY, PacketKind
from secagg.net.reliable_link import MAX_UNREAD
from secagg.net.settings import Address, Capacity, Deadlines, Patience
from tests.attacks.network import Attack, Diary, Scene, Site, in_packets, run_live

MEGABYTE = 1 << 20
SLACK = 14 * MEGABYTE  # of allocators, and what waits for the collector of garbage
TLS_STATE = 256 << 10  # of one connection, both ways, with its buffers
# A closed TLS stream of trio is a cycle, which the collector of garbage finds when there are many more
# objects than the last time: some that were closed are still there, but no more the longer it goes on.
CLOSED = 24 * MEGABYTE


@dataclass(frozen=True)
class Setting:
    """What both processes have to know."""

    size: int
    honest: int = 3
    hostile: int = 1
    invited: int = 0  # of the hostile ones, how many are there before the session begins
    capacity: Capacity = field(default_factory=lambda: Capacity(uploads=2, strangers=16, slowest=1e9))

    def site(self) -> Site:
        return Site(
            honest=self.honest,
            hostile=self.hostile,
            size=self.size,
            sums=24,
            capacity=self.capacity,
            patience=Patience(handshake=5, silence=60, grace=1),
            deadlines=Deadlines(mask=60),
        )

    @property
    def frame(self) -> int:
        return 4 * self.size + 256


@dataclass(frozen=True)
class Report:
    """From the server's process: how much it grew, and its log."""

    growth: int
    diary: Diary
    sums: int


# --- the server's process -----------------------------------------------------------------------------


def serve_alone(setting: Setting, certificates: dict[int, bytes], pipe: Pipe) -> None:
    upload_slots.GRACE = 0.1  # type: ignore[misc]  # Nobody has to wait for long here.
    run_live(partial(_serve, setting, certificates, pipe))


async def _serve(setting: Setting, certificates: dict[int, bytes], pipe: Pipe) -> None:
    site = setting.site()
    site.certificates = certificates
    site.registry = Registry(0, {member: certificate_key(pem) for member, pem in certificates.items()})
    async with site.server() as server, trio.open_nursery() as nursery:
        pipe.send((server.address, site.server_certificate))
        await server.wait_for_clients(setting.honest)
        place = Scene(site, server, server.address, nursery)
        async with place.session(expected=setting.honest) as session:
            await place.sum(session)  # All that sums need is there from now on.
        growth = MemoryGrowth()
        pipe.send("go")
        over = trio.Event()

        async def hear_of_the_end() -> None:
            await trio.to_thread.run_sync(pipe.recv)
            over.set()

        nursery.start_soon(hear_of_the_end)
        await server.wait_for_clients(setting.honest + setting.invited)
        async with place.session(expected=setting.honest) as session:
            pipe.send("begun")
            while not over.is_set() and session.sums_left > 1:
                await place.sum(session)
            await over.wait()
            await place.sum(session)
        pipe.send(Report(growth.peak_bytes(), site.diary, place.rounds))


# --- the process of all other clients --------------------------------------------------------------------


def measure(setting: Setting, attack: Attack) -> Report:
    site = setting.site()
    context = mp.get_context("spawn")
    near, far = context.Pipe()
    process = context.Process(target=serve_alone, args=(setting, site.certificates, far))
    process.start()
    far.close()  # If that process dies, its end of the pipe is closed.
    try:
        report = run_live(partial(_attack, site, attack, near))
        process.join(30)
        assert process.exitcode == 0
        return report
    finally:
        process.kill()
        process.join()
        near.close()


async def _attack(site: Site, attack: Attack, pipe: Pipe) -> Report:
    receive = partial(trio.to_thread.run_sync, pipe.recv, abandon_on_cancel=True)
    address, site.server_certificate = await receive()
    assert isinstance(address, Address)
    async with trio.open_nursery() as nursery:
        place = Scene(site, None, address, nursery)  # type: ignore[arg-type]  # The server is elsewhere.
        try:
            for member in range(site.honest):
                nursery.start_soon(site.answer_all, member, address)
            assert await receive() == "go"
            async with trio.open_nursery() as attackers:
                attackers.start_soon(attack, place)
                assert await receive() == "begun"
                place.begun.set()
            pipe.send("over")
            report = await receive()
            nursery.cancel_scope.cancel()
        finally:
            for stream in place.streams:
                stream.socket.close()
    assert isinstance(report, Report)
    return report


def assert_cheap(report: Report, most: int) -> None:
    """All sums were exact, or the server would have ended without a report; and it did not grow by more."""
    assert report.sums >= 2
    assert report.growth < most


# --- strangers ----------------------------------------------------------------------------------------


async def knock(place: Scene, times: int) -> None:
    """In turns: say nothing, begin a handshake, send garbage, hang up. Nobody leaves of its own will."""
    chance = random.Random(4)
    start = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"  # of a handshake, whose rest never comes
    for number in range(times):
        stream = await place.tcp()
        with suppress(trio.BrokenResourceError):
            await stream.send_all((b"", start, chance.randbytes(300), b"")[number % 4])
        if number % 4 == 3:
            await stream.aclose()
        if len(place.streams) > 500:
            place.streams.pop(0).socket.close()


def strangers(times: int, closed: int = 0) -> None:
    setting = Setting(size=1000)
    report = measure(setting, partial(knock, times=times))
    assert_cheap(report, setting.capacity.strangers * TLS_STATE + SLACK + closed)
    assert 1 <= len(report.diary.of("refused")) <= 12


def test_strangers() -> None:
    """The guard: `ClientAuthenticator._limit_pending`. Without it, silent peers are held for 5 seconds."""
    strangers(1000)


@pytest.mark.slow
def test_a_hundred_thousand_strangers() -> None:
    strangers(100_000, CLOSED)


# --- clients ------------------------------------------------------------------------------------------

CROWD = Setting(size=MEGABYTE, hostile=12, invited=12, capacity=Capacity(uploads=1, slowest=1e9))
# For each upload, a vector as it is received and one as it is decoded; and two of the sum itself.
LARGE = (2 * CROWD.capacity.uploads + 2) * CROWD.frame + len(CROWD.site().members) * TLS_STATE + SLACK


async def upload_all_but_a_byte(place: Scene, member: int) -> None:
    """And wait until the server has had enough of it."""
    intruder = await place.join(member)
    await intruder.frame()
    await place.begun.wait()
    data = b"".join(in_packets(bytes(CROWD.frame), 1))
    with suppress(SecaggError):
        await intruder.send(data[:-1])
    await intruder.until_closed()


def test_uploads_that_stop_before_the_end() -> None:
    """Twelve clients upload all but the last byte. The guard: `UploadSlots`; without it, all are kept.

    Nor is a broken upload kept: the guard is that `Link.run` drops the traceback of what ended it.
    """

    async def attack(place: Scene) -> None:
        async with trio.open_nursery() as nursery:
            for member in range(CROWD.honest, CROWD.honest + CROWD.hostile):
                nursery.start_soon(upload_all_but_a_byte, place, member)

    assert_cheap(measure(CROWD, attack), LARGE)


def test_uploads_in_tiny_pieces() -> None:
    """A vector in pieces of two bytes. The guard: pieces are full, in `Link._read_frame`.

    Without it, each piece takes twenty times its size to keep.
    """

    setting = replace(CROWD, invited=1)

    async def attack(place: Scene) -> None:
        intruder = await place.join(CROWD.honest)
        await intruder.frame()
        await place.begun.wait()
        tiny = packets.packet(PacketKind.PIECE, b"xx") * (CROWD.frame // 4)
        with suppress(SecaggError):
            await intruder.send(packets.begin(CROWD.frame, 1), tiny)
        await intruder.until_closed()

    report = measure(setting, attack)
    assert_cheap(report, LARGE)
    assert [facts["member"] for facts in report.diary.of("excluded")] == [CROWD.honest]


async def babble(place: Scene, connections: int, each: int) -> None:
    """Garbage in packets of the right form, on one connection after the other."""
    chance = random.Random(5)
    for _ in range(connections):
        intruder = await place.intrude(place.site.insider)
        with suppress(SecaggError):
            await intruder.hello(place.site.insider)
            for _ in range(each):
                await intruder.send_frame(chance.randbytes(chance.randrange(1, 1000)), seen=1)
        await intruder.until_closed()
        await intruder.vanish()


@pytest.mark.slow
def test_a_hundred_thousand_garbage_frames() -> None:
    setting = Setting(size=1000)
    report = measure(setting, partial(babble, connections=1000, each=100))
    assert_cheap(report, len(setting.site().members) * (MAX_UNREAD * MAX_BODY + TLS_STATE) + SLACK)
    assert len(report.diary.of("excluded")) == 1


@pytest.mark.slow
def test_a_thousand_connections_of_one_client() -> None:
    async def attack(place: Scene) -> None:
        for _ in range(1000):
            await (await place.join(place.site.insider)).vanish()

    report = measure(Setting(size=1000), attack)
    assert_cheap(report, SLACK)
    about = [facts for _, facts in report.diary if facts.get("member") == CROWD.honest]
    assert len(about) <= 8
