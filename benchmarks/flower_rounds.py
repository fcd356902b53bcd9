"""Rounds per second of a simulation: ours over plain sums, and Flower's engine on Ray, on the same task.

Both have the same clients, data, model and local steps, and end with the same model up to rounding, which is
checked. Steady rounds are timed by the clock, from the end of the first round on; what comes before, Ray's
start above all, is told apart. Ours trains all clients together, as a simulation does, and one by one, which
is what Flower's workers do.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, Final

import numpy as np

from benchmarks import flower_app
from benchmarks.digits_task import RATE, DigitsTask
from benchmarks.flower import FlowerError
from fl.data.digits import CLASSES
from fl.device_and_threads import one_thread
from fl.stacking_policy import AUTO, ONE_BY_ONE
from protocols.run import Run
from protocols.serialisation import Vector
from sims.runtime import Setting, insecure_plain_sum

_NEEDED: Final = ("flwr", "ray")
_HOW: Final = "pip install 'flwr[simulation]'"
_TIMEOUT: Final = 900.0  # seconds
_QUIET: Final = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "OMP_NUM_THREADS": "1",
}
# Models of single precision, rounded to fixed point in every round, or not.
_MOST_DIFFERENCE: Final = 1e-3


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """`rounds` beyond the first are timed. `python` runs Flower; None for the one that runs this."""

    clients: int
    rounds: int
    steps: int
    python: str | None = None

    @property
    def task(self) -> DigitsTask:
        return DigitsTask(self.clients, self.steps)


@dataclass(frozen=True, kw_only=True)
class FlowerRounds:
    """Rounds per second, by the median round; `difference` is between the two models."""

    version: str
    clients: int
    rounds: int
    ours: float
    ours_one_by_one: float
    flower: float
    ours_startup_s: float
    flower_startup_s: float
    difference: float

    @property
    def ratio(self) -> float:
        return self.ours / self.flower

    @property
    def ratio_one_by_one(self) -> float:
        return self.ours_one_by_one / self.flower

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "ratio": self.ratio, "ratio_one_by_one": self.ratio_one_by_one}


@dataclass(frozen=True)
class _Timed:
    """The rounds of one engine."""

    startup: float
    rounds: Sequence[float]
    model: Vector

    @property
    def per_second(self) -> float:
        return 1 / median(self.rounds)


def compare(comparison: Comparison) -> FlowerRounds:
    """Measure ours before and after Flower, so that neither has the quieter machine. Raises `FlowerError`."""
    python = comparison.python or sys.executable
    check_there(python)
    before = _ours(comparison, AUTO)
    version, flower = _flowers(comparison, python)
    after, alone = _ours(comparison, AUTO), _ours(comparison, ONE_BY_ONE)
    difference = float(np.abs(after.model - flower.model).max())
    if not difference <= _MOST_DIFFERENCE:
        raise FlowerError(f"its model differs from ours by {difference:.2g}, so that nothing can be compared")
    ours = _Timed(before.startup, [*before.rounds, *after.rounds], after.model)
    return FlowerRounds(
        version=version,
        clients=comparison.clients,
        rounds=comparison.rounds,
        ours=ours.per_second,
        ours_one_by_one=alone.per_second,
        flower=flower.per_second,
        ours_startup_s=ours.startup,
        flower_startup_s=flower.startup,
        difference=difference,
    )


def check_there(python: str) -> None:
    """Raise `FlowerError` unless that Python has Flower and the packages of its simulation."""
    code = f"import importlib.util as u, sys; sys.exit(not all(map(u.find_spec, {_NEEDED!r})))"
    try:
        done = subprocess.run([python, "-c", code], capture_output=True, check=False)
    except OSError as error:
        raise FlowerError(f"{python} cannot be run ({error.strerror})") from None
    if done.returncode:
        raise FlowerError(f"Flower's simulation is not installed in {python}: {_HOW}")


# --- ours ---


def _ours(comparison: Comparison, way: str) -> _Timed:
    started = time.perf_counter()
    task = comparison.task
    algorithm = task.algorithm()
    with one_thread():
        channel = insecure_plain_sum(algorithm, task.crowd(way), Setting())
        run = Run(algorithm, channel, algorithm.start(task.start()))
        ends = [_end_of_round(run) for _ in range(1 + comparison.rounds)]
    rounds = [later - earlier for earlier, later in pairwise(ends)]
    return _Timed(ends[0] - started, rounds, run.model)


def _end_of_round(run: Run[Any]) -> float:
    report = run.round()
    if report.failure is not None:
        raise FlowerError(f"our round {report.number} failed: {report.failure}")
    return time.perf_counter()


# --- Flower's ---


def _flowers(comparison: Comparison, python: str) -> tuple[str, _Timed]:
    with tempfile.TemporaryDirectory(prefix="secagg-flower-") as name:
        place = Path(name)
        shutil.copy(flower_app.__file__, place)
        write_task(comparison, place / "task.npz")
        found = _run(python, place)
    return found["version"], _Timed(found["startup_s"], found["rounds_s"], np.array(found["model"]))


def write_task(comparison: Comparison, path: Path) -> None:
    """Write all that Flower's clients need, in the form that `flower_app` reads."""
    task = comparison.task
    parts = task.data().values()
    start = task.start().astype(np.float32)
    np.savez(
        path,
        x=np.concatenate([part.x for part in parts]),
        y=np.concatenate([part.y for part in parts]),
        bounds=np.cumsum([0, *map(len, parts)]),
        weight=start[:-CLASSES].reshape(CLASSES, -1),
        bias=start[-CLASSES:],
        steps=np.array(comparison.steps),
        rate=np.array(RATE),
        rounds=np.array(1 + comparison.rounds),
    )


def _run(python: str, place: Path) -> dict[str, Any]:
    result = place / "result.json"
    command = [python, str(place / Path(flower_app.__file__).name), str(place / "task.npz"), str(result)]
    environment = {**os.environ, **_QUIET, "PYTHONPATH": str(place)}
    try:
        done = subprocess.run(  # the command was written above
            command,
            cwd=place,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise FlowerError(f"Flower did not finish within {_TIMEOUT:.0f} seconds") from None
    if done.returncode or not result.exists():
        lines = done.stderr.strip().splitlines() or ["it did not say why"]
        raise FlowerError(f"Flower did not finish: {lines[-1]}")
    found: dict[str, Any] = json.loads(result.read_text(encoding="utf-8"))
    return found
