"""A crew: worker processes that end when the crew does, whatever happens.

    async with open_crew(duty, seats, preload=("numpy", "secagg")) as crew:
        await crew.send(0, "hello")
        async for news in crew.news():
            ...

`duty(seat, line)` is a function of an importable module; it may be a coroutine function, which
then runs under trio. Every worker calls it with a seat of its own and its end of the line. A worker
ends when the duty returns, or when the crew is closed: then its next `receive` or `send` raises
`LineClosed`, which the duty need not catch. A worker that does neither within the grace period is
killed. A crew that may grow takes on more workers later (`hire`), such as in the place of one that died.

Start-up is the import of what is preloaded, once, and then a fork per worker. The crew's side is
tasks of the caller's own event loop; see `forks` for the other side, and `lifeline` for why nothing
outlives the process that opened the crew.
"""

from __future__ import annotations

import math
import pickle
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Final, TypeVar

import trio

from sims.processes.census import Individual
from sims.processes.launcher import Launcher
from sims.processes.line import Line, LineClosed
from sims.processes.news import Ended, News, Said
from sims.processes.orders import Opening, Order, Ready, Refused, Started, Stopped, Verb
from sims.processes.worker import Failure

Seat = TypeVar("Seat")
Duty = Callable[[Seat, Line], object]

_LOST: Final = "the fork server ended while the crew was started"
_GONE: Final = "the fork server has ended; no worker can be started any more"
_UNREAD: Final = 16  # news per worker that wait to be read before the workers have to wait


class CrewFailed(Exception):
    """The crew could not be started: a module cannot be imported, or no process be forked."""


class WorkerGone(Exception):
    """The worker has ended, or is about to; its `Ended` is among the news."""

    def __init__(self, index: int) -> None:
        super().__init__(f"worker {index} is gone")
        self.index = index


@dataclass(eq=False)
class _Worker:
    index: int
    line: Line
    who: Individual | None = None
    started: trio.Event = field(default_factory=trio.Event)
    failure: str = ""
    exitcode: int | None = None  # negative: the number of a signal; None: nobody knows
    stopped: trio.Event = field(default_factory=trio.Event)

    def start(self, who: Individual) -> None:
        self.who = who
        self.started.set()

    def stop(self, exitcode: int | None) -> None:
        self.exitcode = exitcode
        self.started.set()  # if only in the sense that there is nothing to wait for
        self.stopped.set()
        self.line.hang_up()

    async def hand_over(self, seat: object) -> None:
        await self.started.wait()
        if self.who is None:
            raise CrewFailed(_LOST)
        with suppress(LineClosed):  # Its end is among the news.
            await self.line.send(seat)

    def ended(self) -> Ended:
        code = self.exitcode
        killed = code is not None and code < 0
        return Ended(
            self.index,
            exitcode=None if killed else code,
            signal=-code if code is not None and killed else None,
            failure=self.failure,
        )


