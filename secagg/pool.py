"""Masks expanded in several processes: AES holds the interpreter's lock, so threads would not help.

    with ProcessPool(4) as pool:
        server = ServerMachine(..., expander=pool)

First the processes agree on the seeds, then they expand them, and each time the process that is ready takes
the next portion: cores differ in speed from moment to moment, and none is to wait for another. A vector is
cut into a stretch for each process, and the masks of each stretch into portions. A process takes those of
its own stretch first, and then helps with others. What a worker made of them returns in shared memory.
Whoever waits for another stays awake for some milliseconds, because waking up can take as long.

Portions are numbers in pipes that all processes read, one byte each, so that a worker that dies holds no
lock. It costs time and nothing more: what no worker reports as done is done here. Secrets reach the workers
through pipes of their own and nothing else, and no process writes to another that does not read. As always
with processes that are spawned, a script that uses a pool keeps its own work below
``if __name__ == "__main__":``.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from multiprocessing.shared_memory import SharedMemory
from threading import Lock
from types import TracebackType
from typing import Any, Final, Self, TypeAlias

import numpy as np

from secagg.errors import ParameterError
from secagg.expansion import (
    Range,
    Seeds,
    Slice,
    divided,
    joined,
    masks_in,
    portions,
    seeds_between,
    slices,
)
from secagg.keys import public_key
from secagg.masking import PairMasks, Removal, SelfMask, seeds_of, take_off
from secagg.masks import apply_masks
from secagg.ring import Residues

MAX_PROCESSES: Final = 64
# Most bytes of a stretch, and stretches that a worker has memory for. Containers have little that is shared.
_STRETCH: Final = 1 << 21
_SLOTS: Final = 2
# Least bytes of a stretch: each mask of each stretch needs a cipher, which costs as much as these bytes.
_SHORT: Final = 1 << 17
_CIPHER: Final = 1 << 15
# Least of a portion, in bytes of key stream and in agreements: some tenths of a millisecond.
_GRAIN: Final = 1 << 21
_AGREEMENTS: Final = 4
_ALIGNMENT: Final = 64
_MOST_PARTS: Final = 1024
_SLOT: Final = _STRETCH + _ALIGNMENT * (_MOST_PARTS + 1)
_PATIENCE: Final = 5.0  # seconds, with a worker that was asked to end
# Seconds in which a process that waits for another stays awake: until a core that fell asleep is back, a
# virtual machine loses a millisecond, and now and then ten.
_ATTENTION: Final = 0.005
_LISTEN: Final = bytes(ForkingPickler.dumps(()))  # to a worker: there will be something to do
_ONES: Final = bytes([1]) * 32
_Layout: TypeAlias = tuple[tuple[int, str], ...]  # (elements, type) of each part


class ProcessPool:
    """This process and `processes - 1` others."""

    def __init__(self, processes: int) -> None:
        if not 1 <= processes <= MAX_PROCESSES:
            raise ParameterError(f"processes must be from 1 to {MAX_PROCESSES}")
        self._lock = Lock()  # workers answer in the order in which they are asked
        self._queues = [_Queue() for _ in range(processes)]
        self._workers: list[_Worker] = []
        try:
            for number in range(1, processes):
                self._workers.append(_Worker(number, [queue.end for queue in self._queues]))
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        """Wait until all processes are ready, rather than with the first sum."""
        _warm_up()
        for worker in self._workers:
            worker.wait()
            worker.warm_up()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the workers. The pool goes on as one process."""
        with self._lock:
            for worker in self._workers:
                worker.close()
            for queue in self._queues:
                queue.close()
            self._workers, self._queues = [], []

    def cpu_seconds(self) -> float:
        """CPU seconds that the workers have spent on masks, and on staying awake until they came."""
        return sum(worker.cpu_seconds for worker in self._workers)

    def get_ready(self) -> None:
        """Wake the workers while this process is still busy. If another thread uses them, they are awake."""
        if self._lock.acquire(blocking=False):
            try:
                for worker in self._workers:
                    worker.wake()
            finally:
                self._lock.release()

    def take_off(self, residues: Sequence[Residues], removals: Sequence[Removal], *, salt: bytes) -> None:
        with self._lock:
            if not self._workers or len(residues) > _MOST_PARTS:
                take_off(residues, removals, salt=salt)
                return
            for worker in self._workers:
                worker.wait()  # for what an interrupted call had left it with
            try:
                self._take_off(residues, removals, salt)
            except BaseException:
                for queue in self._queues:
                    queue.clear()  # so that the workers stop as well
                raise

    def _take_off(self, residues: Sequence[Residues], removals: Sequence[Removal], salt: bytes) -> None:
        seeds = self._agree(removals, salt)
        total, masks = sum(part.nbytes for part in residues), sum(map(len, seeds))
        if masks * (total + _CIPHER) < 2 * len(self._queues) * _GRAIN:
            plus, minus = seeds
            apply_masks(residues, plus=plus, minus=minus)
            return
        for stretches in self._rounds(residues, total):
            self._expand([stretch.of(residues) for stretch in stretches], stretches, seeds)

    def _agree(self, removals: Sequence[Removal], salt: bytes) -> Seeds:
        """The seeds of all masks. The order in which masks are added does not matter."""
        lists = divided(removals, self._portions(masks_in(removals), _AGREEMENTS))
        found: dict[int, Seeds] = {}
        if len(lists) > 1:
            self._queues[0].fill(len(lists))
            self._start(agree, lists, salt)
            found |= _agreed(self._queues[0].end, lists, salt)
            for worker in self._workers:
                found |= worker.finish() or {}
        left = [removal for number, each in enumerate(lists) if number not in found for removal in each]
        return joined([*found.values(), seeds_of(left, salt=salt)])

    def _rounds(self, residues: Sequence[Residues], total: int) -> Iterator[list[Slice]]:
        """Stretches that are worked on at the same time, one for each process if they are long enough."""
        count = min(len(self._queues), max(1, total // _SHORT))
        stretches = slices(residues, count * max(1, -(-total // (count * _STRETCH))))
        return (stretches[start : start + count] for start in range(0, len(stretches), count))

    def _expand(self, views: Sequence[list[Residues]], stretches: Sequence[Slice], seeds: Seeds) -> None:
        """One round. What is left in the end, because a worker died, is done here."""
        size = sum(part.nbytes for part in views[0]) + _CIPHER
        ranges = self._portions(sum(map(len, seeds)), -(-_GRAIN // size))
        job = _Job(
            tuple((_layout(view), stretch.skip) for view, stretch in zip(views, stretches, strict=True)),
            [seeds_between(seeds, each) for each in ranges],
        )
        left = {(number, portion) for number in range(len(views)) for portion in range(len(ranges))}
        for queue, _ in zip(self._queues, views, strict=False):
            queue.fill(len(ranges))
        self._start(expand_shared, job)
        for number, view in enumerate(views):
            for portion in _claims(self._queues[number].end):
                job.expand(number, portion, view)
                left.remove((number, portion))
        for worker in self._workers:
            for slot, (number, done) in enumerate(worker.finish() or ()):
                worker.add_to(views[number], slot)
                left.difference_update((number, portion) for portion in done)
        for number, portion in left:
            job.expand(number, portion, views[number])

    def _portions(self, total: int, least: int) -> list[Range]:
        return portions(total, sharers=len(self._queues), least=least)

    def _start(self, function: Callable[..., object], *args: object) -> None:
        """The same task for every worker."""
        task = bytes(ForkingPickler.dumps((function, args)))
        for worker in self._workers:
            worker.start(task)


@dataclass(frozen=True)
class _Job:
    """Stretches, as layouts and bytes of key stream before them, and the seeds of each portion."""

    stretches: tuple[tuple[_Layout, int], ...]
    portions: list[Seeds] = field(repr=False)

    def expand(self, number: int, portion: int, parts: Sequence[Residues]) -> None:
        """Apply the masks of one portion to `parts`, which are one of the stretches."""
        plus, minus = self.portions[portion]
        apply_masks(parts, plus=plus, minus=minus, skip=self.stretches[number][1])


class _Queue:
    """Numbers that several processes take, each number once. They read from `end`."""

    def __init__(self) -> None:
        self.end, self._start = get_context("spawn").Pipe(duplex=False)
        os.set_blocking(self.end.fileno(), False)  # in all processes

    def fill(self, count: int) -> None:
        """With the numbers below `count`, and nothing that an interrupted call had left there."""
        self.clear()
        os.write(self._start.fileno(), bytes(range(count)))

    def clear(self) -> None:
        for _ in _claims(self.end):
            pass

    def close(self) -> None:
        self.end.close()
        self._start.close()


def _claims(end: Connection) -> Iterator[int]:
    """What is left in a queue, taken from it one by one."""
    with suppress(BlockingIOError):
        while number := os.read(end.fileno(), 1):
            yield number[0]


def _receive(end: Connection) -> Any:
    """What comes next, without falling asleep if it comes soon. Others who need the core have it."""
    until = time.monotonic() + _ATTENTION
    while not end.poll() and time.monotonic() < until:
        os.sched_yield()
    return end.recv()


class _Worker:
    """This end of one other process. It does one thing after another, and after any failure nothing more."""

    def __init__(self, number: int, queues: Sequence[Connection]) -> None:
        self._memory = SharedMemory(create=True, size=_SLOTS * _SLOT)
        try:
            self._begin(number, queues)
        except BaseException:
            self._forget_memory()
            raise
        self._alive = True
        self._owed = 1  # answers; the first one when it has come up
        self.cpu_seconds = 0.0

    def _begin(self, number: int, queues: Sequence[Connection]) -> None:
        context = get_context("spawn")
        tasks, self._tasks = context.Pipe(duplex=False)
        self._results, results = context.Pipe(duplex=False)
        ends = (tasks, results, self._memory.name, number, queues)
        self._process = context.Process(target=_serve, args=ends, daemon=True)
        self._process.start()
        tasks.close()
        results.close()

    def wait(self) -> None:
        """Until it is ready for something new. What it finds until then is discarded."""
        while self._alive and self._owed > 0:
            self.finish()

    def wake(self) -> None:
        """Tell it, unless it is at work, that there will be something to do. It does not answer to that."""
        if self._owed == 0:
            self._attempt(0, self._tasks.send_bytes, _LISTEN)

    def start(self, task: bytes) -> None:
        """Hand it something to do. It has finished everything else, and reads."""
        self._attempt(1, self._tasks.send_bytes, task)

    def finish(self) -> Any:
        """What it found, or None if it is dead."""
        result, seconds = self._attempt(-1, _receive, self._results) or (None, 0.0)
        self.cpu_seconds += seconds
        return result

    def _attempt(self, owed: int, step: Callable[..., Any], *args: object) -> Any:
        """One step of the conversation, after which it owes that many answers more.

        Who is interrupted cannot know where the conversation stands, so it ends there.
        """
        if not self._alive:
            return None
        self._alive = False  # until the step is over
        try:
            result = step(*args)
            self._owed += owed
            self._alive = True
        except BaseException as error:
            self._process.kill()
            if isinstance(error, Exception):
                return None
            raise
        return result

    def warm_up(self) -> None:
        _touch(self._memory)

    def add_to(self, parts: Sequence[Residues], slot: int) -> None:
        """Add what it expanded last for one of its stretches."""
        for part, masks in zip(parts, _views(self._memory, _layout(parts), slot), strict=True):
            part += masks

    def close(self) -> None:
        """Ask it to end. It ends even if another process holds its pipe open."""
        self._attempt(0, self._tasks.send, None)
        self._alive = False
        self._process.join(_PATIENCE)
        self._process.kill()
        self._process.join()
        self._tasks.close()
        self._results.close()
        self._forget_memory()

    def _forget_memory(self) -> None:
        self._memory.close()
        with suppress(FileNotFoundError):
            self._memory.unlink()


# --- in a worker --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Desk:
    """What a worker works with: memory that is shared, its number, and the queues of all processes."""

    memory: SharedMemory
    number: int
    queues: Sequence[Connection]


def _serve(
    tasks: Connection, results: Connection, memory: str, number: int, queues: list[Connection]
) -> None:
    """A worker's life."""
    shared = SharedMemory(memory)
    _touch(shared)
    desk = _Desk(shared, number, queues)
    with suppress(EOFError, OSError, KeyboardInterrupt):
        _warm_up()
        results.send((None, 0.0))
        started = time.process_time()
        while (task := _receive(tasks)) is not None:
            if task:
                function, args = task
                result = function(desk, *args)
                finished = time.process_time()
                results.send((result, finished - started))
                started = finished
    shared.close()


def _warm_up() -> None:
    """The first agreement and the first mask of a process take milliseconds; these are for nothing."""
    removals: list[Removal] = [SelfMask(_ONES, b""), PairMasks(_ONES, ((public_key(_ONES), b"", True),))]
    take_off([np.zeros(1, np.uint8)], removals, salt=b"")


def agree(desk: _Desk, lists: Sequence[Sequence[Removal]], salt: bytes) -> dict[int, Seeds]:
    """A worker's share of the seeds."""
    return _agreed(desk.queues[0], lists, salt)


def _agreed(queue: Connection, lists: Sequence[Sequence[Removal]], salt: bytes) -> dict[int, Seeds]:
    """The seeds of those lists that this process took."""
    return {number: seeds_of(lists[number], salt=salt) for number in _claims(queue)}


def expand_shared(desk: _Desk, job: _Job) -> list[tuple[int, list[int]]]:
    """A worker's share of the masks, summed up in shared memory: its own stretch, and others as they fit.

    Returns the stretches in the order in which they are there, each with the portions that it contains.
    """
    found: list[tuple[int, list[int]]] = []
    for step in range(len(job.stretches)):
        number = (desk.number + step) % len(job.stretches)
        if len(found) < _SLOTS and (done := _expand_slot(desk, job, number, slot=len(found))):
            found.append((number, done))
    return found


def _expand_slot(desk: _Desk, job: _Job, number: int, *, slot: int) -> list[int]:
    """One stretch. Its memory is not touched before there is anything to do."""
    done: list[int] = []
    parts = _views(desk.memory, job.stretches[number][0], slot)
    for portion in _claims(desk.queues[number]):
        if not done:
            for part in parts:
                part.fill(0)
        job.expand(number, portion, parts)
        done.append(portion)
    return done


# --- shared memory ------------------------------------------------------------------------------------


def _touch(memory: SharedMemory) -> None:
    """A page that is used for the first time takes microseconds, and there are hundreds."""
    np.ndarray(memory.size, np.uint8, memory.buf).fill(0)


def _layout(parts: Sequence[Residues]) -> _Layout:
    return tuple((len(part), part.dtype.str) for part in parts)


def _views(memory: SharedMemory, layout: _Layout, slot: int) -> list[Residues]:
    """The parts of a stretch in shared memory, each of them aligned."""
    views: list[Residues] = []
    offset = slot * _SLOT
    for size, dtype in layout:
        views.append(np.ndarray(size, dtype, memory.buf, offset))
        offset += -(-views[-1].nbytes // _ALIGNMENT) * _ALIGNMENT
    return views
