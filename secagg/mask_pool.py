"""Removes masks in several processes. AES holds the interpreter's lock, so threads would not help.

    with ProcessPool(4) as pool:
        server = ServerMachine(..., expander=pool)

The work has two steps: to derive the seeds of all masks by key agreement, and to expand the seeds into masks.
In both steps a process claims the next portion of the work when it is ready, because the speed of cores
varies. For the second step, a vector is cut into one stretch for each process, and the masks are divided into
portions. A process claims the portions of its own stretch first, and then those of others. Workers return
sums of masks in shared memory. An idle process polls before it sleeps, because waking up is slow.

`concurrent.futures.ProcessPoolExecutor` is not enough: it sends results, as long as the vector, through pipes
instead of shared memory, and its workers cannot be woken shortly before the work arrives.

To claim a portion, a process reads its index, one byte, from a pipe that all processes read. So a dead worker
holds no lock. It only costs time: the pool's own process repeats all work that no worker has reported.
Secrets are sent to each worker through its own pipe. A process writes to a pipe only while the other end is
being read. A script that uses a pool keeps its own work below ``if __name__ == "__main__":``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from multiprocessing.shared_memory import SharedMemory
from threading import Lock
from typing import Any, Final, Self

from secagg import mask_pool_worker
from secagg.errors import ParameterError
from secagg.mask_keystream import apply_masks
from secagg.mask_pool_worker import ExpansionJob, PortionQueue, claimed_seeds, claims, layout_of, shared_views
from secagg.mask_work_division import Range, Slice, divided, mask_count, portions, seeds_between, slices
from secagg.residue_packing import Residues
from secagg.self_and_pair_masks import Removal, Seeds, joined, seeds_of, take_off

MAX_PROCESSES: Final = 64
_SHORT: Final = 1 << 17  # least bytes of a stretch
_CIPHER: Final = 1 << 15  # bytes of key stream that take as long as to make a cipher, one for each mask
# Least size of a portion, in bytes of key stream and in key agreements: some tenths of a millisecond.
_GRAIN: Final = 1 << 21
_AGREEMENTS: Final = 4
_PATIENCE: Final = 5.0  # seconds in which a worker must end when it is told to
_WAKE: Final = bytes(ForkingPickler.dumps(()))  # tells a worker that a task will follow soon


class ProcessPool:
    """An `Expander` (remover of masks) that uses this process and `processes - 1` others, up to 64 in all."""

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
        """Wait until all workers are ready, so that the first call of `take_off` is not delayed."""
        mask_pool_worker.warm_up()
        for worker in self._workers:
            worker.wait()
            worker.warm_up()
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        """End the worker processes. After this, `take_off` does all work in this process."""
        with self._lock:
            for worker in self._workers:
                worker.close()
            for queue in self._queues:
                queue.close()
            self._workers, self._queues = [], []

    def cpu_seconds(self) -> float:
        """Return the CPU seconds that the workers have spent on masks, and on polling for further tasks."""
        return sum(worker.cpu_seconds for worker in self._workers)

    def get_ready(self) -> None:
        """Wake the workers, so that they are ready for `take_off`. Do nothing if another thread uses them."""
        if self._lock.acquire(blocking=False):
            try:
                for worker in self._workers:
                    worker.wake()
            finally:
                self._lock.release()

    def take_off(self, residues: Sequence[Residues], removals: Sequence[Removal], *, salt: bytes) -> None:
        with self._lock:
            if not self._workers or len(residues) > mask_pool_worker.MAX_PARTS:
                take_off(residues, removals, salt=salt)
                return
            for worker in self._workers:
                worker.wait()  # until it has finished the tasks of an interrupted call
            try:
                self._take_off(residues, removals, salt)
            except BaseException:
                for queue in self._queues:
                    queue.clear()  # then the workers find no more portions, and stop
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
        """Return the seeds of all masks in `removals`, in any order. All processes derive some of them."""
        lists = divided(removals, self._portions(mask_count(removals), _AGREEMENTS))
        found: dict[int, Seeds] = {}
        if len(lists) > 1:
            self._queues[0].fill(len(lists))
            self._start(mask_pool_worker.agree, lists, salt)
            found |= claimed_seeds(self._queues[0].end, lists, salt)
            for worker in self._workers:
                found |= worker.finish() or {}
        left = [removal for number, each in enumerate(lists) if number not in found for removal in each]
        return joined([*found.values(), seeds_of(left, salt=salt)])

    def _rounds(self, residues: Sequence[Residues], total: int) -> Iterator[list[Slice]]:
        """Cut a vector of `total` bytes into stretches. Yield lists with at most one stretch per process."""
        count = min(len(self._queues), max(1, total // _SHORT))
        stretches = slices(
            residues, count * max(1, -(-total // (count * mask_pool_worker.MAX_STRETCH_BYTES)))
        )
        return (stretches[start : start + count] for start in range(0, len(stretches), count))

    def _expand(self, views: Sequence[list[Residues]], stretches: Sequence[Slice], seeds: Seeds) -> None:
        """Apply the masks of all `seeds` to `views[i]`, the elements of `stretches[i]`, for each i. All
        processes share the work. This one repeats what a worker that died has not reported as done."""
        size = sum(part.nbytes for part in views[0]) + _CIPHER
        ranges = self._portions(sum(map(len, seeds)), -(-_GRAIN // size))
        job = ExpansionJob(
            tuple((layout_of(view), stretch.skip) for view, stretch in zip(views, stretches, strict=True)),
            [seeds_between(seeds, each) for each in ranges],
        )
        left = {(number, portion) for number in range(len(views)) for portion in range(len(ranges))}
        for queue, _ in zip(self._queues, views, strict=False):
            queue.fill(len(ranges))
        self._start(mask_pool_worker.expand_shared, job)
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
        """Send each worker the same task: to call `function(workspace, *args)` with its own `Workspace`."""
        task = bytes(ForkingPickler.dumps((function, args)))
        for worker in self._workers:
            worker.start(task)


class _Worker:
    """The pool's handle for one worker process, which gets one task at a time, and none after a failure."""

    def __init__(self, number: int, queues: Sequence[Connection]) -> None:
        self._memory = SharedMemory(create=True, size=mask_pool_worker.SLOTS * mask_pool_worker.SLOT_BYTES)
        try:
            self._begin(number, queues)
        except BaseException:
            self._forget_memory()
            raise
        self._alive = True
        self._owed = 1  # results that the worker will send; it sends the first when it has started
        self.cpu_seconds = 0.0

    def _begin(self, number: int, queues: Sequence[Connection]) -> None:
        context = get_context("spawn")
        tasks, self._tasks = context.Pipe(duplex=False)
        self._results, results = context.Pipe(duplex=False)
        ends = (tasks, results, self._memory.name, number, queues)
        self._process = context.Process(target=mask_pool_worker.serve, args=ends, daemon=True)
        self._process.start()
        tasks.close()
        results.close()

    def wait(self) -> None:
        """Wait until the worker has sent all results of earlier tasks, and discard them."""
        while self._alive and self._owed > 0:
            self.finish()

    def wake(self) -> None:
        """Tell a worker, if it is idle, that a task will follow soon. The worker sends no result for this."""
        if self._owed == 0:
            self._attempt(0, self._tasks.send_bytes, _WAKE)

    def start(self, task: bytes) -> None:
        """Send a task to the worker. The worker must have finished all earlier tasks."""
        self._attempt(1, self._tasks.send_bytes, task)

    def finish(self) -> Any:
        """Wait for the result of the worker's oldest task and return it, or None if the worker is dead."""
        result, seconds = self._attempt(-1, mask_pool_worker.receive_awake, self._results) or (None, 0.0)
        self.cpu_seconds += seconds
        return result

    def _attempt(self, owed: int, step: Callable[..., Any], *args: object) -> Any:
        """Call `step`, which writes to or reads from the worker, and add `owed` to the number of results due.
        Return its result, or None if the worker is dead or `step` fails. A failure or an interrupt may leave
        part of a message in a pipe, so the worker is killed."""
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
        mask_pool_worker.touch(self._memory)

    def add_to(self, parts: Sequence[Residues], slot: int) -> None:
        """Add to `parts` the sum of masks that the worker left in `slot` of its shared memory."""
        for part, masks in zip(parts, shared_views(self._memory, layout_of(parts), slot), strict=True):
            part += masks

    def close(self) -> None:
        """End the worker process: ask it to end, and kill it if it does not."""
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
