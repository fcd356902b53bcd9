"""Pools that take on workers after they were opened."""

from __future__ import annotations

import os

import pytest

from sims.workers import WorkerExited, WorkerMessage, WorkerStartError, open_worker_pool
from tests.sims import worker_targets
from tests.sims.test_worker_pool import next_said, run


def test_a_worker_is_spawned_in_the_place_of_one_that_was_killed() -> None:
    async def case() -> None:
        async with open_worker_pool(worker_targets.echo, ["a"], grows=True) as pool:
            assert await next_said(pool) == ("a", pool.pids()[0])
            pool.kill(0)
            assert await anext(pool.events()) == WorkerExited(0, signal=9)
            assert await pool.spawn("b") == 1
            assert await next_said(pool) == ("b", pool.pids()[1])
            await pool.send(1, "hello")
            assert await anext(pool.events()) == WorkerMessage(1, "hello")
        assert pool.remaining_processes() == 0

    run(case)


def test_a_crew_that_does_not_grow_says_so() -> None:
    async def case() -> None:
        async with open_worker_pool(worker_targets.echo, ["a"]) as pool:
            with pytest.raises(ValueError, match="grows=True"):
                await pool.spawn("b")

    run(case)


def test_without_a_fork_server_no_worker_can_be_spawned() -> None:
    async def case() -> None:
        async with open_worker_pool(worker_targets.echo, ["a"], grows=True) as pool:
            await next_said(pool)
            os.kill(pool.fork_server_pid, 9)
            assert isinstance(await anext(pool.events()), WorkerExited)
            with pytest.raises(WorkerStartError, match="fork server"):
                await pool.spawn("b")

    run(case)
