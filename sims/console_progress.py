"""Writes the terminal output of commands: a console, and progress as a bar or as lines of text."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, NoReturn, TypeAlias

import rich.console
import rich.progress


class Console(rich.console.Console):
    """A `rich` console, except that a closed pipe raises `BrokenPipeError` instead of ending the program."""

    def on_broken_pipe(self) -> NoReturn:
        raise BrokenPipeError


OnProgress: TypeAlias = Callable[[str, int, int], None]  # (text, steps done, steps in all)

_INTERVAL: Final = 0.2  # least seconds between two drawings of the bar
_LINE_INTERVAL: Final = 10.0  # seconds between two lines of progress


def quiet(_text: str, _done: int, _of: int) -> None:
    """Do nothing. This is the progress function to pass if no progress is to be shown."""


def labelled(progress: OnProgress, label: str) -> OnProgress:
    """Return a progress function that calls `progress` with `label` put before every text."""
    return lambda text, done, of: progress(f"{label}: {text}", done, of)


@contextmanager
def bar() -> Iterator[OnProgress]:
    """Yield a function that updates a progress bar on standard error. Without a terminal, it does nothing."""
    if not sys.stderr.isatty():
        yield quiet
        return
    columns = (rich.progress.TextColumn("{task.description:<14}"), rich.progress.BarColumn())
    counts = (rich.progress.MofNCompleteColumn(), rich.progress.TimeElapsedColumn())
    # Without auto_refresh, no thread draws the bar: it would slow down the work, which may be timed.
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
    """Yield a function that shows progress: as a bar on a terminal, otherwise as lines passed to `say`."""
    if sys.stderr.isatty():
        with bar() as progress:
            yield progress
        return
    yield ProgressLines(say, clock)


class ProgressLines:
    """A progress function that passes lines of text to `say`, at most one in `_LINE_INTERVAL` seconds."""

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
