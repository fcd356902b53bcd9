"""A pool of worker processes: its events, and that none of its processes remain."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
import trio

from sims.workers import (
    WorkerEvent,
    WorkerExited,
    WorkerMessage,
    WorkerPool,
    WorkerStartError,
    WorkerUnavailable,
    fork_server_control,
    open_worker_pool,
)
from tests.sims import worker_targets
from tests.sims.worker_targets import SECRET

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="needs what Linux has")


def run(case: Callable[[], Awaitable[None]]) -> None:
    """Run a test case that would rather fail than hang, and see that it closes what it opens."""

    async def limited() -> None:
        with trio.fail_after(60):
            await case()

    before = descriptors()
    trio.run(limited)
    assert descriptors() == before


def descriptors() -> int:
    return len(os.listdir("/dev/fd"))


async def next_said(pool: WorkerPool) -> object:
    events = await anext(pool.events())
    assert isinstance(events, WorkerMessage), events
    return events.message


async def all_events(pool: WorkerPool) -> dict[int, list[WorkerEvent]]:
    found: dict[int, list[WorkerEvent]] = {}
    async for events in pool.events():
        found.setdefault(events.index, []).append(events)
    return found


async def open_and_leave(*configs: object, preload: str = "trio") -> None:
    async with open_worker_pool(worker_targets.echo, configs, preload=[preload]):
        pass


@pytest.mark.parametrize("target", [worker_targets.echo, worker_targets.echo_without_loop])
def test_messages_come_back(target: Callable[..., object]) -> None:
    async def case() -> None:
        async with open_worker_pool(target, ["a", "b"]) as pool:
            greetings = {await next_said(pool), await next_said(pool)}
            assert greetings == set(zip("ab", pool.pids(), strict=True))
            for message in (None, bytes(1 << 20), "last"):
                await pool.send(1, message)
                assert await anext(pool.events()) == WorkerMessage(1, message)
            assert pool.remaining_processes() == 3
        assert pool.remaining_processes() == 0

    run(case)


def test_every_kind_of_end_is_told_after_the_last_message() -> None:
    ends = {
        "return": WorkerExited(0, exitcode=0),
        "raise": WorkerExited(1, exitcode=1),
        "raise in a task": WorkerExited(2, exitcode=1),
        "exit 3": WorkerExited(3, exitcode=3),
        "exit at once": WorkerExited(4, exitcode=4),
        "kill": WorkerExited(5, signal=signal.SIGKILL),
        "segfault": WorkerExited(6, signal=signal.SIGSEGV),
        "wait": WorkerExited(7, exitcode=0),
    }

    async def case() -> None:
        async with open_worker_pool(worker_targets.end_somehow, list(ends)) as pool:
            first = [await anext(pool.events()) for _ in range(15)]
            assert {events.index for events in first if isinstance(events, WorkerExited)} == set(range(7))
            await pool.send(7, "end")  # The end of the others did not affect it.
            last = await all_events(pool)

        events = sorted(
            [*first, *last[7]], key=lambda events: (events.index, isinstance(events, WorkerExited))
        )
        assert events[::2] == [WorkerMessage(index, how) for index, how in enumerate(ends)]
        ended = [events for events in events[1::2] if isinstance(events, WorkerExited)]
        assert [(e.index, e.exitcode, e.signal) for e in ended] == [
            (e.index, e.exitcode, e.signal) for e in ends.values()
        ]
        assert ended[1].failure.startswith("ValueError at worker_targets.py:")
        assert ended[2].failure.startswith("KeyError at worker_targets.py:")
        assert [e.cause for e in ended[3:6]] == ["exit 3", "exit 4", "killed by SIGKILL"]
        assert SECRET not in repr(ended)

    run(case)


def test_kill_reaches_a_worker_that_nothing_else_reaches() -> None:
    async def case() -> None:
        async with open_worker_pool(worker_targets.be_stubborn, ["hold the lock", "read"], grace=0) as pool:
            await next_said(pool)
            await next_said(pool)
            pool.kill(0)
            assert await anext(pool.events()) == WorkerExited(0, signal=signal.SIGKILL)
            pool.kill(0)  # No other process receives it.
            with pytest.raises(WorkerUnavailable, match="worker 0"):
                await pool.send(0, "hello")
            pool.kill(1)
            assert await all_events(pool) == {1: [WorkerExited(1, signal=signal.SIGKILL)]}

    run(case)


def test_one_in_five_of_fifty_is_killed_and_the_others_go_on() -> None:
    async def case() -> None:
        async with open_worker_pool(worker_targets.echo, range(50)) as pool:
            assert len({await next_said(pool) for _ in range(50)}) == len(set(pool.pids())) == 50
            for index in range(0, 50, 5):
                pool.kill(index)
            ended = [await anext(pool.events()) for _ in range(10)]
            assert {events.index for events in ended if isinstance(events, WorkerExited)} == set(
                range(0, 50, 5)
            )
            survivors = [index for index in range(50) if index % 5]
            for index in survivors:
                await pool.send(index, index)
            assert {await next_said(pool) for _ in survivors} == set(survivors)
        assert pool.remaining_processes() == 0

    run(case)


def test_worker_is_asked_to_end_before_it_is_killed(tmp_path: Path) -> None:
    async def case() -> None:
        async with open_worker_pool(worker_targets.say_farewell, [tmp_path / "word"], grace=30) as pool:
            await next_said(pool)
        assert pool.remaining_processes() == 0
        assert (tmp_path / "word").read_text() == "farewell"

    run(case)


def test_stubborn_workers_are_killed_when_the_pool_closes() -> None:
    hows = ["read", "compute", "hold the lock", "babble"]

    async def case() -> None:
        async with open_worker_pool(worker_targets.be_stubborn, hows, grace=0.1) as pool:
            for _ in hows:
                await next_said(pool)
            assert pool.remaining_processes() == 5
        assert pool.remaining_processes() == 0

    run(case)


def test_exception_in_the_body_arrives_as_it_was_raised() -> None:
    error = ValueError("in the body")

    async def case() -> None:
        with pytest.raises(ValueError, match="in the body") as caught:
            async with open_worker_pool(worker_targets.echo, [0, 1]) as pool:
                raise error
        assert caught.value is error
        assert error.__context__ is None
        assert pool.remaining_processes() == 0

    run(case)


def test_a_cancelled_pool_asks_politely_too_and_leaves_nothing(tmp_path: Path) -> None:
    async def case() -> None:
        went_on = False
        with trio.CancelScope() as scope:
            async with open_worker_pool(worker_targets.say_farewell, [tmp_path / "word"], grace=30) as pool:
                await next_said(pool)
                scope.cancel()
                await all_events(pool)
            went_on = True
        assert scope.cancelled_caught
        assert not went_on
        assert pool.remaining_processes() == 0
        assert (tmp_path / "word").read_text() == "farewell"

    run(case)


def test_a_pool_cancelled_while_it_is_started_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # No worker has been started yet, so closing does not wait for one.
    monkeypatch.setattr(fork_server_control, "_PATIENCE", 3600.0)
    told = tmp_path / "told"
    os.mkfifo(told)
    (tmp_path / "slow_module_of_pool.py").write_text(
        "import os, pathlib, time\n"
        f"pathlib.Path({str(told)!r}).write_text(str(os.getpid()))\n"
        "time.sleep(3600)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)

    async def case() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(open_and_leave, 0, preload="slow_module_of_pool"))
            pid = int(await trio.to_thread.run_sync(told.read_text))
            os.kill(pid, 0)
            nursery.cancel_scope.cancel()
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)

    run(case)


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("import module_that_is_not_there", "module_that_is_not_there"),
        (f"raise ValueError('{SECRET}')", "ValueError at odd_module_of_pool.py:1"),
        ("import threading, time\nthreading.Thread(target=time.sleep, args=(9,)).start()", "a thread"),
        (
            "import os\ndef fork(): raise BlockingIOError(11, 'too many')\nos.fork = fork",
            "worker 0 .*: too many",
        ),
        ("import os\nos.fork = os.abort", "the fork server ended"),
    ],
)
def test_a_pool_that_cannot_be_started_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, reason: str
) -> None:
    (tmp_path / "odd_module_of_pool.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)

    async def case() -> None:
        with pytest.raises(WorkerStartError, match=reason) as caught:
            await open_and_leave(0, 1, preload="odd_module_of_pool")
        assert SECRET not in str(caught.value)

    run(case)


def test_target_of_the_main_program_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_targets.echo, "__module__", "__main__")

    async def case() -> None:
        with pytest.raises(ValueError, match="main program"):
            await open_and_leave(0)

    run(case)


def test_config_that_cannot_be_pickled_is_an_error_of_the_caller() -> None:
    async def case() -> None:
        with pytest.raises((AttributeError, TypeError), match="pickle"):
            await open_and_leave(0, lambda: None)

    run(case)


def test_a_pool_without_workers_has_no_events() -> None:
    async def case() -> None:
        async with open_worker_pool(worker_targets.echo, []) as pool:
            assert await all_events(pool) == {}
            assert pool.pids() == ()
        assert pool.remaining_processes() == 0

    run(case)


@pytest.fixture
def core_files() -> Iterator[None]:
    """A process whose children may write core files, if that is allowed at all."""
    before = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (before[1], before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_CORE, before)


@LINUX
@pytest.mark.usefixtures("core_files")
def test_worker_has_only_its_own_descriptors_and_leaves_no_core_file() -> None:
    async def case() -> None:
        async with open_worker_pool(worker_targets.list_descriptors, range(3), preload=["secagg"]) as pool:
            sockets = set()
            for _ in range(3):
                line, listed, core = cast(tuple[int, dict[int, str], int], await next_said(pool))
                assert listed.pop(0) == "/dev/null"
                assert listed.pop(1) == listed.pop(2)
                sockets.add(listed.pop(line))
                assert [kind.partition(":")[0] for kind in listed.values()] == ["pipe"]  # the owner pipe
                assert core == 0
            assert len(sockets) == 3

    run(case)


def test_worker_writes_no_output_and_no_message_of_an_exception(capfd: pytest.CaptureFixture[str]) -> None:
    async def case() -> None:
        async with open_worker_pool(worker_targets.write, [None]) as pool:
            assert await next_said(pool) == b""  # from standard input
            assert await all_events(pool) == {0: [WorkerExited(0, exitcode=0)]}

    run(case)
    output, errors = capfd.readouterr()
    assert output == ""
    assert "on standard output\n" in errors
    assert "ValueError at worker_targets.py:" in errors
    assert SECRET not in errors


def test_workers_do_not_share_randomness() -> None:
    async def case() -> None:
        async with open_worker_pool(worker_targets.draw, range(5), preload=["numpy.random"]) as pool:
            drawn = [
                events[0].message
                for events in (await all_events(pool)).values()
                if isinstance(events[0], WorkerMessage)
            ]
        assert [len(set(kind)) for kind in zip(*drawn, strict=True)] == [5, 5, 5]

    run(case)


def test_interrupt_does_not_reach_the_fork_server_while_it_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    masks = []

    class Popen(subprocess.Popen[bytes]):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            masks.append(signal.pthread_sigmask(signal.SIG_BLOCK, []))
            super().__init__(*args, **kwargs)

    monkeypatch.setattr(subprocess, "Popen", Popen)
    run(open_and_leave)
    assert [signal.SIGINT in mask for mask in masks] == [True]
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])


@LINUX
def test_what_a_worker_leaves_behind_ends_with_the_pool() -> None:
    async def case() -> None:
        async with open_worker_pool(worker_targets.breed, [None]) as pool:
            child = await next_said(pool)
            assert isinstance(child, int)
            assert await all_events(pool) == {0: [WorkerExited(0, exitcode=0)]}
            os.kill(child, 0)
            assert pool.remaining_processes() == 2
        assert pool.remaining_processes() == 0

    run(case)
