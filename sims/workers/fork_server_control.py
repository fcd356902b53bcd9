"""Starts, commands and stops the fork server from the process of the pool. The pool sends one
`ForkServerSetup` and waits for `ForkServerReady`. After that it sends commands. Commands have a fixed size,
because a spawn command carries a file descriptor, which must arrive together with exactly the bytes of its
command. The fork server answers with pickled reports."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import struct
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeAlias

import trio

from sims.workers.message_pipe import MessagePipe, PipeClosed
from sims.workers.process_lifetime_and_queries import ProcessId, processes_with_environment

_VARIABLE: Final = "SECAGG_WORKER_POOL"
# These libraries start threads on import, which a fork does not copy. The workers keep all cores busy anyway.
_LIBRARIES: Final = ("MKL", "NUMEXPR", "OMP", "OPENBLAS")
_PATIENCE: Final = 5.0  # seconds for the fork server to kill and reap all processes
_COMMAND: Final = struct.Struct("!cI")


@dataclass(frozen=True)
class ForkServerSetup:
    target: bytes  # a pickled function, which is the name of the function
    preload: tuple[str, ...]  # names of modules


class ForkCommandType(Enum):
    SPAWN = b"h"  # carries the worker's end of its pipe
    KILL = b"k"


@dataclass(frozen=True)
class ForkServerReady:
    """The fork server's report that it has imported all modules and can fork workers."""


@dataclass(frozen=True)
class ForkFailed:
    """The fork server's report that it cannot import a module or cannot fork a worker."""

    reason: str


@dataclass(frozen=True)
class ForkedWorker:
    index: int
    process: ProcessId


@dataclass(frozen=True)
class ReapedWorker:
    index: int
    exitcode: int  # minus the number of a signal if that killed the worker


ForkReport: TypeAlias = ForkServerReady | ForkFailed | ForkedWorker | ReapedWorker


@dataclass(frozen=True)
class ForkCommand:
    type: ForkCommandType
    index: int
    pipe: socket.socket | None = None

    def send(self, control: socket.socket) -> None:
        """Send the command without waiting. Raises `BlockingIOError` if the socket's buffer is full."""
        data = _COMMAND.pack(self.type.value, self.index)
        if self.pipe is None:
            control.send(data)
        else:
            socket.send_fds(control, [data], [self.pipe.fileno()])


def receive_command(control: socket.socket) -> ForkCommand | None:
    """Return the next command, or None if the pool is closed or its process is dead."""
    try:
        data, descriptors, _, _ = socket.recv_fds(control, _COMMAND.size, 1)
    except ConnectionError:
        return None
    if not data:
        return None
    kind, index = _COMMAND.unpack(data)
    pipe = socket.socket(fileno=descriptors[0]) if descriptors else None
    if pipe is not None:
        pipe.set_inheritable(False)  # Programs that the worker executes must not inherit it.
    return ForkCommand(ForkCommandType(kind), index, pipe)


class ForkServerProcess:
    """The process of a fork server, which the constructor starts. The caller must call `stop` or `kill`."""

    def __init__(self) -> None:
        self._environment_entry = f"{_VARIABLE}={secrets.token_hex(8)}"
        self._control, far = socket.socketpair()
        self.pipe = MessagePipe(self._control)
        far_owner_pipe, self._owner_pipe = os.pipe()
        try:
            self._process = _execute(far.fileno(), far_owner_pipe, _environment(self._environment_entry))
        except BaseException:
            self._close()
            raise
        finally:
            far.close()
            os.close(far_owner_pipe)
        self.process = ProcessId.of(self._process.pid)

    async def command(self, command: ForkCommand) -> None:
        """Send a command once the pipe has room. Raises `ConnectionError` if the fork server is dead."""
        while True:
            try:
                return command.send(self._control)
            except BlockingIOError:
                await trio.lowlevel.wait_writable(self._control)

    async def finish(self) -> None:
        """Tell the fork server to end all its processes and itself. Wait at most `_PATIENCE` seconds."""
        with trio.move_on_after(_PATIENCE), suppress(PipeClosed, OSError):
            self._control.shutdown(socket.SHUT_WR)
            while True:
                await self.pipe.receive()

    @trio.lowlevel.enable_ki_protection
    def stop(self) -> None:
        """Close the pipe to the fork server, wait up to `_PATIENCE` seconds until it ends, else kill it."""
        self.pipe.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_PATIENCE)
        self.kill()

    @trio.lowlevel.enable_ki_protection
    def kill(self) -> None:
        """Kill the fork server if it is running. Its workers end with it."""
        self._process.kill()
        self._process.wait()
        self._close()

    def remaining_processes(self) -> set[int]:
        """Return the ids of the fork server and all existing processes below it; no ids without a /proc."""
        return processes_with_environment(self._environment_entry)

    def _close(self) -> None:
        self.pipe.close()
        if self._owner_pipe >= 0:
            os.close(self._owner_pipe)
            self._owner_pipe = -1


def _execute(control: int, owner_pipe: int, variables: dict[str, str]) -> subprocess.Popen[bytes]:
    # The fork server finds modules on the same path. It does not import the main program.
    program = (
        f"import sys; sys.path[:] = {sys.path!r}; "
        f"from sims.workers.fork_server import main; main({control}, {owner_pipe})"
    )
    # SIGINT stays blocked until the fork server ignores it. Otherwise it would print a traceback.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        return subprocess.Popen(  # noqa: S603  # This interpreter, and the program above.
            [sys.executable, "-c", program],
            stdin=subprocess.DEVNULL,
            pass_fds=(control, owner_pipe),
            env=os.environ | variables,
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _environment(entry: str) -> dict[str, str]:
    name, _, value = entry.partition("=")
    return {name: value, **{f"{library}_NUM_THREADS": "1" for library in _LIBRARIES}}
