"""Masks expanded in several processes: AES holds the interpreter's lock, so threads would not help.

    with ProcessPool(4) as pool:
        server = ServerMachine(..., expander=pool)

Each process agrees on its share of the seeds, and expands all of them for its stretches of the vector, which
return in shared memory. Secrets reach the workers through pipes and nothing else. A worker that dies
costs time and nothing more: its share is done here. As always with processes that are spawned, a script that
uses a pool keeps its own work below ``if __name__ == "__main__":``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.shared_memory import SharedMemory
from threading import Lock
from types import TracebackType
from typing import Any, Final, Self, TypeAlias

import numpy as np

from secagg.errors import ParameterError
from secagg.expansion import Slice, slices, split
from secagg.keys import public_key
from secagg.masking import PairMasks, Removal, SelfMask, seeds_of, take_off
from secagg.masks import apply_masks
from secagg.ring import Residues

MAX_PROCESSES: Final = 64
# Bytes of the vector that a worker expands at a time. Containers have little shared memory.
_STRETCH: Final = 1 << 21
# Below this many bytes, handing out stretches costs more than it saves.
_LARGE: Final = 1 << 18
_ALIGNMENT: Final = 64
_MOST_PARTS: Final = 1024
_PATIENCE: Final = 5.0  # seconds, with a worker that was asked to end
_ONES: Final = bytes([1]) * 32
_Layout: TypeAlias = tuple[tuple[int, str], ...]  # (elements, type) of each part
_Seeds: TypeAlias = tuple[list[bytes], list[bytes]]  # of masks to add, and to subtract


class ProcessPool:
    """This process and `processes - 1` others."""

    def __init__(self, processes: int) -> None:
        if not 1 <= processes <= MAX_PROCESSES:
            raise ParameterError(f"processes must be from 1 to {MAX_PROCESSES}")
        self._lock = Lock()  # workers answer in the order in which they are asked
        self._workers: list[_Worker] = []
        try:
            for _ in range(processes - 1):
                self._workers.append(_Worker())
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
            self._workers = []

    def cpu_seconds(self) -> float:
        """CPU seconds that the workers have spent on masks."""
        return sum(worker.cpu_seconds for worker in self._workers)

    def take_off(self, residues: Sequence[Residues], removals: Sequence[Removal], *, salt: bytes) -> None:
        with self._lock:
            self._take_off(residues, removals, salt)

    def _take_off(self, residues: Sequence[Residues], removals: Sequence[Removal], salt: bytes) -> None:
        """Masks whose seeds were agreed on here come first: meanwhile, the workers agree on the others."""
        own, *shares = split(removals, 1 + len(self._workers))
        for worker, share in zip(self._workers, shares, strict=True):
            worker.wait()  # for what an interrupted call had left it with
            worker.start(agree, share, salt)
        mine, theirs = seeds_of(own, salt=salt), None
        for stretch, *others in self._rounds(residues):
            team = list(zip(self._workers, others, strict=False))
            for worker, other in team:
                worker.start(expand_shared, _layout(other.of(residues)), mine, other.skip, True)
            _expand(residues, stretch, mine)
            theirs = theirs or self._collected(shares, salt)
            for worker, other in team:
                worker.start(expand_shared, _layout(other.of(residues)), theirs, other.skip, False)
            _expand(residues, stretch, theirs)
            for worker, other in team:
                _add(worker, residues, other, (mine, theirs))

    def _rounds(self, residues: Sequence[Residues]) -> Iterator[list[Slice]]:
        """Stretches that are worked on at the same time, the first of them here."""
        total = sum(part.nbytes for part in residues)
        alone = total < _LARGE or len(residues) > _MOST_PARTS
        team = 1 if alone else 1 + len(self._workers)
        stretches = slices(residues, team * max(1, -(-total // (team * _STRETCH))))
        return (stretches[start : start + team] for start in range(0, len(stretches), team))

    def _collected(self, shares: Sequence[Sequence[Removal]], salt: bytes) -> _Seeds:
        """The seeds that the workers agreed on."""
        plus: list[bytes] = []
        minus: list[bytes] = []
        for worker, share in zip(self._workers, shares, strict=True):
            more_plus, more_minus = worker.finish() or seeds_of(share, salt=salt)
            plus += more_plus
            minus += more_minus
        return plus, minus


class _Worker:
    """This end of one other process. It does one thing after another, and after any failure nothing more."""

    def __init__(self) -> None:
        self._memory = SharedMemory(create=True, size=_STRETCH + _ALIGNMENT * (_MOST_PARTS + 1))
        try:
            self._begin()
        except BaseException:
            self._forget_memory()
            raise
        self._alive = True
        self._owed = 1  # answers; the first one when it has come up
        self.cpu_seconds = 0.0

    def _begin(self) -> None:
        context = get_context("spawn")
        tasks, self._tasks = context.Pipe(duplex=False)
        self._results, results = context.Pipe(duplex=False)
        ends = (tasks, results, self._memory.name)
        self._process = context.Process(target=_serve, args=ends, daemon=True)
        self._process.start()
        tasks.close()
        results.close()

    def wait(self) -> None:
        """Until it is ready for something new. Nobody is interested any more in what it finds until then."""
        while self._owed > 0:
            self.finish()

    def start(self, function: Callable[..., object], *args: object) -> None:
        """Hand it something to do, after what it already has."""
        self._owed += 1
        self._attempt(self._tasks.send, (function, args))

    def finish(self) -> Any:
        """What it found, or None if it is dead."""
        self._owed -= 1
        result, seconds = self._attempt(self._results.recv) or (None, 0.0)
        self.cpu_seconds += seconds
        return result

    def _attempt(self, step: Callable[..., Any], *args: object) -> Any:
        """One step of the conversation. Who interrupts it cannot know where it stands, so it ends there."""
        if not self._alive:
            return None
        try:
            return step(*args)
        except BaseException as error:
            self._alive = False
            self._process.kill()
            if isinstance(error, Exception):
                return None
            raise

    def warm_up(self) -> None:
        _touch(self._memory)

    def add_to(self, parts: Sequence[Residues]) -> None:
        """Add what it expanded last."""
        for part, masks in zip(parts, _views(self._memory, _layout(parts)), strict=True):
            part += masks

    def close(self) -> None:
        """Ask it to end; whoever holds its pipe open in another process, it does not live on."""
        self._attempt(self._tasks.send, None)
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


def _expand(residues: Sequence[Residues], stretch: Slice, seeds: _Seeds) -> None:
    plus, minus = seeds
    apply_masks(stretch.of(residues), plus=plus, minus=minus, skip=stretch.skip)


def _add(worker: _Worker, residues: Sequence[Residues], stretch: Slice, waves: Sequence[_Seeds]) -> None:
    """What a worker expanded in several waves; if it is dead, it is done here."""
    if all(worker.finish() for _ in waves):
        worker.add_to(stretch.of(residues))
        return
    for seeds in waves:
        _expand(residues, stretch, seeds)


# --- in a worker --------------------------------------------------------------------------------------


def _serve(tasks: Connection, results: Connection, memory: str) -> None:
    """A worker's life."""
    shared = SharedMemory(memory)
    _touch(shared)
    with suppress(EOFError, OSError, KeyboardInterrupt):
        _warm_up()
        results.send((None, 0.0))
        while (task := tasks.recv()) is not None:
            function, args = task
            started = time.process_time()
            result = function(shared, *args)
            results.send((result, time.process_time() - started))
    shared.close()


