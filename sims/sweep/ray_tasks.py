"""Runs tasks on Ray: on all CPUs of this machine, or of a cluster whose nodes share its file system.

Every task is a task of Ray, which takes one CPU and is never repeated. Progress and the request to stop go
through one actor on the node of the main process, because the tasks of Ray cannot be sent messages. If it is
lost, Ray starts it again: it has nothing that its next caller does not tell it again.
"""

from __future__ import annotations

import os
import pickle
import socket
import sys
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from sims.config_problems import ConfigError
from sims.runtime.ray.cluster import Cluster, RayPlace, connect, disconnect, import_ray
from sims.runtime.ray.errors import first_line, one_line
from sims.runtime.ray.sources import DIFFERENT, source_digest
from sims.sweep.parallel_tasks import Function, OnProgress, StopRequest, TaskOutcome, attempt, no_op

_INTERVAL: Final = 0.2  # seconds between two looks at the progress of tasks
_ANSWERED: Final = 10.0  # seconds in which the board of progress answers, or is taken for lost


def run_ray_tasks(
    function: Function,
    tasks: Sequence[Any],
    address: str,
    on_progress: OnProgress = no_op,
    stopping: StopRequest | None = None,
) -> Iterator[TaskOutcome]:
    """Call `function` for every task, on the Ray cluster at `address`, and yield the outcomes as they arrive,
    as `run_tasks` does. Raise `ConfigError` if Ray is not installed, or the cluster cannot be reached or has
    no CPU."""
    cluster = connect(address)
    try:
        pool = _RayTasks(pickle.dumps(function), _width(cluster), on_progress, stopping or StopRequest())
        try:
            yield from pool.run(tasks)
        finally:
            pool.end()
    finally:
        disconnect(cluster)


def _width(cluster: Cluster) -> int:
    width = int(cluster.capacity(RayPlace()))
    if width < 1:
        raise ConfigError(
            f"the Ray cluster {cluster.address} has no CPU for a task: start its nodes with CPUs (ray start "
            "--num-cpus), or use --jobs with a number"
        )
    return width


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


@dataclass(frozen=True)
class TaskPlace:
    """What a node must have to run a task: the working directory, and secagg with the digest `sources`.
    `path` has the directories of modules of the main process."""

    directory: str
    path: tuple[str, ...]
    sources: str


class _RayTasks:
    """Runs at most `width` tasks at a time."""

    def __init__(self, function: bytes, width: int, on_progress: OnProgress, stopping: StopRequest) -> None:
        self._ray = import_ray()
        self._function = function
        self._width = width
        self._on_progress = on_progress
        self._stopping = stopping
        self._board = self._new_board()
        self._attempt = self._ray.remote(_attempt_here).options(num_cpus=1, max_retries=0)
        self._running: dict[Any, int] = {}  # references of Ray -> indices of tasks

    def _new_board(self) -> Any:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        here = NodeAffinitySchedulingStrategy(self._ray.get_runtime_context().get_node_id(), soft=False)
        board = self._ray.remote(ProgressBoard)
        return board.options(num_cpus=0, max_restarts=-1, scheduling_strategy=here).remote()

    def run(self, tasks: Sequence[Any]) -> Iterator[TaskOutcome]:
        waiting = deque(enumerate(tasks))
        place = TaskPlace(str(Path.cwd()), tuple(sys.path), source_digest())
        while waiting or self._running:
            while waiting and not self._stopping.wanted and len(self._running) < self._width:
                index, task = waiting.popleft()
                packed = pickle.dumps(task)
                begun = self._attempt.remote(index, place, self._function, packed, self._board)
                self._running[begun] = index
            if not self._running:
                return
            done, _ = self._ray.wait(list(self._running), timeout=_INTERVAL)
            self._report()
            for reference in done:
                yield self._outcome(reference)

    def _report(self) -> None:
        """Report the progress of tasks, and tell them whether to stop. If the board is lost for now, the next
        call does."""
        steps: Mapping[int, Any] = {}
        with suppress(self._ray.exceptions.RayError):
            steps = self._ray.get(self._board.take.remote(self._stopping.wanted), timeout=_ANSWERED)
        for index, step in steps.items():
            self._on_progress(index, step)

    def _outcome(self, reference: Any) -> TaskOutcome:
        index = self._running.pop(reference)
        try:
            outcome: TaskOutcome = self._ray.get(reference)
            return outcome
        except self._ray.exceptions.RayTaskError as error:
            cause = error.cause
            return TaskOutcome(
                index, failure=f"Ray could not carry it: {type(cause).__name__}: {one_line(cause)}"
            )
        except self._ray.exceptions.RayError as error:
            return TaskOutcome(index, failure=f"its process ended: {first_line(error)}")

    def end(self) -> None:
        """Kill the tasks that still run."""
        for reference in self._running:
            with suppress(Exception):
                self._ray.cancel(reference, force=True)
        with suppress(Exception):
            self._ray.kill(self._board)


def _attempt_here(index: int, place: TaskPlace, function: bytes, packed: bytes, board: Any) -> TaskOutcome:
    """Run one task in a process of Ray, in the directory and with the modules of the main process."""
    if source_digest() != place.sources:
        return TaskOutcome(index, failure=f"{DIFFERENT} (this is {socket.gethostname()})")
    try:
        os.chdir(place.directory)
    except OSError as error:
        return TaskOutcome(
            index,
            failure=f"the node {socket.gethostname()} has no directory {place.directory} ({error.strerror}): "
            "the nodes must share it",
        )
    sys.path[:] = dict.fromkeys((*sys.path, *place.path))
    called: Function = pickle.loads(function)  # noqa: S301  # from this program
    return attempt(called, index, pickle.loads(packed), partial(_reported, board, index))  # noqa: S301


def _reported(board: Any, index: int, steps: Any) -> bool:
    """Report the progress of a task. Return whether it should stop; not, if the board is lost for now."""
    ray = import_ray()
    try:
        return bool(ray.get(board.report.remote(index, steps), timeout=_ANSWERED))
    except ray.exceptions.RayError:
        return False
