"""Cooperative batching: runs the jobs of many clients so that their requests are answered in batches.

A job is a function that does the work of one client. Every job has its own thread, but only one runs at a
time: it runs until it makes a request, such as a training, then the next job runs. When all jobs wait, one
call answers their requests. So code written for one client is computed for many, in a reproducible order.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Cancelled(BaseException):
    """Raised inside waiting jobs to end them after the run was aborted."""


@dataclass
class JobResult(Generic[T]):
    """The outcome of a job: its return value or its error."""

    value: T | None = None
    error: BaseException | None = None

    def result(self) -> T:
        """Return the job's value, or raise its error."""
        if self.error is not None:
            raise self.error
        return self.value  # type: ignore[return-value]  # a job may return None


def _held() -> threading.Lock:
    """Return an acquired lock. A thread waits by acquiring it again, until another thread releases it."""
    lock = threading.Lock()
    lock.acquire()
    return lock


@dataclass
class PendingRequest:
    """A request of a waiting job. First `answer` or `error` is set; releasing `ready` then wakes the job."""

    client: int
    request: Any
    answer: Any = None
    error: BaseException | None = None
    ready: threading.Lock = field(default_factory=_held)

    def result(self) -> Any:
        """Return the answer to the request, or raise its error."""
        if self.error is not None:
            raise self.error
        return self.answer


Serve = Callable[[Sequence[PendingRequest]], Sequence[PendingRequest]]


class CooperativeBatcher:
    """Runs one job (function) per client, one at a time. When all unfinished jobs wait for an answer (`ask`),
    `serve` gets the requests, sets the answer or error of one or more, and returns these."""

    def __init__(self, serve: Serve) -> None:
        self._serve = serve
        self._job = threading.local()
        self._baton = _held()  # released when the running job waits or ends
        self._waiting: list[PendingRequest] = []
        self._served: deque[PendingRequest] = deque()  # answered, but not yet woken
        self._cancelled = False

    @property
    def inside(self) -> bool:
        """Whether the calling thread is the thread of a job."""
        return hasattr(self._job, "client")

    def ask(self, request: Any) -> Any:
        """Wait for the answer to `request` and return it, or raise its error. Only jobs may call this."""
        waiting = PendingRequest(self._job.client, request)
        self._waiting.append(waiting)
        if self._cancelled:  # from here on, `_cancel` finds the request in the list
            raise Cancelled
        self._baton.release()
        waiting.ready.acquire()
        if self._cancelled:
            raise Cancelled
        return waiting.result()

    def run(self, jobs: Mapping[int, Callable[[], T]]) -> dict[int, JobResult[T]]:
        """Run all jobs, given by client id. Return the value or the error of each, by client id. If `serve`
        raises an error, all jobs are ended, and the error is raised."""
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
                if thread.is_alive():  # the last one may not have been started
                    thread.join()
        return {client: finished[client] for client in jobs}

    def _answer(self) -> None:
        """Let `serve` answer requests, and move the answered ones from `_waiting` to `_served`. If this is
        interrupted, every request is still in one of the two lists, so that `_cancel` wakes its job."""
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
