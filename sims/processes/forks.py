"""A process that imports once what all workers need, and then forks a worker per order.

Python's own fork server (`multiprocessing`) would do most of this, but what it preloads is one
setting for the whole program and says nothing of a module it could not import; its workers import the
main program again; it starts a process to track resources; and it, its workers and what they start
may outlive the program. This one belongs to one crew, and ends with it.

It is executed afresh and has one thread and no event loop: a fork copies a thread's locks but not the
thread. It alone knows which numbers of processes are still its workers', because it reaps them, so it
is the one to kill them.
"""

from __future__ import annotations

import gc
import importlib
import os
import resource
import select
import signal
import socket
import sys
from contextlib import suppress
from typing import Final

from sims.processes import census, lifeline, worker
from sims.processes.line import Line, LineClosed
from sims.processes.orders import (
    Opening,
    Order,
    Ready,
    Refused,
    Report,
    Started,
    Stopped,
    Verb,
    receive_order,
)

_HANDLED: Final = (signal.SIGCHLD, signal.SIGTERM)


def main(control: int, lifeline_end: int) -> None:
    """Serve the crew at the other end of `control` until it is closed."""
    _settle(control, lifeline_end)
    sock = socket.socket(fileno=control)
    line = Line(sock)
    with suppress(LineClosed):
        opening = line.get()
        assert isinstance(opening, Opening)
        refusal = _preload(opening.preload)
        line.put(Ready() if refusal is None else Refused(refusal))
        if refusal is None:
            ForkServer(sock, line, opening.duty, lifeline_end).serve()


def _settle(control: int, lifeline_end: int) -> None:
    # The terminal sends SIGINT to everybody. The crew decides what follows from it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
    lifeline.signal_on_death_of_parent(signal.SIGTERM)  # If it is dead by now, so is `control`.
    lifeline.adopt_descendants()
    # A worker that crashes must not write its secrets to the disk.
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    os.set_inheritable(control, False)
    os.set_inheritable(lifeline_end, False)
    os.dup2(2, 1)  # Standard output is the program's, which may be writing JSON to it.


def _preload(modules: tuple[str, ...]) -> str | None:
    """Import them all; why that failed, if it did."""
    gc.disable()  # A collection in a worker would write to, and so copy, all that it shares.
    for module in modules:
        try:
            importlib.import_module(module)
        except ImportError as error:
            return f"{module} cannot be imported: {error}"
        except Exception as error:
            return f"{module} cannot be imported: {worker.describe(error)}"
        if census.threads() > 1:
            return f"importing {module} starts a thread, which no worker would have"
    gc.freeze()
    sys.stdout.flush()  # Else every worker would print again what a module has printed.
    return None


class ForkServer:
    def __init__(self, sock: socket.socket, line: Line, duty: bytes, lifeline_end: int) -> None:
        self._sock = sock
        self._line = line
        self._duty = duty
        self._lifeline = lifeline_end
        self._workers: dict[int, int] = {}  # index by pid, until they are reaped
        self._terminated = False
        self._alarm, self._alarm_end = socket.socketpair()

    def serve(self) -> None:
        """Obey until the crew closes its end or dies, then leave no process behind."""
        self._watch_signals()
        try:
            while not self._terminated and self._turn():
                pass
        finally:
            self._end_all()

    def _watch_signals(self) -> None:
        self._alarm.setblocking(False)
        self._alarm_end.setblocking(False)
        signal.set_wakeup_fd(self._alarm_end.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, _no_more_than_wake)
        signal.signal(signal.SIGTERM, self._terminate)

    def _terminate(self, *_: object) -> None:
        self._terminated = True

    def _turn(self) -> bool:
        """Wait for an order or a death; False if the crew is gone."""
        ready, _, _ = select.select([self._sock, self._alarm], [], [])
        if self._alarm in ready:
            self._alarm.recv(4096)
            self._reap()
        if self._sock not in ready:
            return True
        order = receive_order(self._sock)
        if order is not None:
            self._obey(order)
        return order is not None

    def _obey(self, order: Order) -> None:
        if order.verb is Verb.KILL:
            for pid, index in self._workers.items():
                if index == order.index:
                    os.kill(pid, signal.SIGKILL)
            return
        assert order.line is not None
        with order.line:
            try:
                self._report(self._hire(order.index, order.line))
            except OSError as error:
                self._report(Refused(f"worker {order.index} cannot be started: {error.strerror}"))

    def _hire(self, index: int, line: socket.socket) -> Started:
        # No signal may find a worker that still has the handlers of the fork server.
        signal.pthread_sigmask(signal.SIG_BLOCK, _HANDLED)
        try:
            here = os.getpid()
            pid = os.fork()
            if not pid:
                self._become_worker(line, here)
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _HANDLED)
        self._workers[pid] = index
        return Started(index, census.Individual.of(pid))  # It exists at least until it is reaped.

    def _become_worker(self, line: socket.socket, parent: int) -> None:
        try:
            signal.set_wakeup_fd(-1)
            for number in _HANDLED:
                signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _HANDLED)
            for sock in (self._sock, self._alarm, self._alarm_end):
                sock.close()
            worker.run(self._duty, line, self._lifeline, parent)
        finally:
            os._exit(1)

    def _reap(self) -> None:
        """Bury the dead, and report those that were workers. The others are what workers left behind."""
        with suppress(ChildProcessError):
            while (found := os.waitpid(-1, os.WNOHANG))[0]:
                pid, status = found
                if pid in self._workers:
                    self._report(Stopped(self._workers.pop(pid), os.waitstatus_to_exitcode(status)))

    def _end_all(self) -> None:
        """Kill and reap whoever is left. The children of those killed become this process's own."""
        with suppress(ChildProcessError):
            while True:
                for pid in census.children() | self._workers.keys():
                    os.kill(pid, signal.SIGKILL)  # Not reaped, so the number is still its own.
                pid, _ = os.waitpid(-1, 0)
                while pid:
                    self._workers.pop(pid, None)
                    pid, _ = os.waitpid(-1, os.WNOHANG)

    def _report(self, report: Report) -> None:
        self._line.put(report)


def _no_more_than_wake(*_: object) -> None:
    """A handler has to exist for the signal to be written to the descriptor that `select` watches."""
