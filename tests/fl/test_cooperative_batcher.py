"""Jobs side by side: who waits for what, what becomes of errors, and how a gathering is broken off."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import pytest

from fl import cooperative_batcher as batcher_module
from fl.cooperative_batcher import Cancelled, CooperativeBatcher, PendingRequest

LONG = 60.0  # seconds after which a test that hangs is given up


class Interrupted(BaseException):
    """As when somebody presses Ctrl-C."""


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    assert set(threading.enumerate()) <= before


def doubled(waiting: Sequence[PendingRequest]) -> Sequence[PendingRequest]:
    for each in waiting:
        each.answer = 2 * each.request
    return waiting


class Serving:
    """Serves what `answer` does, and notes who waited together."""

    def __init__(
        self, answer: Callable[[Sequence[PendingRequest]], Sequence[PendingRequest]] = doubled
    ) -> None:
        self.seen: list[list[int]] = []
        self._answer = answer

    def __call__(self, waiting: Sequence[PendingRequest]) -> Sequence[PendingRequest]:
        self.seen.append([each.client for each in waiting])
        return self._answer(waiting)


def test_all_that_wait_are_served_together() -> None:
    serving = Serving()
    batcher = CooperativeBatcher(serving)

    def job(rounds: int) -> int:
        value = 1
        for _ in range(rounds):
            value = batcher.ask(value)
        return value

    done = batcher.run({client: partial(job, client) for client in (3, 0, 2)})
    assert {client: each.result() for client, each in done.items()} == {3: 8, 0: 1, 2: 4}
    assert list(done) == [3, 0, 2]
    assert serving.seen == [[3, 2], [3, 2], [3]]


def test_one_job_runs_at_a_time_and_always_in_the_same_order() -> None:
    def run() -> list[str]:
        batcher, log = CooperativeBatcher(doubled), []

        def job(client: int) -> None:
            for step in range(3):
                log.append(f"{client} begins {step}")
                for _ in range(200):
                    pass  # long enough for another thread to cut in, if one were allowed to
                log.append(f"{client} ends {step}")
                batcher.ask(0)

        batcher.run({client: partial(job, client) for client in range(4)})
        return log

    expected = [
        f"{client} {what} {step}" for step in range(3) for client in range(4) for what in ("begins", "ends")
    ]
    usual = sys.getswitchinterval()
    assert run() == expected
    try:
        sys.setswitchinterval(1e-6)
        assert run() == expected
    finally:
        sys.setswitchinterval(usual)


def test_who_cannot_be_served_yet_waits_for_the_next_time() -> None:
    def smallest(waiting: Sequence[PendingRequest]) -> Sequence[PendingRequest]:
        return doubled([min(waiting, key=lambda each: each.client)])

    serving = Serving(smallest)
    batcher = CooperativeBatcher(serving)
    done = batcher.run({client: partial(batcher.ask, client) for client in (2, 1, 3)})
    assert [each.result() for each in done.values()] == [4, 2, 6]
    assert serving.seen == [[2, 1, 3], [2, 3], [3]]


@pytest.mark.parametrize("error", [ValueError("one"), KeyboardInterrupt(), SystemExit(3), Interrupted()])
@pytest.mark.parametrize("asked", [0, 1])
def test_an_error_of_one_job_is_its_own(error: BaseException, asked: int) -> None:
    batcher = CooperativeBatcher(doubled)

    def bad() -> None:
        for _ in range(asked):
            batcher.ask(1)
        raise error

    def good() -> int:
        first: int = batcher.ask(1)
        second: int = batcher.ask(first)
        return second

    done = batcher.run({0: good, 1: bad, 2: good})
    assert (done[0].result(), done[2].result()) == (4, 4)
    with pytest.raises(type(error)) as caught:
        done[1].result()
    assert caught.value is error


def test_a_request_may_fail_and_its_job_go_on() -> None:
    def odd_fail(waiting: Sequence[PendingRequest]) -> Sequence[PendingRequest]:
        for each in waiting:
            if each.request % 2:
                each.error = ValueError("odd")
        return doubled(waiting)

    batcher = CooperativeBatcher(odd_fail)

    def job(value: int) -> int:
        try:
            answer: int = batcher.ask(value)
        except ValueError:
            answer = batcher.ask(10 * value)
        return answer

    done = batcher.run({client: partial(job, client) for client in range(4)})
    assert [each.result() for each in done.values()] == [0, 20, 4, 60]


def test_a_job_may_return_nothing_and_there_may_be_no_job() -> None:
    batcher = CooperativeBatcher(doubled)
    assert batcher.run({1: lambda: None})[1].result() is None
    assert batcher.run({}) == {}


def test_jobs_know_that_they_are_jobs() -> None:
    batcher, other = CooperativeBatcher(doubled), CooperativeBatcher(doubled)
    seen = batcher.run({1: lambda: (batcher.inside, other.inside)})[1].result()
    assert seen == (True, False)
    assert not batcher.inside


def broken_off(error: BaseException) -> tuple[CooperativeBatcher, list[bool]]:
    """A gathering that serves nobody as long as the list is not empty."""
    breaks = [True]

    def serve(waiting: Sequence[PendingRequest]) -> Sequence[PendingRequest]:
        if breaks:
            raise error
        return doubled(waiting)

    return CooperativeBatcher(serve), breaks


@pytest.mark.parametrize("error", [ValueError("no"), Interrupted()])
def test_what_cannot_be_served_ends_all_jobs(error: BaseException) -> None:
    batcher, breaks = broken_off(error)
    log: list[str] = []

    def job(client: int) -> Any:
        try:
            return batcher.ask(client)
        except Exception:  # as code does that expects trouble in training
            log.append("caught")
        finally:
            log.append(f"{client} ends")

    jobs: dict[int, Callable[[], Any]] = {client: partial(job, client) for client in range(3)}
    with pytest.raises(type(error)):
        batcher.run({**jobs, 9: lambda: "finished before"})
    assert sorted(log) == ["0 ends", "1 ends", "2 ends"]
    breaks.clear()
    done = batcher.run(jobs)
    assert [each.result() for each in done.values()] == [0, 2, 4], "and it can be used again"


def test_jobs_that_ask_while_they_are_ended_are_ended_all_the_same() -> None:
    batcher, breaks = broken_off(ValueError("no"))

    def stubborn() -> Any:
        try:
            return batcher.ask(1)
        finally:
            batcher.ask(2)

    with pytest.raises(ValueError, match="no"):
        batcher.run(dict.fromkeys(range(3), stubborn))
    breaks.clear()
    assert [each.result() for each in batcher.run({1: stubborn}).values()] == [2]


def test_jobs_that_will_not_be_ended_do_no_harm() -> None:
    batcher, breaks = broken_off(ValueError("no"))
    ended = []

    def stubborn(client: int) -> Any:
        try:
            return batcher.ask(client)
        except Cancelled:
            ended.append(client)

    jobs = {client: partial(stubborn, client) for client in range(4)}
    with pytest.raises(ValueError, match="no"):
        batcher.run(jobs)
    assert sorted(ended) == [0, 1, 2, 3]
    breaks.clear()
    done = batcher.run(jobs)
    assert [each.result() for each in done.values()] == [0, 2, 4, 6]


def test_an_interrupt_while_a_job_is_at_work_ends_it_too() -> None:
    """The signal comes while one job waits and another computes, which then asks for something."""
    batcher, first_ended = CooperativeBatcher(doubled), threading.Event()
    log: list[object] = []

    def waiting() -> None:
        try:
            batcher.ask(1)
        finally:
            first_ended.set()

    def working() -> None:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)
        log.append(first_ended.wait(LONG))
        batcher.ask(2)
        log.append("went on")  # pragma: no cover

    def interrupt(*_: Any) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        with pytest.raises(Interrupted):
            batcher.run({0: waiting, 1: working, 2: waiting})
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert log == [True]
    assert batcher.run({3: partial(batcher.ask, 5)})[3].result() == 10


def test_a_thread_that_does_not_start_ends_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    batcher = CooperativeBatcher(doubled)
    started: list[threading.Thread] = []
    start = threading.Thread.start

    def failing(thread: threading.Thread) -> None:
        if len(started) == 2:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", failing)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        batcher.run({client: partial(batcher.ask, client) for client in range(4)})
    assert not any(thread.is_alive() for thread in started)


class Interrupting:
    """A baton; somebody presses Ctrl-C as it is waited for the `number`th time."""

    def __init__(self, lock: threading.Lock, number: int) -> None:
        self._lock = lock
        self._left = number

    def acquire(self) -> None:
        self._left -= 1
        if self._left == 0:
            raise Interrupted
        self._lock.acquire()

    def release(self) -> None:
        self._lock.release()


@pytest.mark.parametrize("number", [1, 3, 6, 8, 10])
def test_an_interrupt_at_any_time_ends_everybody(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """After the fifth, all have their answers already, and are woken one by one."""
    batcher, held = CooperativeBatcher(doubled), batcher_module._held
    with monkeypatch.context() as patch:
        patch.setattr(batcher_module, "_held", lambda: Interrupting(held(), number))
        with pytest.raises(Interrupted):
            batcher.run({client: partial(batcher.ask, client) for client in range(5)})
    assert batcher.run({1: partial(batcher.ask, 7)})[1].result() == 14
