"""What the workers of the tests of sweeps do: to be importable, it is in a file of its own."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sims.scenario.settings import Settings
from sims.sweep.parallel_tasks import TaskError

ReportProgress = Callable[[int], bool]


def work(task: Any, report: ReportProgress) -> Any:
    """Square a number, or fail as the task says."""
    match task:
        case "explained":
            raise TaskError("this cannot be")
        case "broken":
            raise ZeroDivisionError("a mistake of the program")
        case "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        case "endless":
            report(1)
            threading.Event().wait()
    report(1)
    return task**2


def rate_of(settings: Settings, report: ReportProgress, *, log: Path | None = None) -> dict[str, Any]:
    """In place of a simulation: its seed, and its learning rate; a seed of 13 fails."""
    if log is not None:
        with log.open("a") as file:
            file.write(f"{settings.seed}\n")
    if settings.seed == 13:
        raise TaskError("13 brings bad luck")
    report(settings.rounds)
    return {"seed": settings.seed, "rate": settings.training.rate}
