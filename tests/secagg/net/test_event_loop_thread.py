"""A context manager in the event loop of another thread: calls, errors, and every way in which it can end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from secagg.errors import Closed, StateError
from secagg.net.event_loop_thread import EventLoopThread, OpenContext

Log = list[str]
SECONDS = 60  # for whoever waits for what happens at once


@asynccontextmanager
async def written(log: Log, name: str = "outer") -> AsyncIterator[str]:
    """Writes down when it opens and closes."""
    log.append(f"open {name}")
    try:
        yield name
    finally:
        log.append(f"close {name}")


def opened(log: Log) -> EventLoopThread[str]:
    return EventLoopThread(lambda: written(log), name="the test")


class Waiting:
    """An async function that waits until it is cancelled, and tells other threads when it begins and ends."""

    def __init__(self, log: Log | None = None) -> None:
        self.began = threading.Event()
        self.ended = threading.Event()
        self._log = [] if log is None else log

    async def __call__(self) -> None:
        self.began.set()
        try:
            await trio.sleep_forever()
        finally:
            self._log.append("call ended")
            self.ended.set()


async def echo(value: Any) -> Any:
    await trio.lowlevel.checkpoint()
    return value


async def fail(why: str) -> None:
    raise KeyError(why)


# --- calls ---


def test_a_function_runs_in_the_other_thread_while_the_context_is_open() -> None:
    log: Log = []
    with opened(log) as loop:
        assert loop.value == "outer"
        assert loop.call(echo, 5) == 5
        assert log == ["open outer"]
    assert log == ["open outer", "close outer"]


def test_what_a_function_raises_is_raised_to_its_caller_only() -> None:
    with opened([]) as loop:
        with pytest.raises(KeyError, match="mine"):
            loop.call(fail, "mine")
        assert loop.call(echo, 5) == 5


def test_threads_can_call_at_the_same_time() -> None:
    with opened([]) as loop, ThreadPoolExecutor() as pool:
        waiting = Waiting()
        future = pool.submit(loop.call, waiting)
        waiting.began.wait(SECONDS)
        assert loop.call(echo, 5) == 5
        loop.close()
        assert isinstance(future.exception(SECONDS), Closed)


def test_a_call_from_the_event_loop_itself_would_wait_for_ever() -> None:
    with opened([]) as loop:

        async def call() -> None:
            loop.call(echo, 5)

        async def close() -> None:
            loop.close()

        async def open_inner() -> None:
            loop.open_inner(lambda: written([]), name="inner")

        for function in (call, close, open_inner):
            with pytest.raises(StateError, match="another thread"):
                loop.call(function)
        assert loop.call(echo, 5) == 5


FORK = """
import os
from contextlib import asynccontextmanager
from secagg.errors import StateError
from secagg.net.event_loop_thread import EventLoopThread

@asynccontextmanager
async def nothing():
    yield

async def echo():
    return 5

with EventLoopThread(nothing, name="this") as loop:
    child = os.fork()
    if child == 0:
        refused = 0
        for act in (lambda: loop.call(echo), lambda: loop.open_inner(nothing, name="inner"), loop.close):
            try:
                act()
            except StateError:
                refused += 1
        os._exit(refused)
    _, status = os.waitpid(child, 0)
    print(os.waitstatus_to_exitcode(status), loop.call(echo))
