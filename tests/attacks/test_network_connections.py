"""Registered clients that connect as no honest one does: too often, anew, late, and with old frames.

In every test a session goes on meanwhile, whose totals are exact.
"""

from __future__ import annotations

import secrets

import pytest
import trio

from secagg import messages as m
from secagg.net.packets import LINK_BYTES, Reason
from secagg.net.settings import Deadlines
from tests.attacks.network import Intruder, Scene, Site, endure, in_packets, run, scene

# --- connections --------------------------------------------------------------------------------------


@pytest.mark.parametrize("names", ["the same", "another each time"])
def test_many_connections_of_one_client_at_once(names: str) -> None:
    """Only one is held, and at most one waits. The guard: who waited for its turn and is not the last goes.

    Without it, whoever has one certificate can keep as many connections open as the server has descriptors.
    """
    site = Site()
    hosted: list[int] = []

    async def one(place: Scene) -> None:
        intruder = await place.intrude(site.insider)
        link = None if names == "the same" else secrets.token_bytes(LINK_BYTES)
        await intruder.hello(site.insider, link=link)
        await trio.sleep(1)  # all clients have said hello, and none hangs up
        hosted.append(place.server._connection_count)

    async def attack(place: Scene) -> None:
        async with trio.open_nursery() as nursery:
            for _ in range(60):
                nursery.start_soon(one, place)

    endure(site, attack)
    assert max(hosted) <= site.honest + 1


def test_coming_and_going_leaves_nobody_waiting() -> None:
    """The guard: `Server._stop_grace_period`. Without it, every lost connection keeps a task for a while."""
    site = Site()
    tasks: list[int] = []

    async def attack(place: Scene) -> None:
        for _ in range(40):
            intruder = await place.join(site.insider)
            await intruder.vanish()
            await site.diary.has("disconnected", member=site.insider)
            tasks.append(len(place.server._nursery.child_tasks))

    endure(site, attack)
    assert max(tasks) <= min(tasks) + 2
    assert len(site.diary.of("reconnected", member=site.insider)) == 1
    times = site.diary.of("repeated", what="reconnected", member=site.insider)
    assert [facts["times"] for facts in times] == [39]


def test_coming_anew_again_and_again_does_not_close_the_first_stage() -> None:
    """A client whose process is restarted counts once. The guard: `Session._left` is a set.

    Without it, one client that comes as many times as clients are expected has the stage closed before the
    honest ones have sent their keys, and the session fails.
    """
    site = Site(honest=3, deadlines=Deadlines(join=30))

    async def attack(place: Scene) -> None:
        for _ in range(12):
            intruder = await place.join(site.insider, link=secrets.token_bytes(LINK_BYTES))
            await intruder.vanish()

    async def main() -> None:
        async with trio.open_nursery() as nursery, site.server() as server:
            place = Scene(site, server, server.address, nursery)
            async with trio.open_nursery() as inner:
                inner.start_soon(hold_session, place)
                await attack(place)
                for member in range(site.honest):
                    nursery.start_soon(site.answer_all, member, server.address)
            nursery.cancel_scope.cancel()

    async def hold_session(place: Scene) -> None:
        async with place.session() as session:
            await place.sum(session)

    run(main)
    assert site.diary.reasons("left", member=site.insider) == ["its process was restarted"]


@pytest.mark.parametrize("received", [0, 2])
def test_a_greeting_that_was_held_up_costs_its_client_nothing(received: int) -> None:
    """The network keeps the hello of a connection that its client gave up, and delivers it later.

    The guards: `Link.supersede` says no goodbye, and an older count is no lie (`Link._rewind`). Without the
    first, the client is told that another process has its identity, and gives up; without the second, the
    server excludes it.
    """
    site = Site(hostile=0, sums=3)

    async def attack(place: Scene) -> None:
        held = await place.intrude(0)
        await site.client_diaries[0].has("asked")
        await held.hello(0, link=place.server._links[0].name, received=received)
        await site.diary.has("reconnected", member=0)

    endure(site, attack)
    assert not site.diary.of("excluded")
    assert not site.diary.of("left")
    assert not site.client_diaries[0].of("dismissed")


# --- replays ------------------------------------------------------------------------------------------


async def replay(intruder: Intruder, frames: list[bytes]) -> None:
    for frame in frames:
        await intruder.send(*in_packets(frame, intruder.received))


def test_frames_replayed_on_the_next_connection() -> None:
    """Instead of what the server lacks, a client sends again what it has sent. Another keeps the stage open.

    The guard: `Attendance.check`. Without it, one input counts twice. It counts once, and its client is
    excluded.
    """
    site = Site(hostile=2, sums=2, deadlines=Deadlines(mask=50))

    async def attack(place: Scene) -> None:
        silent = await place.puppet(site.insider + 1)
        puppet = await place.puppet(site.insider)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(silent.play, m.MaskedInput)
            frame = await puppet.play(m.MaskedInput)
        await puppet.intruder.send_frame(frame)
        await puppet.intruder.vanish()
        again = await place.join(site.insider, received=puppet.intruder.received)
        await replay(again, [frame])
        assert await again.dismissal() is Reason.EXCLUDED

    async def main() -> None:
        async with scene(site) as place:
            place.nursery.start_soon(attack, place)
            async with place.session() as session:
                await place.sum(session, range(site.honest + 1))
                await place.sum(session)

    run(main)
    assert_excluded_once(site, "OutOfOrder")


def test_frames_replayed_too_late() -> None:
    """All that a client has ever sent, after their stages: one line says that it is late, and that is all."""
    site = Site(sums=2)

    async def attack(place: Scene) -> None:
        puppet = await place.puppet(site.insider)
        frame = await puppet.play(m.MaskedInput)
        await puppet.intruder.send_frame(frame)
        await puppet.play(m.Reveal)
        for _ in range(20):
            await replay(puppet.intruder, [*puppet.said, frame])

    async def main() -> None:
        async with scene(site) as place:
            place.nursery.start_soon(attack, place)
            async with place.session() as session:
                await place.sum(session, range(site.honest + 1))
                await place.sum(session)

    run(main)
    assert site.diary.of("late") == [{"member": site.insider}]
    assert not site.diary.of("excluded")


def test_frames_of_an_earlier_session() -> None:
    """The guard: every message names its session. Who replays is excluded, once, which costs nobody else."""
    site = Site(sums=1)
    said: list[bytes] = []

    async def first(place: Scene) -> None:
        puppet = await place.puppet(site.insider)
        said.append(await puppet.play(m.Advertisement))
        await puppet.intruder.send_frame(said[0])
        said.append(await puppet.play(m.Shares))
        await puppet.intruder.send_frame(said[1])
        await puppet.play(m.MaskedInput)
        await puppet.intruder.vanish()

    async def main() -> None:
        async with scene(site) as place:
            place.nursery.start_soon(first, place)
            async with place.session() as session:
                await place.sum(session)
            place.nursery.start_soon(second, place)
            async with place.session() as session:
                await place.sum(session)

    async def second(place: Scene) -> None:
        intruder = await place.join(site.insider, link=secrets.token_bytes(LINK_BYTES))
        await intruder.frame()
        await replay(intruder, said)
        assert await intruder.dismissal() is Reason.EXCLUDED

    run(main)
    assert_excluded_once(site, "WrongSession")


def assert_excluded_once(site: Site, error: str) -> None:
    (excluded,) = site.diary.of("excluded")
    assert (excluded["member"], excluded["error"]) == (site.insider, error)
