"""The runs of a sweep's cells: where each is kept, what is left to do, and running one of them."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sims.config_problems import ConfigError
from sims.records import RunDirectory
from sims.records.checkpoint import Checkpoint
from sims.records.directory import FINISHED
from sims.records.run_paths import CHECKPOINT, RESULT
from sims.scenario.scenario import Variant
from sims.sweep.results import Results
from sims.sweep.tasks import ReportProgress, TaskError, TaskStopped

if TYPE_CHECKING:
    from sims.simulation.progress import Progress

_UNFIT: Final = re.compile(r"[^A-Za-z0-9.+=_]+")
_LONGEST: Final = 80
_DIGITS: Final = 6
_INTERVAL: Final = 0.2  # seconds between two reports within a round


def cell_directories(out: Path, name: str, cells: Sequence[Variant]) -> dict[str, RunDirectory]:
    """Return the directory of every cell, by its digest; that of the name itself if there is no sweep."""
    slugs = {cell.digest: slug(cell.key) for cell in cells}
    taken = Counter(each.lower() for each in slugs.values())
    found = {}
    for digest, own in slugs.items():
        unique = own if taken[own.lower()] == 1 else f"{own}-{digest[:_DIGITS]}"
        found[digest] = RunDirectory(out / name / unique if own else out / name)
    return found


def without_run(out: Path, name: str, cells: Sequence[Variant]) -> list[Variant]:
    """Return the cells whose run should be in its directory, but is missing or was replaced by another."""
    own = cell_directories(out, name, cells)
    return [
        cell for cell in cells if cell.settings.output.keep == "run" and not _holds(own[cell.digest], cell)
    ]


def _holds(directory: RunDirectory, cell: Variant) -> bool:
    try:
        return directory.exists and directory.facts()["digest"] == cell.digest
    except ConfigError:  # damaged
        return False


def slug(key: Mapping[str, Any]) -> str:
    """Return the name of a cell's directory, such as `method=RFA-seed=1`."""
    words = (_UNFIT.sub("-", f"{name.rpartition('.')[2]}={value}").strip("-.") for name, value in key.items())
    return "-".join(words)[:_LONGEST]


@dataclass(frozen=True)
class CellTask:
    """One cell to run. `directory` is where its run is kept, if it is; `resume` continues the run there."""

    cell: Variant
    name: str
    directory: RunDirectory | None = None
    resume: bool = False


def plan_tasks(
    cells: Sequence[Variant], results: Results, *, out: Path, name: str, resume: bool, restart: bool
) -> dict[str, CellTask]:
    """Return a task for every cell without a result, by its digest.

    If a run is finished but its result is missing from the file of results, the result is added again.
    Raises `ConfigError` with every obstacle: unfinished runs with neither `resume` nor `restart`, runs with
    other settings, runs in use by another process, and directories that cannot be written.
    """
    known, own = results.read(), cell_directories(out, name, cells)
    tasks, problems = {}, []
    for cell in cells:
        if cell.digest in known:
            continue
        if cell.settings.output.keep == "table":
            tasks[cell.digest] = CellTask(cell, name)
            continue
        try:
            task = _planned(cell, own[cell.digest], name, resume=resume, restart=restart)
        except ConfigError as error:
            problems.append(str(error))
            continue
        if task is None:
            results.add(cell, own[cell.digest].read_json(RESULT))
        else:
            tasks[cell.digest] = task
    if problems:
        raise ConfigError("\n".join(dict.fromkeys(problems)))
    return tasks


def _planned(
    cell: Variant, directory: RunDirectory, name: str, *, resume: bool, restart: bool
) -> CellTask | None:
    """Return None if the run is there and finished."""
    directory.make()
    with directory.locked():
        if not directory.exists or restart:
            directory.write(CHECKPOINT, b"")  # raises if nothing can be written here
            directory.clear()
            return CellTask(cell, name, directory)
        facts = directory.facts()
        if facts["digest"] != cell.digest:
            raise ConfigError(
                f"{directory} holds a run with other settings: use another --out, or --restart to replace it"
            )
        if facts["status"] == FINISHED:
            return None
        if not resume:
            raise ConfigError(
                f"{directory} holds an unfinished run ({facts['done']} of {facts['rounds']} rounds): "
                "--resume continues it, --restart begins anew"
            )
        Checkpoint.read(directory, digest=cell.digest)  # raises if it cannot be used
        return CellTask(cell, name, directory, resume=True)


# --- run one ---


def run_task(task: CellTask, on_progress: ReportProgress, *, root: Path) -> dict[str, Any]:
    """Simulate one cell and return its result. Raises `TaskStopped` after a round if asked to stop."""
    from sims.simulation.run_writer import Origin
    from sims.simulation.simulate import SimulationError, SimulationStopped, simulate

    reporter = _ProgressReporter(on_progress)
    cell = task.cell
    label = str(cell) if cell.key else task.name
    try:
        return simulate(
            cell.settings,
            root=root,
            directory=task.directory,
            resume=task.resume,
            origin=Origin(name=task.name, digest=cell.digest, cell=cell.key, label=label),
            watch=reporter.watch,
            stop=reporter.stop,
        )
    except SimulationStopped as error:
        raise TaskStopped(str(error)) from None
    except SimulationError as error:
        raise TaskError(str(error)) from None


class _ProgressReporter:
    """Reports the progress of a simulation, at most every `_INTERVAL` seconds within a round."""

    def __init__(self, on_progress: ReportProgress) -> None:
        self._on_progress = on_progress
        self._last = 0.0
        self._done = -1
        self._stop = False

    def watch(self, progress: Progress) -> None:
        now = time.monotonic()
        if progress.done > self._done or now - self._last > _INTERVAL:
            self._last, self._done = now, progress.done
            self._stop = self._on_progress(progress) or self._stop

    def stop(self) -> bool:
        return self._stop
