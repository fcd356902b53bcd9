"""The cost of packing residues into exactly b bits each, and of adding them up again."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from secagg import residue_packing

MOST_BITS: Final = 64
_ROUNDS: Final = 7


@dataclass(frozen=True)
class PackingCost:
    """CPU nanoseconds for each element of `bits` bits, the best of several rounds."""

    bits: int
    pack_ns: float  # what a client does with masked residues: reduced, packed, copied to the message
    add_ns: float  # what a server does with packed ones: unpacked and added to its total


def measure_packing(size: int) -> list[PackingCost]:
    """Measure every number of bits."""
    return [_measure(size, bits) for bits in range(1, MOST_BITS + 1)]


def _measure(size: int, bits: int) -> PackingCost:
    dtype = residue_packing.dtype_for(bits)
    most = np.iinfo(dtype).max
    values: residue_packing.Residues = np.random.default_rng(bits).integers(
        0, most, size, dtype, endpoint=True
    )

    def pack() -> bytes:
        residue_packing.reduce(values, bits)
        return residue_packing.pack(values, bits)

    packed, total = pack(), np.zeros(size, dtype)
    return PackingCost(
        bits,
        _nanoseconds(pack) / size,
        _nanoseconds(lambda: residue_packing.add_packed(total, packed, bits)) / size,
    )


def _nanoseconds(call: Callable[[], object]) -> float:
    """Return the CPU time of this thread for the quickest of several calls."""
    spent = []
    for _ in range(_ROUNDS):
        started = time.thread_time_ns()
        call()
        spent.append(time.thread_time_ns() - started)
    return min(spent)
