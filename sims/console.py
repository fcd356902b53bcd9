"""The terminal output of commands: the console, and progress as a bar or as lines."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, NoReturn, TypeAlias

import rich.console
import rich.progress


class Console(rich.console.Console):
    """Rich's console, except that a closed pipe raises `BrokenPipeError` instead of ending the program."""

    def on_broken_pipe(self) -> NoReturn:
        raise BrokenPipeError


OnProgress: TypeAlias = Callable[[str, int, int], None]  # (text, steps done, steps in all)

_INTERVAL: Final = 0.2  # least seconds between two drawings of the bar
_LINE_INTERVAL: Final = 10.0  # seconds between two lines of progress


def quiet(_text: str, _done: int, _of: int) -> None:
    """Show no progress, because standard error is a pipe or a file."""


def labelled(progress: OnProgress, label: str) -> OnProgress:
    """Return a function that reports to `progress`, with `label` before every text."""
    return lambda text, done, of: progress(f"{label}: {text}", done, of)


@contextmanager
def bar() -> Iterator[OnProgress]:
    """Show a progress bar on standard error until the block ends. Yield the function that updates it."""
    if not sys.stderr.isatty():
        yield quiet
        return
    columns = (rich.progress.TextColumn("{task.description:<14}"), rich.progress.BarColumn())
    counts = (rich.progress.MofNCompleteColumn(), rich.progress.TimeElapsedColumn())
    # No thread draws the bar, because it would slow down the work, whose time may be measured.
    console = Console(stderr=True)
    with rich.progress.Progress(
        *columns, *counts, console=console, transient=True, auto_refresh=False
    ) as shown:
        yield _drawn(shown)


def _drawn(shown: rich.progress.Progress) -> OnProgress:
    task = shown.add_task("")
    last = 0.0

    def progress(text: str, done: int, of: int) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last > _INTERVAL or done in (0, of):
            last = now
            shown.update(task, description=text, completed=done, total=of, refresh=True)

    return progress


@contextmanager
def shown_progress(
    say: Callable[[str], None], clock: Callable[[], float] = time.monotonic
) -> Iterator[OnProgress]:
    """Show rounds as a bar if standard error is a terminal; otherwise pass a line to `say` now and then."""
    if sys.stderr.isatty():
        with bar() as progress:
            yield progress
        return
    yield ProgressLines(say, clock)


class ProgressLines:
    """Passes a line to `say` if more rounds are finished, at most every `_LINE_INTERVAL` seconds."""

    def __init__(self, say: Callable[[str], None], clock: Callable[[], float]) -> None:
        self._say = say
        self._clock = clock
        self._last = clock()
        self._done = 0

    def __call__(self, text: str, done: int, of: int) -> None:
        now = self._clock()
        if done > self._done and now - self._last >= _LINE_INTERVAL:
            self._last, self._done = now, done
            self._say(f"{done} of {of} rounds; {text}")
