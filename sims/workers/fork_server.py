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
import inspect
import os
import pickle
import resource
import select
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, NoReturn

import trio

from sims.workers import os_processes
from sims.workers.fork_server_control import (
    ForkCommand,
    ForkCommandType,
    ForkedWorker,
    ForkFailed,
    ForkReport,
    ForkServerReady,
    ForkServerSetup,
    ReapedWorker,
    receive_command,
)
from sims.workers.message_pipe import MessagePipe, PipeClosed

_HANDLED: Final = (signal.SIGCHLD, signal.SIGTERM)


def main(control: int, lifeline_end: int) -> None:
    """Serve the crew at the other end of `control` until it is closed."""
    _set_up(control, lifeline_end)
    sock = socket.socket(fileno=control)
    line = MessagePipe(sock)
    with suppress(PipeClosed):
        setup = line.get()
        assert isinstance(setup, ForkServerSetup)
        refusal = _preload(setup.preload)
        line.put(ForkServerReady() if refusal is None else ForkFailed(refusal))
        if refusal is None:
            ForkServer(sock, line, setup.target, lifeline_end).serve()


def _set_up(control: int, lifeline_end: int) -> None:
    # The terminal sends SIGINT to everybody. The crew decides what follows from it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
    os_processes.signal_on_death_of_parent(signal.SIGTERM)  # If it is dead by now, so is `control`.
    os_processes.adopt_descendants()
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
            return f"{module} cannot be imported: {describe(error)}"
        if os_processes.threads() > 1:
            return f"importing {module} starts a thread, which no worker would have"
    gc.freeze()
    sys.stdout.flush()  # Else every worker would print again what a module has printed.
    return None


class ForkServer:
    def __init__(self, sock: socket.socket, line: MessagePipe, target: bytes, lifeline_end: int) -> None:
        self._sock = sock
        self._line = line
        self._target = target
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
        order = receive_command(self._sock)
        if order is not None:
            self._obey(order)
        return order is not None

    def _obey(self, order: ForkCommand) -> None:
        if order.verb is ForkCommandType.KILL:
            for pid, index in self._workers.items():
                if index == order.index:
                    os.kill(pid, signal.SIGKILL)
            return
        assert order.line is not None
        with order.line:
            try:
                self._report(self._spawn(order.index, order.line))
            except OSError as error:
                self._report(ForkFailed(f"worker {order.index} cannot be started: {error.strerror}"))

    def _spawn(self, index: int, line: socket.socket) -> ForkedWorker:
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
        return ForkedWorker(index, os_processes.ProcessId.of(pid))  # It exists at least until it is reaped.

    def _become_worker(self, line: socket.socket, parent: int) -> None:
        try:
            signal.set_wakeup_fd(-1)
            for number in _HANDLED:
                signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _HANDLED)
            for sock in (self._sock, self._alarm, self._alarm_end):
                sock.close()
            run_worker(self._target, line, self._lifeline, parent)
        finally:
            os._exit(1)

    def _reap(self) -> None:
        """Bury the dead, and report those that were workers. The others are what workers left behind."""
        with suppress(ChildProcessError):
            while (found := os.waitpid(-1, os.WNOHANG))[0]:
                pid, status = found
                if pid in self._workers:
                    self._report(ReapedWorker(self._workers.pop(pid), os.waitstatus_to_exitcode(status)))

    def _end_all(self) -> None:
        """Kill and reap whoever is left. The children of those killed become this process's own."""
        with suppress(ChildProcessError):
            while True:
                for pid in os_processes.children() | self._workers.keys():
                    os.kill(pid, signal.SIGKILL)  # Not reaped, so the number is still its own.
                pid, _ = os.waitpid(-1, 0)
                while pid:
                    self._workers.pop(pid, None)
                    pid, _ = os.waitpid(-1, os.WNOHANG)

    def _report(self, report: ForkReport) -> None:
        self._line.put(report)


def _no_more_than_wake(*_: object) -> None:
    """A handler has to exist for the signal to be written to the descriptor that `select` watches."""


@dataclass(frozen=True)
class WorkerFailure:
    """The last word of a worker that died of an exception."""

    text: str


def run_worker(target: bytes, sock: socket.socket, lifeline_end: int, parent: int) -> NoReturn:
    """Do the duty and end. No exception, handler or buffer of the fork server is reached from here."""
    code = 1
    try:
        _set_up_worker(lifeline_end, parent)
        code = _work(target, MessagePipe(sock))
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


def describe(error: BaseException) -> str:
    """The types of an exception's leaves, and where they were raised; never what they say."""
    return ", ".join(dict.fromkeys(map(_describe_leaf, _leaves(error))))


def _set_up_worker(lifeline_end: int, parent: int) -> None:
    os_processes.signal_on_death_of_parent(signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
    os_processes.hold(lifeline_end)
    sys.unraisablehook = _unraisable
    threading.excepthook = _thread_failed
    if "numpy.random" in sys.modules:  # Python's own generator is seeded anew by the fork.
        sys.modules["numpy.random"].seed()
    gc.enable()


def _work(target: bytes, line: MessagePipe) -> int:
    """The exit code."""
    try:
        config = line.get()
        _do(target, config, line)
    except SystemExit as leaving:
        return leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
    except BaseException as error:
        if all(isinstance(leaf, PipeClosed) for leaf in _leaves(error)):
            return 0  # The crew wants no more of this worker. That is how most of them end.
        with suppress(PipeClosed):
            line.put(WorkerFailure(describe(error)))
        return 1
    return 0


def _do(pickled: bytes, config: object, line: MessagePipe) -> None:
    target = pickle.loads(pickled)  # noqa: S301  # a name that the crew wrote
    if inspect.iscoroutinefunction(target):
        trio.run(target, config, line)
    else:
        target(config, line)


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for part in error.exceptions:
            yield from _leaves(part)
    else:
        yield error


def _describe_leaf(error: BaseException) -> str:
    place = error.__traceback__
    while place is not None and place.tb_next is not None:
        place = place.tb_next
    name = type(error).__name__
    if place is None:
        return name
    return f"{name} at {os.path.basename(place.tb_frame.f_code.co_filename)}:{place.tb_lineno}"


def _unraisable(hook: sys.UnraisableHookArgs) -> None:
    _complain(hook.exc_value)


def _thread_failed(hook: threading.ExceptHookArgs) -> None:
    _complain(hook.exc_value)


def _complain(error: BaseException | None) -> None:
    text = "an exception" if error is None else describe(error)
    print(f"worker {os.getpid()}: {text}, in a thread or finaliser", file=sys.stderr)
