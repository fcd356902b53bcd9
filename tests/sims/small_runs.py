"""Small runs for tests of run directories; as a program, runs that SIGKILL ends at given moments."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from sims.records import RunDirectory
from sims.scenario import Settings
from sims.simulation import simulate
from sims.simulation.progress import Progress

DOCUMENT: dict[str, Any] = {
    "seed": 3,
    "insecure_seed": True,
    "rounds": 5,
    "data": {"kind": "digits"},
    "partition": {"kind": "iid", "clients": 5},
    "model": {"kind": "softmax"},
    "training": {"rate": 0.5, "steps": 1, "batch": 4},
    "algorithm": {"name": "fedavg", "clip": 10.0},
    "evaluation": {"every": 3},
}
SECURE = {"kind": "secure", "dropout": 0.4, "sums": 24}
PRIVATE = {
    "algorithm": {"name": "fedavg", "clip": 1.0, "weighted": False},
    "privacy": {"epsilon": 50.0, "delta": 1e-5, "dropouts": 2, "removable": True},
    "channel": SECURE,
    "dropout": {"training": 0.1},
}


def settings(**tables: Any) -> Settings:
    """Five clients with little to do, and what is given in place of the tables they have."""
    return Settings.model_validate({**DOCUMENT, **tables})


def model(directory: RunDirectory) -> list[float]:
    with np.load(directory / "model.npz") as file:
        return [float(each) for each in file["model"]]


class Gone(BaseException):
    """In place of a crash."""


def after(events: int, happens: Callable[[], None]) -> Callable[[Progress], None]:
    """Does something after so many events of a simulation."""
    left = [events]

    def watch(_moment: Progress) -> None:
        left[0] -= 1
        if left[0] == 0:
            happens()

    return watch


def crash() -> None:
    raise Gone


# --- as a program ---


def _killed_after(events: int) -> Callable[[Progress], None]:
    """Dies after so many events, of which every write to disk is one."""
    watch = after(events, lambda: os.kill(os.getpid(), signal.SIGKILL))
    moment = Progress(done=0, rounds=0)
    for name in ("write", "fsync", "ftruncate", "replace"):
        setattr(os, name, _counted(getattr(os, name), lambda: watch(moment)))
    return watch


def _counted(function: Callable[..., Any], count: Callable[[], None]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        count()
        return function(*args, **kwargs)

    return call


def _once(given: Settings, directory: RunDirectory, events: int) -> bool:
    """Whether the run came to its end before it was killed. Nothing of torch has run here when this forks."""
    child = os.fork()
    if child == 0:
        simulate(given, directory=directory, resume=directory.exists, watch=_killed_after(events))
        os._exit(0)
    return os.waitpid(child, 0)[1] == 0


def _is_over(directory: RunDirectory) -> bool:
    return directory.exists and directory.status == "finished"


def main() -> None:
    """Arguments: the settings, a directory, and after how many events each of its processes is killed."""
    document, path, *moments = sys.argv[1:]
    given, directory, kills = settings(**json.loads(document)), RunDirectory(Path(path)), 0
    for events in moments:
        if not _is_over(directory):
            kills += not _once(given, directory, int(events))
    if not _is_over(directory):
        assert _once(given, directory, -1)
    sys.stdout.write(str(kills))


if __name__ == "__main__":
    main()
