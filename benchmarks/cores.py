"""The most that two processes can gain: bare AES and numpy additions, in one process and in two at once.

Two cores are not always twice as fast as one: they share clock and memory, and a virtual machine shares them
with other machines. No masks are distributed here, and no process waits for another: each counts the blocks
that it completes within the same tenth of a second.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Final, Self

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

BLOCK: Final = 1 << 17  # bytes that stay in the cache
_PERIOD: Final = 0.1  # seconds in which blocks are counted
_RUN_UP: Final = 0.02  # seconds before them, until all processes are at work


@dataclass(frozen=True)
class Rates:
    """Bytes of masks that are made and added per second, by one process and by two together."""

    one: float
    two: float

    @property
    def ratio(self) -> float:
        """The time that two need relative to that of one, for the same work."""
        return self.one / self.two


class Cores:
    """Two processes that can work alone or at the same time."""

    def __init__(self) -> None:
        self._samples: list[Rates] = []
        context = get_context("spawn")
        self._pipes, others = zip(*(context.Pipe() for _ in range(2)), strict=True)
        self._processes = [context.Process(target=labour, args=(each,), daemon=True) for each in others]
        for process, other in zip(self._processes, others, strict=True):
            process.start()
            other.close()

    def __enter__(self) -> Self:
        """Wait until both have started."""
        for pipe in self._pipes:
            pipe.recv()
        return self

    def __exit__(self, *_: object) -> None:
        """Close the pipes, which ends the processes."""
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.join()

    def sample(self) -> None:
        """Measure one process, then both. Take turns with the other measurement: clocks drift."""
        self._samples.append(Rates(self._rate(self._pipes[:1]), self._rate(self._pipes)))

    def rates(self) -> Rates:
        """Return the best rate of one and of two over all samples."""
        return Rates(max(each.one for each in self._samples), max(each.two for each in self._samples))

    def _rate(self, pipes: Sequence[Connection]) -> float:
        begin = time.monotonic() + _RUN_UP  # which is the same clock in all processes
        for pipe in pipes:
            pipe.send((begin, begin + _PERIOD))
        blocks: int = sum(pipe.recv() for pipe in pipes)
        return blocks * BLOCK / _PERIOD


def labour(pipe: Connection) -> None:
    """Run a process: report, then count the blocks of each period that it is told."""
    work = _work()
    with suppress(EOFError, OSError, KeyboardInterrupt):
        pipe.send(None)
        while True:
            begin, end = pipe.recv()
            blocks = 0
            while (now := time.monotonic()) < end:
                work()
                blocks += now >= begin
            pipe.send(blocks)


def _work() -> Callable[[], None]:
    """Make and add one block of a mask."""
    encryptor = Cipher(algorithms.AES128(bytes(16)), modes.CTR(bytes(16))).encryptor()
    zeros, made = bytes(BLOCK), np.empty(BLOCK // 4, np.uint32)
    total = np.zeros_like(made)
    block = made.view(np.uint8).data

    def work() -> None:
        encryptor.update_into(zeros, block)
        np.add(total, made, out=total)

    return work
