"""A pool of worker processes that ends with the process that opened it.

    async with open_worker_pool(target, configs, preload=("numpy", "secagg")) as pool:
        await pool.send(0, "hello")
        async for event in pool.events():
            ...

`target(config, pipe)` is a function of an importable module. A coroutine function runs under trio. Each
worker calls it with its own config and its end of a `MessagePipe`. A worker ends when the target returns, or
when the pool is closed: then the next `receive` or `send` raises `PipeClosed`, which the target need not
catch. A worker that is still running after the grace period is killed. A pool opened with `grows=True` can
start more workers later (`spawn`), for example to replace one that died.

A fork server imports the preloaded modules once and forks one process per worker (`fork_server`). The pool's
side consists of tasks in the caller's event loop. Its processes end with the caller (see
`process_lifetime_and_queries`). The standard library does not suffice. With
`multiprocessing.get_context("forkserver")`, a worker in a long C call outlived its killed parent, a process
started by a worker outlived the program, and a module that cannot be preloaded was not reported
(docs/design.md names the tests).
"""

from __future__ import annotations

import math
import pickle
import signal
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Final, TypeAlias, TypeVar

import trio

from sims.workers.fork_server import WorkerFailure
from sims.workers.fork_server_control import (
    ForkCommand,
    ForkCommandType,
    ForkedWorker,
    ForkFailed,
    ForkServerProcess,
    ForkServerReady,
    ForkServerSetup,
    ReapedWorker,
)
from sims.workers.message_pipe import MessagePipe, PipeClosed
from sims.workers.process_lifetime_and_queries import ProcessId

Config = TypeVar("Config")
Target = Callable[[Config, MessagePipe], object]

_FAILED_AT_START: Final = "the fork server ended while the pool was started"
_NO_FORK_SERVER: Final = "the fork server has ended; no worker can be started any more"
_UNREAD: Final = 16  # unread events per worker before the workers have to wait
_SIGNAL_NAMES: Final = {number.value: number.name for number in signal.Signals}


class WorkerStartError(Exception):
    """A pool or worker could not be started: a module cannot be imported, or a process cannot be forked."""


class WorkerUnavailable(Exception):
    """Worker `index` has ended or is about to end. Its `WorkerExited` event has the cause."""

    def __init__(self, index: int) -> None:
        super().__init__(f"worker {index} is gone")
        self.index = index


@dataclass(frozen=True)
class WorkerMessage:
    """The event that worker `index` sent `message` to the pool."""

    index: int
    message: object = field(repr=False)  # It may hold a client's input.


@dataclass(frozen=True)
class WorkerExited:
    """The last event of a worker: its process has ended and was reaped. Either `exitcode` or `signal` is set.
    If the fork server was killed, both are None, because only the fork server learns them. `failure` has type
    and source line of an exception that ended the worker, but not its message, which may be secret."""

    index: int
    exitcode: int | None = None
    signal: int | None = None
    failure: str = ""

    @property
    def cause(self) -> str:
        """Why the worker ended, as text: an exception, a signal, an exit code, or "lost" if unknown."""
        if self.failure:
            return self.failure
        if self.signal is not None:
            return f"killed by {_SIGNAL_NAMES.get(self.signal, self.signal)}"
        return "lost" if self.exitcode is None else f"exit {self.exitcode}"


WorkerEvent: TypeAlias = WorkerMessage | WorkerExited


@dataclass(eq=False)
class _Worker:
    index: int
    pipe: MessagePipe
    process: ProcessId | None = None
    started: trio.Event = field(default_factory=trio.Event)
    failure: str = ""
    exitcode: int | None = None  # minus the number of a signal if that killed it; None if unknown
    stopped: trio.Event = field(default_factory=trio.Event)

    def start(self, process: ProcessId) -> None:
        self.process = process
        self.started.set()

    def stop(self, exitcode: int | None) -> None:
        self.exitcode = exitcode
        self.started.set()  # There is no start to wait for any more.
        self.stopped.set()
        self.pipe.mark_peer_dead()

    async def send_config(self, config: object) -> None:
        await self.started.wait()
        if self.process is None:
            raise WorkerStartError(_FAILED_AT_START)
        with suppress(PipeClosed):  # `WorkerExited` reports it.
            await self.pipe.send(config)

    def exited(self) -> WorkerExited:
        code = self.exitcode
        killed = code is not None and code < 0
        return WorkerExited(
            self.index,
            exitcode=None if killed else code,
            signal=-code if code is not None and killed else None,
            failure=self.failure,
        )


