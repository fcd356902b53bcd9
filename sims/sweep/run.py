"""Runs the cells of a sweep that have no result yet, and lets SIGINT and SIGTERM stop them."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any, Final, TypeAlias

from sims.console_progress import OnProgress, quiet
from sims.runtime.ray.cluster import LOCAL
from sims.scenario.loading_and_variants import Variant
from sims.sweep.parallel_tasks import Function, StopRequest, TaskOutcome, run_tasks
from sims.sweep.ray_tasks import run_ray_tasks
from sims.sweep.results_file import Record, Results
from sims.text_format import counted

OnFailure: TypeAlias = Callable[[Variant, str], None]  # (the cell that failed, and why)


@dataclass(frozen=True)
class RayJobs:
    """Runs the cells of a sweep on Ray: on this machine ("local"), or on the cluster at `address`."""

    address: str = LOCAL

    def __str__(self) -> str:
        return "ray" if self.address == LOCAL else f"ray={self.address}"


@dataclass(frozen=True)
class SweepSummary:
    """The outcome of a sweep: `records` (results) and `failures` (reasons) by digest of the cell; cells that
    were `stopped`; how many cells had results before (`known`); how many results of others were `removed`."""

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
    jobs: int | RayJobs = 1,
    progress: OnProgress = quiet,
    on_failure: OnFailure = _no_op,
    prune: bool = False,
    task: Callable[[Variant], Any] = settings_of,
    stopping: StopRequest | None = None,
) -> SweepSummary:
    """Run `function` for every cell without a result, in `jobs` processes or on Ray, and add each result to
    `results` when it arrives.
    `task` converts a cell to the argument of `function`; by default, the argument is the cell's settings. If
    a cell fails, `on_failure` is called at once, and the other cells continue. `stopping` can stop cells at
    points from which they can be resumed. With `prune`, results of cells that are not in `cells` are removed
    at the end, unless a cell was stopped."""
    records = results.read()
    missing = [cell for cell in cells if cell.digest not in records]
    failures: dict[str, str] = {}
    stopped: list[Variant] = []
    counter = _RoundCounter(missing, progress)
    try:
        for done in _started(function, [task(cell) for cell in missing], jobs, counter.watch, stopping):
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


def _started(
    function: Function,
    tasks: Sequence[Any],
    jobs: int | RayJobs,
    on_progress: Callable[[int, Any], None],
    stopping: StopRequest | None,
) -> Iterator[TaskOutcome]:
    if isinstance(jobs, int):
        return run_tasks(function, tasks, jobs, on_progress, stopping)
    return run_ray_tasks(function, tasks, jobs.address, on_progress, stopping)


class _RoundCounter:
    """Adds up the finished rounds of all cells of a sweep, and reports the sum to `progress`."""

    def __init__(self, cells: Sequence[Variant], progress: OnProgress) -> None:
        self._of: Final = [cell.settings.rounds for cell in cells]
        self._rounds = [0] * len(cells)
        self._progress = progress
        self._left = len(cells)

    def watch(self, index: int, steps: Any) -> None:
        """Report the progress of cell `index`: `steps` is its number of finished rounds, or a `Progress`."""
        self._rounds[index] = steps if isinstance(steps, int) else steps.done
        more = "" if isinstance(steps, int) else f"; {steps}"
        text = f"{counted(self._left, 'cell')} left{more}"
        self._progress(text, sum(self._rounds), sum(self._of))

    def finished(self, index: int) -> None:
        self._left -= 1
        self.watch(index, self._of[index])


# --- Ctrl-C and SIGTERM ---


@contextmanager
def stopped_by_signals(stopping: StopRequest, say: Callable[[], None]) -> Iterator[None]:
    """In the block, the first SIGINT or SIGTERM requests a stop of the tasks and calls `say`. Any further one
    raises `KeyboardInterrupt`."""

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
