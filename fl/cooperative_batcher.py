"""Many clients' work side by side, each as if it were alone, so that what they need can be done at once.

Every client's job runs in a thread of its own, but only one at a time: it goes on until it asks for
something, and the next one takes over. When all of them wait, all that they asked for is served together.
So a job sees nothing of the others, nothing depends on how threads are scheduled, and an algorithm that knows
a single client can be computed for a hundred.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Cancelled(BaseException):
    """Ends the jobs of a gathering that was broken off."""


@dataclass
class JobResult(Generic[T]):
    """What became of a job."""

    value: T | None = None
    error: BaseException | None = None

    def result(self) -> T:
        """Its value; raises what it raised."""
        if self.error is not None:
            raise self.error
        return self.value  # type: ignore[return-value]  # a job may well return None


def _held() -> threading.Lock:
    """A lock that somebody else will release. It is the quickest way to wake a thread."""
    lock = threading.Lock()
    lock.acquire()
    return lock


@dataclass
class PendingRequest:
    """A job that has asked for something."""

    client: int
    request: Any
    answer: Any = None
    error: BaseException | None = None
    ready: threading.Lock = field(default_factory=_held)

    def result(self) -> Any:
        """The answer; raises what went wrong instead."""
        if self.error is not None:
            raise self.error
        return self.answer


Serve = Callable[[Sequence[PendingRequest]], Sequence[PendingRequest]]


class CooperativeBatcher:
    """Runs jobs. `serve` is given all that wait, answers some of them or all, and returns those."""

    def __init__(self, serve: Serve) -> None:
        self._serve = serve
        self._job = threading.local()
        self._baton = _held()  # free when the running job has stopped
        self._waiting: list[PendingRequest] = []
        self._served: deque[PendingRequest] = deque()  # have their answers, and were not woken yet
        self._cancelled = False

    @property
    def inside(self) -> bool:
        """Whether the caller is a job."""
        return hasattr(self._job, "client")

    def ask(self, request: Any) -> Any:
        """From a job: wait for the answer, while others work."""
        waiting = PendingRequest(self._job.client, request)
        self._waiting.append(waiting)
        if self._cancelled:  # after this, who cancels finds it in the list
            raise Cancelled
        self._baton.release()
        waiting.ready.acquire()
        if self._cancelled:
            raise Cancelled
        return waiting.result()

    def run(self, jobs: Mapping[int, Callable[[], T]]) -> dict[int, JobResult[T]]:
        """Do all jobs, and tell what became of each."""
        finished: dict[int, JobResult[T]] = {}
        threads = []
        self._baton, self._waiting, self._cancelled = _held(), [], False
        self._served.clear()
        try:
            for client, job in jobs.items():
                thread = threading.Thread(target=self._work, args=(client, job, finished), daemon=True)
                threads.append(thread)
                thread.start()
                self._baton.acquire()
            while self._waiting:
                self._answer()
                while self._served:
                    self._served[0].ready.release()
                    self._served.popleft()
                    self._baton.acquire()
        except BaseException:
            self._cancel()
            raise
        finally:
            for thread in threads:
                if thread.is_alive():  # the last may never have started
                    thread.join()
        return {client: finished[client] for client in jobs}

    def _answer(self) -> None:
        """Find out who can go on. Whatever interrupts this, everybody who waits is in one list or both."""
        self._served.extend(self._serve(tuple(self._waiting)))
        chosen = {id(each) for each in self._served}
        self._waiting = [each for each in self._waiting if id(each) not in chosen]

    def _work(self, client: int, job: Callable[[], T], finished: dict[int, JobResult[T]]) -> None:
        self._job.client = client
        try:
            finished[client] = JobResult(job())
        except Cancelled:
            return
        except BaseException as error:
            finished[client] = JobResult(error=error)
        if not self._cancelled:
            self._baton.release()

    def _cancel(self) -> None:
        self._cancelled = True
        for each in (*self._waiting, *self._served):
            if each.ready.locked():
                each.ready.release()
        self._waiting = []
        self._served.clear()
