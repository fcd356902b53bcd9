"""Where a machine computes makes no difference to what it computes."""

from __future__ import annotations

import threading

import pytest
import trio

from secagg.net.nursery_and_threads import RunFunction, in_thread, inline
from tests.secagg.net.rig import run, run_live


def test_in_a_thread_or_right_here() -> None:
    async def where(work: RunFunction) -> bool:
        return await work(threading.current_thread) is threading.current_thread()

    assert run(lambda: where(inline))
    assert not run_live(lambda: where(in_thread))


@pytest.mark.parametrize("work", [inline, in_thread])
def test_nothing_is_begun_after_a_cancellation(work: RunFunction) -> None:
    done: list[int] = []

    async def main() -> None:
        with trio.CancelScope() as scope:
            scope.cancel()
            await work(lambda: done.append(1))
        assert scope.cancelled_caught

    run_live(main)
    assert not done
