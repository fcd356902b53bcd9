"""Which processes exist, as the operating system says."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_PROC: Final = Path("/proc")
# Fields of /proc/PID/stat, counted from behind the name of the program.
_STATE: Final = 0
_START_TIME: Final = 19


@dataclass(frozen=True)
class Individual:
    """One process. Numbers of processes are used again, those of one start time hardly ever."""

    pid: int
    birthday: int | None  # in ticks since the machine started; None where there is no /proc

    @classmethod
    def of(cls, pid: int) -> Individual:
        return cls(pid, _birthday(pid))

    def exists(self) -> bool:
        """Whether it runs, sleeps or waits to be reaped."""
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:  # It is another user's, and so it is another process.
            return False
        return self.birthday is None or _birthday(self.pid) == self.birthday

    def runs(self) -> bool:
        """Whether it exists and is more than an entry that its parent, or the first process, has to reap."""
        fields = _stat(self.pid)
        return self.exists() and (fields is None or fields[_STATE] not in ("Z", "X"))


def bearers(mark: str) -> set[int]:
    """The processes that have `mark` ("NAME=value") in the environment they were started with.

    Whoever is forked or executed by a marked process is marked too, whether or not anybody has kept
    a record of it. Where there is no /proc, nobody is found.
    """
    wanted, found = mark.encode(), set()
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


def _birthday(pid: int) -> int | None:
    fields = _stat(pid)
    return None if fields is None else int(fields[_START_TIME])


def _stat(pid: int) -> list[str] | None:
    try:
        return (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
