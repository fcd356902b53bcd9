"""A crew of worker processes: what it hears of them, and that nothing of it is left."""

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

from sims.processes import Crew, CrewFailed, Ended, News, Said, WorkerGone, launcher, open_crew
from tests.sims import crew_duties
from tests.sims.crew_duties import SECRET

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


async def next_said(crew: Crew) -> object:
    news = await anext(crew.news())
    assert isinstance(news, Said), news
    return news.message


async def all_news(crew: Crew) -> dict[int, list[News]]:
    found: dict[int, list[News]] = {}
    async for news in crew.news():
        found.setdefault(news.index, []).append(news)
    return found


async def open_and_leave(*seats: object, preload: str = "trio") -> None:
    async with open_crew(crew_duties.echo, seats, preload=[preload]):
        pass


@pytest.mark.parametrize("duty", [crew_duties.echo, crew_duties.echo_without_loop])
def test_messages_come_back(duty: Callable[..., object]) -> None:
    async def case() -> None:
        async with open_crew(duty, ["a", "b"]) as crew:
            greetings = {await next_said(crew), await next_said(crew)}
            assert greetings == set(zip("ab", crew.pids(), strict=True))
            for message in (None, bytes(1 << 20), "last"):
                await crew.send(1, message)
                assert await anext(crew.news()) == Said(1, message)
            assert crew.leftovers() == 3
        assert crew.leftovers() == 0

    run(case)


def test_every_kind_of_end_is_told_after_the_last_message() -> None:
    ends = {
        "return": Ended(0, exitcode=0),
        "raise": Ended(1, exitcode=1),
        "raise in a task": Ended(2, exitcode=1),
        "exit 3": Ended(3, exitcode=3),
        "exit at once": Ended(4, exitcode=4),
        "kill": Ended(5, signal=signal.SIGKILL),
        "segfault": Ended(6, signal=signal.SIGSEGV),
        "wait": Ended(7, exitcode=0),
    }

    async def case() -> None:
        async with open_crew(crew_duties.end_somehow, list(ends)) as crew:
            first = [await anext(crew.news()) for _ in range(15)]
            assert {news.index for news in first if isinstance(news, Ended)} == set(range(7))
            crew.dismiss(7)  # It has not suffered from the end of the others.
            last = await all_news(crew)

        news = sorted([*first, *last[7]], key=lambda news: (news.index, isinstance(news, Ended)))
        assert news[::2] == [Said(index, how) for index, how in enumerate(ends)]
        ended = [news for news in news[1::2] if isinstance(news, Ended)]
        assert [(e.index, e.exitcode, e.signal) for e in ended] == [
            (e.index, e.exitcode, e.signal) for e in ends.values()
        ]
        assert ended[1].failure.startswith("ValueError at crew_duties.py:")
        assert ended[2].failure.startswith("KeyError at crew_duties.py:")
        assert [e.cause for e in ended[3:6]] == ["exit 3", "exit 4", "killed by SIGKILL"]
        assert SECRET not in repr(ended)

    run(case)


def test_kill_reaches_a_worker_that_nothing_else_reaches() -> None:
    async def case() -> None:
        async with open_crew(crew_duties.be_stubborn, ["hold the lock", "read"], grace=0) as crew:
            await next_said(crew)
            await next_said(crew)
            crew.kill(0)
            assert await anext(crew.news()) == Ended(0, signal=signal.SIGKILL)
            crew.kill(0)  # Nobody else gets this one.
            with pytest.raises(WorkerGone, match="worker 0"):
                await crew.send(0, "hello")
            crew.kill(1)
            assert await all_news(crew) == {1: [Ended(1, signal=signal.SIGKILL)]}

    run(case)


def test_one_in_five_of_fifty_is_killed_and_the_others_go_on() -> None:
    async def case() -> None:
        async with open_crew(crew_duties.echo, range(50)) as crew:
            assert len({await next_said(crew) for _ in range(50)}) == len(set(crew.pids())) == 50
            for index in range(0, 50, 5):
                crew.kill(index)
            ended = [await anext(crew.news()) for _ in range(10)]
            assert {news.index for news in ended if isinstance(news, Ended)} == set(range(0, 50, 5))
            survivors = [index for index in range(50) if index % 5]
            for index in survivors:
                await crew.send(index, index)
            assert {await next_said(crew) for _ in survivors} == set(survivors)
        assert crew.leftovers() == 0

    run(case)


def test_worker_is_asked_to_end_before_it_is_killed(tmp_path: Path) -> None:
    async def case() -> None:
        async with open_crew(crew_duties.say_farewell, [None, tmp_path / "word"], grace=30) as crew:
            await next_said(crew)
            await next_said(crew)
            crew.dismiss(0)
            assert await anext(crew.news()) == Said(0, "farewell")
            assert await anext(crew.news()) == Ended(0, exitcode=0)
            with pytest.raises(WorkerGone, match="worker 0"):
                await crew.send(0, "hello")
        assert crew.leftovers() == 0
        assert (tmp_path / "word").read_text() == "farewell"

    run(case)


