"""How one part travels without noise: fixed point for real numbers, themselves for whole ones.

The scale of a real part is the largest with which `cohort` clients at their bound cannot wrap,
`limit * scale = floor((2^(b-1) - 1) / cohort)`. Rounding is stochastic and unbiased.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from secagg import ring
from secagg.clipping import blocks, clip
from secagg.masks import KeyStream
from secagg.ring import Residues
from secagg.rounding import float_at_most, rounded
from secagg.spec import L2, LInf, Part, Values


def levels(bits: int, cohort: int) -> int:
    """Grid points of one client, so many above zero and as many below."""
    return ((1 << (bits - 1)) - 1) // cohort


class Code(Protocol):
    """From the values of one part to residues, and from the residues of a total to numbers."""

    scale: float

    def encode(self, array: NDArray[Any], stream: KeyStream, /) -> tuple[Residues, float]:
        """Residues, and the factor by which the values were scaled down to their bound."""
        ...

    def room(self) -> Values:
        """Memory for the numbers of a total, written to once: what is new takes its time then, not later."""
        ...

    def decode(self, total: Residues, room: Values) -> Values:
        """The numbers of a total that is reduced, in `room`."""
        ...


class FixedPoint:
    """A real part."""

    def __init__(self, part: Part, bound: L2 | LInf, *, cohort: int) -> None:
        self._part = part
        self._bound = bound
        self.levels = levels(part.bits, cohort)
        self.scale = self.levels / bound.limit

    def encode(self, array: NDArray[Any], stream: KeyStream) -> tuple[Residues, float]:
        clipped, factor = clip(array, self._bound)
        limit = float_at_most(self.levels)
        out, done = np.empty(self._part.size, ring.dtype_for(self._part.bits)), 0
        for block in blocks(array):
            real = clipped(block)
            real *= self.scale
            np.clip(real, -limit, limit, out=real)  # the product may have been rounded upwards
            out[done : done + len(real)] = rounded(real, stream).view(np.uint64)
            done += len(real)
        ring.reduce(out, self._part.bits)
        return out, factor

    def room(self) -> Values:
        return np.full(self._part.size, 0, np.float64)

    def decode(self, total: Residues, room: Values) -> Values:
        write_signed(total, self._part.bits, self.scale, room)
        return room


class Whole:
    """Counts and residues."""

    scale = 1.0

    def __init__(self, part: Part) -> None:
        self._part = part

    def encode(self, array: NDArray[Any], _: KeyStream) -> tuple[Residues, float]:
        return array.astype(ring.dtype_for(self._part.bits)), 1.0

    def room(self) -> Values:
        return np.full(self._part.size, 0, np.uint64)

    def decode(self, total: Residues, room: Values) -> Values:
        np.copyto(room, total)
        return room


def write_signed(total: Residues, bits: int, scale: float, out: Values) -> None:
    """Residues as numbers around zero, divided by the scale."""
    unused, done = 8 * total.itemsize - bits, 0
    for residues in blocks(total):
        signed = residues.view(f"<i{total.itemsize}")
        if unused:
            signed = signed << unused >> unused
        np.divide(signed, scale, out=out[done : done + len(signed)], dtype=np.float64)
        done += len(signed)
