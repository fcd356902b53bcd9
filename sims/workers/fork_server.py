"""The fork server imports modules once, then forks a worker for each command. Each pool of workers has its
own, which ends with the pool. It is a new process with one thread and no event loop, because a fork copies
the locks of threads but not the threads. It also kills the workers: only their parent knows which process ids
still belong to them. A worker first drops what it must not share with the others: signal handlers,
descriptors and the state of random generators (those of the operating system share none)."""

from __future__ import annotations

import gc
import importlib
import inspect
import os
import pickle
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

from sims.process_resources import forbid_core_dumps
from sims.workers import process_lifetime_and_queries as lifetime
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


def main(control: int, owner_pipe: int) -> None:
    """Run a fork server until the pool closes the socket `control`. Both arguments are file descriptors.
    `owner_pipe` is at end of file once the pool's process has ended."""
    _set_up(control, owner_pipe)
    sock = socket.socket(fileno=control)
    pipe = MessagePipe(sock)
    with suppress(PipeClosed):
        setup = pipe.receive_sync()
        assert isinstance(setup, ForkServerSetup)
        failure = _preload(setup.preload)
        pipe.send_sync(ForkServerReady() if failure is None else ForkFailed(failure))
        if failure is None:
            ForkServer(sock, pipe, setup.target, owner_pipe).serve()


def _set_up(control: int, owner_pipe: int) -> None:
    # The terminal sends SIGINT to all processes. The pool decides what to do.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
    lifetime.signal_on_death_of_parent(signal.SIGTERM)  # If it is already dead, `control` is closed.
    lifetime.adopt_descendants()
    forbid_core_dumps()
    os.set_inheritable(control, False)
    os.set_inheritable(owner_pipe, False)
    os.dup2(2, 1)  # The main program may be writing JSON to standard output.


def _preload(modules: tuple[str, ...]) -> str | None:
    """Import the modules. Return None, or the reason as text if an import fails or starts a thread."""
    gc.disable()  # A collection in a worker would copy all shared memory.
    for module in modules:
        try:
            importlib.import_module(module)
        except ImportError as error:
            return f"{module} cannot be imported: {error}"
        except Exception as error:
            return f"{module} cannot be imported: {describe(error)}"
        if lifetime.threads() > 1:
            return f"importing {module} starts a thread, which no worker would have"
    gc.freeze()
    sys.stdout.flush()  # Otherwise every worker would print the buffer again.
    return None


class ForkServer:
    """Forks, kills and reaps the workers of one pool."""

    def __init__(self, sock: socket.socket, pipe: MessagePipe, target: bytes, owner_pipe: int) -> None:
        self._sock = sock
        self._pipe = pipe
        self._target = target
        self._owner_pipe = owner_pipe
        self._workers: dict[int, int] = {}  # the index of each worker that is not reaped, by process id
        self._terminated = False
        self._alarm, self._alarm_end = socket.socketpair()

    def serve(self) -> None:
        """Execute commands until the pool is closed or its process dies, then end all workers."""
        self._watch_signals()
        try:
            while not self._terminated and self._step():
                pass
        finally:
            self._end_all()

    def _watch_signals(self) -> None:
        self._alarm.setblocking(False)
        self._alarm_end.setblocking(False)
        signal.set_wakeup_fd(self._alarm_end.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, _wake_only)
        signal.signal(signal.SIGTERM, self._terminate)

    def _terminate(self, *_: object) -> None:
        self._terminated = True

    def _step(self) -> bool:
        """Wait for a command or the end of a worker, and handle it. Return False if the pool is closed."""
        ready, _, _ = select.select([self._sock, self._alarm], [], [])
        if self._alarm in ready:
            self._alarm.recv(4096)
            self._reap()
        if self._sock not in ready:
            return True
        command = receive_command(self._sock)
        if command is not None:
            self._execute(command)
        return command is not None

    def _execute(self, command: ForkCommand) -> None:
        if command.type is ForkCommandType.KILL:
            for pid, index in self._workers.items():
                if index == command.index:
                    os.kill(pid, signal.SIGKILL)
            return
        assert command.pipe is not None
        with command.pipe:
            try:
                self._report(self._spawn(command.index, command.pipe))
            except OSError as error:
                self._report(ForkFailed(f"worker {command.index} cannot be started: {error.strerror}"))

    def _spawn(self, index: int, pipe: socket.socket) -> ForkedWorker:
        # A worker must not run the signal handlers of the fork server.
        signal.pthread_sigmask(signal.SIG_BLOCK, _HANDLED)
        try:
            here = os.getpid()
            pid = os.fork()
            if not pid:
                self._become_worker(pipe, here)
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _HANDLED)
        self._workers[pid] = index
        return ForkedWorker(index, lifetime.ProcessId.of(pid))  # The id is valid until it is reaped.

    def _become_worker(self, pipe: socket.socket, parent: int) -> None:
        try:
            signal.set_wakeup_fd(-1)
            for number in _HANDLED:
                signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _HANDLED)
            for sock in (self._sock, self._alarm, self._alarm_end):
                sock.close()
            run_worker(self._target, pipe, self._owner_pipe, parent)
        finally:
            os._exit(1)

    def _reap(self) -> None:
        """Reap all ended processes. Report those that are workers; the others were started by workers."""
        with suppress(ChildProcessError):
            while (found := os.waitpid(-1, os.WNOHANG))[0]:
                pid, status = found
                if pid in self._workers:
                    self._report(ReapedWorker(self._workers.pop(pid), os.waitstatus_to_exitcode(status)))

    def _end_all(self) -> None:
        """Kill and reap all workers and their descendants, which this process adopts when orphaned."""
        with suppress(ChildProcessError):
            while True:
                for pid in lifetime.children() | self._workers.keys():
                    os.kill(pid, signal.SIGKILL)  # Not reaped, so the id is still valid.
                pid, _ = os.waitpid(-1, 0)
                while pid:
                    self._workers.pop(pid, None)
                    pid, _ = os.waitpid(-1, os.WNOHANG)

    def _report(self, report: ForkReport) -> None:
        self._pipe.send_sync(report)


