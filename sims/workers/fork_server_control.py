"""The fork server's process, as the process of the crew sees it."""

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
from sims.workers.os_processes import ProcessId, processes_with_environment

_MARK: Final = "SECAGG_CREW"
# A library that computes with threads of its own would start them on import, and no fork has them.
# Besides, the workers together keep all cores busy.
_LIBRARIES: Final = ("MKL", "NUMEXPR", "OMP", "OPENBLAS")
_PATIENCE: Final = 5.0  # seconds for killing and reaping everybody


class ForkServerProcess:
    """A fork server that was started, and has to be stopped."""

    def __init__(self) -> None:
        self.environment_entry = f"{_MARK}={secrets.token_hex(8)}"
        self._control, far = socket.socketpair()
        self.line = MessagePipe(self._control)
        far_lifeline, self._lifeline = os.pipe()
        try:
            self._process = _execute(far.fileno(), far_lifeline, self.environment_entry)
        except BaseException:
            self._close()
            raise
        finally:
            far.close()
            os.close(far_lifeline)
        self.process = ProcessId.of(self._process.pid)

    async def order(self, order: ForkCommand) -> None:
        """Hand over an order. Raises `ConnectionError` if the fork server is dead."""
        while True:
            try:
                return order.send(self._control)
            except BlockingIOError:
                await trio.lowlevel.wait_writable(self._control)

    async def finish(self) -> None:
        """Wait, with patience, until the fork server has killed and reaped everybody and is gone."""
        with trio.move_on_after(_PATIENCE), suppress(PipeClosed, OSError):
            self._control.shutdown(socket.SHUT_WR)
            while True:
                await self.line.receive()

    @trio.lowlevel.enable_ki_protection
    def stop(self) -> None:
        """The same as `finish` without an event loop, and at the latest then it is gone."""
        self.line.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_PATIENCE)
        self.kill()

    @trio.lowlevel.enable_ki_protection
    def kill(self) -> None:
        """Kill the fork server itself, if it still lives. Its workers lose their lifeline."""
        self._process.kill()
        self._process.wait()
        self._close()

    def remaining_processes(self) -> set[int]:
        """The processes that bear the crew's mark, whether or not they are known to it."""
        return processes_with_environment(self.environment_entry)

    def _close(self) -> None:
        self.line.close()
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1


def _execute(control: int, lifeline: int, environment_entry: str) -> subprocess.Popen[bytes]:
    # Modules are found where this process finds them. Its main program is not imported.
    program = (
        f"import sys; sys.path[:] = {sys.path!r}; "
        f"from sims.workers.fork_server import main; main({control}, {lifeline})"
    )
    # Until the fork server ignores SIGINT, it must not hear it: it would print a traceback.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        return subprocess.Popen(  # noqa: S603  # This very interpreter, and a program written above.
            [sys.executable, "-c", program],
            stdin=subprocess.DEVNULL,
            pass_fds=(control, lifeline),
            env=os.environ | _environment(environment_entry),
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _environment(environment_entry: str) -> dict[str, str]:
    name, _, value = environment_entry.partition("=")
    return {name: value, **{f"{library}_NUM_THREADS": "1" for library in _LIBRARIES}}


_ORDER: Final = struct.Struct("!cI")


@dataclass(frozen=True)
class ForkServerSetup:
    target: bytes  # pickled, which makes it the name of a function
    preload: tuple[str, ...]  # names of modules


class ForkCommandType(Enum):
    HIRE = b"h"  # comes with the worker's end of its line
    KILL = b"k"


@dataclass(frozen=True)
class ForkServerReady:
    """Everything is imported, and there is one thread."""


@dataclass(frozen=True)
class ForkFailed:
    """There will be no crew, or one worker less than was ordered."""

    reason: str


@dataclass(frozen=True)
class ForkedWorker:
    index: int
    process: ProcessId


@dataclass(frozen=True)
class ReapedWorker:
    index: int
    exitcode: int  # negative: the number of a signal


ForkReport: TypeAlias = ForkServerReady | ForkFailed | ForkedWorker | ReapedWorker


@dataclass(frozen=True)
class ForkCommand:
    verb: ForkCommandType
    index: int
    line: socket.socket | None = None

    def send(self, control: socket.socket) -> None:
        """Send without waiting. So few bytes are sent whole, or `BlockingIOError` is raised."""
        data = _ORDER.pack(self.verb.value, self.index)
        if self.line is None:
            control.send(data)
        else:
            socket.send_fds(control, [data], [self.line.fileno()])


def receive_command(control: socket.socket) -> ForkCommand | None:
    """The next order; None if the crew is closed or dead."""
    try:
        data, descriptors, _, _ = socket.recv_fds(control, _ORDER.size, 1)
    except ConnectionError:
        return None
    if not data:
        return None
    verb, index = _ORDER.unpack(data)
    line = socket.socket(fileno=descriptors[0]) if descriptors else None
    if line is not None:
        line.set_inheritable(False)  # Nothing that the worker executes shall have it.
    return ForkCommand(ForkCommandType(verb), index, line)