class WorkerPool:
    """The workers of a pool. `index` numbers them from 0: first those of `configs`, then those of `spawn`."""

    def __init__(self, fork_server: ForkServerProcess, size: int, *, grows: bool = False) -> None:
        self._fork_server = fork_server
        self._size = size
        self._grows = grows
        self._nursery: trio.Nursery | None = None
        self._ready = False
        self._workers: list[_Worker] = []
        self._commands, self._commands_end = trio.open_memory_channel[ForkCommand](math.inf)
        self._events, self._events_end = trio.open_memory_channel[WorkerEvent](_UNREAD * size)

    async def send(self, index: int, message: object) -> None:
        """Send a message to one worker; wait while its pipe is full. Raises `WorkerUnavailable` if it has
        ended. Another task must read `events` meanwhile, or both sides may wait for each other forever."""
        try:
            await self._workers[index].pipe.send(message)
        except PipeClosed:
            raise WorkerUnavailable(index) from None

    def events(self) -> AsyncIterator[WorkerEvent]:
        """Return an iterator of events: messages of all workers and, last for each, its `WorkerExited`. It
        ends when all have exited, but not in a pool that grows. A later loop continues where one left off."""
        return self._events_end

    async def spawn(self, config: object) -> int:
        """Start one more worker and return its index. Raises `ValueError` unless the pool was opened with
        `grows=True`, `WorkerStartError` if the fork server has ended. A failed fork ends the whole pool."""
        if not self._grows or self._nursery is None:
            raise ValueError("this pool has a fixed size: open it with grows=True")
        try:
            worker = await self._spawn()
        except ConnectionError:
            raise WorkerStartError(_NO_FORK_SERVER) from None
        self._nursery.start_soon(self._listen, worker, self._events.clone())
        await worker.send_config(config)
        return worker.index

    def kill(self, index: int) -> None:
        """Queue SIGKILL for a worker; no effect if it has ended. The event `WorkerExited` follows."""
        self._commands.send_nowait(ForkCommand(ForkCommandType.KILL, self._workers[index].index))

    def pids(self) -> tuple[int, ...]:
        """Return the process ids of all workers, including those that have ended."""
        return tuple(worker.process.pid for worker in self._workers if worker.process is not None)

    @property
    def fork_server_pid(self) -> int:
        return self._fork_server.process.pid

    def remaining_processes(self) -> int:
        """Return how many processes of this pool exist now, even if only waiting to be reaped: workers, fork
        server and, where there is a /proc, those they started. After `async with`, they are orphans."""
        known = [worker.process for worker in self._workers if worker.process is not None]
        existing = {process.pid for process in [*known, self._fork_server.process] if process.exists()}
        return len(existing | self._fork_server.remaining_processes())

    # --- for `open_worker_pool` ---

    async def _start(self, setup: ForkServerSetup, configs: Sequence[object], nursery: trio.Nursery) -> None:
        """Make the fork server import the modules and fork a worker per config; send each its config."""
        try:
            await self._fork_server.pipe.send(setup)
            self._apply(await self._fork_server.pipe.receive())
            nursery.start_soon(self._watch)
            for _ in configs:
                await self._spawn()
        except (PipeClosed, ConnectionError):
            raise WorkerStartError(_FAILED_AT_START) from None
        nursery.start_soon(self._send_commands)
        for worker in self._workers:
            nursery.start_soon(self._listen, worker, self._events.clone())
        if not self._grows:
            self._events.close()
        self._nursery = nursery
        for worker, config in zip(self._workers, configs, strict=True):
            await worker.send_config(config)

    async def _spawn(self) -> _Worker:
        index = len(self._workers)
        near, far = socket.socketpair()
        pipe = MessagePipe(near)
        with far:  # Only the worker keeps its end open.
            try:
                await self._fork_server.command(ForkCommand(ForkCommandType.SPAWN, index, far))
            except BaseException:
                pipe.close()
                raise
        worker = _Worker(index, pipe)
        self._workers.append(worker)
        return worker

    async def _send_commands(self) -> None:
        """Send the fork server the commands that synchronous code has queued, such as those of `kill`."""
        with suppress(OSError):  # The fork server has ended, which `_watch` notices too.
            async for command in self._commands_end:
                await self._fork_server.command(command)

    async def _watch(self) -> None:
        """Handle the fork server's reports until it ends or, if the pool cannot grow, all workers ended."""
        try:
            while self._grows or not self._all_stopped():
                self._apply(await self._fork_server.pipe.receive())
        except PipeClosed:  # Without a fork server the workers end too, but their exit codes are unknown.
            for worker in self._workers:
                worker.stop(worker.exitcode)

    def _all_stopped(self) -> bool:
        return len(self._workers) >= self._size and all(w.stopped.is_set() for w in self._workers)

    def _apply(self, report: object) -> None:
        match report:
            case ForkServerReady():
                self._ready = True
            case ForkedWorker(index, process):
                self._workers[index].start(process)
            case ReapedWorker(index, exitcode):
                self._workers[index].stop(exitcode)
            case ForkFailed(reason):
                raise WorkerStartError(reason)

    async def _listen(self, worker: _Worker, events: trio.MemorySendChannel[WorkerEvent]) -> None:
        async with events:
            with suppress(PipeClosed):
                while True:
                    message = await worker.pipe.receive()
                    if isinstance(message, WorkerFailure):
                        worker.failure = message.text
                    else:
                        await events.send(WorkerMessage(worker.index, message))
            await worker.stopped.wait()
            await events.send(worker.exited())

    async def _close(self, grace: float) -> None:
        try:
            if self._ready:
                await self._close_workers(grace)
            else:
                self._fork_server.kill()  # It has no workers yet, and its imports may take long.
        finally:
            self._fork_server.stop()

    async def _close_workers(self, grace: float) -> None:
        self._size, self._grows = len(self._workers), False
        for worker in self._workers:
            worker.pipe.close()
        with trio.move_on_after(grace), suppress(WorkerStartError):
            await self._watch()
        await self._fork_server.finish()