def _wake_only(*_: object) -> None:
    """Do nothing. Python writes a signal to the wake-up descriptor only if the signal has a handler."""


@dataclass(frozen=True)
class WorkerFailure:
    """The last message of a worker that ends with an exception, whose type and source line are in `text`."""

    text: str


def run_worker(target: bytes, sock: socket.socket, owner_pipe: int, parent: int) -> NoReturn:
    """Run the pickled function `target` in this forked worker, then end the process. `sock` is the worker's
    end of its message pipe, `parent` the process id of the fork server. `owner_pipe` is a file descriptor, at
    end of file once the pool's process has ended."""
    code = 1
    try:
        _set_up_worker(owner_pipe, parent)
        code = _work(target, MessagePipe(sock))
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


def describe(error: BaseException) -> str:
    """Return type and source line of an exception (of each in a group), but no message: it may be secret."""
    return ", ".join(dict.fromkeys(map(_describe_leaf, _leaves(error))))


def _set_up_worker(owner_pipe: int, parent: int) -> None:
    lifetime.signal_on_death_of_parent(signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
    lifetime.exit_at_end_of(owner_pipe)
    sys.unraisablehook = _log_error
    threading.excepthook = _log_error
    if "numpy.random" in sys.modules:  # The fork seeds Python's own generator anew.
        sys.modules["numpy.random"].seed()
    gc.enable()


def _work(target: bytes, pipe: MessagePipe) -> int:
    """Receive the config from `pipe`, call the pickled function `target` with both, and return the exit code:
    0 also if the pool was closed, that of a `SystemExit`, or 1 after another error (sent to the pool)."""
    try:
        _call(target, pipe.receive_sync(), pipe)
    except SystemExit as leaving:
        return leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
    except BaseException as error:
        if all(isinstance(leaf, PipeClosed) for leaf in _leaves(error)):
            return 0  # The pool was closed, the usual end of a worker.
        with suppress(PipeClosed):
            pipe.send_sync(WorkerFailure(describe(error)))
        return 1
    return 0


def _call(pickled: bytes, config: object, pipe: MessagePipe) -> None:
    target = pickle.loads(pickled)  # noqa: S301  # a name that the pool wrote
    if inspect.iscoroutinefunction(target):
        trio.run(target, config, pipe)
    else:
        target(config, pipe)


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


def _log_error(hook: sys.UnraisableHookArgs | threading.ExceptHookArgs) -> None:
    text = "an exception" if hook.exc_value is None else describe(hook.exc_value)
    print(f"worker {os.getpid()}: {text}, in a thread or finaliser", file=sys.stderr)
