"""Runs tasks in several processes. A task that fails, or whose process dies, does not affect the others. In a
`ProcessPoolExecutor`, all tasks fail if one worker is killed, and a running task cannot be ended. A
`sims.workers.WorkerPool` limits numerical libraries to one thread, which changes the last bits of torch's
results; but tasks must give the same numbers in the main process (see tests/sims/test_sweep.py)."""

from __future__ import annotations

import signal
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing import Pipe, get_context, resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any, Final, Self, TypeAlias

from sims.workers import process_lifetime_and_queries as lifetime

ReportProgress: TypeAlias = Callable[[Any], bool]  # reports progress; returns whether the task should stop
Function: TypeAlias = Callable[[Any, ReportProgress], Any]  # importable; argument and result are picklable
OnProgress: TypeAlias = Callable[[int, Any], None]  # (index of a task, its progress)

_IGNORED: Final = (signal.SIGINT, signal.SIGTERM)  # sent to all processes; the parent decides


class TaskError(Exception):
    """Raised by a task that fails, to report only a text. Other exceptions are reported with a traceback."""


class TaskStopped(Exception):
    """Raised by a task that was asked to stop and can be resumed later."""


@dataclass(frozen=True)
class TaskOutcome:
    """The outcome of the task at `index`: its `result`, or why it failed, or that it stopped on request."""

    index: int
    result: Any = None
    failure: str | None = None
    stopped: bool = False


@dataclass(frozen=True)
class _Step:
    """A message from a worker process: the progress of its task, as the task itself reported it (`steps`)."""

    steps: Any


@dataclass(frozen=True)
class _Stop:
    """A message to a worker process: its task should stop at the next point from which it can be resumed."""


class StopRequest:
    """Asks all tasks of `run_tasks` to stop when `want` is called, which a signal handler may do."""

    def __init__(self) -> None:
        self.wanted = False
        self._receiver, self._sender = Pipe(duplex=False)

    def want(self) -> None:
        self.wanted = True
        self._sender.send_bytes(b"stop")

    @property
    def connection(self) -> Connection:
        """Return a connection that becomes readable when `want` is called, so that a wait can include it."""
        return self._receiver


def no_op(_index: int, _steps: int) -> None:
    pass


def run_tasks(
    function: Function,
    tasks: Sequence[Any],
    jobs: int,
    on_progress: OnProgress = no_op,
    stopping: StopRequest | None = None,
) -> Iterator[TaskOutcome]:
    """Call `function` for every task, in `jobs` processes, and yield the outcomes as they arrive. If `jobs`
    is 1, the tasks run in this process. After `stopping.want()`, no further task is started, and a running
    task is asked to stop when it next reports its progress."""
    stopping = stopping or StopRequest()
    if jobs == 1:
        for index, task in enumerate(tasks):
            if stopping.wanted:
                return
            yield attempt(function, index, task, partial(_report, on_progress, stopping, index))
        return
    with _TaskPool(function, min(jobs, len(tasks)), stopping) as pool:
        yield from pool.run(tasks, on_progress)


def _report(on_progress: OnProgress, stopping: StopRequest, index: int, steps: Any) -> bool:
    on_progress(index, steps)
    return stopping.wanted


def attempt(function: Function, index: int, task: Any, report: ReportProgress) -> TaskOutcome:
    try:
        return TaskOutcome(index, function(task, report))
    except TaskStopped:
        return TaskOutcome(index, stopped=True)
    except TaskError as error:
        return TaskOutcome(index, failure=str(error))
    except Exception:
        return TaskOutcome(index, failure=traceback.format_exc())