class Crew:
    """The workers that `open_crew` has started, by their index among the seats."""

    def __init__(self, launcher: Launcher, size: int, *, grows: bool = False) -> None:
        self._launcher = launcher
        self._size = size
        self._grows = grows
        self._nursery: trio.Nursery | None = None
        self._ready = False
        self._workers: list[_Worker] = []
        self._orders, self._orders_end = trio.open_memory_channel[Order](math.inf)
        self._news, self._news_end = trio.open_memory_channel[News](_UNREAD * size)

    async def send(self, index: int, message: object) -> None:
        """Send a message to one worker. Raises `WorkerGone`.

        Somebody should be reading the news meanwhile: a worker whose own messages are not read does
        not read either, if it is written so.
        """
        try:
            await self._workers[index].line.send(message)
        except LineClosed:
            raise WorkerGone(index) from None

    def news(self) -> AsyncIterator[News]:
        """What the workers say, and last of each that it has ended; over when all of them have.

        Whoever stops reading may go on later where it has stopped. A crew that may grow is never over.
        """
        return self._news_end

    async def hire(self, seat: object) -> int:
        """Start one more worker of a crew that grows, and return its index. Raises `CrewFailed`."""
        if not self._grows or self._nursery is None:
            raise ValueError("this crew stays as it was opened: open it with grows=True")
        try:
            worker = await self._hire()
        except ConnectionError:
            raise CrewFailed(_GONE) from None
        self._nursery.start_soon(self._listen, worker, self._news.clone())
        await worker.hand_over(seat)
        return worker.index

    def kill(self, index: int) -> None:
        """Send SIGKILL to a worker, unless it has ended. The news tell when it has."""
        self._orders.send_nowait(Order(Verb.KILL, self._workers[index].index))

    def dismiss(self, index: int) -> None:
        """End a worker the way the end of the crew does; what it still has to say is heard."""
        self._workers[index].line.send_no_more()

    def pids(self) -> tuple[int, ...]:
        """The processes of the workers, those that have ended too."""
        return tuple(worker.who.pid for worker in self._workers if worker.who is not None)

    @property
    def forks_pid(self) -> int:
        """The process of the fork server."""
        return self._launcher.who.pid

    def leftovers(self) -> int:
        """How many processes of this crew exist, now, by the word of the operating system.

        After `async with`, this is the number of orphans. It counts the workers and the fork server, even
        if they only wait to be reaped, and, where there is a /proc, whatever they have started.
        """
        known = [worker.who for worker in self._workers if worker.who is not None]
        existing = {who.pid for who in [*known, self._launcher.who] if who.exists()}
        return len(existing | self._launcher.leftovers())

    # What follows is for `open_crew`.

    async def _start(self, opening: Opening, seats: Sequence[object], nursery: trio.Nursery) -> None:
        """Have everything imported, then forked. All workers have their seats when this returns."""
        try:
            await self._launcher.line.send(opening)
            self._note(await self._launcher.line.receive())
            nursery.start_soon(self._watch)
            for _ in seats:
                await self._hire()
        except (LineClosed, ConnectionError):
            raise CrewFailed(_LOST) from None
        nursery.start_soon(self._dispatch)
        for worker in self._workers:
            nursery.start_soon(self._listen, worker, self._news.clone())
        if not self._grows:
            self._news.close()
        self._nursery = nursery
        for worker, seat in zip(self._workers, seats, strict=True):
            await worker.hand_over(seat)

    async def _hire(self) -> _Worker:
        index = len(self._workers)
        near, far = socket.socketpair()
        line = Line(near)
        with far:  # From here on, the worker's end is the worker's alone.
            try:
                await self._launcher.order(Order(Verb.HIRE, index, far))
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
                await self._launcher.order(order)

    async def _watch(self) -> None:
        """Read what the fork server reports, until all workers have stopped."""
        try:
            while self._grows or not self._is_over():
                self._note(await self._launcher.line.receive())
        except LineClosed:  # Nobody will tell how the workers end, only that they do, by their lifeline.
            for worker in self._workers:
                worker.stop(worker.exitcode)

    def _is_over(self) -> bool:
        return len(self._workers) >= self._size and all(w.stopped.is_set() for w in self._workers)

    def _note(self, report: object) -> None:
        match report:
            case Ready():
                self._ready = True
            case Started(index, who):
                self._workers[index].start(who)
            case Stopped(index, exitcode):
                self._workers[index].stop(exitcode)
            case Refused(reason):
                raise CrewFailed(reason)

    async def _listen(self, worker: _Worker, news: trio.MemorySendChannel[News]) -> None:
        async with news:
            with suppress(LineClosed):
                while True:
                    message = await worker.line.receive()
                    if isinstance(message, Failure):
                        worker.failure = message.text
                    else:
                        await news.send(Said(worker.index, message))
            await worker.stopped.wait()
            await news.send(worker.ended())

    async def _close(self, grace: float) -> None:
        try:
            if self._ready:
                await self._part(grace)
            else:
                self._launcher.kill()  # There is nobody else, and an import may take long.
        finally:
            self._launcher.stop()

    async def _part(self, grace: float) -> None:
        self._size, self._grows = len(self._workers), False
        for worker in self._workers:
            worker.line.close()
        with trio.move_on_after(grace), suppress(CrewFailed):
            await self._watch()
        await self._launcher.finish()


@asynccontextmanager
@trio.lowlevel.enable_ki_protection
async def open_crew(
    duty: Duty[Seat],
    seats: Sequence[Seat],
    *,
    preload: Sequence[str] = (),
    grace: float = 2.0,
    grows: bool = False,
) -> AsyncIterator[Crew]:
    """Start a worker for each seat, and end all of them on leaving, after `grace` seconds by force.

    `preload` names the modules that are to be imported before the workers are forked; the duty's own
    is always among them. Libraries that compute with threads of their own are told to use one per
    worker. With `grows`, more workers can be hired later. Raises `CrewFailed`.
    """
    opening = _opening(duty, preload)
    launcher = Launcher()
    crew, failure = Crew(launcher, len(seats), grows=grows), None
    try:
        async with trio.open_nursery() as nursery:
            try:
                await crew._start(opening, seats, nursery)
                yield crew
            finally:
                nursery.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        if len(group.exceptions) > 1:
            raise
        # The caller need not know that there is a nursery around its code.
        failure = group.exceptions[0]
    finally:
        with trio.CancelScope(shield=True):
            await crew._close(grace)
    if failure is not None:
        raise failure


def _opening(duty: Duty[Seat], preload: Sequence[str]) -> Opening:
    module = duty.__module__
    if module == "__main__":
        raise ValueError("workers do not import the main program: the duty has to be in another module")
    return Opening(pickle.dumps(duty), (module, *preload))
