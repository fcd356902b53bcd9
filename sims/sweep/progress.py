"""How far a sweep is: a bar where somebody watches, and a line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from sims.console import OnProgress, bar

_INTERVAL: Final = 10.0  # seconds between two lines


@contextmanager
def shown(say: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> Iterator[OnProgress]:
    """On standard error. `say` writes a line there."""
    if sys.stderr.isatty():
        with bar() as progress:
            yield progress
        return
    yield Lines(say, clock)


class Lines:
    """One line for what has changed, and never two within a few seconds or within one round."""

    def __init__(self, say: Callable[[str], None], clock: Callable[[], float]) -> None:
        self._say = say
        self._clock = clock
        self._last = clock()
        self._done = 0

    def __call__(self, text: str, done: int, of: int) -> None:
        now = self._clock()
        if done > self._done and now - self._last >= _INTERVAL:
            self._last, self._done = now, done
            self._say(f"{done} of {of} rounds; {text}")
