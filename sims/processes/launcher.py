"""The fork server's process, as the process of the crew sees it."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from typing import Final

import trio

from sims.processes.census import Individual, bearers
from sims.processes.line import Line, LineClosed
from sims.processes.orders import Order

_MARK: Final = "SECAGG_CREW"
# A library that computes with threads of its own would start them on import, and no fork has them.
# Besides, the workers together keep all cores busy.
_LIBRARIES: Final = ("MKL", "NUMEXPR", "OMP", "OPENBLAS")
_PATIENCE: Final = 5.0  # seconds for killing and reaping everybody


class Launcher:
    """A fork server that was started, and has to be stopped."""

    def __init__(self) -> None:
        self.mark = f"{_MARK}={secrets.token_hex(8)}"
        self._control, far = socket.socketpair()
        self.line = Line(self._control)
        far_lifeline, self._lifeline = os.pipe()
        try:
            self._process = _execute(far.fileno(), far_lifeline, self.mark)
        except BaseException:
            self._close()
            raise
        finally:
            far.close()
            os.close(far_lifeline)
        self.who = Individual.of(self._process.pid)

    async def order(self, order: Order) -> None:
        """Hand over an order. Raises `ConnectionError` if the fork server is dead."""
        while True:
            try:
                return order.send(self._control)
            except BlockingIOError:
                await trio.lowlevel.wait_writable(self._control)

    async def finish(self) -> None:
        """Wait, with patience, until the fork server has killed and reaped everybody and is gone."""
        with trio.move_on_after(_PATIENCE), suppress(LineClosed, OSError):
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

    def leftovers(self) -> set[int]:
        """The processes that bear the crew's mark, whether or not they are known to it."""
        return bearers(self.mark)

    def _close(self) -> None:
        self.line.close()
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1


def _execute(control: int, lifeline: int, mark: str) -> subprocess.Popen[bytes]:
    # Modules are found where this process finds them. Its main program is not imported.
    program = (
        f"import sys; sys.path[:] = {sys.path!r}; "
        f"from sims.processes.forks import main; main({control}, {lifeline})"
    )
    # Until the fork server ignores SIGINT, it must not hear it: it would print a traceback.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        return subprocess.Popen(  # noqa: S603  # This very interpreter, and a program written above.
            [sys.executable, "-c", program],
            stdin=subprocess.DEVNULL,
            pass_fds=(control, lifeline),
            env=os.environ | _environment(mark),
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _environment(mark: str) -> dict[str, str]:
    name, _, value = mark.partition("=")
    return {name: value, **{f"{library}_NUM_THREADS": "1" for library in _LIBRARIES}}
