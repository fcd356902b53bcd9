"""Runs the cells of a sweep as simulations, in whichever process."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Final

from sims.simulation.keeping import Origin
from sims.simulation.moment import Progress
from sims.simulation.simulate import simulate
from sims.sweep.places import Task
from sims.sweep.tasks import Tell

_INTERVAL: Final = 0.2  # seconds between two looks at a round in the making


def run_task(task: Task, tell: Tell, *, root: Path) -> dict[str, Any]:
    """One cell, and what came of it. Raises `Stopped` if it is told to, after the round that it is in."""
    teller = _Teller(tell)
    cell = task.cell
    label = str(cell) if cell.key else task.name
    return simulate(
        cell.settings,
        root=root,
        directory=task.place,
        resume=task.resume,
        origin=Origin(name=task.name, digest=cell.digest, cell=cell.key, label=label),
        watch=teller.watch,
        stop=teller.stop,
    )


class _Teller:
    """Tells of moments, but not of so many that telling takes longer than what it is about."""

    def __init__(self, tell: Tell) -> None:
        self._tell = tell
        self._last = 0.0
        self._done = -1
        self._stop = False

    def watch(self, progress: Progress) -> None:
        now = time.monotonic()
        if progress.done > self._done or now - self._last > _INTERVAL:
            self._last, self._done = now, progress.done
            self._stop = self._tell(progress) or self._stop

    def stop(self) -> bool:
        return self._stop
