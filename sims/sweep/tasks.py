"""Tasks in several processes: one that fails, or dies, costs nobody else anything.

A pool of the standard library would do most of this; but none of them can end what is running when somebody
interrupts, and go on without a worker that was killed.
"""

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

from sims.workers import os_processes

Tell: TypeAlias = Callable[[Any], bool]  # how far a task has come; answers whether it should stop
Function: TypeAlias = Callable[[Any, Tell], Any]  # must be importable, and its argument and result picklable
Watch: TypeAlias = Callable[[int, Any], None]  # (task, how far it has come)

_IGNORED: Final = (signal.SIGINT, signal.SIGTERM)  # both may be sent to everybody; whoever started us decides


class Explained(Exception):
    """A failure whose text is all that needs to be known; others are told with their traceback."""


class Stopped(Exception):
    """A task was asked to stop, and can go on later from where it is."""


@dataclass(frozen=True)
class Done:
    """What became of the task at `index`: a result, why there is none, or that it can go on later."""

    index: int
    result: Any = None
    failure: str | None = None
    stopped: bool = False


@dataclass(frozen=True)
class _Step:
    steps: Any


@dataclass(frozen=True)
class _Stop:
    """To a worker: the task should stop when it can go on from there later."""


class Stopping:
    """Somebody wants tasks to stop. To be told from a signal handler: it wakes up whoever waits for tasks."""

    def __init__(self) -> None:
        self.wanted = False
        self._heard, self._told = Pipe(duplex=False)

    def want(self) -> None:
        self.wanted = True
        self._told.send_bytes(b"stop")

    @property
    def line(self) -> Connection:
        """Has something to read from then on."""
        return self._heard


def nobody_watches(_index: int, _steps: int) -> None:
    pass


def run_tasks(
    function: Function,
    tasks: Sequence[Any],
    jobs: int,
    watch: Watch = nobody_watches,
    stopping: Stopping | None = None,
) -> Iterator[Done]:
    """What becomes of every task, as it comes. With one job, everything happens in this process.

    With `stopping`, no further task begins once that is wanted, and tasks hear of it when they next tell how
    far they are.
    """
    stopping = stopping or Stopping()
    if jobs == 1:
        for index, task in enumerate(tasks):
            if stopping.wanted:
                return
            yield _attempt(function, index, task, partial(_watched, watch, stopping, index))
        return
    with _Crew(function, min(jobs, len(tasks)), stopping) as crew:
        yield from crew.run(tasks, watch)


def _watched(watch: Watch, stopping: Stopping, index: int, steps: Any) -> bool:
    watch(index, steps)
    return stopping.wanted


def _attempt(function: Function, index: int, task: Any, tell: Tell) -> Done:
    try:
        return Done(index, function(task, tell))
    except Stopped:
        return Done(index, stopped=True)
    except Explained as error:
        return Done(index, failure=str(error))
    except Exception:
        return Done(index, failure=traceback.format_exc())


class _Crew:
    """Some workers, each with one task at a time."""

    def __init__(self, function: Function, size: int, stopping: Stopping) -> None:
        self._function = function
        self._stopping = stopping
        self._idle: list[_Worker] = []
        self._busy: dict[Connection, _Worker] = {}
        self._size = size
        self._told = False  # that tasks are to stop

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._busy.values():
            worker.kill()
        for worker in self._idle:
            worker.end()

    def run(self, tasks: Sequence[Any], watch: Watch) -> Iterator[Done]:
        waiting = deque(enumerate(tasks))
        while waiting or self._busy:
            while waiting and not self._stopping.wanted and len(self._busy) < self._size:
                worker = self._idle.pop() if self._idle else _Worker(self._function)
                self._busy[worker.line] = worker
                worker.take(*waiting.popleft())
            if not self._busy:
                return
            for line in wait([*self._busy, *self._stop_line()]):
                assert isinstance(line, Connection)
                if line is self._stopping.line:
                    self._stop()
                    continue
                news = self._news(self._busy[line])
                if isinstance(news, _Step):
                    watch(self._busy[line].index, news.steps)
                else:
                    yield news

    def _stop_line(self) -> tuple[Connection, ...]:
        """Nobody has to be woken up twice."""
        return () if self._told else (self._stopping.line,)

    def _stop(self) -> None:
        self._told = True
        for worker in self._busy.values():
            worker.stop()

    def _news(self, worker: _Worker) -> Done | _Step:
        try:
            news = worker.line.recv()
        except (EOFError, OSError):
            del self._busy[worker.line]
            return Done(worker.index, failure=f"its process ended with status {worker.kill()}")
        if isinstance(news, Done):
            self._idle.append(self._busy.pop(worker.line))
        assert isinstance(news, Done | _Step)
        return news


class _Worker:
    """A process that does one task after another."""

    def __init__(self, function: Function) -> None:
        # A copy of this process would have the locks of torch's threads, and not the threads.
        context = get_context("spawn")
        self.line, far_end = context.Pipe()
        self.index = -1
        self._process: SpawnProcess = context.Process(target=_serve, args=(far_end, function), daemon=True)
        _start(self._process)
        far_end.close()

    def take(self, index: int, task: Any) -> None:
        self.index = index
        with suppress(OSError):  # a worker that is dead by now is noticed when it is listened to
            self.line.send((index, task))

    def stop(self) -> None:
        """Its task hears of it when it next tells how far it is."""
        with suppress(OSError):
            self.line.send(_Stop())

    def end(self) -> None:
        """It has nothing to do, and ends once it sees that nothing will come."""
        self.line.close()
        self._process.join()

    def kill(self) -> int | None:
        self._process.kill()
        self._process.join()
        self.line.close()
        return self._process.exitcode


def _start(process: SpawnProcess) -> None:
    """Start a process that hears of no signal before it is told which ones to ignore: see `_serve`.

    It takes seconds to import what it needs, and a Ctrl-C goes to everybody. Ours waits for a moment.
    """
    resource_tracker.ensure_running()  # or the start would do that, and let signals through again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _IGNORED)
    try:
        process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _serve(line: Connection, function: Function) -> None:
    for each in _IGNORED:
        signal.signal(each, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _IGNORED)
    os_processes.signal_on_death_of_parent(signal.SIGKILL)
    with suppress(EOFError, OSError):
        while True:
            order = line.recv()
            if not isinstance(order, _Stop):  # else it came when the task was over
                index, task = order
                line.send(_attempt(function, index, task, _Steps(line).tell))


class _Steps:
    """What a task tells, on its way to whoever started this process."""

    def __init__(self, line: Connection) -> None:
        self._line = line
        self._stop = False

    def tell(self, steps: Any) -> bool:
        self._line.send(_Step(steps))
        if not self._stop and self._line.poll():
            self._stop = isinstance(self._line.recv(), _Stop)
        return self._stop
