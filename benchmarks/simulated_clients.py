"""The clients of a benchmark, all in this process, and their costs and bytes."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from functools import wraps
from statistics import median
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from benchmarks.patches import Function, Patches
from benchmarks.sum_setting import PART
from secagg import ClientMachine, mask_keystream, residue_packing
from secagg.events import Asked
from secagg.input_encoding import Encoded, Encoding
from secagg.residue_packing import Residues

_SEED: Final = 7
Result = TypeVar("Result")


class Chore(StrEnum):
    """A task of a client that is timed."""

    SETUP = "set-up"
    QUERY = "query"
    ENCODE = "encode"
    MASK = "mask"
    CONFIRM = "confirm"
    REVEAL = "reveal"


class PlainSum:
    """The sum of the integers that clients encode, taken before they are masked, and the time of it.

    There is one accumulator for all clients.
    """

    def __init__(self) -> None:
        self.encode_seconds = 0.0  # of the last vector
        self.seconds = 0.0  # the same, and of adding it here
        self.masks = 0  # that were then put on it
        self._encoding: Encoding | None = None
        self._total: tuple[Residues, ...] = ()
        self._contributors = 0

    @contextmanager
    def watching(self) -> Iterator[None]:
        with Patches() as patches:
            patches.replace(Encoding, "encode", self._watched)
            patches.replace(mask_keystream, "apply_masks", self._counted)
            yield

    def _watched(self, encode: Function) -> Function:
        @wraps(encode)
        def watched(encoding: Encoding, *args: Any, **kwargs: Any) -> Encoded:
            started = time.thread_time()
            encoded: Encoded = encode(encoding, *args, **kwargs)
            self.encode_seconds = time.thread_time() - started
            self._add(encoding, encoded.residues)
            self.seconds = time.thread_time() - started
            return encoded

        return watched

    def _counted(self, apply_masks: Function) -> Function:
        @wraps(apply_masks)
        def counted(residues: Sequence[Residues], *, plus: Sequence[bytes], minus: Sequence[bytes]) -> None:
            self.masks = len(plus) + len(minus)
            apply_masks(residues, plus=plus, minus=minus)

        return counted

    def _add(self, encoding: Encoding, residues: Sequence[Residues]) -> None:
        if self._encoding is None:
            self._encoding = encoding
            self._total = encoding.zeros()
        for total, part in zip(self._total, residues, strict=True):
            np.add(total, part, out=total)
        self._contributors += 1

    def residues(self, bits: int) -> Residues:
        """Return the residues that a server must end with, modulo 2^bits: floats would hide the last ones."""
        total = self._total[0]
        residue_packing.reduce(total, bits)
        return total


class Crowd:
    """Passes frames to clients, one client at a time, and records their costs."""

    def __init__(self, clients: dict[int, ClientMachine], dim: int) -> None:
        self._clients = clients
        self._dim = dim
        self._seconds: dict[Chore, dict[int, float]] = {chore: defaultdict(float) for chore in Chore}
        self._up: defaultdict[int, int] = defaultdict(int)
        self._down: defaultdict[int, int] = defaultdict(int)
        self._masks: list[int] = []
        self.plain = PlainSum()

    def turn(self, member: int, frame: bytes, chore: Chore) -> Sequence[bytes]:
        """Return one client's replies to one frame."""
        client = self._clients[member]
        self._down[member] += len(frame)
        step = self._timed(member, chore, lambda: client.receive(frame))
        asked = (event for event in step.events if isinstance(event, Asked))
        replies = [*step.frames, *(self._answer(client, event.sum_index) for event in asked)]
        self._up[member] += sum(map(len, replies))
        return replies

    def _answer(self, client: ClientMachine, sum_index: int) -> bytes:
        values = {PART: self._vector(client.member)}
        with self.plain.watching():
            answer = self._timed(client.member, Chore.MASK, lambda: client.answer(sum_index, values))
        self._seconds[Chore.ENCODE][client.member] = self.plain.encode_seconds
        self._seconds[Chore.MASK][client.member] -= self.plain.seconds
        self._masks.append(self.plain.masks)
        return answer.frame

    def _vector(self, member: int) -> NDArray[np.float64]:
        """Draw a vector when it is needed, and forget it: together they would fill the memory."""
        drawn = np.random.default_rng((_SEED, member)).standard_normal(self._dim)
        # A norm of numpy's is left to BLAS, whose threads would keep spinning beside what is measured next.
        drawn /= np.sqrt(np.square(drawn).sum())
        return drawn

    def _timed(self, member: int, chore: Chore, call: Callable[[], Result]) -> Result:
        started = time.thread_time()
        result = call()
        self._seconds[chore][member] += time.thread_time() - started
        return result

    # --- the books ---

    def median_seconds(self, chore: Chore) -> float:
        """Return the median over the clients that had this task; zero if none had."""
        seconds = self._seconds[chore].values()
        return median(seconds) if seconds else 0.0

    def median_masks(self) -> float:
        return median(self._masks)

    def median_bytes(self, members: Collection[int]) -> tuple[int, int]:
        """Return the medians of the bytes that these clients have sent, and received, so far."""
        up, down = (median(counts[member] for member in members) for counts in (self._up, self._down))
        return round(up), round(down)
