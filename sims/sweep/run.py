"""Runs the cells of a sweep that have no result yet."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from sims.console import OnProgress, quiet
from sims.sweep.cell import Cell
from sims.sweep.results import Record, Results
from sims.sweep.tasks import Function, Stopping, run_tasks
from sims.text_format import counted

Tell: TypeAlias = Callable[[Cell, str], None]  # (what failed, and why)


@dataclass(frozen=True)
class Summary:
    """`records` and `failures` are by the digests of cells; `known` cells had results before.

    `removed`  how many results of other cells are gone; None if none was to go.
    `stopped`  cells that can go on later, as somebody wanted to stop; others may not even have begun.
    """

    cells: tuple[Cell, ...]
    records: Mapping[str, Record]
    failures: Mapping[str, str]
    known: int
    removed: int | None = None
    stopped: tuple[Cell, ...] = ()

    @property
    def complete(self) -> bool:
        return not self.failures


def settings_of(cell: Cell) -> Any:
    return cell.settings


def nobody_hears(_cell: Cell, _failure: str) -> None:
    pass


def run_sweep(
    cells: Sequence[Cell],
    results: Results,
    *,
    function: Function,
    jobs: int = 1,
    progress: OnProgress = quiet,
    tell: Tell = nobody_hears,
    prune: bool = False,
    task: Callable[[Cell], Any] = settings_of,
    stopping: Stopping | None = None,
) -> Summary:
    """Run what is missing with `function`, which takes settings, and keep every result as it comes.

    A cell that fails is told of at once with `tell`, and in the summary; the others go on. An interruption
    keeps what is done, and so does `stopping`, when cells come to where they can go on later. With `prune`,
    results of other cells are removed at the end. `task` is what the function takes, if not settings.
    """
    records = results.read()
    missing = [cell for cell in cells if cell.digest not in records]
    failures: dict[str, str] = {}
    stopped: list[Cell] = []
    meter = _Meter(missing, progress)
    try:
        for done in run_tasks(function, [task(cell) for cell in missing], jobs, meter.watch, stopping):
            cell = missing[done.index]
            if done.stopped:
                stopped.append(cell)
                continue
            meter.finished(done.index)
            if done.failure is None:
                records[cell.digest] = results.add(cell, done.result)
            else:
                failures[cell.digest] = done.failure
                tell(cell, done.failure)
    finally:
        results.sort(cells)
    removed = results.sort(cells, prune=True) if prune and not stopped else None
    known = len(cells) - len(missing)
    return Summary(tuple(cells), records, failures, known, removed, tuple(stopped))


class _Meter:
    """How many rounds of all cells are done."""

    def __init__(self, cells: Sequence[Cell], progress: OnProgress) -> None:
        self._of: Final = [cell.settings.rounds for cell in cells]
        self._rounds = [0] * len(cells)
        self._progress = progress
        self._left = len(cells)

    def watch(self, index: int, steps: Any) -> None:
        """`steps` are rounds, or something that knows how many are done, and has more to say."""
        self._rounds[index] = steps if isinstance(steps, int) else steps.done
        more = "" if isinstance(steps, int) else f"; {steps}"
        text = f"{counted(self._left, 'cell')} left{more}"
        self._progress(text, sum(self._rounds), sum(self._of))

    def finished(self, index: int) -> None:
        self._left -= 1
        self.watch(index, self._of[index])
