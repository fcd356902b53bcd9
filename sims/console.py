"""The terminal output of commands: the console, and a progress bar."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, NoReturn, TypeAlias

import rich.console
import rich.progress


class Console(rich.console.Console):
    """Rich's console, except that a closed pipe ends every command in the same way."""

    def on_broken_pipe(self) -> NoReturn:
        raise BrokenPipeError


OnProgress: TypeAlias = Callable[[str, int, int], None]  # (what is being done, so far, in all)

_INTERVAL: Final = 0.2  # seconds between two drawings


def quiet(_text: str, _done: int, _of: int) -> None:
    """Show no progress: for pipes and files."""


def labelled(progress: OnProgress, label: str) -> OnProgress:
    """Prefix every text of a progress display with a label."""
    return lambda text, done, of: progress(f"{label}: {text}", done, of)


@contextmanager
def bar() -> Iterator[OnProgress]:
    """Show a bar on standard error that disappears when the work is done."""
    if not sys.stderr.isatty():
        yield quiet
        return
    columns = (rich.progress.TextColumn("{task.description:<14}"), rich.progress.BarColumn())
    counts = (rich.progress.MofNCompleteColumn(), rich.progress.TimeElapsedColumn())
    # A drawing thread would take time from the measured work.
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
