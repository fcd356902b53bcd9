"""Slots: first come, first served; nobody keeps one from others by being slow; none is ever lost."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from functools import partial

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from secagg.net.connection import ConnectionLost
from secagg.net.upload_slots import GRACE, UploadSlot, UploadSlots
from tests.secagg.net.rig import run

SLOWEST = 100.0  # bytes per second


class Uploads:
    """Tasks that hold slots, and what became of them."""

    def __init__(self, uploads: int) -> None:
        self.slots = UploadSlots(uploads, slowest=SLOWEST)
        self.begun: list[int] = []
        self.ended: list[int] = []
        self.evicted: list[int] = []
        self.held = 0
        self.most = 0

    async def upload(self, name: int, seconds: float, *, rate: float = 1e6, deliver: float = 0) -> None:
        """Bytes come at `rate` once in a second; then they are delivered."""
        async with self.slots.hold() as slot:
            self.begun.append(name)
            self.held += 1
            self.most = max(self.most, self.held)
            try:
                with slot.reading():
                    await self._receive(slot, seconds, rate)
                await trio.sleep(deliver)
                self.ended.append(name)
            except ConnectionLost:
                self.evicted.append(name)
            finally:
                self.held -= 1

    async def _receive(self, slot: UploadSlot, seconds: float, rate: float) -> None:
        while seconds > 0:
            await trio.sleep(min(1, seconds))
            slot.progress(int(rate * min(1, seconds)))
            seconds -= 1


def play(main: Callable[[Uploads, trio.Nursery], Awaitable[None]], uploads: int = 2) -> Uploads:
    """Let `main` start tasks, and wait for all of them."""

    async def wrapped() -> Uploads:
        state = Uploads(uploads)
        async with trio.open_nursery() as nursery:
            await main(state, nursery)
        return state

    return run(wrapped)


async def settle() -> None:
    """Wait until every task waits for something."""
    await trio.testing.wait_all_tasks_blocked()


def test_at_most_so_many_at_a_time_in_the_order_in_which_they_came() -> None:
    async def main(state: Uploads, nursery: trio.Nursery) -> None:
        for name in range(9):
            nursery.start_soon(state.upload, name, 1 + 0.137 * name)  # no two end at the same time
            await settle()

    state = play(main, uploads=3)
    assert state.begun == list(range(9))
    assert state.most == 3
    assert not state.evicted


def test_nobody_who_comes_later_overtakes_somebody_who_waits() -> None:
    async def main(state: Uploads, nursery: trio.Nursery) -> None:
        async with state.slots.hold():
            nursery.start_soon(state.upload, 1, 1)
            await settle()
        # The slot is free now, but it is the turn of the one who waits.
        await state.upload(2, 1)

    assert play(main, uploads=1).begun == [1, 2]


def test_a_slow_upload_may_take_forever_while_nobody_waits() -> None:
    async def main(state: Uploads, nursery: trio.Nursery) -> None:
        nursery.start_soon(state.upload, 0, 1000)
        nursery.start_soon(partial(state.upload, 1, 1000, rate=0))

    state = play(main, uploads=2)
    assert state.evicted == []
    assert sorted(state.ended) == [0, 1]


def test_it_makes_room_when_somebody_waits() -> None:
    async def main(state: Uploads, nursery: trio.Nursery) -> None:
        nursery.start_soon(partial(state.upload, 0, 10_000, rate=SLOWEST / 2))
        await settle()
        await trio.sleep(100)
        began = trio.current_time()
        await state.upload(1, 1)
        assert trio.current_time() == pytest.approx(began + 1)

    state = play(main, uploads=1)
    assert (state.evicted, state.ended) == ([0], [1])


def test_a_new_upload_has_some_seconds_however_slow_it_is() -> None:
    async def main(state: Uploads, nursery: trio.Nursery) -> None:
        nursery.start_soon(partial(state.upload, 0, 10_000, rate=0))
        await settle()
        began = trio.current_time()
        async with state.slots.hold():
            assert trio.current_time() == pytest.approx(began + GRACE)

    assert play(main, uploads=1).evicted == [0]


def test_an_upload_that_is_fast_enough_is_waited_for() -> None:
    async def main(state: Uploads, nursery: trio.Nursery) -> None:
        nursery.start_soon(partial(state.upload, 0, 100, rate=SLOWEST))
        await settle()
        await state.upload(1, 1)

    state = play(main, uploads=1)
    assert (state.evicted, state.ended) == ([], [0, 1])


@pytest.mark.parametrize("waiting", [1, 2, 3])
def test_no_more_make_room_than_wait_and_the_slowest_first(waiting: int) -> None:
    async def main(state: Uploads, nursery: trio.Nursery) -> None:
        for name in range(4):
            rate = SLOWEST / 10 * (4 - name)  # the last is the slowest
            nursery.start_soon(partial(state.upload, name, 10_000, rate=rate))
        await trio.sleep(50)
        for name in range(waiting):
            nursery.start_soon(state.upload, 10 + name, 1)
        await trio.sleep(20)
        assert sorted(state.evicted) == [3, 2, 1][:waiting][::-1]
        nursery.cancel_scope.cancel()

    for _ in range(5):  # the order in which tasks run is not fixed
        play(main, uploads=4)


def test_what_is_being_delivered_is_nobodys_fault() -> None:
    async def main(state: Uploads, nursery: trio.Nursery) -> None:
        nursery.start_soon(partial(state.upload, 0, 1, rate=0, deliver=1000))
        await settle()
        await state.upload(1, 1)

    state = play(main, uploads=1)
    assert (state.evicted, state.ended) == ([], [0, 1])


def test_whoever_gives_up_waiting_takes_no_slot_with_it() -> None:
    async def main(state: Uploads, nursery: trio.Nursery) -> None:
        async with state.slots.hold():
            with trio.move_on_after(1):
                await state.upload(1, 1)
            nursery.start_soon(state.upload, 2, 1)
            await settle()
        await trio.sleep(2)
        assert state.begun == [2]

    assert play(main, uploads=1).ended == [2]


def test_a_slot_that_was_granted_at_the_moment_of_giving_up_goes_to_the_next() -> None:
    async def main(state: Uploads, nursery: trio.Nursery) -> None:
        scope = trio.CancelScope()

        async def fickle() -> None:
            with scope:
                await state.upload(1, 1)

        async with state.slots.hold():
            nursery.start_soon(fickle)
            await settle()
            nursery.start_soon(state.upload, 2, 1)
            await settle()
            scope.cancel()
            # The slot goes to the first in the queue, who does not know yet that it was cancelled.

    state = play(main, uploads=1)
    assert (state.begun, state.ended) == ([2], [2])


@settings(max_examples=60)
@given(seed=st.integers(0, 1 << 32), uploads=st.integers(1, 3))
def test_whatever_happens_no_slot_is_lost_or_made(seed: int, uploads: int) -> None:
    chance = random.Random(seed)

    async def main(state: Uploads, nursery: trio.Nursery) -> None:
        async def one(name: int) -> None:
            with trio.move_on_after(chance.choice([0.5, 3, 50, 1000])):
                await state.upload(
                    name, chance.randrange(30), rate=chance.choice([0, 50, 500]), deliver=chance.randrange(3)
                )

        for name in range(12):
            nursery.start_soon(one, name)
            await trio.sleep(chance.choice([0, 0, 0.5, 4]))

    state = play(main, uploads=uploads)
    assert state.most <= uploads
    assert state.held == 0

    async def all_free() -> None:
        async with trio.open_nursery() as nursery:
            for name in range(uploads):
                nursery.start_soon(state.upload, 100 + name, 1)
            await settle()
            assert state.held == uploads

    run(all_free)