@asynccontextmanager
@trio.lowlevel.enable_ki_protection
async def open_worker_pool(
    target: Target[Config],
    configs: Sequence[Config],
    *,
    preload: Sequence[str] = (),
    grace: float = 2.0,
    grows: bool = False,
) -> AsyncIterator[WorkerPool]:
    """Start a worker for each config. Yield the pool. On exit, kill workers that still run after `grace`
    seconds. `preload` names modules to import before the workers are forked; the module of `target` (not
    `__main__`) is always imported. Numerical libraries use one thread per worker. With `grows`, `spawn` can
    start more. Raises `WorkerStartError` if a module cannot be imported or a process cannot be started."""
    setup = _setup(target, preload)
    fork_server = ForkServerProcess()
    pool, failure = WorkerPool(fork_server, len(configs), grows=grows), None
    try:
        async with trio.open_nursery() as nursery:
            try:
                await pool._start(setup, configs, nursery)
                yield pool
            finally:
                nursery.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        if len(group.exceptions) > 1:
            raise
        failure = group.exceptions[0]  # The nursery is an implementation detail.
    finally:
        with trio.CancelScope(shield=True):
            await pool._close(grace)
    if failure is not None:
        raise failure


def _setup(target: Target[Config], preload: Sequence[str]) -> ForkServerSetup:
    module = target.__module__
    if module == "__main__":
        raise ValueError("workers do not import the main program: define the target in another module")
    return ForkServerSetup(pickle.dumps(target), (module, *preload))
