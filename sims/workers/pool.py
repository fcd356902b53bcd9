"""A crew: worker processes that end when the crew does, whatever happens.

    async with open_crew(duty, seats, preload=("numpy", "secagg")) as crew:
        await crew.send(0, "hello")
        async for news in crew.news():
            ...

`duty(seat, line)` is a function of an importable module; it may be a coroutine function, which
then runs under trio. Every worker calls it with a seat of its own and its end of the line. A worker
ends when the duty returns, or when the crew is closed: then its next `receive` or `send` raises
`PipeClosed`, which the duty need not catch. A worker that does neither within the grace period is
killed. A crew that may grow takes on more workers later (`spawn`), such as in the place of one that died.

Start-up is the import of what is preloaded, once, and then a fork per worker. The crew's side is
tasks of the caller's own event loop; see `forks` for the other side, and `lifeline` for why nothing
outlives the process that opened the crew.
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
from sims.workers.os_processes import ProcessId

Config = TypeVar("Config")
Target = Callable[[Config, MessagePipe], object]

_LOST: Final = "the fork server ended while the crew was started"
_GONE: Final = "the fork server has ended; no worker can be started any more"
_UNREAD: Final = 16  # news per worker that wait to be read before the workers have to wait


class WorkerStartError(Exception):
    """The crew could not be started: a module cannot be imported, or no process be forked."""


class WorkerUnavailable(Exception):
    """The worker has ended, or is about to; its `WorkerExited` is among the news."""

    def __init__(self, index: int) -> None:
        super().__init__(f"worker {index} is gone")
        self.index = index


@dataclass(eq=False)
class _Worker:
    index: int
    line: MessagePipe
    process: ProcessId | None = None
    started: trio.Event = field(default_factory=trio.Event)
    failure: str = ""
    exitcode: int | None = None  # negative: the number of a signal; None: nobody knows
    stopped: trio.Event = field(default_factory=trio.Event)

    def start(self, process: ProcessId) -> None:
        self.process = process
        self.started.set()

    def stop(self, exitcode: int | None) -> None:
        self.exitcode = exitcode
        self.started.set()  # if only in the sense that there is nothing to wait for
        self.stopped.set()
        self.line.mark_peer_dead()

    async def hand_over(self, config: object) -> None:
        await self.started.wait()
        if self.process is None:
            raise WorkerStartError(_LOST)
        with suppress(PipeClosed):  # Its end is among the news.
            await self.line.send(config)

    def ended(self) -> WorkerExited:
        code = self.exitcode
        killed = code is not None and code < 0
        return WorkerExited(
            self.index,
            exitcode=None if killed else code,
            signal=-code if code is not None and killed else None,
            failure=self.failure,
        )


class WorkerPool:
    """The workers that `open_worker_pool` has started, by their index among the seats."""

    def __init__(self, launcher: ForkServerProcess, size: int, *, grows: bool = False) -> None:
        self._fork_server = launcher
        self._size = size
        self._grows = grows
        self._nursery: trio.Nursery | None = None
        self._ready = False
        self._workers: list[_Worker] = []
        self._orders, self._orders_end = trio.open_memory_channel[ForkCommand](math.inf)
        self._events, self._events_end = trio.open_memory_channel[WorkerEvent](_UNREAD * size)

    async def send(self, index: int, message: object) -> None:
        """Send a message to one worker. Raises `WorkerUnavailable`.

        Somebody should be reading the news meanwhile: a worker whose own messages are not read does
        not read either, if it is written so.
        """
        try:
            await self._workers[index].line.send(message)
        except PipeClosed:
            raise WorkerUnavailable(index) from None

    def events(self) -> AsyncIterator[WorkerEvent]:
        """What the workers say, and last of each that it has ended; over when all of them have.

        Whoever stops reading may go on later where it has stopped. A crew that may grow is never over.
        """
        return self._events_end

    async def spawn(self, config: object) -> int:
        """Start one more worker of a crew that grows, and return its index. Raises `WorkerStartError`."""
        if not self._grows or self._nursery is None:
            raise ValueError("this crew stays as it was opened: open it with grows=True")
        try:
            worker = await self._spawn()
        except ConnectionError:
            raise WorkerStartError(_GONE) from None
        self._nursery.start_soon(self._listen, worker, self._events.clone())
        await worker.hand_over(config)
        return worker.index

    def kill(self, index: int) -> None:
        """Send SIGKILL to a worker, unless it has ended. The news tell when it has."""
        self._orders.send_nowait(ForkCommand(ForkCommandType.KILL, self._workers[index].index))

    def stop_worker(self, index: int) -> None:
        """End a worker the way the end of the crew does; what it still has to say is heard."""
        self._workers[index].line.close_sending()

    def pids(self) -> tuple[int, ...]:
        """The processes of the workers, those that have ended too."""
        return tuple(worker.process.pid for worker in self._workers if worker.process is not None)

    @property
    def fork_server_pid(self) -> int:
        """The process of the fork server."""
        return self._fork_server.process.pid

    def remaining_processes(self) -> int:
        """How many processes of this crew exist, now, by the word of the operating system.

        After `async with`, this is the number of orphans. It counts the workers and the fork server, even
        if they only wait to be reaped, and, where there is a /proc, whatever they have started.
        """
        known = [worker.process for worker in self._workers if worker.process is not None]
        existing = {process.pid for process in [*known, self._fork_server.process] if process.exists()}
        return len(existing | self._fork_server.remaining_processes())

    # What follows is for `open_worker_pool`.

    async def _start(self, setup: ForkServerSetup, configs: Sequence[object], nursery: trio.Nursery) -> None:
        """Have everything imported, then forked. All workers have their seats when this returns."""
        try:
            await self._fork_server.line.send(setup)
            self._note(await self._fork_server.line.receive())
            nursery.start_soon(self._watch)
            for _ in configs:
                await self._spawn()
        except (PipeClosed, ConnectionError):
            raise WorkerStartError(_LOST) from None
        nursery.start_soon(self._dispatch)
        for worker in self._workers:
            nursery.start_soon(self._listen, worker, self._events.clone())
        if not self._grows:
            self._events.close()
        self._nursery = nursery
        for worker, config in zip(self._workers, configs, strict=True):
            await worker.hand_over(config)

    async def _spawn(self) -> _Worker:
        index = len(self._workers)
        near, far = socket.socketpair()
        line = MessagePipe(near)
        with far:  # From here on, the worker's end is the worker's alone.
            try:
                await self._fork_server.order(ForkCommand(ForkCommandType.HIRE, index, far))
            except BaseException:
                line.close()
                raise
        worker = _Worker(index, line)
        self._workers.append(worker)
        return worker

    async def _dispatch(self) -> None:
        """Give the orders that were noted by code that cannot wait."""
        with suppress(OSError):  # There is no fork server, and `_watch` knows it too.
            async for order in self._orders_end:
                await self._fork_server.order(order)

    async def _watch(self) -> None:
        """Read what the fork server reports, until all workers have stopped."""
        try:
            while self._grows or not self._is_over():
                self._note(await self._fork_server.line.receive())
        except PipeClosed:  # Nobody will tell how the workers end, only that they do, by their lifeline.
            for worker in self._workers:
                worker.stop(worker.exitcode)

    def _is_over(self) -> bool:
        return len(self._workers) >= self._size and all(w.stopped.is_set() for w in self._workers)

    def _note(self, report: object) -> None:
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
                    message = await worker.line.receive()
                    if isinstance(message, WorkerFailure):
                        worker.failure = message.text
                    else:
                        await events.send(WorkerMessage(worker.index, message))
            await worker.stopped.wait()
            await events.send(worker.ended())

    async def _close(self, grace: float) -> None:
        try:
            if self._ready:
                await self._part(grace)
            else:
                self._fork_server.kill()  # There is nobody else, and an import may take long.
        finally:
            self._fork_server.stop()

    async def _part(self, grace: float) -> None:
        self._size, self._grows = len(self._workers), False
        for worker in self._workers:
            worker.line.close()
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
    """Start a worker for each seat, and end all of them on leaving, after `grace` seconds by force.

    `preload` names the modules that are to be imported before the workers are forked; the duty's own
    is always among them. Libraries that compute with threads of their own are told to use one per
    worker. With `grows`, more workers can be hired later. Raises `WorkerStartError`.
    """
    setup = _setup(target, preload)
    launcher = ForkServerProcess()
    pool, failure = WorkerPool(launcher, len(configs), grows=grows), None
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
        # The caller need not know that there is a nursery around its code.
        failure = group.exceptions[0]
    finally:
        with trio.CancelScope(shield=True):
            await pool._close(grace)
    if failure is not None:
        raise failure


def _setup(target: Target[Config], preload: Sequence[str]) -> ForkServerSetup:
    module = target.__module__
    if module == "__main__":
        raise ValueError("workers do not import the main program: the duty has to be in another module")
    return ForkServerSetup(pickle.dumps(target), (module, *preload))


_NAMES: Final = {number.value: number.name for number in signal.Signals}


@dataclass(frozen=True)
class WorkerMessage:
    """A worker sent a message."""

    index: int
    message: object = field(repr=False)  # It may hold a client's input.


@dataclass(frozen=True)
class WorkerExited:
    """A worker's process is gone, and has been reaped; nothing more comes from it.

    Either `exitcode` or `signal` is set, or neither if nobody can tell any more, because the
    process that would have known was killed as well. Of an exception, `failure` has the type and the
    place. Its message stays in the worker that died of it, because it may hold a secret.
    """

    index: int
    exitcode: int | None = None
    signal: int | None = None
    failure: str = ""

    @property
    def cause(self) -> str:
        """The same in words."""
        if self.failure:
            return self.failure
        if self.signal is not None:
            return f"killed by {_NAMES.get(self.signal, self.signal)}"
        return "lost" if self.exitcode is None else f"exit {self.exitcode}"


WorkerEvent: TypeAlias = WorkerMessage | WorkerExited
