"""The code of a worker process, which claims portions of the work and adds up masks in shared memory.

The pool (`secagg.mask_pool`) puts the indices of portions into queues, which are pipes, and sends a task to
each worker. Each process, the pool's own included, claims portions until the queues are empty.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.shared_memory import SharedMemory
from typing import Any, Final, TypeAlias

import numpy as np

from secagg.keys import public_key
from secagg.mask_keystream import apply_masks
from secagg.residue_packing import Residues
from secagg.self_and_pair_masks import PairMasks, Removal, Seeds, SelfMask, seeds_of, take_off

# The largest stretch in bytes, and how many a worker's memory holds: containers have little shared memory.
MAX_STRETCH_BYTES: Final = 1 << 21
SLOTS: Final = 2
MAX_PARTS: Final = 1024
_ALIGNMENT: Final = 64
SLOT_BYTES: Final = MAX_STRETCH_BYTES + _ALIGNMENT * (MAX_PARTS + 1)
# Seconds for which a waiting process stays awake. In a virtual machine, a core that sleeps needs one
# millisecond to wake up, and sometimes ten.
_ATTENTION: Final = 0.005
_ONES: Final = bytes([1]) * 32
Layout: TypeAlias = tuple[tuple[int, str], ...]  # (elements, type) of each part


@dataclass(frozen=True)
class ExpansionJob:
    """A task for all processes: apply the mask of every seed in `portions` to every stretch of a vector."""

    stretches: tuple[tuple[Layout, int], ...]  # of each, its layout and the key-stream bytes before it
    portions: list[Seeds] = field(repr=False)

    def expand(self, number: int, portion: int, parts: Sequence[Residues]) -> None:
        """Apply the masks of seeds `portions[portion]` in place to `parts`, arrays of stretch `number`."""
        plus, minus = self.portions[portion]
        apply_masks(parts, plus=plus, minus=minus, skip=self.stretches[number][1])


class PortionQueue:
    """A queue of the indices of unclaimed portions, made of a pipe. Many processes read from its `end`."""

    def __init__(self) -> None:
        self.end, self._start = get_context("spawn").Pipe(duplex=False)
        os.set_blocking(self.end.fileno(), False)  # in all processes

    def fill(self, count: int) -> None:
        """Empty the queue, then put in the indices 0 to `count` - 1 of portions. `count` is at most 256."""
        self.clear()
        os.write(self._start.fileno(), bytes(range(count)))

    def clear(self) -> None:
        for _ in claims(self.end):
            pass

    def close(self) -> None:
        self.end.close()
        self._start.close()


def claims(end: Connection) -> Iterator[int]:
    """Read indices of unclaimed portions of work from a queue, and yield each, until the queue is empty."""
    with suppress(BlockingIOError):
        while number := os.read(end.fileno(), 1):
            yield number[0]


def receive_awake(end: Connection) -> Any:
    """Return the next object from a pipe. Poll `_ATTENTION` seconds before sleeping: waking up is slow."""
    until = time.monotonic() + _ATTENTION
    while not end.poll() and time.monotonic() < until:
        os.sched_yield()
    return end.recv()


@dataclass(frozen=True)
class Workspace:
    """What a worker uses: its shared memory, its number in the pool, and the queues of unclaimed portions."""

    memory: SharedMemory
    number: int
    queues: Sequence[Connection]


def serve(tasks: Connection, results: Connection, memory: str, number: int, queues: list[Connection]) -> None:
    """Run worker `number`: execute tasks, and send results, until None arrives or the pipe is closed."""
    shared = SharedMemory(memory)
    touch(shared)
    workspace = Workspace(shared, number, queues)
    with suppress(EOFError, OSError, KeyboardInterrupt):
        warm_up()
        results.send((None, 0.0))
        started = time.process_time()
        while (task := receive_awake(tasks)) is not None:
            if task:
                function, args = task
                result = function(workspace, *args)
                finished = time.process_time()
                results.send((result, finished - started))
                started = finished
    shared.close()


def warm_up() -> None:
    """Compute one key agreement and two masks, because the first ones in a process take milliseconds."""
    removals: list[Removal] = [SelfMask(_ONES, b""), PairMasks(_ONES, ((public_key(_ONES), b"", True, b""),))]
    take_off([np.zeros(1, np.uint8)], removals, salt=b"")


def agree(workspace: Workspace, lists: Sequence[Sequence[Removal]], salt: bytes) -> dict[int, Seeds]:
    """A task for a worker: return `claimed_seeds`, with the pool's first queue, which all processes share."""
    return claimed_seeds(workspace.queues[0], lists, salt)


def claimed_seeds(queue: Connection, lists: Sequence[Sequence[Removal]], salt: bytes) -> dict[int, Seeds]:
    """Claim indices of `lists` until `queue` is empty. Return, by index, the mask seeds of these lists."""
    return {number: seeds_of(lists[number], salt=salt) for number in claims(queue)}


def expand_shared(workspace: Workspace, job: ExpansionJob) -> list[tuple[int, list[int]]]:
    """Claim portions of seeds for the worker's own stretch, then for others. Sum their masks in shared
    memory, one slot per stretch. Return, for each slot used, the indices of its stretch and its portions."""
    found: list[tuple[int, list[int]]] = []
    for step in range(len(job.stretches)):
        number = (workspace.number + step) % len(job.stretches)
        if len(found) < SLOTS and (done := _expand_slot(workspace, job, number, slot=len(found))):
            found.append((number, done))
    return found


def _expand_slot(workspace: Workspace, job: ExpansionJob, number: int, *, slot: int) -> list[int]:
    """Claim the unclaimed portions for stretch `number`, sum their masks in `slot`, return their indices."""
    done: list[int] = []
    parts = shared_views(workspace.memory, job.stretches[number][0], slot)
    for portion in claims(workspace.queues[number]):
        if not done:
            for part in parts:
                part.fill(0)
        job.expand(number, portion, parts)
        done.append(portion)
    return done


def touch(memory: SharedMemory) -> None:
    """Write zeros to all of `memory` in advance, because the first use of each page takes microseconds."""
    np.ndarray(memory.size, np.uint8, memory.buf).fill(0)


def layout_of(parts: Sequence[Residues]) -> Layout:
    return tuple((len(part), part.dtype.str) for part in parts)


def shared_views(memory: SharedMemory, layout: Layout, slot: int) -> list[Residues]:
    """Return an array for each part in `layout`: aligned views into the memory of slot number `slot`."""
    views: list[Residues] = []
    offset = slot * SLOT_BYTES
    for size, dtype in layout:
        views.append(np.ndarray(size, dtype, memory.buf, offset))
        offset += -(-views[-1].nbytes // _ALIGNMENT) * _ALIGNMENT
    return views