def _warm_up() -> None:
    """The first agreement and the first mask of a process take milliseconds; these are for nothing."""
    removals: list[Removal] = [SelfMask(_ONES, b""), PairMasks(_ONES, ((public_key(_ONES), b"", True),))]
    take_off([np.zeros(1, np.uint8)], removals, salt=b"")


def agree(_: SharedMemory, removals: Sequence[Removal], salt: bytes) -> _Seeds:
    """A worker's share of the seeds."""
    return seeds_of(removals, salt=salt)


def expand_shared(memory: SharedMemory, layout: _Layout, seeds: _Seeds, skip: int, fresh: bool) -> bool:
    """Masks of one stretch, summed up in shared memory: from zero, or with what is there."""
    parts = _views(memory, layout)
    if fresh:
        for part in parts:
            part.fill(0)
    plus, minus = seeds
    apply_masks(parts, plus=plus, minus=minus, skip=skip)
    return True


# --- shared memory ------------------------------------------------------------------------------------


def _touch(memory: SharedMemory) -> None:
    """A page that is used for the first time takes microseconds, and there are hundreds."""
    np.ndarray(memory.size, np.uint8, memory.buf).fill(0)


def _layout(parts: Sequence[Residues]) -> _Layout:
    return tuple((len(part), part.dtype.str) for part in parts)


def _views(memory: SharedMemory, layout: _Layout) -> list[Residues]:
    """The parts of a stretch in shared memory, each of them aligned."""
    views: list[Residues] = []
    offset = 0
    for size, dtype in layout:
        views.append(np.ndarray(size, dtype, memory.buf, offset))
        offset += -(-views[-1].nbytes // _ALIGNMENT) * _ALIGNMENT
    return views
