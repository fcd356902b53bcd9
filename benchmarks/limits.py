"""The least that masks can cost: their keystream by bare AES, and one numpy addition for each.

No keys are agreed, no cipher is set up, no block is cut to fit a cache, and nothing is encoded. All that a
machine spends beyond this is our own cost.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from secagg.residue_packing import Residues, dtype_for
from secagg.sum_spec import COUNT_BITS, SumSpec

BLOCKS: Final = tuple(1 << power for power in range(16, 23))  # 64 KiB to 4 MiB
_ENOUGH: Final = 1 << 27  # bytes of keystream in a sample
_MOST_MASKS: Final = 1 << 12  # of them, where each is small


@dataclass(frozen=True)
class Mask:
    """The size of one mask: a word of keystream for each element of each part."""

    words: tuple[tuple[int, int], ...]  # (elements, bits of each)

    @classmethod
    def of(cls, spec: SumSpec) -> Mask:
        """Return the mask of a sum, including its hidden count."""
        return cls((*((part.width, part.bits) for part in spec.parts), (1, COUNT_BITS)))

    @property
    def bytes(self) -> int:
        return sum(size * dtype_for(bits).itemsize for size, bits in self.words)


class Limit:
    """The smallest CPU time of masks in any of the samples."""

    def __init__(self, mask: Mask) -> None:
        self._mask = mask
        self._timed = min(_MOST_MASKS, max(1, _ENOUGH // mask.bytes))
        self._keystream: list[float] = []
        self._additions: list[float] = []

    def sample(self) -> None:
        """Time everything once more. Call it before and after the machines, because clocks drift."""
        self._additions.append(_additions(self._timed, self._mask))
        self._keystream += [_keystream(self._timed * self._mask.bytes, block) for block in BLOCKS]

    def cpu_seconds(self, masks: int) -> float:
        """Return the time of `masks` masks, which is proportional to their number."""
        return (min(self._keystream) + min(self._additions)) * masks / self._timed


def _keystream(length: int, block: int) -> float:
    """Return the CPU seconds of this thread for `length` bytes of one stream."""
    encryptor = Cipher(algorithms.AES128(bytes(16)), modes.CTR(bytes(16))).encryptor()
    sizes = [block] * (length // block) + [length % block]
    zeros, buffer = memoryview(bytes(block)), memoryview(bytearray(block))
    pieces = [(zeros[:size], buffer[:size]) for size in sizes]
    started = time.thread_time()
    for given, made in pieces:
        encryptor.update_into(given, made)
    return time.thread_time() - started


def _additions(masks: int, mask: Mask) -> float:
    """Return the CPU seconds of this thread for adding an existing mask, `masks` times."""
    totals: list[Residues] = [np.ones(size, dtype_for(bits)) for size, bits in mask.words]
    pairs = [(total, total.copy()) for total in totals]
    started = time.thread_time()
    for _ in range(masks):
        for total, words in pairs:
            np.add(total, words, out=total)
    return time.thread_time() - started
