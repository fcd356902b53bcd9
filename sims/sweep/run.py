"""Run the cells of a sweep that have no result yet: with progress on standard error, stopped by signals."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any, Final, TypeAlias

from sims.console import OnProgress, bar, quiet
from sims.scenario.scenario import Variant
from sims.sweep.results import Record, Results
from sims.sweep.tasks import Function, StopRequest, run_tasks
from sims.text_format import counted

OnFailure: TypeAlias = Callable[[Variant, str], None]  # (the cell that failed, and why)

_INTERVAL: Final = 10.0  # seconds between two lines of progress


@dataclass(frozen=True)
class SweepSummary:
    """The outcome of a sweep. `records` and `failures` are by the digests of cells."""

    cells: tuple[Variant, ...]
    records: Mapping[str, Record]
    failures: Mapping[str, str]
    known: int  # number of cells that had results before
    removed: int | None = None  # number of results of other cells that were removed; None without `prune`
    stopped: tuple[Variant, ...] = ()  # cells that were stopped and can be resumed; others may not have begun

    @property
    def complete(self) -> bool:
        return not self.failures


def settings_of(cell: Variant) -> Any:
    return cell.settings


def _no_op(_cell: Variant, _failure: str) -> None:
    pass


def run_sweep(
    cells: Sequence[Variant],
    results: Results,
    *,
    function: Function,
    jobs: int = 1,
    progress: OnProgress = quiet,
    on_failure: OnFailure = _no_op,
    prune: bool = False,
    task: Callable[[Variant], Any] = settings_of,
    stopping: StopRequest | None = None,
) -> SweepSummary:
    """Run the cells without a result with `function`, and keep every result as it arrives.

    If a cell fails, `on_failure` is called at once, and the other cells continue. If the sweep is
    interrupted, finished results are kept. `stopping` stops cells where they can be resumed. With `prune`,
    results of other cells are removed at the end. `task` makes the argument of `function`; by default, it is
    the settings of the cell.
    """
    records = results.read()
    missing = [cell for cell in cells if cell.digest not in records]
    failures: dict[str, str] = {}
    stopped: list[Variant] = []
    counter = _RoundCounter(missing, progress)
    try:
        for done in run_tasks(function, [task(cell) for cell in missing], jobs, counter.watch, stopping):
            cell = missing[done.index]
            if done.stopped:
                stopped.append(cell)
                continue
            counter.finished(done.index)
            if done.failure is None:
                records[cell.digest] = results.add(cell, done.result)
            else:
                failures[cell.digest] = done.failure
                on_failure(cell, done.failure)
    finally:
        results.sort(cells)
    removed = results.sort(cells, prune=True) if prune and not stopped else None
    known = len(cells) - len(missing)
    return SweepSummary(tuple(cells), records, failures, known, removed, tuple(stopped))


class _RoundCounter:
    """Counts the finished rounds of all cells, and reports them."""

    def __init__(self, cells: Sequence[Variant], progress: OnProgress) -> None:
        self._of: Final = [cell.settings.rounds for cell in cells]
        self._rounds = [0] * len(cells)
        self._progress = progress
        self._left = len(cells)

    def watch(self, index: int, steps: Any) -> None:
        """`steps` is a number of rounds, or an object with that number in `done` and further text."""
        self._rounds[index] = steps if isinstance(steps, int) else steps.done
        more = "" if isinstance(steps, int) else f"; {steps}"
        text = f"{counted(self._left, 'cell')} left{more}"
        self._progress(text, sum(self._rounds), sum(self._of))

    def finished(self, index: int) -> None:
        self._left -= 1
        self.watch(index, self._of[index])


# --- progress ---


@contextmanager
def shown_progress(
    say: Callable[[str], None], clock: Callable[[], float] = time.monotonic
) -> Iterator[OnProgress]:
    """Show a bar on a terminal, and otherwise a line from time to time, written by `say`."""
    if sys.stderr.isatty():
        with bar() as progress:
            yield progress
        return
    yield ProgressLines(say, clock)


class ProgressLines:
    """Writes one line per change, at most one per round and per `_INTERVAL` seconds."""

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


# --- Ctrl-C and SIGTERM ---


@contextmanager
def stopped_by_signals(stopping: StopRequest, say: Callable[[], None]) -> Iterator[None]:
    """Handle SIGINT and SIGTERM: the first one stops after the round and calls `say`, the next interrupts."""

    def handle(_number: int, _frame: FrameType | None) -> None:
        if stopping.wanted:
            raise KeyboardInterrupt
        stopping.want()
        say()

    before = {each: signal.signal(each, handle) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
