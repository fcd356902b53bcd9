"""What the operating system knows about processes, and how none of a pool outlives its owner.

Three mechanisms end the processes of a pool, each sufficient where it exists:

* The fork server holds one end of a socket. Only the pool has the other end. At end of file the fork server
  kills and reaps every process below it, and exits.
* The owner pipe: only the pool has its writing end. A thread in each worker reads it, and end of file
  ends the worker. This needs neither a kernel feature nor a working fork server, but it does need a moment
  without a C call that holds Python's lock.
* On Linux, the kernel sends a signal to a process when its parent dies: SIGTERM to the fork server, which
  then ends as above, and SIGKILL to the workers. This cannot be ignored, needs no lock, and works even if a
  process forked elsewhere in the program has a copy of the pool's ends.
"""

from __future__ import annotations

import ctypes
import os
import resource
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from secagg.errors import ParameterError

_PROC: Final = Path("/proc")
# The field of /proc/PID/stat, counted from behind the name of the program.
_START_TIME: Final = 19
_PR_SET_PDEATHSIG: Final = 1
_PR_SET_CHILD_SUBREAPER: Final = 36
_OWNER_GONE: Final = 70  # the exit code of a worker whose pool has died


@dataclass(frozen=True)
class ProcessId:
    """One process. Process ids are reused; the start time tells two of them apart."""

    pid: int
    start_time: int | None  # in ticks since the machine started; None without /proc

    @classmethod
    def of(cls, pid: int) -> ProcessId:
        return cls(pid, _start_time(pid))

    def exists(self) -> bool:
        """Return whether it runs, sleeps or waits to be reaped."""
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:  # Another user's, hence another process.
            return False
        return self.start_time is None or _start_time(self.pid) == self.start_time


def processes_with_environment(entry: str) -> set[int]:
    """Return the processes that have `entry` ("NAME=value") in the environment they were started with.

    Processes that they fork or execute have it too. Where there is no /proc, the set is empty.
    """
    wanted, found = entry.encode(), set()
    for folder in _PROC.glob("[0-9]*"):
        with suppress(OSError):  # It has ended, or belongs to another user.
            if wanted in (folder / "environ").read_bytes().split(b"\0"):
                found.add(int(folder.name))
    return found


def children() -> set[int]:
    """Return the children of this process, including adopted ones, where the kernel lists them."""
    try:
        return set(map(int, (_PROC / "self/task" / str(os.getpid()) / "children").read_text().split()))
    except OSError:
        return set()


def threads() -> int:
    """Return the number of threads, including those of C libraries; 1 where the kernel lists none."""
    try:
        return len(list((_PROC / "self/task").iterdir()))
    except OSError:
        return 1


def _start_time(pid: int) -> int | None:
    try:
        fields = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return int(fields[_START_TIME])


def signal_on_death_of_parent(number: int) -> None:
    """Have the kernel send this signal when the parent's thread that started this process dies.

    The caller must then check that the parent is still alive.
    """
    _prctl(_PR_SET_PDEATHSIG, number)


def adopt_descendants() -> None:
    """Become the parent of all orphaned processes below this one, in order to end them."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def exit_at_end_of(owner_pipe: int) -> None:
    """End this process at the end of file of the owner pipe."""
    threading.Thread(target=_wait_and_exit, args=(owner_pipe,), name="owner pipe", daemon=True).start()


def _wait_and_exit(owner_pipe: int) -> None:
    os.read(owner_pipe, 1)  # Nothing is ever written to it.
    os._exit(_OWNER_GONE)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, ctypes.c_ulong(value))


def raise_open_file_limit(wanted: int) -> None:
    """Allow this process `wanted` open files. Raises `ParameterError` if the system does not allow it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if resource.RLIM_INFINITY in (soft, hard) or wanted <= soft:
        return
    if wanted > hard:
        raise ParameterError(
            f"this takes about {wanted} open files, and the system allows {hard}; raise the limit (ulimit -n)"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
