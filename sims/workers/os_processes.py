"""Which processes exist, as the operating system says."""

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
# Fields of /proc/PID/stat, counted from behind the name of the program.
_STATE: Final = 0
_START_TIME: Final = 19


@dataclass(frozen=True)
class ProcessId:
    """One process. Numbers of processes are used again, those of one start time hardly ever."""

    pid: int
    start_time: int | None  # in ticks since the machine started; None where there is no /proc

    @classmethod
    def of(cls, pid: int) -> ProcessId:
        return cls(pid, _start_time(pid))

    def exists(self) -> bool:
        """Whether it runs, sleeps or waits to be reaped."""
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:  # It is another user's, and so it is another process.
            return False
        return self.start_time is None or _start_time(self.pid) == self.start_time

    def runs(self) -> bool:
        """Whether it exists and is more than an entry that its parent, or the first process, has to reap."""
        fields = _stat(self.pid)
        return self.exists() and (fields is None or fields[_STATE] not in ("Z", "X"))


def processes_with_environment(environment_entry: str) -> set[int]:
    """The processes that have `environment_entry` ("NAME=value") in the environment they were started with.

    Whoever is forked or executed by a marked process is marked too, whether or not anybody has kept
    a record of it. Where there is no /proc, nobody is found.
    """
    wanted, found = environment_entry.encode(), set()
    for folder in _PROC.glob("[0-9]*"):
        with suppress(OSError):  # It has ended meanwhile, or is another user's.
            if wanted in (folder / "environ").read_bytes().split(b"\0"):
                found.add(int(folder.name))
    return found


def children() -> set[int]:
    """The children of this process, adopted ones too, where the kernel lists them."""
    try:
        return set(map(int, (_PROC / "self/task" / str(os.getpid()) / "children").read_text().split()))
    except OSError:
        return set()


def threads() -> int:
    """How many threads this process has, where the kernel lists them, those of C libraries too."""
    try:
        return len(list((_PROC / "self/task").iterdir()))
    except OSError:
        return 1


def _start_time(pid: int) -> int | None:
    fields = _stat(pid)
    return None if fields is None else int(fields[_START_TIME])


def _stat(pid: int) -> list[str] | None:
    try:
        return (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None


_PR_SET_PDEATHSIG: Final = 1
_PR_SET_CHILD_SUBREAPER: Final = 36
_LOST_LIFELINE: Final = 70  # the exit code of a worker whose crew has died; nobody is left to see it


def signal_on_death_of_parent(number: int) -> None:
    """Have the kernel send this signal when the parent dies, more precisely the parent's thread that
    started this process. Whoever calls this must then see whether the parent still lives."""
    _prctl(_PR_SET_PDEATHSIG, number)


def adopt_descendants() -> None:
    """Become the parent of all processes below this one that lose theirs, to be able to end them."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def hold(lifeline: int) -> None:
    """End this process as soon as the lifeline does."""
    threading.Thread(target=_hold, args=(lifeline,), name="lifeline", daemon=True).start()


def _hold(lifeline: int) -> None:
    os.read(lifeline, 1)  # Nothing is ever written to it.
    os._exit(_LOST_LIFELINE)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, ctypes.c_ulong(value))


def make_room(wanted: int) -> None:
    """Have the system allow so many open files, or say that it does not."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if resource.RLIM_INFINITY in (soft, hard) or wanted <= soft:
        return
    if wanted > hard:
        raise ParameterError(
            f"this takes about {wanted} open files, and the system allows {hard}; raise the limit (ulimit -n)"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
