"""Masks expanded in several processes: AES holds the interpreter's lock, so threads would not help.

    with ProcessPool(4) as pool:
        server = ServerMachine(..., expander=pool)

The processes first agree on the seeds, then expand them. In both steps a process that is ready takes the
next portion, because the speed of cores varies. A vector is cut into one stretch for each process, and the
masks of each stretch into portions. A process takes the portions of its own stretch first and then helps with
others. Results return in shared memory. A process that waits for another stays awake for some milliseconds,
because waking up can take as long.

`concurrent.futures.ProcessPoolExecutor` does not carry this. It pickles each task and each result through a
pipe, so masks as long as the vector would be copied twice; it has no accumulator in shared memory into which
a worker adds masks in place; and its workers cannot be woken shortly before the work arrives.

Portions are numbers in pipes that all processes read, one byte each, so a worker that dies holds no lock.
It costs time and nothing more: the pool's own process does what no worker reports as done. Secrets reach the
workers only through a pipe for each, and a process writes only to a process that reads. As always with
spawned processes, a script that uses a pool keeps its own work below ``if __name__ == "__main__":``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from multiprocessing.shared_memory import SharedMemory
from threading import Lock
from types import TracebackType
from typing import Any, Final, Self

from secagg.errors import ParameterError
from secagg.expansion import Range, Seeds, Slice, divided, joined, masks_in, portions, seeds_between, slices
from secagg.masking import Removal, seeds_of, take_off
from secagg.masks import apply_masks
from secagg.pool_worker import (
    MAX_PARTS,
    MAX_STRETCH_BYTES,
    SLOT_BYTES,
    SLOTS,
    ExpansionJob,
    PortionQueue,
    agree,
    claimed_seeds,
    claims,
    expand_shared,
    layout_of,
    receive_awake,
    serve,
    shared_views,
    touch,
    warm_up,
)
from secagg.ring import Residues

MAX_PROCESSES: Final = 64
# Least bytes of a stretch: each mask of each stretch needs a cipher, which costs as much as these bytes.
_SHORT: Final = 1 << 17
_CIPHER: Final = 1 << 15
# Least of a portion, in bytes of key stream and in agreements: some tenths of a millisecond.
_GRAIN: Final = 1 << 21
_AGREEMENTS: Final = 4
_PATIENCE: Final = 5.0  # seconds, with a worker that was asked to end
_WAKE: Final = bytes(ForkingPickler.dumps(()))  # to a worker: a task will come


class ProcessPool:
    """This process and `processes - 1` others."""

    def __init__(self, processes: int) -> None:
        if not 1 <= processes <= MAX_PROCESSES:
            raise ParameterError(f"processes must be from 1 to {MAX_PROCESSES}")
        self._lock = Lock()  # workers answer in the order in which they are asked
        self._queues = [PortionQueue() for _ in range(processes)]
        self._workers: list[_Worker] = []
        try:
            for number in range(1, processes):
                self._workers.append(_Worker(number, [queue.end for queue in self._queues]))
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        """Wait until all processes are ready, so that the first sum need not."""
        warm_up()
        for worker in self._workers:
            worker.wait()
            worker.warm_up()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the workers. From then on the pool is this process alone."""
        with self._lock:
            for worker in self._workers:
                worker.close()
            for queue in self._queues:
                queue.close()
            self._workers, self._queues = [], []

    def cpu_seconds(self) -> float:
        """Return the CPU seconds that the workers spent on masks and on staying awake for them."""
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
            if not self._workers or len(residues) > MAX_PARTS:
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
        """Return the seeds of all masks. The order in which masks are added does not matter."""
        lists = divided(removals, self._portions(masks_in(removals), _AGREEMENTS))
        found: dict[int, Seeds] = {}
        if len(lists) > 1:
            self._queues[0].fill(len(lists))
            self._start(agree, lists, salt)
            found |= claimed_seeds(self._queues[0].end, lists, salt)
            for worker in self._workers:
                found |= worker.finish() or {}
        left = [removal for number, each in enumerate(lists) if number not in found for removal in each]
        return joined([*found.values(), seeds_of(left, salt=salt)])

    def _rounds(self, residues: Sequence[Residues], total: int) -> Iterator[list[Slice]]:
        """Yield the stretches of one round: one for each process if they are long enough."""
        count = min(len(self._queues), max(1, total // _SHORT))
        stretches = slices(residues, count * max(1, -(-total // (count * MAX_STRETCH_BYTES))))
        return (stretches[start : start + count] for start in range(0, len(stretches), count))

    def _expand(self, views: Sequence[list[Residues]], stretches: Sequence[Slice], seeds: Seeds) -> None:
        """Expand one round. What a dead worker left undone is done here."""
        size = sum(part.nbytes for part in views[0]) + _CIPHER
        ranges = self._portions(sum(map(len, seeds)), -(-_GRAIN // size))
        job = ExpansionJob(
            tuple((layout_of(view), stretch.skip) for view, stretch in zip(views, stretches, strict=True)),
            [seeds_between(seeds, each) for each in ranges],
        )
        left = {(number, portion) for number in range(len(views)) for portion in range(len(ranges))}
        for queue, _ in zip(self._queues, views, strict=False):
            queue.fill(len(ranges))
        self._start(expand_shared, job)
        for number, view in enumerate(views):
            for portion in claims(self._queues[number].end):
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
        """Send the same task to each worker."""
        task = bytes(ForkingPickler.dumps((function, args)))
        for worker in self._workers:
            worker.start(task)


class _Worker:
    """The pool's end of one other process, which does one task at a time, and none after a failure."""

    def __init__(self, number: int, queues: Sequence[Connection]) -> None:
        self._memory = SharedMemory(create=True, size=SLOTS * SLOT_BYTES)
        try:
            self._begin(number, queues)
        except BaseException:
            self._forget_memory()
            raise
        self._alive = True
        self._owed = 1  # results to come; it sends the first one when it has started
        self.cpu_seconds = 0.0

    def _begin(self, number: int, queues: Sequence[Connection]) -> None:
        context = get_context("spawn")
        tasks, self._tasks = context.Pipe(duplex=False)
        self._results, results = context.Pipe(duplex=False)
        ends = (tasks, results, self._memory.name, number, queues)
        self._process = context.Process(target=serve, args=ends, daemon=True)
        self._process.start()
        tasks.close()
        results.close()

    def wait(self) -> None:
        """Wait until it is ready for a task. Its results until then are discarded."""
        while self._alive and self._owed > 0:
            self.finish()

    def wake(self) -> None:
        """Announce a task, unless it is at work. It sends no result for that."""
        if self._owed == 0:
            self._attempt(0, self._tasks.send_bytes, _WAKE)

    def start(self, task: bytes) -> None:
        """Send a task. It has finished all others, and reads."""
        self._attempt(1, self._tasks.send_bytes, task)

    def finish(self) -> Any:
        """Return its result, or None if it is dead."""
        result, seconds = self._attempt(-1, receive_awake, self._results) or (None, 0.0)
        self.cpu_seconds += seconds
        return result

    def _attempt(self, owed: int, step: Callable[..., Any], *args: object) -> Any:
        """Write to it or read from it; afterwards it owes `owed` more results.

        After an interrupt it is unknown what is still in the pipes, so the worker is killed.
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
        touch(self._memory)

    def add_to(self, parts: Sequence[Residues], slot: int) -> None:
        """Add the masks that it expanded last for one of its stretches."""
        for part, masks in zip(parts, shared_views(self._memory, layout_of(parts), slot), strict=True):
            part += masks

    def close(self) -> None:
        """End it, even if another process holds its pipe open."""
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
