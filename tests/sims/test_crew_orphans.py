"""However the process that opened a crew ends, the crew ends with it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import trio

from sims.processes import Ended, Said, open_crew
from sims.processes.census import Individual, bearers
from tests.sims import crew_duties

ROOT = Path(__file__).resolve().parent.parent.parent
PATIENCE = 10.0  # seconds


@contextmanager
def program(*hows: str) -> Iterator[tuple[subprocess.Popen[str], list[Individual]]]:
    """A process with a crew of stubborn workers, and the processes of that crew."""
    with subprocess.Popen(
        [sys.executable, "-m", "tests.sims.crew_duties", *hows],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        process_group=0,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            crew = [Individual.of(int(pid)) for pid in process.stdout.readline().split()]
            assert len(crew) == len(hows) + 1
            assert all(one.runs() for one in crew)
            yield process, crew
        finally:
            process.kill()


def survivors(crew: list[Individual]) -> list[Individual]:
    """Those that run when all should have ended, or are given up on."""
    end = time.monotonic() + PATIENCE
    while (left := [one for one in crew if one.runs()]) and time.monotonic() < end:
        time.sleep(0.01)
    return left


def test_workers_end_with_a_process_that_is_killed() -> None:
    with program("read", "compute", "hold the lock") as (process, crew):
        process.kill()
        assert survivors(crew) == []
        assert process.communicate()[1] == ""
        assert process.returncode == -signal.SIGKILL


def test_fork_server_ends_with_a_process_that_is_killed_while_it_imports(tmp_path: Path) -> None:
    (tmp_path / "crew_slow_module.py").write_text(
        "import os, sys, time\nprint(os.getpid(), file=sys.stderr, flush=True)\ntime.sleep(3600)"
    )
    code = (
        f"import sys, trio; sys.path[:0] = [{str(ROOT)!r}, {str(tmp_path)!r}]; "
        "from tests.sims.test_crew import open_and_leave; "
        "from functools import partial; "
        "trio.run(partial(open_and_leave, preload='crew_slow_module'))"
    )
    with subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        forks = Individual.of(int(process.stderr.readline()))
        assert forks.runs()
        process.kill()
        assert survivors([forks]) == []


def test_workers_end_with_the_fork_server() -> None:
    """Nobody can tell how they ended, and the one in a C call is reached by nothing but the kernel."""

    async def case() -> None:
        async with open_crew(crew_duties.be_stubborn, ["hold the lock", "read"]) as crew:
            workers = [Individual.of(pid) for pid in crew.pids()]
            assert {await anext(crew.news()), await anext(crew.news())} == {Said(0, "here"), Said(1, "here")}
            os.kill(crew.forks_pid, signal.SIGKILL)
            assert {news async for news in crew.news()} == {Ended(0), Ended(1)}
            crew.kill(1)  # There is nobody to do it, and no need.
            assert survivors(workers) == []

    trio.run(case)
    assert Ended(0).cause == "lost"


def test_interrupt_from_the_terminal_is_the_programs_own_affair() -> None:
    with program("read", "compute") as (process, crew):
        os.killpg(process.pid, signal.SIGINT)
        output, errors = process.communicate(timeout=PATIENCE)
        assert (output, errors, process.returncode) == ("interrupted 0\n", "", 0)
        assert survivors(crew) == []


def test_end_of_the_lifeline_is_enough() -> None:
    with program("refuse to die with the parent") as (process, (forks, worker)):
        os.kill(forks.pid, signal.SIGKILL)
        assert survivors([forks]) == []
        assert worker.runs()
        process.kill()
        assert survivors([worker]) == []


def test_individual_is_known_by_more_than_its_number() -> None:
    me = Individual.of(os.getpid())
    assert me.exists()
    assert me.runs()
    assert Individual(me.pid, None).exists()
    assert me.birthday is not None
    assert not Individual(me.pid, me.birthday + 1).exists()
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        child = Individual.of(process.pid)
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert child.exists()  # if only to be reaped
        assert not child.runs()
    assert not child.exists()


def test_bearers_of_a_mark_are_found() -> None:
    mark = f"SECAGG_TEST_MARK={os.getpid()}"
    name, _, value = mark.partition("=")
    with subprocess.Popen(
        [sys.executable, "-c", "input()"], env={**os.environ, name: value}, stdin=subprocess.PIPE
    ) as process:
        assert bearers(mark) == {process.pid}
        assert bearers(mark + "0") == set()
    assert bearers(mark) == set()
