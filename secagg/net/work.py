"""Where a machine computes: in a thread, so that the event loop goes on, or right here.

A thread costs a fraction of a millisecond and keeps signs of life flowing while masks are expanded. A process
that simulates many clients gains nothing from it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

import trio

T = TypeVar("T")


class Work(Protocol):
    """Runs a function that takes long."""

    def __call__(self, function: Callable[[], T]) -> Awaitable[T]: ...


async def in_thread(function: Callable[[], T]) -> T:
    return await trio.to_thread.run_sync(function)


async def inline(function: Callable[[], T]) -> T:
    await trio.lowlevel.checkpoint()
    return function()