def test_stubborn_workers_are_killed_when_the_crew_closes() -> None:
    hows = ["read", "compute", "hold the lock", "babble"]

    async def case() -> None:
        async with open_crew(crew_duties.be_stubborn, hows, grace=0.1) as crew:
            for _ in hows:
                await next_said(crew)
            assert crew.leftovers() == 5
        assert crew.leftovers() == 0

    run(case)


def test_exception_in_the_body_arrives_as_it_was_raised() -> None:
    error = ValueError("in the body")

    async def case() -> None:
        with pytest.raises(ValueError, match="in the body") as caught:
            async with open_crew(crew_duties.echo, [0, 1]) as crew:
                raise error
        assert caught.value is error
        assert error.__context__ is None
        assert crew.leftovers() == 0

    run(case)


def test_cancelled_crew_asks_politely_too_and_leaves_nothing(tmp_path: Path) -> None:
    async def case() -> None:
        went_on = False
        with trio.CancelScope() as scope:
            async with open_crew(crew_duties.say_farewell, [tmp_path / "word"], grace=30) as crew:
                await next_said(crew)
                scope.cancel()
                await all_news(crew)
            went_on = True
        assert scope.cancelled_caught
        assert not went_on
        assert crew.leftovers() == 0
        assert (tmp_path / "word").read_text() == "farewell"

    run(case)


def test_crew_cancelled_while_it_is_started_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launcher, "_PATIENCE", 3600.0)  # for whoever is there, and here nobody is yet
    told = tmp_path / "told"
    os.mkfifo(told)
    (tmp_path / "crew_slow_module.py").write_text(
        "import os, pathlib, time\n"
        f"pathlib.Path({str(told)!r}).write_text(str(os.getpid()))\n"
        "time.sleep(3600)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)

    async def case() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(open_and_leave, 0, preload="crew_slow_module"))
            pid = int(await trio.to_thread.run_sync(told.read_text))
            os.kill(pid, 0)
            nursery.cancel_scope.cancel()
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)

    run(case)


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("import crew_module_that_is_not_there", "crew_module_that_is_not_there"),
        (f"raise ValueError('{SECRET}')", "ValueError at crew_odd_module.py:1"),
        ("import threading, time\nthreading.Thread(target=time.sleep, args=(9,)).start()", "a thread"),
        (
            "import os\ndef fork(): raise BlockingIOError(11, 'too many')\nos.fork = fork",
            "worker 0 .*: too many",
        ),
        ("import os\nos.fork = os.abort", "the fork server ended"),
    ],
)
def test_crew_that_cannot_be_started_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, reason: str
) -> None:
    (tmp_path / "crew_odd_module.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)

    async def case() -> None:
        with pytest.raises(CrewFailed, match=reason) as caught:
            await open_and_leave(0, 1, preload="crew_odd_module")
        assert SECRET not in str(caught.value)

    run(case)


def test_duty_of_the_main_program_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crew_duties.echo, "__module__", "__main__")

    async def case() -> None:
        with pytest.raises(ValueError, match="main program"):
            await open_and_leave(0)

    run(case)


def test_seat_that_cannot_be_pickled_is_an_error_of_the_caller() -> None:
    async def case() -> None:
        with pytest.raises((AttributeError, TypeError), match="pickle"):
            await open_and_leave(0, lambda: None)

    run(case)


def test_crew_without_workers_has_no_news() -> None:
    async def case() -> None:
        async with open_crew(crew_duties.echo, []) as crew:
            assert await all_news(crew) == {}
            assert crew.pids() == ()
        assert crew.leftovers() == 0

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
        async with open_crew(crew_duties.list_descriptors, range(3), preload=["secagg"]) as crew:
            sockets = set()
            for _ in range(3):
                line, listed, core = cast(tuple[int, dict[int, str], int], await next_said(crew))
                assert listed.pop(0) == "/dev/null"
                assert listed.pop(1) == listed.pop(2)
                sockets.add(listed.pop(line))
                assert [kind.partition(":")[0] for kind in listed.values()] == ["pipe"]  # the lifeline
                assert core == 0
            assert len(sockets) == 3

    run(case)


def test_worker_writes_no_output_and_no_message_of_an_exception(capfd: pytest.CaptureFixture[str]) -> None:
    async def case() -> None:
        async with open_crew(crew_duties.write, [None]) as crew:
            assert await next_said(crew) == b""  # from standard input
            assert await all_news(crew) == {0: [Ended(0, exitcode=0)]}

    run(case)
    output, errors = capfd.readouterr()
    assert output == ""
    assert "on standard output\n" in errors
    assert "ValueError at crew_duties.py:" in errors
    assert SECRET not in errors


def test_workers_do_not_share_randomness() -> None:
    async def case() -> None:
        async with open_crew(crew_duties.draw, range(5), preload=["numpy.random"]) as crew:
            drawn = [news[0].message for news in (await all_news(crew)).values() if isinstance(news[0], Said)]
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
def test_what_a_worker_leaves_behind_ends_with_the_crew() -> None:
    async def case() -> None:
        async with open_crew(crew_duties.breed, [None]) as crew:
            child = await next_said(crew)
            assert isinstance(child, int)
            assert await all_news(crew) == {0: [Ended(0, exitcode=0)]}
            os.kill(child, 0)
            assert crew.leftovers() == 2
        assert crew.leftovers() == 0

    run(case)
