"""The encoding of one part (a vector of a sum) with noise, on a grid that only the spec of the sum fixes.

A real vector is clipped, rotated if it has an `L2` bound, and scaled. It is rounded at random, up to 100
times, until its norm is within the bound that privacy depends on. The norm is computed in integers, so float
errors cannot let one client move the total further. As roundings with a larger norm are discarded, the result
is on average too short by a fraction of a grid point. This matters only for few elements on a coarse grid.
`secagg.noise.gaussian` adds the noise later.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from secagg import residue_packing
from secagg.clipping_and_fixed_point import Real, blocks, clip, rounded, write_signed
from secagg.distributed_noise import Noise
from secagg.errors import InputError
from secagg.mask_keystream import KeyStream
from secagg.noise.hadamard_rotation import Rotation
from secagg.residue_packing import Residues
from secagg.sum_spec import L2, Count, LInf, Part, Values

# At least 39 % of all roundings are short enough. The probability that no try succeeds is below 2^-70.
_TRIES: Final = 100
_INT64: Final = 1 << 63


class NoisyReals:
    """A `Code` for real vectors with noise. `encode` clips, rotates (if there is a `rotation`), scales and
    rounds a vector. `decode` converts a total back. Neither adds the noise."""

    def __init__(self, part: Part, bound: L2 | LInf, noise: Noise, rotation: Rotation | None) -> None:
        self._part = part
        self._bound = bound
        self._rotation = rotation
        self.scale = noise.scale
        # Grid points per unit of the rotated vector.
        self._factor = noise.scale * (rotation.factor if rotation else 1.0)

    def encode(self, array: NDArray[Any], stream: KeyStream) -> tuple[Residues, float]:
        clipped, factor = clip(array, self._bound)
        vector, done = np.zeros(self._part.width), 0
        for block in blocks(array):
            vector[done : done + len(block)] = clipped(block)
            done += len(block)
        if self._rotation:
            self._rotation.apply(vector)
        return self._rounded(vector, stream), factor

    def _rounded(self, vector: Real, stream: KeyStream) -> Residues:
        out = np.empty(self._part.width, residue_packing.dtype_for(self._part.bits))
        for _ in range(_TRIES):
            if self._write(vector, out, stream) <= self._part.norm2:
                return out
        if self._write(vector, out, None) > self._part.norm2:  # a float error: send nothing
            raise InputError(f"part {self._part.name!r} does not fit its bound after rounding")
        return out

    def _write(self, vector: Real, out: Residues, stream: KeyStream | None) -> int:
        """Write `vector` to `out` as residues: scaled, and rounded at random or, if `stream` is None, towards
        zero. Return the squared L2 norm of the rounded vector, in grid points squared."""
        norm2 = done = 0
        for block in blocks(vector):
            real = block * self._factor
            whole = np.trunc(real).astype(np.int64) if stream is None else rounded(real, stream)
            norm2 += _sum_of_squares(whole)
            out[done : done + len(whole)] = whole.view(np.uint64)
            done += len(whole)
        residue_packing.reduce(out, self._part.bits)
        return norm2

    def buffer(self) -> Values:
        return np.full(self._part.width, 0, np.float64)

    def decode(self, total: Residues, buffer: Values) -> Values:
        if self._rotation is None:
            write_signed(total, self._part.bits, self.scale, buffer)
            return buffer
        vector = buffer.view(np.float64)
        write_signed(total, self._part.bits, self.scale / self._rotation.factor, vector)
        self._rotation.undo(vector)
        return vector[: self._part.size]


class NoisyCounts:
    """A `Code` for counts with noise. A count of 1 is `noise.scale` grid points. `encode` and `decode` do not
    add the noise."""

    def __init__(self, part: Part, bound: Count, noise: Noise, *, roster: int) -> None:
        self._part = part
        self.scale = noise.scale
        # Totals of counts leave some residues unused. Half of these, the upper ones, stand for negative
        # numbers, which noise may cause.
        unused = (1 << part.bits) - 1 - int(self.scale) * roster * bound.limit
        self._first_below = (1 << part.bits) - unused // 2

    def encode(self, array: NDArray[Any], _: KeyStream) -> tuple[Residues, float]:
        out = array.astype(residue_packing.dtype_for(self._part.bits))
        out *= out.dtype.type(int(self.scale) % (1 << 8 * out.itemsize))
        residue_packing.reduce(out, self._part.bits)
        return out, 1.0

    def buffer(self) -> Values:
        return np.full(self._part.size, 0, np.float64)

    def decode(self, total: Residues, buffer: Values) -> Values:
        # Convert absolute values to floats: a residue near 2^64 would lose its last bits.
        below = total >= self._first_below
        distance: Residues = np.where(below, np.negative(total), total)
        residue_packing.reduce(distance, self._part.bits)
        np.divide(distance, self.scale, out=buffer, dtype=np.float64)
        np.negative(buffer, out=buffer, where=below)
        return buffer


def _sum_of_squares(whole: NDArray[np.int64]) -> int:
    """Return the exact sum of the squares of `whole`, even if it exceeds 64 bits."""
    most = max(int(whole.max()), -int(whole.min()))
    if len(whole) * most**2 < _INT64:
        return int(np.square(whole).sum())
    return sum(value * value for value in whole.tolist())
