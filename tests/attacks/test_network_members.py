"""Registered clients that break the rules of the transport: good certificates, bad packets.

In every test a session goes on meanwhile, whose totals are exact. Who breaks a rule is excluded until the
next session, with one line in the log, however often it comes back.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
import trio
from trio.testing import memory_stream_pair

from secagg import messages as m
from secagg.errors import SecaggError
from secagg.net import packets
from secagg.net import reliable_link as link_module
from secagg.net.connection import Connection
from secagg.net.notices import MAX_CLIENT_NOTICE
from secagg.net.packets import LINK_BYTES, MAX_BODY, PacketKind, Reason
from secagg.net.reliable_link import MAX_KEEPALIVES, Link, ReceivedFrame
from secagg.net.settings import Deadlines
from tests.attacks.network import Scene, Site, endure, run, scene

ALIVE = packets.packet(PacketKind.ALIVE)


def assert_excluded(site: Site, error: str, reason: str) -> None:
    """One line, about one client. The honest ones have never lost a connection."""
    assert site.diary.of("excluded") == [{"member": site.insider, "error": error, "reason": reason}]
    assert not [k for k in range(site.honest) if site.diary.of("disconnected", member=k)]


async def come_back(place: Scene, times: int) -> None:
    """Connect again and again, to be sent away each time."""
    for _ in range(times):
        intruder = await place.intrude(place.site.insider)
        await intruder.hello(place.site.insider)
        assert await intruder.dismissal() is Reason.EXCLUDED
        await intruder.vanish()


# --- who somebody is ----------------------------------------------------------------------------------


def test_a_client_that_says_the_id_of_another() -> None:
    """The guard: an id goes with the key that TLS has proven, in `ClientAuthenticator._identify`.

    Without it, the other client loses its connection and its place in the session.
    """
    site = Site()

    async def attack(place: Scene) -> None:
        for victim in range(site.honest):
            intruder = await place.intrude(site.insider)
            await intruder.hello(victim, link=place.server._links[victim].name)
            assert await intruder.dismissal() is Reason.UNKNOWN
            await intruder.vanish()

    endure(site, attack, expected=site.honest)
    assert site.diary.reasons("refused") == ["is not a client of this server, or uses another client's id"]
    assert not site.diary.of("disconnected")
    assert not site.diary.of("reconnected")


# --- packets that are none ----------------------------------------------------------------------------


NOT_PACKETS = {
    "unknown kind": packets.HEADER.pack(99, 4) + bytes(4),
    "body too long": packets.HEADER.pack(PacketKind.PIECE, MAX_BODY + 1),
    "body of four gigabytes": packets.HEADER.pack(PacketKind.PIECE, 0xFFFFFFFF),
    "alive with a body": packets.HEADER.pack(PacketKind.ALIVE, 1) + b"x",
    "empty piece": packets.HEADER.pack(PacketKind.PIECE, 0),
}


@pytest.mark.parametrize("data", NOT_PACKETS.values(), ids=NOT_PACKETS.keys())
def test_what_is_no_packet(data: bytes) -> None:
    """The guard: `parse_header`, which knows the lengths of every kind."""
    site = Site()

    async def attack(place: Scene) -> None:
        intruder = await place.join(site.insider)
        await intruder.send(data)
        assert await intruder.dismissal() is Reason.EXCLUDED
        await come_back(place, 3)

    endure(site, attack)
    assert_excluded(site, "MalformedMessage", "not a packet of this transport")


@pytest.mark.parametrize(
    "data",
    [
        packets.hello(4, bytes(LINK_BYTES), 0),
        packets.welcome(resumed=True, received=0),
        packets.packet(PacketKind.PIECE, b"x"),
        packets.bye(Reason.CLOSING),
    ],
    ids=["hello", "welcome", "piece", "bye"],
)
def test_packets_out_of_order(data: bytes) -> None:
    """The guard: the last case of `Link._control`."""
    site = Site()

    async def attack(place: Scene) -> None:
        intruder = await place.join(site.insider)
        await intruder.send(data)
        assert await intruder.dismissal() is Reason.EXCLUDED

    endure(site, attack)
    (excluded,) = site.diary.of("excluded")
    assert str(excluded["reason"]).startswith("a packet out of order")


def garbage_packets(connections: int, each: int) -> None:
    """Random bytes after TLS, in place of a hello and behind one."""
    site = Site()
    chance = random.Random(2)

    async def attack(place: Scene) -> None:
        for number in range(connections):
            intruder = await place.intrude(site.insider)
            if number % 2:
                await intruder.hello(site.insider)
            try:
                for _ in range(each):
                    await intruder.send(b"\xff" + chance.randbytes(40))
            except SecaggError:
                pass  # the server has closed it
            await intruder.until_closed()

    endure(site, attack)
    assert_excluded(site, "MalformedMessage", "not a packet of this transport")
    assert site.diary.reasons("refused") == ["not a packet of this transport"]


def test_garbage_packets() -> None:
    """The guards: `parse_header`, `ClientConduct.exclude` and `EventLog._write_once`."""
    garbage_packets(50, 20)


@pytest.mark.slow
def test_a_hundred_thousand_garbage_packets() -> None:
    garbage_packets(1000, 100)


# --- frames that are none -----------------------------------------------------------------------------


def garbage_frames(connections: int, each: int) -> None:
    """In packets of the right form, by a client that is invited to a session."""
    site = Site()
    chance = random.Random(3)

    async def attack(place: Scene) -> None:
        for _ in range(connections):
            intruder = await place.intrude(site.insider)
            await intruder.hello(site.insider)
            try:
                for _ in range(each):
                    await intruder.send_frame(chance.randbytes(chance.randrange(1, 200)), seen=1)
            except SecaggError:
                pass  # the server has closed it
            await intruder.until_closed()

    endure(site, attack)
    (excluded,) = site.diary.of("excluded")
    assert excluded["member"] == site.insider
    assert excluded["error"] in ("MalformedMessage", "WrongVersion")


def test_garbage_frames() -> None:
    """The guards: `messages.decode`, and `ClientConduct.exclude`. Without it, it is invited again."""
    garbage_frames(50, 20)


@pytest.mark.slow
def test_a_hundred_thousand_garbage_frames() -> None:
    garbage_frames(1000, 100)


def test_frames_of_no_session_are_few() -> None:
    """Frames that were made before the session are ignored, as an honest client may have one on its way.

    The guard: they are counted, in `ClientConduct`. Without it, whoever says `seen = 0` floods unnoticed.
    """
    site = Site()

    async def attack(place: Scene) -> None:
        intruder = await place.join(site.insider)
        for _ in range(9):
            await intruder.send_frame(b"garbage", seen=0)
        assert await intruder.dismissal() is Reason.EXCLUDED

    endure(site, attack)
    assert_excluded(site, "OutOfOrder", "sends messages that belong to no session")


# --- oversize -----------------------------------------------------------------------------------------


def announced(site: Site, attack_frame: Any) -> None:
    async def attack(place: Scene) -> None:
        intruder = await place.join(site.insider)
        await intruder.next(PacketKind.BEGIN)  # it is invited, so there is a limit
        await intruder.send(*attack_frame(place))
        assert await intruder.dismissal() is Reason.EXCLUDED
        await come_back(place, 3)

    endure(site, attack)


def one_more(place: Scene) -> list[bytes]:
    return [packets.begin(place.server._links[place.site.insider].frame_limit + 1, 1)]


@pytest.mark.parametrize(
    "frame",
    [one_more, lambda _: [packets.begin(0xFFFFFFFF, 1)], lambda _: [packets.begin(0, 1)]],
    ids=["one byte too many", "four gigabytes", "nothing"],
)
def test_a_frame_is_refused_by_its_announced_length(frame: Any) -> None:
    """The guard: `Link._check_size`. Without it, the server waits for the frame, and keeps what has come."""
    site = Site()
    announced(site, frame)
    (excluded,) = site.diary.of("excluded")
    assert (excluded["member"], excluded["error"]) == (site.insider, "OversizeMessage")


@pytest.mark.parametrize("sizes", [[101], [60, 41], [1] * 50, [99, 1]])
def test_pieces_of_other_lengths_than_announced(sizes: list[int]) -> None:
    """More than announced, or in smaller pieces, of which a megabyte would take many to keep.

    The guard: every piece but the last is full, in `Link._read_frame`.
    """
    site = Site()
    pieces = [packets.packet(PacketKind.PIECE, bytes(size)) for size in sizes]
    announced(site, lambda _: [packets.begin(100, 1), *pieces])
    assert_excluded(site, "MalformedMessage", "a piece of another length than announced")


def test_a_frame_without_any_session() -> None:
    """Nobody has a reason to send one. The guard: until a client is invited, it may send notices only."""
    site = Site()

    async def main() -> None:
        async with scene(site) as place:
            intruder = await place.join(site.insider)
            await intruder.send_frame(bytes(MAX_CLIENT_NOTICE + 1))
            assert await intruder.dismissal() is Reason.EXCLUDED
            async with place.session(expected=site.honest) as session:
                await place.sum(session)

    run(main)
    assert_excluded(site, "OversizeMessage", "announced a message of 2049 bytes; 2048 are allowed now")


# --- acknowledgements and signs of life ---------------------------------------------------------------


@pytest.mark.parametrize("count", [2, 1 << 63])
def test_acknowledging_what_was_never_sent(count: int) -> None:
    """The guard: `most` in `Link._settle`. Without it, the server looks for frames that it never had."""
    site = Site()

    async def attack(place: Scene) -> None:
        intruder = await place.join(site.insider)
        await intruder.frame(ack=False)
        await intruder.send(packets.ack(count))
        assert await intruder.dismissal() is Reason.EXCLUDED

    endure(site, attack)
    assert_excluded(site, "MalformedMessage", "acknowledged what it cannot have received")


def test_having_received_what_was_never_sent() -> None:
    """The same in the hello of its next connection. The guard: `Link._rewind`."""
    site = Site()

    async def attack(place: Scene) -> None:
        intruder = await place.join(site.insider)
        await intruder.frame()
        await intruder.vanish()
        again = await place.intrude(site.insider)
        await again.hello(site.insider, received=1000)
        assert await again.dismissal() is Reason.EXCLUDED

    endure(site, attack)
    assert_excluded(site, "MalformedMessage", "acknowledged what it cannot have received")


def control_flood(data: bytes, times: int, reason: str) -> None:
    """After the session has begun, as fast as the server takes it, until it does not take it any more."""
    site = Site()
    batch = 1000

    async def attack(place: Scene) -> None:
        puppet = await place.puppet(site.insider)
        await puppet.play(m.MaskedInput)
        try:
            for _ in range(times // batch):
                await puppet.intruder.send(data * batch)
        except SecaggError:
            pass  # the server has closed it
        await puppet.intruder.until_closed()

    endure(site, attack)
    assert_excluded(site, "MalformedMessage", reason)


TWICE = "acknowledged the same twice"
BABBLE = "too many keep-alive packets"


def test_a_flood_of_signs_of_life() -> None:
    """The guard: `MAX_KEEPALIVES`. Without it, the flood goes on for as long as its sender likes."""
    control_flood(ALIVE, 1000, BABBLE)


def test_a_flood_of_acknowledgements() -> None:
    """The guard: each acknowledges something, in `Link._take_ack`."""
    control_flood(packets.ack(3), 1000, TWICE)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("data", "reason"), [(ALIVE, BABBLE), (packets.ack(3), "acknowledged the same twice")]
)
def test_a_million_control_packets(data: bytes, reason: str) -> None:
    control_flood(data, 1_000_000, reason)


def test_a_flood_lets_others_have_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many packets as are here at once: between any two of them, every other task runs.

    The guard: the checkpoint in `Connection.read`. Without it, nobody else runs until all are read.
    """
    monkeypatch.setattr(link_module, "MAX_KEEPALIVES", 1_000_000)
    flood, turns = 2000, [0]

    async def bystander() -> None:
        while True:
            await trio.lowlevel.checkpoint()
            turns[0] += 1

    async def ignore(_: ReceivedFrame) -> None:
        pass

    async def main() -> None:
        near, far = memory_stream_pair()
        await near.send_all(ALIVE * flood)
        await near.aclose()
        link = Link(bytes(LINK_BYTES), member=1, peer=1)
        async with trio.open_nursery() as nursery, link.run_lock:
            nursery.start_soon(bystander)
            connection = Connection(far, peer=1, silence=60)
            why = await link.run(connection, received=0, deliver=ignore)
            nursery.cancel_scope.cancel()
            assert "closed" in str(why)

    run(main)
    assert turns[0] >= flood


def test_signs_of_life_are_no_crime() -> None:
    """As many as are allowed, every second."""
    site = Site(deadlines=Deadlines(mask=20))

    async def attack(place: Scene) -> None:
        puppet = await place.puppet(site.insider)
        await puppet.play(m.MaskedInput)
        for _ in range(3):
            await puppet.intruder.send(ALIVE * MAX_KEEPALIVES)
            await trio.sleep(1.5)

    endure(site, attack)
    assert not site.diary.of("excluded")
    assert site.diary.of("missing", members=str(site.insider))
