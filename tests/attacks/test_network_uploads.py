"""Registered clients that keep the server waiting: slow uploads, broken ones, and none at all.

They cost others the deadline of a stage at most, and less where the server can tell.
"""

from __future__ import annotations

import socket
from functools import partial

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from secagg import messages as m
from secagg.net.packets import MAX_BODY
from secagg.net.reliable_link import MAX_UNREAD
from secagg.net.settings import Capacity, Deadlines, Patience
from tests.attacks.network import Attack, Puppet, Scene, Site, in_packets, run, scene

LARGE = 2 * MAX_BODY // 4  # numbers, whose upload needs a slot
ROOM = "its slow upload made room for others"
_TRICKLE = 5.0  # seconds for a byte


async def trickle(puppet: Puppet, frame: bytes) -> None:
    """The announcement, and then byte by byte, for as long as the server takes them."""
    announcement, *pieces = in_packets(frame, puppet.intruder.received)
    try:
        await puppet.intruder.send(announcement)
        for byte in b"".join(pieces):
            await puppet.intruder.stream.send_all(bytes([byte]))
            await trio.sleep(_TRICKLE)
    except trio.BrokenResourceError:
        pass


def two_sums(site: Site, *attacks: Attack, first: range | None = None) -> None:
    """Attacks begin with the session. The first sum may have other contributors than the honest ones."""

    async def main() -> None:
        async with scene(site) as place:
            for attack in attacks:
                place.nursery.start_soon(attack, place)
            async with place.session() as session:
                await place.sum(session, first)
                await place.sum(session)

    run(main)
    assert not [k for k in range(site.honest) if site.diary.of("disconnected", member=k)]


# --- slow uploads -------------------------------------------------------------------------------------


def test_slow_uploads_in_every_slot_make_room_for_others() -> None:
    """The guard: `UploadSlots._end_overdue`. Without it, no honest input arrives before the deadline."""
    site = Site(hostile=2, size=LARGE, capacity=Capacity(uploads=2), deadlines=Deadlines(mask=60))
    site.go = trio.Event()
    begun: list[int] = []

    async def attack(member: int, place: Scene) -> None:
        puppet = await place.puppet(member)
        frame = await puppet.play(m.MaskedInput)
        place.nursery.start_soon(trickle, puppet, frame)
        begun.append(member)
        if len(begun) == site.hostile and site.go is not None:
            await trio.sleep(3 * _TRICKLE)  # both uploads have begun by then
            assert place.server._slots._free == 0
            site.go.set()

    two_sums(site, *(partial(attack, member) for member in (site.honest, site.honest + 1)))
    for member in (site.honest, site.honest + 1):
        assert site.diary.reasons("disconnected", member=member) == [ROOM]


def test_a_small_upload_byte_by_byte_costs_a_deadline_at_most() -> None:
    """It needs no slot, so nobody waits for it but the stage. The guard: the deadline in `Session._stage`."""
    site = Site(deadlines=Deadlines(mask=30))

    async def attack(place: Scene) -> None:
        puppet = await place.puppet(site.insider)
        await trickle(puppet, await puppet.play(m.MaskedInput))

    two_sums(site, attack)
    assert site.diary.of("missing", stage="masking") == [{"stage": "masking", "members": str(site.insider)}]


def test_a_packet_byte_by_byte_is_no_sign_of_life() -> None:
    """The guard: `silence` is for a whole packet, in `Connection.read`. Else a byte now and then would do."""
    site = Site(patience=Patience(silence=30, grace=1), deadlines=Deadlines(mask=300))

    async def attack(place: Scene) -> None:
        puppet = await place.puppet(site.insider)
        await trickle(puppet, await puppet.play(m.MaskedInput))

    two_sums(site, attack)
    assert site.diary.reasons("disconnected", member=site.insider) == ["no sign of life"]
    assert not site.diary.of("missing")


# --- broken uploads -----------------------------------------------------------------------------------


