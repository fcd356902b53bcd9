"""Runs tasks on Ray: on all CPUs of this machine, or of a cluster whose nodes share its file system.

Every task is a task of Ray, which takes one CPU and is never repeated. Progress and the request to stop go
through one actor, because the tasks of Ray cannot be sent messages.
"""

from __future__ import annotations

import os
import pickle
import sys
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from sims.runtime.ray.cluster import RayPlace, connect, disconnect, import_ray
from sims.sweep.parallel_tasks import Function, OnProgress, StopRequest, TaskOutcome, attempt, no_op

_INTERVAL: Final = 0.2  # seconds between two looks at the progress of tasks


def run_ray_tasks(
    function: Function,
    tasks: Sequence[Any],
    address: str,
    on_progress: OnProgress = no_op,
    stopping: StopRequest | None = None,
) -> Iterator[TaskOutcome]:
    """Call `function` for every task, on the Ray cluster at `address`, and yield the outcomes as they arrive,
    as `run_tasks` does. Raise `ConfigError` if Ray is not installed or the cluster cannot be reached."""
    cluster = connect(address)
    try:
        width = max(int(cluster.capacity(RayPlace())), 1)
        pool = _RayTasks(pickle.dumps(function), width, on_progress, stopping or StopRequest())
        try:
            yield from pool.run(tasks)
        finally:
            pool.end()
    finally:
        disconnect(cluster)


class ProgressBoard:
    """An actor to which tasks report their progress, and from which they learn that they should stop."""

    def __init__(self) -> None:
        self._steps: dict[int, Any] = {}
        self._stop = False

    def report(self, index: int, steps: Any) -> bool:
        """Record the progress of a task. Return whether it should stop."""
        self._steps[index] = steps
        return self._stop

    def take(self, stop: bool) -> dict[int, Any]:
        """Return the progress of tasks since the last call, by index. `stop` asks all to stop."""
        steps, self._steps, self._stop = self._steps, {}, stop
        return steps


class _RayTasks:
    """Runs at most `width` tasks at a time."""

    def __init__(self, function: bytes, width: int, on_progress: OnProgress, stopping: StopRequest) -> None:
        self._ray = import_ray()
        self._function = function
        self._width = width
        self._on_progress = on_progress
        self._stopping = stopping
        self._board = self._ray.remote(ProgressBoard).options(num_cpus=0).remote()
        self._attempt = self._ray.remote(_attempt_here).options(num_cpus=1, max_retries=0)
        self._running: dict[Any, int] = {}  # references of Ray -> indices of tasks

    def run(self, tasks: Sequence[Any]) -> Iterator[TaskOutcome]:
        waiting = deque(enumerate(tasks))
        place = str(Path.cwd()), tuple(sys.path)
        while waiting or self._running:
            while waiting and not self._stopping.wanted and len(self._running) < self._width:
                index, task = waiting.popleft()
                packed = pickle.dumps((index, task))
                self._running[self._attempt.remote(*place, self._function, packed, self._board)] = index
            if not self._running:
                return
            done, _ = self._ray.wait(list(self._running), timeout=_INTERVAL)
            self._report()
            for reference in done:
                yield self._outcome(reference)

    def _report(self) -> None:
        steps: Mapping[int, Any] = self._ray.get(self._board.take.remote(self._stopping.wanted))
        for index, step in steps.items():
            self._on_progress(index, step)

    def _outcome(self, reference: Any) -> TaskOutcome:
        index = self._running.pop(reference)
        try:
            outcome: TaskOutcome = self._ray.get(reference)
            return outcome
        except self._ray.exceptions.RayError as error:
            reason = str(error).strip().splitlines()[0]
            return TaskOutcome(index, failure=f"its process ended: {reason}")

    def end(self) -> None:
        """Kill the tasks that still run."""
        for reference in self._running:
            with suppress(Exception):
                self._ray.cancel(reference, force=True)
        with suppress(Exception):
            self._ray.kill(self._board)


def _attempt_here(
    directory: str, path: tuple[str, ...], function: bytes, packed: bytes, board: Any
) -> TaskOutcome:
    """Run one task in a process of Ray, in the directory and with the modules of the main process."""
    os.chdir(directory)
    sys.path[:] = dict.fromkeys((*sys.path, *path))
    called: Function = pickle.loads(function)  # noqa: S301  # from this program
    index, task = pickle.loads(packed)  # noqa: S301
    get = import_ray().get
    return attempt(called, index, task, lambda steps: bool(get(board.report.remote(index, steps))))
