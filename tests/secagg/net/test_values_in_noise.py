"""`Client.answer_with`: pays before it computes, and never tells by declining what noise hides."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
import pytest
import trio

from secagg.client_memory import AnswerEntry, VolatileMemory
from secagg.distributed_noise import Noise, NoiseAssumptions
from secagg.errors import InputError, LedgerError, SumFailed
from secagg.events import Asked
from secagg.net.client import Client
from secagg.net.open_client_and_server import open_server
from secagg.net.server import Server
from secagg.net.settings import Address
from secagg.sum_spec import Count, LInf, Part, SumSpec, Table
from secagg.usable_values import Unusable
from tests.secagg.net.rig import KIND, PART, World, run_live

LIMIT = 10
MEMBER = 3


def failing() -> Mapping[str, Any]:
    raise KeyError


def noting(calls: list[int]) -> Mapping[str, Any]:
    calls.append(1)
    return {PART: [3]}


def noisy_world(*, noise: bool = True, **settings: Any) -> World:
    world = World(size=1, **settings)
    added = Noise(scale=1, variance=Fraction(100)) if noise else None
    part = Part(name=PART, size=1, bits=20, bound=Count(LIMIT), noise=added)
    promise = NoiseAssumptions(clients=4, dropouts=0, colluders=0) if noise else None
    world.table = Table({KIND: SumSpec(parts=(part,), times=64, promise=promise)})
    return world


@dataclass
class Outcome:
    """The clients in the sum, and its total; nothing if there is none."""

    contributors: tuple[int, ...] = ()
    total: Any = None


def asked_once(world: World, main: Callable[[Client, Asked], Awaitable[None]]) -> Outcome:
    """Let all clients but one answer 1, and that one do as `main` says, over real sockets and in threads."""
    outcome, done = Outcome(), trio.Event()

    async def answering(member: int, address: Address) -> None:
        async with world.client(member, address=address) as client:
            async for asked in client:
                await client.answer(asked, {PART: [1]})

    async def conduct(server: Server) -> None:
        async with world.session(server) as session:
            with suppress(SumFailed):
                outcome.total = (await session.ask(KIND, b"model", round_number=1))[PART]
                outcome.contributors = session.contributors
            done.set()

    async def live() -> None:
        listening = open_server("127.0.0.1:0", members=world.registry.members, insecure_plain_tcp=True)
        async with listening as server, trio.open_nursery() as nursery:
            for member in range(MEMBER):
                nursery.start_soon(answering, member, server.address)
            nursery.start_soon(conduct, server)
            async with world.client(MEMBER, address=server.address) as client:
                await main(client, await anext(client))
                await done.wait()
            nursery.cancel_scope.cancel()

    run_live(live)
    return outcome


def test_a_count_beyond_its_limit_is_clipped_and_nobody_else_is_told() -> None:
    world = noisy_world()
    spent: list[int] = []

    def compute() -> Mapping[str, Any]:
        spent.append(world.memories[MEMBER].spend.noised)
        return {PART: [27]}

    async def main(client: Client, asked: Asked) -> None:
        assert await client.answer_with(asked, compute)

    outcome = asked_once(world, main)

    assert spent == [1], "it was paid for before"
    assert outcome.contributors == (0, 1, 2, 3)
    assert world.memories[MEMBER].spend.noised == 1
    assert world.diaries[MEMBER].facts("clipped") == [{"sum": 0, "kind": KIND, "parts": PART}]
    assert not world.diary.facts("clipped")


def test_code_that_fails_results_in_zeros() -> None:
    world = noisy_world()

    async def main(client: Client, asked: Asked) -> None:
        assert await client.answer_with(asked, failing)

    assert asked_once(world, main).contributors == (0, 1, 2, 3)
    (facts,) = world.diaries[MEMBER].facts("zeros")
    assert (facts["reason"], facts["detail"]) == (Unusable.FAILED, "KeyError")


def test_arrays_that_change_after_they_were_checked_result_in_zeros() -> None:
    """The owner's code may go on with the arrays that it has returned, in another thread."""
    world, mine = noisy_world(), np.zeros(1)
    part = Part(name=PART, size=1, bits=20, bound=LInf(LIMIT), noise=Noise(scale=1, variance=Fraction(100)))
    promise = NoiseAssumptions(clients=4, dropouts=0, colluders=0)
    world.table = Table({KIND: SumSpec(parts=(part,), times=64, promise=promise)})

    async def main(client: Client, asked: Asked) -> None:
        answer = client.answer

        async def diverged(asked: Asked, values: Mapping[str, Any]) -> bool:
            mine[:] = np.nan
            return await answer(asked, values)

        client.answer = diverged  # type: ignore[method-assign]
        assert await client.answer_with(asked, lambda: {PART: mine})

    assert asked_once(world, main).contributors == (0, 1, 2, 3)
    (facts,) = world.diaries[MEMBER].facts("zeros")
    assert facts["reason"] == Unusable.UNFIT_PART


def test_values_that_fit_are_not_reported() -> None:
    world = noisy_world()

    async def main(client: Client, asked: Asked) -> None:
        assert await client.answer_with(asked, lambda: {PART: [3]})

    assert asked_once(world, main).contributors == (0, 1, 2, 3)
    assert not world.diaries[MEMBER].facts("clipped") + world.diaries[MEMBER].facts("zeros")


@pytest.mark.parametrize(("compute", "error"), [(lambda: {PART: [27]}, InputError), (failing, KeyError)])
def test_without_noise_the_caller_decides(compute: Any, error: type[Exception]) -> None:
    world = noisy_world(noise=False)

    async def main(client: Client, asked: Asked) -> None:
        with pytest.raises(error):
            await client.answer_with(asked, compute)
        assert world.memories[MEMBER].spend.sums == 0
        assert await client.answer_with(asked, lambda: {PART: [7]})

    outcome = asked_once(world, main)
    assert outcome.contributors == (0, 1, 2, 3)
    assert outcome.total.tolist() == [10]


def test_a_question_that_is_closed_is_neither_paid_for_nor_computed() -> None:
    world = noisy_world()
    calls: list[int] = []

    async def main(client: Client, asked: Asked) -> None:
        assert await client.answer_with(asked, lambda: {PART: [3]})
        assert not await client.answer_with(asked, partial(noting, calls))

    asked_once(world, main)
    assert calls == []
    assert world.memories[MEMBER].spend.noised == 1


class Full(VolatileMemory):
    """A memory that cannot store an answer."""

    def take_answer(self, answer: AnswerEntry) -> None:
        raise LedgerError("the disk is full")


def test_what_cannot_be_paid_for_is_not_computed() -> None:
    world = noisy_world(memories={MEMBER: Full()})
    calls: list[int] = []

    async def main(client: Client, asked: Asked) -> None:
        with pytest.raises(LedgerError):
            await client.answer_with(asked, partial(noting, calls))

    assert asked_once(world, main).total is None
    assert calls == []
