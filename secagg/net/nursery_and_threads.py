"""Trio helpers: a nursery for background tasks, and two ways to run long computations.

Trio puts the exceptions of a nursery's tasks and of its block into one group. A caller of `async with
open_client(...)` does not know of the nursery, and expects the exception of the block itself. If the block is
cancelled, the background tasks run until the block has ended, so that the peer can be notified.

A long computation runs in a thread or inline. In a thread, it does not stop the event loop from sending
keep-alive packets, but starting the thread takes a fraction of a millisecond. A process that simulates many
clients gains nothing from threads.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Protocol, TypeVar

import trio


@asynccontextmanager
async def background_nursery() -> AsyncIterator[trio.Nursery]:
    """Yield a nursery. Its tasks still run while a cancelled block cleans up, and are cancelled when the
    block ends. An exception of the block is raised as it is, not in a group."""
    failure: BaseException | None = None
    async with trio.open_nursery() as outer:
        # If `start` is cancelled, the task never moves to `outer`, and its shield keeps it running forever.
        with trio.CancelScope(shield=True):
            nursery: trio.Nursery = await outer.start(_run_shielded)
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


async def _run_shielded(*, task_status: trio.TaskStatus[trio.Nursery]) -> None:
    with trio.CancelScope(shield=True):
        async with trio.open_nursery() as nursery:
            task_status.started(nursery)
            await trio.sleep_forever()


T = TypeVar("T")


class RunFunction(Protocol):
    """The type of `in_thread` and `inline`, which run a slow function and return its result."""

    def __call__(self, function: Callable[[], T]) -> Awaitable[T]: ...


async def in_thread(function: Callable[[], T]) -> T:
    return await trio.to_thread.run_sync(function)


async def inline(function: Callable[[], T]) -> T:
    await trio.lowlevel.checkpoint()
    return function()
