"""Gets facts about processes from the operating system, and ends a pool's processes when its owner ends.
The owner is the process that opened the pool. Each of three mechanisms suffices where it exists:

* The fork server holds one end of a socket. Only the pool has the other end. At end of file the fork server
  kills and reaps every process below it, and exits.
* The owner pipe: only the pool has its writing end. A thread in each worker reads it, and end of file
  ends the worker. This needs neither a kernel feature nor a working fork server. But the thread cannot run
  during a C call that holds Python's global interpreter lock.
* On Linux, the kernel sends a signal to a process when its parent dies: SIGTERM to the fork server, which
  then ends as above, and SIGKILL to the workers. SIGKILL cannot be ignored and needs no lock. It works even
  if another process of the program has a copy of the pool's ends of socket and pipe.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_PROC: Final = Path("/proc")
# Indices of the fields of /proc/PID/stat that follow the name of the program.
_START_TIME: Final = 19
_PR_SET_PDEATHSIG: Final = 1
_PR_SET_CHILD_SUBREAPER: Final = 36
_OWNER_GONE: Final = 70  # the exit code of a worker whose pool has died


@dataclass(frozen=True)
class ProcessId:
    """Identifies a process by its id and, because ids are reused, by its start time (None without /proc)."""

    pid: int
    start_time: int | None  # in ticks since the machine started; None without /proc

    @classmethod
    def of(cls, pid: int) -> ProcessId:
        return cls(pid, _start_time(pid))

    def exists(self) -> bool:
        """Return whether the process exists, even if it has ended and only waits to be reaped."""
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:  # The id now belongs to a process of another user.
            return False
        return self.start_time is None or _start_time(self.pid) == self.start_time


def processes_with_environment(entry: str) -> set[int]:
    """Return the ids of processes that started with `entry` (NAME=value) in their environment, which child
    processes inherit. Where there is no /proc, the set is empty."""
    wanted, found = entry.encode(), set()
    for folder in _PROC.glob("[0-9]*"):
        with suppress(OSError):  # It has ended, or belongs to another user.
            if wanted in (folder / "environ").read_bytes().split(b"\0"):
                found.add(int(folder.name))
    return found


def children() -> set[int]:
    """Return the ids of this process's children, including adopted ones; an empty set if not known."""
    try:
        return set(map(int, (_PROC / "self/task" / str(os.getpid()) / "children").read_text().split()))
    except OSError:
        return set()


def threads() -> int:
    """Return this process's number of threads, including those of C libraries; 1 if it is not known."""
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
    """On Linux, make the kernel send signal `number` to this process when the thread that started it ends. If
    that thread has already ended, no signal is sent, so the caller must check this afterwards."""
    _prctl(_PR_SET_PDEATHSIG, number)


def adopt_descendants() -> None:
    """On Linux, make this process the parent of its orphaned descendants, so that it can end them."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def exit_at_end_of(owner_pipe: int) -> None:
    """Start a thread that ends this process when `owner_pipe`, a file descriptor, is at end of file."""
    threading.Thread(target=_wait_and_exit, args=(owner_pipe,), name="owner pipe", daemon=True).start()


def _wait_and_exit(owner_pipe: int) -> None:
    os.read(owner_pipe, 1)  # Nothing is ever written to it.
    os._exit(_OWNER_GONE)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, ctypes.c_ulong(value))
