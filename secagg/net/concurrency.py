"""Trio helpers: a nursery for background tasks, and where long computations run.

Trio wraps what a nursery's tasks and its block raise into one group. A caller of `async with
open_client(...)` does not know of the nursery, and expects the exception of the block itself. If the block is
cancelled, the background tasks last a moment longer, so that the peer can be notified.

A computation runs in a thread, so that the event loop keeps sending keep-alive packets, or inline. A thread
costs a fraction of a millisecond; a process that simulates many clients gains nothing from it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Protocol, TypeVar

import trio


@asynccontextmanager
async def background_nursery() -> AsyncIterator[trio.Nursery]:
    """Its tasks are cancelled when the block ends, and by nothing else."""
    failure: BaseException | None = None
    async with trio.open_nursery() as outer:
        nursery: trio.Nursery = await outer.start(_host)
        try:
            yield nursery
        except BaseException as error:
            if _only_cancelled(error):
                raise
            failure = error
        finally:
            nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure


def _only_cancelled(error: BaseException) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return all(map(_only_cancelled, error.exceptions))
    return isinstance(error, trio.Cancelled)


async def _host(*, task_status: trio.TaskStatus[trio.Nursery]) -> None:
    with trio.CancelScope(shield=True):
        async with trio.open_nursery() as nursery:
            task_status.started(nursery)
            await trio.sleep_forever()


T = TypeVar("T")


class RunFunction(Protocol):
    """Runs a function that takes long."""

    def __call__(self, function: Callable[[], T]) -> Awaitable[T]: ...


async def in_thread(function: Callable[[], T]) -> T:
    return await trio.to_thread.run_sync(function)


async def inline(function: Callable[[], T]) -> T:
    await trio.lowlevel.checkpoint()
    return function()
