"""However the process that opened a pool ends, the pool ends with it."""

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

from sims.workers import WorkerExited, WorkerMessage, open_worker_pool
from sims.workers.process_lifetime_and_queries import ProcessId, processes_with_environment
from tests.sims import worker_targets

ROOT = Path(__file__).resolve().parent.parent.parent
PATIENCE = 10.0  # seconds


@contextmanager
def program(*hows: str) -> Iterator[tuple[subprocess.Popen[str], list[ProcessId]]]:
    """A process with a pool of stubborn workers, and the processes of that pool."""
    with subprocess.Popen(
        [sys.executable, "-m", "tests.sims.worker_targets", *hows],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        process_group=0,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            pool = [ProcessId.of(int(pid)) for pid in process.stdout.readline().split()]
            assert len(pool) == len(hows) + 1
            assert all(is_running(one) for one in pool)
            yield process, pool
        finally:
            process.kill()


def is_running(process: ProcessId) -> bool:
    """Return whether it exists and is not a zombie."""
    try:
        state = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return process.exists() and state not in ("Z", "X")


def survivors(pool: list[ProcessId]) -> list[ProcessId]:
    """Those that run when all should have ended, or are given up on."""
    end = time.monotonic() + PATIENCE
    while (left := [one for one in pool if is_running(one)]) and time.monotonic() < end:
        time.sleep(0.01)
    return left


def test_workers_end_with_a_process_that_is_killed() -> None:
    with program("read", "compute", "hold the lock") as (process, pool):
        process.kill()
        assert survivors(pool) == []
        assert process.communicate()[1] == ""
        assert process.returncode == -signal.SIGKILL


def test_fork_server_ends_with_a_process_that_is_killed_while_it_imports(tmp_path: Path) -> None:
    (tmp_path / "slow_module_of_pool.py").write_text(
        "import os, sys, time\nprint(os.getpid(), file=sys.stderr, flush=True)\ntime.sleep(3600)"
    )
    code = (
        f"import sys, trio; sys.path[:0] = [{str(ROOT)!r}, {str(tmp_path)!r}]; "
        "from tests.sims.test_worker_pool import open_and_leave; "
        "from functools import partial; "
        "trio.run(partial(open_and_leave, preload='slow_module_of_pool'))"
    )
    with subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        forks = ProcessId.of(int(process.stderr.readline()))
        assert is_running(forks)
        process.kill()
        assert survivors([forks]) == []


def test_workers_end_with_the_fork_server() -> None:
    """Their exit codes are unknown. Only the kernel reaches the one in a C call."""

    async def case() -> None:
        async with open_worker_pool(worker_targets.be_stubborn, ["hold the lock", "read"]) as pool:
            workers = [ProcessId.of(pid) for pid in pool.pids()]
            assert {await anext(pool.events()), await anext(pool.events())} == {
                WorkerMessage(0, "here"),
                WorkerMessage(1, "here"),
            }
            os.kill(pool.fork_server_pid, signal.SIGKILL)
            assert {events async for events in pool.events()} == {WorkerExited(0), WorkerExited(1)}
            pool.kill(1)  # It has ended with the fork server.
            assert survivors(workers) == []

    trio.run(case)
    assert WorkerExited(0).cause == "lost"


def test_interrupt_from_the_terminal_is_the_programs_own_affair() -> None:
    with program("read", "compute") as (process, pool):
        os.killpg(process.pid, signal.SIGINT)
        output, errors = process.communicate(timeout=PATIENCE)
        assert (output, errors, process.returncode) == ("interrupted 0\n", "", 0)
        assert survivors(pool) == []


def test_end_of_the_owner_pipe_is_enough() -> None:
    with program("refuse to die with the parent") as (process, (forks, worker)):
        os.kill(forks.pid, signal.SIGKILL)
        assert survivors([forks]) == []
        assert is_running(worker)
        process.kill()
        assert survivors([worker]) == []


def test_individual_is_known_by_more_than_its_number() -> None:
    me = ProcessId.of(os.getpid())
    assert me.exists()
    assert is_running(me)
    assert ProcessId(me.pid, None).exists()
    assert me.start_time is not None
    assert not ProcessId(me.pid, me.start_time + 1).exists()
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        child = ProcessId.of(process.pid)
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert child.exists()  # if only to be reaped
        assert not is_running(child)
    assert not child.exists()


def test_bearers_of_a_mark_are_found() -> None:
    environment_entry = f"SECAGG_TEST_MARK={os.getpid()}"
    name, _, value = environment_entry.partition("=")
    with subprocess.Popen(
        [sys.executable, "-c", "input()"], env={**os.environ, name: value}, stdin=subprocess.PIPE
    ) as process:
        assert processes_with_environment(environment_entry) == {process.pid}
        assert processes_with_environment(environment_entry + "0") == set()
    assert processes_with_environment(environment_entry) == set()
