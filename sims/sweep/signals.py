"""Ctrl-C and SIGTERM, for runs that can go on later: the first stops after a round, the second at once."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from sims.sweep.tasks import Stopping


@contextmanager
def stopped_by_signals(stopping: Stopping, say: Callable[[], None]) -> Iterator[None]:
    """Meanwhile, the first signal is an order to stop, of which `say` tells; the next interrupts."""

    def hear(_number: int, _frame: FrameType | None) -> None:
        if stopping.wanted:
            raise KeyboardInterrupt
        stopping.want()
        say()

    before = {each: signal.signal(each, hear) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