class _TaskPool:
    """Runs tasks in worker processes. Each worker has one task at a time."""

    def __init__(self, function: Function, size: int, stopping: StopRequest) -> None:
        self._function = function
        self._stopping = stopping
        self._idle: list[_TaskWorker] = []
        self._busy: dict[Connection, _TaskWorker] = {}
        self._size = size
        self._stop_sent = False  # whether the workers were asked to stop

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._busy.values():
            worker.kill()
        for worker in self._idle:
            worker.end()

    def run(self, tasks: Sequence[Any], on_progress: OnProgress) -> Iterator[TaskOutcome]:
        waiting = deque(enumerate(tasks))
        while waiting or self._busy:
            while waiting and not self._stopping.wanted and len(self._busy) < self._size:
                worker = self._idle.pop() if self._idle else _TaskWorker(self._function)
                self._busy[worker.connection] = worker
                worker.take(*waiting.popleft())
            if not self._busy:
                return
            # The request to stop is waited for until it has been read.
            stop = () if self._stop_sent else (self._stopping.connection,)
            for connection in wait([*self._busy, *stop]):
                assert isinstance(connection, Connection)
                if connection is self._stopping.connection:
                    self._stop()
                    continue
                message = self._receive(self._busy[connection])
                if isinstance(message, _Step):
                    on_progress(self._busy[connection].index, message.steps)
                else:
                    yield message

    def _stop(self) -> None:
        self._stop_sent = True
        for worker in self._busy.values():
            worker.stop()

    def _receive(self, worker: _TaskWorker) -> TaskOutcome | _Step:
        try:
            message = worker.connection.recv()
        except (EOFError, OSError):
            del self._busy[worker.connection]
            return TaskOutcome(worker.index, failure=f"its process ended with status {worker.kill()}")
        if isinstance(message, TaskOutcome):
            self._idle.append(self._busy.pop(worker.connection))
        assert isinstance(message, TaskOutcome | _Step)
        return message


class _TaskWorker:
    """A worker process that runs one task after another."""

    def __init__(self, function: Function) -> None:
        # A fork would copy the locks of torch's threads, but not the threads.
        context = get_context("spawn")
        self.connection, far_end = context.Pipe()
        self.index = -1
        self._process: SpawnProcess = context.Process(target=_serve, args=(far_end, function), daemon=True)
        _start(self._process)
        far_end.close()

    def take(self, index: int, task: Any) -> None:
        self.index = index
        with suppress(OSError):  # A dead worker is noticed when its connection is read.
            self.connection.send((index, task))

    def stop(self) -> None:
        """Ask the worker's task to stop when it next reports its progress."""
        with suppress(OSError):
            self.connection.send(_Stop())

    def end(self) -> None:
        """End an idle worker by closing its connection, and wait until it has exited."""
        self.connection.close()
        self._process.join()

    def kill(self) -> int | None:
        """Kill the worker, wait until it has ended, and return its exit code, negative after a signal."""
        self._process.kill()
        self._process.join()
        self.connection.close()
        return self._process.exitcode


def _start(process: SpawnProcess) -> None:
    """Start a process in which SIGINT and SIGTERM are blocked until `_serve` ignores them. Otherwise Ctrl-C,
    which is sent to all processes, would end the new process during its imports, which take seconds. Both
    signals are also blocked in this process during the start."""
    resource_tracker.ensure_running()  # Otherwise `start` would call this and unblock signals.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _IGNORED)
    try:
        process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _serve(connection: Connection, function: Function) -> None:
    for each in _IGNORED:
        signal.signal(each, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _IGNORED)
    lifetime.signal_on_death_of_parent(signal.SIGKILL)
    with suppress(EOFError, OSError):
        while True:
            message = connection.recv()
            if not isinstance(message, _Stop):  # `_Stop` came after the end of its task.
                index, task = message
                connection.send(attempt(function, index, task, _ProgressReporter(connection).report))


class _ProgressReporter:
    """Sends the progress of a worker's task to the parent process, and receives the request to stop."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._stop = False

    def report(self, steps: Any) -> bool:
        self._connection.send(_Step(steps))
        if not self._stop and self._connection.poll():
            self._stop = isinstance(self._connection.recv(), _Stop)
        return self._stop