"""


def test_a_fork_is_refused_and_does_not_wait_for_an_event_loop_that_it_does_not_have() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORK], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split() == ["3", "5"]


def test_another_process_is_known_by_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    with opened([]) as loop:
        with monkeypatch.context() as patch:
            patch.setattr(os, "getpid", lambda: -1)
            with pytest.raises(StateError):
                loop.call(echo, 5)
        assert loop.call(echo, 5) == 5


# --- the end ---


def test_calls_end_before_the_context_does() -> None:
    log: Log = []
    with ThreadPoolExecutor() as pool:
        with opened(log) as loop:
            waiting = Waiting(log)
            future = pool.submit(loop.call, waiting)
            waiting.began.wait(SECONDS)
        assert isinstance(future.exception(SECONDS), Closed)
    assert log == ["open outer", "call ended", "close outer"]


def test_after_the_end_there_are_no_calls() -> None:
    with opened([]) as loop:
        pass
    with pytest.raises(Closed):
        loop.call(echo, 5)
    with pytest.raises(Closed):
        loop.open_inner(lambda: written([]), name="inner")
    loop.close()


def test_the_thread_ends_with_the_block_even_by_an_exception() -> None:
    loop = opened([])
    thread = loop._thread
    assert thread.is_alive()
    assert thread.daemon
    with pytest.raises(KeyError, match="block"), loop:
        raise KeyError("block")
    assert not thread.is_alive()


def test_a_call_while_it_closes_is_refused() -> None:
    closing, go_on = threading.Event(), threading.Event()

    @asynccontextmanager
    async def slow_to_close() -> AsyncIterator[None]:
        yield
        closing.set()
        await trio.to_thread.run_sync(go_on.wait)

    with ThreadPoolExecutor() as pool:
        loop = EventLoopThread(slow_to_close, name="the test")
        closed = pool.submit(loop.close)
        closing.wait(SECONDS)
        with pytest.raises(Closed):
            loop.call(echo, 5)
        with pytest.raises(Closed):
            loop.open_inner(lambda: written([]), name="inner")
        go_on.set()
        closed.result(SECONDS)


# --- failures ---


def test_what_prevents_the_opening_is_raised_as_it_is() -> None:
    @asynccontextmanager
    async def broken() -> AsyncIterator[None]:
        await fail("cannot open")
        yield

    with pytest.raises(KeyError, match="cannot open"):
        EventLoopThread(broken, name="the test")


def test_a_failure_of_trio_itself_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(main: object) -> None:
        raise trio.TrioInternalError

    monkeypatch.setattr(trio, "run", broken)
    with pytest.raises(trio.TrioInternalError):
        opened([])


def test_a_context_that_ends_by_itself_is_closed() -> None:
    @asynccontextmanager
    async def cancelled_inside() -> AsyncIterator[trio.CancelScope]:
        with trio.CancelScope() as scope:
            yield scope

    async def cancel(scope: trio.CancelScope) -> None:
        scope.cancel()
        await trio.sleep_forever()

    with EventLoopThread(cancelled_inside, name="the test") as loop, pytest.raises(Closed):
        loop.call(cancel, loop.value)


class Breakable:
    """A context manager with a background task, which fails when told."""

    def __init__(self) -> None:
        self._broken = trio.Event()

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Breakable]:
        async with trio.open_nursery() as outer, trio.open_nursery() as inner:
            outer.start_soon(trio.sleep_forever)
            inner.start_soon(self._fail)
            yield self
            outer.cancel_scope.cancel()

    async def _fail(self) -> None:
        await self._broken.wait()
        raise KeyError("background")

    async def break_down(self) -> None:
        self._broken.set()
        await trio.sleep_forever()


def test_a_failure_in_the_background_is_raised_by_calls_and_not_as_a_group() -> None:
    with pytest.raises(KeyError, match="background"), EventLoopThread(Breakable().open, name="b") as loop:
        loop.call(loop.value.break_down)


def test_a_failure_is_raised_again_by_later_calls_but_not_by_the_end_of_the_block() -> None:
    with EventLoopThread(Breakable().open, name="b") as loop:
        for function in (loop.value.break_down, loop.value.break_down):
            with pytest.raises(KeyError, match="background"):
                loop.call(function)


def unseen_failure() -> EventLoopThread[Breakable]:
    """It has failed, and no call has raised this yet."""
    loop = EventLoopThread(Breakable().open, name="b")

    async def break_down() -> None:
        loop.value._broken.set()

    loop.call(break_down)
    loop._wait_for_end()
    return loop


def test_a_failure_that_no_call_has_raised_is_raised_at_the_end() -> None:
    with pytest.raises(KeyError, match="background"), unseen_failure():
        pass


def test_the_exception_of_a_block_comes_first() -> None:
    with pytest.raises(ValueError, match="block"), unseen_failure():
        raise ValueError("block")


# --- interruptions ---


def interrupt() -> None:
    """Ctrl-C, which reaches the main thread wherever it waits."""
    thread = threading.main_thread().ident
    assert thread is not None
    signal.pthread_kill(thread, signal.SIGINT)


def test_ctrl_c_interrupts_a_call_and_cancels_its_function() -> None:
    waiting = Waiting()

    async def interrupted() -> None:
        interrupt()
        await waiting()

    with opened([]) as loop:
        with pytest.raises(KeyboardInterrupt):
            loop.call(interrupted)
        assert waiting.ended.wait(SECONDS)
        assert loop.call(echo, 5) == 5


def test_ctrl_c_interrupts_what_is_slow_to_open() -> None:
    log: Log = []
    waiting = Waiting(log)

    @asynccontextmanager
    async def slow_to_open() -> AsyncIterator[None]:
        interrupt()
        await waiting()
        yield

    with pytest.raises(KeyboardInterrupt):
        EventLoopThread(slow_to_open, name="the test")
    assert waiting.ended.wait(SECONDS)


def test_what_is_closed_before_its_event_loop_has_begun_is_not_opened() -> None:
    log: Log = []
    context = OpenContext(lambda: written(log), name="the test")
    context._request_close()
    with pytest.raises(Closed):
        context._open_by(lambda: trio.run(context.run))
    assert log == []


# --- one within another ---


def test_an_inner_context_closes_before_the_outer_one() -> None:
    log: Log = []
    with opened(log) as loop:
        inner = loop.open_inner(lambda: written(log, "inner"), name="inner")
        assert inner.value == "inner"
        assert inner.call(echo, 5) == 5
    assert log == ["open outer", "open inner", "close inner", "close outer"]


def test_an_inner_context_can_close_alone() -> None:
    log: Log = []
    with opened(log) as loop:
        with loop.open_inner(lambda: written(log, "inner"), name="inner") as inner:
            pass
        with pytest.raises(Closed):
            inner.call(echo, 5)
        assert loop.call(echo, 5) == 5
        assert log == ["open outer", "open inner", "close inner"]


def test_a_failure_of_an_inner_context_ends_only_this_one() -> None:
    with opened([]) as loop:
        inner = loop.open_inner(Breakable().open, name="inner")
        with pytest.raises(KeyError, match="background"):
            inner.call(inner.value.break_down)
        assert loop.call(echo, 5) == 5


def test_a_failure_of_the_outer_context_is_raised_by_calls_to_an_inner_one() -> None:
    with EventLoopThread(Breakable().open, name="b") as loop:
        inner = loop.open_inner(lambda: written([]), name="inner")
        with pytest.raises(KeyError, match="background"):
            inner.call(loop.value.break_down)


@pytest.mark.parametrize("end", [lambda loop: loop.close(), lambda loop: loop.call(loop.value.break_down)])
def test_what_opens_slowly_ends_with_the_outer_context(end: Callable[[Any], None]) -> None:
    waiting = Waiting()

    @asynccontextmanager
    async def slow_to_open() -> AsyncIterator[None]:
        await waiting()
        yield

    with ThreadPoolExecutor() as pool, EventLoopThread(Breakable().open, name="b") as loop:
        future = pool.submit(loop.open_inner, slow_to_open, name="inner")
        waiting.began.wait(SECONDS)
        try:
            end(loop)
        except KeyError:
            assert isinstance(future.exception(SECONDS), KeyError)
        else:
            assert isinstance(future.exception(SECONDS), Closed)
