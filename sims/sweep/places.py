"""Where the cells of a sweep keep their runs, and what is to be done about runs that are there already."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from sims.deploy.problems import ConfigError
from sims.records import RunDirectory
from sims.records.checkpoint import Checkpoint
from sims.records.directory import FINISHED
from sims.sweep.cell import Cell
from sims.sweep.results import Results

_UNFIT: Final = re.compile(r"[^A-Za-z0-9.+=_]+")
_LONGEST: Final = 80
_DIGITS: Final = 6


def places(out: Path, name: str, cells: Sequence[Cell]) -> dict[str, RunDirectory]:
    """The directory of every cell, by its digest: that of the name itself where nothing is swept."""
    slugs = {cell.digest: slug(cell.key) for cell in cells}
    taken = Counter(each.lower() for each in slugs.values())
    found = {}
    for digest, own in slugs.items():
        unique = own if taken[own.lower()] == 1 else f"{own}-{digest[:_DIGITS]}"
        found[digest] = RunDirectory(out / name / unique if own else out / name)
    return found


def without_run(out: Path, name: str, cells: Sequence[Cell]) -> list[Cell]:
    """Those whose run was to be kept, and is not in its directory: it is gone, or another one is there."""
    own = places(out, name, cells)
    return [
        cell for cell in cells if cell.settings.output.keep == "run" and not _holds(own[cell.digest], cell)
    ]


def _holds(place: RunDirectory, cell: Cell) -> bool:
    try:
        return place.exists and place.facts()["digest"] == cell.digest
    except ConfigError:  # nobody can tell any more what it was
        return False


def slug(key: Mapping[str, Any]) -> str:
    """A cell's key as the name of a directory, such as `method=RFA-seed=1`."""
    words = (_UNFIT.sub("-", f"{name.rpartition('.')[2]}={value}").strip("-.") for name, value in key.items())
    return "-".join(words)[:_LONGEST]


@dataclass(frozen=True)
class Task:
    """What is to be run for a cell, and where it is kept; `resume` goes on with what is there."""

    cell: Cell
    name: str
    place: RunDirectory | None = None
    resume: bool = False


def plan_tasks(
    cells: Sequence[Cell],
    results: Results,
    *,
    out: Path,
    name: str,
    resume: bool,
    restart: bool,
) -> dict[str, Task]:
    """What is to be done about every cell without a result, by its digest.

    A run that was finished, and whose result somebody took out of the file of results, is put back there.
    Raises `ConfigError` with all that stands in the way: runs that are not finished, where nobody said
    whether to go on with them; those of other settings; those that another process runs; directories that
    cannot be written.
    """
    known, own = results.read(), places(out, name, cells)
    tasks, problems = {}, []
    for cell in cells:
        if cell.digest in known:
            continue
        if cell.settings.output.keep == "table":
            tasks[cell.digest] = Task(cell, name)
            continue
        try:
            task = _planned(cell, own[cell.digest], name, resume=resume, restart=restart)
        except ConfigError as error:
            problems.append(str(error))
            continue
        if task is None:
            results.add(cell, own[cell.digest].read_json("result.json"))
        else:
            tasks[cell.digest] = task
    if problems:
        raise ConfigError("\n".join(dict.fromkeys(problems)))
    return tasks


def _planned(cell: Cell, place: RunDirectory, name: str, *, resume: bool, restart: bool) -> Task | None:
    """None if the run is there, and finished."""
    place.make()
    with place.locked():
        if not place.exists or restart:
            place.write("checkpoint", b"")  # whether anything can be written here at all
            place.clear()
            return Task(cell, name, place)
        facts = place.facts()
        if facts["digest"] != cell.digest:
            raise ConfigError(
                f"{place} holds a run with other settings: take another --out, or --restart begins anew there"
            )
        if facts["status"] == FINISHED:
            return None
        if not resume:
            raise ConfigError(
                f"{place} holds a run that is not finished ({facts['done']} of {facts['rounds']} rounds): "
                "--resume goes on with it, --restart begins anew"
            )
        Checkpoint.read(place, digest=cell.digest)  # raises if it is of no use
        return Task(cell, name, place, resume=True)
