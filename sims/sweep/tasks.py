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
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any, Self, TypeAlias

from sims.processes import lifeline

Tell: TypeAlias = Callable[[int], None]  # how far a task has come, in its own steps
Function: TypeAlias = Callable[[Any, Tell], Any]  # must be importable, and its argument and result picklable
Watch: TypeAlias = Callable[[int, int], None]  # (task, how far it has come)


class Explained(Exception):
    """A failure whose text is all that needs to be known; others are told with their traceback."""


class Stopped(Exception):
    """A task was asked to stop, and can go on later from where it is."""


@dataclass(frozen=True)
class Done:
    """What became of the task at `index`: a result, or why there is none."""

    index: int
    result: Any = None
    failure: str | None = None


@dataclass(frozen=True)
class _Step:
    steps: int


def nobody_watches(_index: int, _steps: int) -> None:
    pass


def run_tasks(
    function: Function, tasks: Sequence[Any], jobs: int, watch: Watch = nobody_watches
) -> Iterator[Done]:
    """What becomes of every task, as it comes. With one job, everything happens in this process."""
    if jobs == 1:
        for index, task in enumerate(tasks):
            yield _attempt(function, index, task, partial(watch, index))
        return
    with _Crew(function, min(jobs, len(tasks))) as crew:
        yield from crew.run(tasks, watch)


def _attempt(function: Function, index: int, task: Any, tell: Tell) -> Done:
    try:
        return Done(index, function(task, tell))
    except Explained as error:
        return Done(index, failure=str(error))
    except Exception:
        return Done(index, failure=traceback.format_exc())


class _Crew:
    """Some workers, each with one task at a time."""

    def __init__(self, function: Function, size: int) -> None:
        self._function = function
        self._idle: list[_Worker] = []
        self._busy: dict[Connection, _Worker] = {}
        self._size = size

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
            while waiting and len(self._busy) < self._size:
                worker = self._idle.pop() if self._idle else _Worker(self._function)
                self._busy[worker.line] = worker
                worker.take(*waiting.popleft())
            for line in wait(list(self._busy)):
                assert isinstance(line, Connection)
                news = self._news(self._busy[line])
                if isinstance(news, _Step):
                    watch(self._busy[line].index, news.steps)
                else:
                    yield news

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
        self._process.start()
        far_end.close()

    def take(self, index: int, task: Any) -> None:
        self.index = index
        with suppress(OSError):  # a worker that is dead by now is noticed when it is listened to
            self.line.send((index, task))

    def end(self) -> None:
        """It has nothing to do, and ends once it sees that nothing will come."""
        self.line.close()
        self._process.join()

    def kill(self) -> int | None:
        self._process.kill()
        self._process.join()
        self.line.close()
        return self._process.exitcode


def _serve(line: Connection, function: Function) -> None:
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # a terminal sends it to everybody; whoever started us decides
    lifeline.signal_on_death_of_parent(signal.SIGKILL)
    with suppress(EOFError, OSError):
        while True:
            index, task = line.recv()
            line.send(_attempt(function, index, task, lambda steps: line.send(_Step(steps))))
