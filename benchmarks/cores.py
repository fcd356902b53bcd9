"""What two processes gain at most: bare AES and additions of numpy, in one process and in two at once.

Two cores are not always twice as fast as one: they share clock and memory, and those of a virtual machine
are shared with strangers. No masks are handed out here and nobody waits for another: each process counts
the blocks that it gets done within the same tenth of a second.
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
    """Bytes of masks that are made and added in a second of the clock, by one process and by two together."""

    one: float
    two: float

    @property
    def ratio(self) -> float:
        """Of the time that two need to that of one, for the same work."""
        return self.one / self.two


class Cores:
    """Two processes that can be set to work, alone or at the same time."""

    def __init__(self) -> None:
        self._samples: list[Rates] = []
        context = get_context("spawn")
        self._pipes, others = zip(*(context.Pipe() for _ in range(2)), strict=True)
        self._processes = [context.Process(target=labour, args=(each,), daemon=True) for each in others]
        for process, other in zip(self._processes, others, strict=True):
            process.start()
            other.close()

    def __enter__(self) -> Self:
        """Wait until both have come up."""
        for pipe in self._pipes:
            pipe.recv()
        return self

    def __exit__(self, *_: object) -> None:
        """They end with their pipes."""
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.join()

    def sample(self) -> None:
        """Let one work, then both: called in turns with what is set against it, because clocks drift."""
        self._samples.append(Rates(self._rate(self._pipes[:1]), self._rate(self._pipes)))

    def rates(self) -> Rates:
        """The best of one and the best of two in any of the samples."""
        return Rates(max(each.one for each in self._samples), max(each.two for each in self._samples))

    def _rate(self, pipes: Sequence[Connection]) -> float:
        begin = time.monotonic() + _RUN_UP  # which is the same clock in all processes
        for pipe in pipes:
            pipe.send((begin, begin + _PERIOD))
        blocks: int = sum(pipe.recv() for pipe in pipes)
        return blocks * BLOCK / _PERIOD


def labour(pipe: Connection) -> None:
    """The life of a process: report, then count the blocks of each period that it is told."""
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
    """One block of a mask, made and added."""
    encryptor = Cipher(algorithms.AES128(bytes(16)), modes.CTR(bytes(16))).encryptor()
    zeros, made = bytes(BLOCK), np.empty(BLOCK // 4, np.uint32)
    total = np.zeros_like(made)
    block = made.view(np.uint8).data

    def work() -> None:
        encryptor.update_into(zeros, block)
        np.add(total, made, out=total)

    return work
