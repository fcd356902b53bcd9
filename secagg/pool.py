"""Masks expanded in several processes: AES holds the interpreter's lock, so threads would not help.

    with ProcessPool(4) as pool:
        server = ServerMachine(..., expander=pool)

Secrets reach the workers through pipes and nothing else. A worker that dies costs time and nothing more: its
share is done here. As always with processes that are spawned, a script that uses a pool keeps its own work
below ``if __name__ == "__main__":``.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Final, Self, TypeAlias

import numpy as np

from secagg.errors import ParameterError
from secagg.expansion import split
from secagg.masking import Removal, take_off
from secagg.ring import Residues

MAX_PROCESSES: Final = 256
_Layout: TypeAlias = tuple[tuple[int, str], ...]  # (elements, type) of each part
_Task: TypeAlias = tuple[_Layout, list[Removal], bytes]


class ProcessPool:
    """This process and `processes - 1` others. Each needs the memory of one more vector."""

    def __init__(self, processes: int) -> None:
        if not 1 <= processes <= MAX_PROCESSES:
            raise ParameterError(f"processes must be from 1 to {MAX_PROCESSES}")
        self._workers = [_Worker() for _ in range(processes - 1)]

    def __enter__(self) -> Self:
        """Wait until the workers are ready, rather than with the first sum."""
        for worker in self._workers:
            worker.wait()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the workers. The pool goes on as one process."""
        for worker in self._workers:
            worker.close()

    def cpu_seconds(self) -> float:
        """CPU seconds that the workers have spent on masks."""
        return sum(worker.cpu_seconds for worker in self._workers)

    def take_off(self, residues: Sequence[Residues], removals: Sequence[Removal], *, salt: bytes) -> None:
        own, *others = split(removals, 1 + len(self._workers))
        layout = tuple((len(part), part.dtype.str) for part in residues)
        shares = [(worker, share) for worker, share in zip(self._workers, others, strict=True) if share]
        started = [worker.start((layout, share, salt)) for worker, share in shares]
        take_off(residues, own, salt=salt)
        for (worker, share), running in zip(shares, started, strict=True):
            if not (running and worker.finish(residues)):
                take_off(residues, share, salt=salt)


class _Worker:
    """This end of one other process."""

    def __init__(self) -> None:
        context = get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs,), daemon=True)
        self._process.start()
        theirs.close()
        self._ready = False
        self.cpu_seconds = 0.0

    def wait(self) -> bool:
        """Whether it is alive and at work."""
        with suppress(EOFError, OSError):
            self._ready = self._ready or self._pipe.recv() == "ready"
            return True
        return False

    def start(self, task: _Task) -> bool:
        """Hand it a share, if it can be had."""
        with suppress(OSError):
            if self.wait():
                self._pipe.send(task)
                return True
        return False

    def finish(self, residues: Sequence[Residues]) -> bool:
        """Add its result, if there is one; all of it or nothing."""
        parts = [np.empty_like(part) for part in residues]
        try:
            seconds: float = self._pipe.recv()
            for part in parts:
                self._pipe.recv_bytes_into(part.data.cast("B"))
        except (EOFError, OSError):
            return False
        self.cpu_seconds += seconds
        for total, part in zip(residues, parts, strict=True):
            total += part
        return True

    def close(self) -> None:
        self._pipe.close()  # which is what ends it
        self._process.join()


def _serve(pipe: Connection) -> None:
    """A worker's life: what removals change in a total, and the CPU seconds it took."""
    with suppress(EOFError, OSError, KeyboardInterrupt):
        pipe.send("ready")
        while True:
            layout, removals, salt = pipe.recv()
            started = time.process_time()
            residues = [np.zeros(size, dtype) for size, dtype in layout]
            take_off(residues, removals, salt=salt)
            pipe.send(time.process_time() - started)
            for part in residues:
                pipe.send_bytes(part.data.cast("B"))
