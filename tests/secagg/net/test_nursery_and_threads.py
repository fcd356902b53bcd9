"""A nursery inside a context manager: it does not show in what the block raises, and outlives the block."""

from __future__ import annotations

import pytest
import trio

from secagg.net.nursery_and_threads import background_nursery
from tests.secagg.net.rig import run


def test_what_the_block_raises_comes_out_as_it_is() -> None:
    async def main() -> None:
        async with background_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        run(main)


def test_its_tasks_end_with_the_block() -> None:
    async def main() -> None:
        async with background_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)

    run(main)


def test_a_task_that_fails_ends_the_block() -> None:
    async def fail() -> None:
        raise KeyError("task")

    async def main() -> None:
        async with background_nursery() as nursery:
            nursery.start_soon(fail)
            await trio.sleep_forever()

    with pytest.raises(ExceptionGroup) as caught:
        run(main)
    assert caught.group_contains(KeyError, match="task")


def test_a_block_that_begins_cancelled_ends() -> None:
    async def main() -> None:
        with trio.CancelScope() as scope:
            scope.cancel()
            async with background_nursery() as nursery:
                nursery.start_soon(trio.sleep_forever)
                await trio.sleep_forever()
        assert scope.cancelled_caught

    run(main)


def test_a_cancelled_block_can_say_goodbye_with_the_help_of_its_tasks() -> None:
    said = []

    async def helper(goodbye: trio.Event, heard: trio.Event) -> None:
        await goodbye.wait()
        await trio.sleep(1)
        said.append("goodbye")
        heard.set()

    async def main() -> None:
        goodbye, heard = trio.Event(), trio.Event()
        with trio.move_on_after(5) as scope:
            async with background_nursery() as nursery:
                nursery.start_soon(helper, goodbye, heard)
                try:
                    await trio.sleep_forever()
                finally:
                    with trio.move_on_after(60, shield=True):
                        goodbye.set()
                        await heard.wait()
        assert scope.cancelled_caught
        assert trio.current_time() >= 6

    run(main)
    assert said == ["goodbye"]


def test_a_nursery_that_is_cancelled_before_it_is_there_ends() -> None:
    """Its task runs already, and is shielded."""

    async def main() -> None:
        with trio.CancelScope() as scope:
            scope.cancel()
            async with background_nursery():
                await trio.sleep_forever()
        assert scope.cancelled_caught

    trio.run(main)
