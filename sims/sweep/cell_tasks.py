"""Names the run directories of a sweep's cells (simulations), plans which cells to run, and runs one."""

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
from sims.records.run_directory import FINISHED
from sims.records.run_file_names import CHECKPOINT, RESULT
from sims.scenario.loading_and_variants import Variant
from sims.sweep.parallel_tasks import ReportProgress, TaskError, TaskStopped
from sims.sweep.results_file import Results

if TYPE_CHECKING:
    from sims.simulation.progress import Progress

_UNFIT: Final = re.compile(r"[^A-Za-z0-9.+=_]+")  # characters that directory names do not have
_LONGEST: Final = 80  # characters of a directory's name
_DIGITS: Final = 6  # of a digest, which make a name unique
_INTERVAL: Final = 0.2  # seconds between two reports within a round


def cell_directories(out: Path, name: str, cells: Sequence[Variant]) -> dict[str, RunDirectory]:
    """Return the run directories by digest of the cell: OUT/NAME/SLUG, or OUT/NAME if there is no sweep. SLUG
    is the `slug` of the cell's swept settings, made unique by part of the digest if necessary."""
    slugs = {cell.digest: slug(cell.key) for cell in cells}
    taken = Counter(each.lower() for each in slugs.values())
    found = {}
    for digest, own in slugs.items():
        unique = own if taken[own.lower()] == 1 else f"{own}-{digest[:_DIGITS]}"
        found[digest] = RunDirectory(out / name / unique if own else out / name)
    return found


def without_run(out: Path, name: str, cells: Sequence[Variant]) -> list[Variant]:
    """Return the cells that should have a run directory but have none, or one with other settings."""
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
    """Return a directory name made of the swept settings of a cell (`key`), such as `method=RFA-seed=1`."""
    words = (_UNFIT.sub("-", f"{name.rpartition('.')[2]}={value}").strip("-.") for name, value in key.items())
    return "-".join(words)[:_LONGEST]


@dataclass(frozen=True)
class CellTask:
    """A cell of the scenario `name` to simulate. The run is kept in `directory`; if this is None, only its
    result is kept. `resume` says whether to continue the run that is already there."""

    cell: Variant
    name: str  # the name of the scenario
    directory: RunDirectory | None = None  # where to keep the run; None keeps only its result
    resume: bool = False  # whether to continue the run in `directory`


def plan_tasks(
    cells: Sequence[Variant], results: Results, *, out: Path, name: str, resume: bool, restart: bool
) -> dict[str, CellTask]:
    """Return a task for every cell that still has to run, by the cell's digest. If a run is finished but its
    result is missing from the file of results, the result is added again. With `restart`, runs of cells
    without a result are removed instead. Raises `ConfigError` with all problems: unfinished runs with neither
    `resume` nor `restart`, runs with other settings or in use by another process, unwritable directories."""
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
    """Return the task that runs a cell in `directory`; None if its run is finished. `restart` removes any run
    first. Raises `ConfigError` for an unusable directory, or for an unfinished run unless `resume`."""
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
    """Simulate one cell and return its result. Raises `TaskStopped` after `on_progress` returned True, and
    `TaskError` if the simulation is impossible. `root` contains the directories of data sets."""
    from sims.coordination.run_writer import Origin
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
    """Reports a run's progress after each round, and within a round at most every `_INTERVAL` seconds."""

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
