"""Crews that take on workers after they were opened."""

from __future__ import annotations

import os

import pytest

from sims.processes import CrewFailed, Ended, Said, open_crew
from tests.sims import crew_duties
from tests.sims.test_crew import next_said, run


def test_a_worker_is_hired_in_the_place_of_one_that_was_killed() -> None:
    async def case() -> None:
        async with open_crew(crew_duties.echo, ["a"], grows=True) as crew:
            assert await next_said(crew) == ("a", crew.pids()[0])
            crew.kill(0)
            assert await anext(crew.news()) == Ended(0, signal=9)
            assert await crew.hire("b") == 1
            assert await next_said(crew) == ("b", crew.pids()[1])
            await crew.send(1, "hello")
            assert await anext(crew.news()) == Said(1, "hello")
        assert crew.leftovers() == 0

    run(case)


def test_a_crew_that_does_not_grow_says_so() -> None:
    async def case() -> None:
        async with open_crew(crew_duties.echo, ["a"]) as crew:
            with pytest.raises(ValueError, match="grows=True"):
                await crew.hire("b")

    run(case)


def test_without_a_fork_server_nobody_can_be_hired() -> None:
    async def case() -> None:
        async with open_crew(crew_duties.echo, ["a"], grows=True) as crew:
            await next_said(crew)
            os.kill(crew.forks_pid, 9)
            assert isinstance(await anext(crew.news()), Ended)
            with pytest.raises(CrewFailed, match="fork server"):
                await crew.hire("b")

    run(case)