async def send_half(puppet: Puppet) -> bytes:
    """Its masked input, up to the middle of a piece."""
    frame = await puppet.play(m.MaskedInput)
    data = b"".join(in_packets(frame, puppet.intruder.received))
    await puppet.intruder.send(data[: len(data) // 2])
    await puppet.intruder.vanish()
    return frame


def test_a_client_that_dies_in_its_upload() -> None:
    """The guard: `Server._expire`. Without it, the stage waits for its deadline, and says who is missing."""
    site = Site(size=LARGE)

    async def attack(place: Scene) -> None:
        await send_half(await place.puppet(site.insider))

    two_sums(site, attack)
    assert site.diary.reasons("left", member=site.insider) == ["lost its connection"]
    assert not site.diary.of("missing")


def test_a_client_that_dies_in_its_upload_and_comes_back() -> None:
    """On the same link, it sends all of it again: its input counts once. The guard: half a frame is none."""
    site = Site(size=LARGE)

    async def attack(place: Scene) -> None:
        puppet = await place.puppet(site.insider)
        frame = await send_half(puppet)
        puppet.intruder = await place.join(site.insider, received=puppet.intruder.received)
        await puppet.intruder.send_frame(frame)
        await puppet.play(m.MaskedInput, sum_index=1)
        await puppet.intruder.vanish()

    two_sums(site, attack, first=range(site.honest + 1))
    assert site.diary.of("reconnected", member=site.insider)
    assert not site.diary.of("excluded")


def test_uploads_that_die_in_every_slot() -> None:
    """Again and again, by clients that come back. The guard: a slot is given back, in `UploadSlots.hold`."""
    site = Site(hostile=2, size=LARGE, capacity=Capacity(uploads=2))
    site.go = trio.Event()

    async def attack(member: int, place: Scene) -> None:
        puppet = await place.puppet(member)
        frame = await puppet.play(m.MaskedInput)
        data = b"".join(in_packets(frame, puppet.intruder.received))[:MAX_BODY]
        for _ in range(10):
            await puppet.intruder.send(data)
            await puppet.intruder.vanish()
            puppet.intruder = await place.join(member, received=puppet.intruder.received)
        await puppet.intruder.vanish()
        assert site.go is not None
        site.go.set()

    two_sums(site, *(partial(attack, member) for member in (site.honest, site.honest + 1)))
    for member in (site.honest, site.honest + 1):
        assert site.diary.reasons("left", member=member) == ["lost its connection"]


# --- silence ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("until", "stage"),
    [(m.Advertisement, None), (m.Shares, "sharing"), (m.MaskedInput, "masking"), (m.Reveal, "unmasking")],
)
def test_a_client_that_falls_silent(until: type[m.Message], stage: str | None) -> None:
    """It stays connected and reads, and does not send what is waited for. The guard: `Session._stage`.

    One that never unmasks is in the sum nevertheless, as its shares are not needed.
    """
    site = Site(deadlines=Deadlines(join=20, share=20, mask=20, reveal=20))

    async def attack(place: Scene) -> None:
        puppet = await place.puppet(site.insider)
        frame = await puppet.play(until)
        assert m.message_type(frame, sender=site.insider) is until

    two_sums(site, attack, first=range(site.honest + (until is m.Reveal)))
    missed = [facts["members"] for facts in site.diary.of("missing", stage=stage)] if stage else []
    assert missed == ([str(site.insider)] if stage else [])


def test_a_client_that_never_reads() -> None:
    """Broadcasts pile up for it until it is excluded. The guard: `MAX_UNREAD` in `Link.send`.

    Its window is full long before, so the server's writer waits for it all the time, and for nobody else.
    """
    site = Site(sums=MAX_UNREAD + 4, deadlines=Deadlines(mask=5))
    unread: list[int] = []

    async def attack(place: Scene) -> None:
        puppet = await place.puppet(site.insider)
        await puppet.intruder.send_frame(await puppet.play(m.Shares))
        puppet.intruder.tcp.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)

    async def main() -> None:
        async with scene(site) as place:
            place.nursery.start_soon(attack, place)
            async with place.session() as session:
                link = place.server._links[site.insider]
                for _ in range(site.sums):
                    await place.sum(session, payload=bytes(400_000))
                    unread.append(len(link._outbox))

    run(main)
    assert max(unread) == MAX_UNREAD
    (excluded,) = site.diary.of("excluded")
    assert (excluded["member"], excluded["error"]) == (site.insider, "SlowReader")


def test_a_connection_that_is_dead_without_having_said_so() -> None:
    """Half-open: nothing comes from it, not even its end. The guard: `silence` in `Connection.read`."""
    site = Site(patience=Patience(silence=30, grace=1))

    async def attack(place: Scene) -> None:
        puppet = await place.puppet(site.insider)
        await puppet.play(m.MaskedInput)
        await wait_all_tasks_blocked()

    two_sums(site, attack)
    assert site.diary.reasons("disconnected", member=site.insider) == ["no sign of life"]
    assert site.diary.reasons("left", member=site.insider) == ["lost its connection"]
