"""A nursery inside a context manager, whose own errors reach the caller as they are.

Trio gathers what a nursery's tasks and its block raise in one group. Whoever writes `async with
open_client(...)` knows of no nursery, and expects from the block what the block raised.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio


@asynccontextmanager
async def own_nursery() -> AsyncIterator[trio.Nursery]:
    """Its tasks are cancelled when the block ends."""
    failure: BaseException | None = None
    async with trio.open_nursery() as nursery:
        try:
            yield nursery
        except trio.Cancelled:
            raise
        except BaseException as error:
            failure = error
        nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure
