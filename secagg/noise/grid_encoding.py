"""The encoding of one part with noise, on a grid that the spec fixes and that does not depend on the cohort.

A real vector is clipped, rotated if it has an `L2` bound, and scaled. It is rounded at random, again and
again, until its norm is within the bound that privacy depends on. The norm is computed in integers, so float
errors cannot let one client move the total further. As roundings with a larger norm are discarded, the result
is on average too short by a fraction of a grid point. This matters only for few elements on a coarse grid.
`secagg.noise.gaussian` adds the noise later.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from secagg import residue_packing
from secagg.distributed_noise import Noise
from secagg.errors import InputError
from secagg.fixed_point import Real, blocks, clip, rounded, write_signed
from secagg.hashing import digest
from secagg.mask_keystream import KeyStream
from secagg.residue_packing import Residues
from secagg.sum_spec import L2, Count, LInf, Part, Values

# At least 39 % of all roundings are short enough. The probability that no try succeeds is below 2^-70.
_TRIES: Final = 100
_INT64: Final = 1 << 63


class NoisyReals:
    """The encoder (`fixed_point.Code`) of a part of real numbers with noise."""

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
        """Scale and round `vector` into `out`: at random or, without `stream`, towards zero. Return the
        squared norm of the result, in grid points."""
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
    """The encoder (`fixed_point.Code`) of counts with noise. A count of 1 is `noise.scale` grid points."""

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
    """Return the exact sum of squares, also if it exceeds 64 bits."""
    most = max(int(whole.max()), -int(whole.min()))
    if len(whole) * most**2 < _INT64:
        return int(np.square(whole).sum())
    return sum(value * value for value in whole.tolist())


# The number of elements transformed at a time. They and their copy fit into the second-level cache.
_BLOCK: Final = 1 << 14
# The number of bytes from which random signs are made at a time.
_SIGN_BYTES: Final = 1 << 11
# The most rows of a strip. A strip with more rows would have shorter rows.
_ROWS: Final = 1 << 7


class Rotation:
    """The public random rotation of part `number` of a sum. `width`, the vector's length, is a power of 2."""

    def __init__(self, seed: bytes, number: int, width: int) -> None:
        self._seed = digest("rotation", seed, number.to_bytes(4, "big"))
        self._width = width

    @property
    def factor(self) -> float:
        """What the caller must multiply the vector by after `apply` or `undo`, to restore its norm."""
        return 1.0 / math.sqrt(self._width)

    def apply(self, vector: Real) -> None:
        """Rotate `vector` in place, and multiply it by 1 / `factor`."""
        self._flip(vector)
        walsh_hadamard(vector)

    def undo(self, vector: Real) -> None:
        """Rotate `vector` back in place, and multiply it by 1 / `factor`."""
        walsh_hadamard(vector)
        self._flip(vector)

    def _flip(self, vector: Real) -> None:
        """Change the signs of random elements, by flipping the highest bit of their floats."""
        stream, bits = KeyStream(self._seed), vector.view(np.uint64)
        buffer = np.empty(_SIGN_BYTES, np.uint8)
        for start in range(0, len(bits), 8 * _SIGN_BYTES):
            window = bits[start : start + 8 * _SIGN_BYTES]
            stream.fill(buffer)
            signs = np.unpackbits(buffer, bitorder="little")[: len(window)].astype(np.uint64)
            signs <<= np.uint64(63)
            window ^= signs


def walsh_hadamard(vector: Real) -> None:
    """Apply the Walsh-Hadamard transform in place, without a factor. The length must be a power of two.

    Sums and differences of adjacent elements come first, and of distant ones last. This order determines the
    rounding of floats, so it must not change. A step works on as many elements as the cache holds: first on
    blocks, then on strips, which have some columns of many blocks.
    """
    size = min(len(vector), _BLOCK)
    buffers = np.empty((2, size))
    for block in vector.reshape(-1, size, 1):
        _transform_columns(block, buffers)
    stride = size
    while stride < len(vector):
        rows = min(len(vector) // stride, _ROWS)
        for piece in vector.reshape(-1, rows, stride):
            for start in range(0, stride, size // rows):
                _transform_columns(piece[:, start : start + size // rows], buffers)
        stride *= rows


def _transform_columns(matrix: Real, buffers: Real) -> None:
    """Transform every column of `matrix`, which has as many elements as a buffer, in place.

    Each level combines pairs of adjacent elements, and writes sums to the first half of the other buffer and
    differences to the second half. So each level takes two numpy calls over a whole buffer; many short calls
    would take several times as long. Columns are copied in as rows, and end up in the order of `matrix`.
    """
    source, target = buffers
    half, rows = len(source) // 2, len(matrix)
    source.reshape(-1, rows)[:] = matrix.T
    for _ in range(rows.bit_length() - 1):
        left, right = source[0::2], source[1::2]
        np.add(left, right, out=target[:half])
        np.subtract(left, right, out=target[half:])
        source, target = target, source
    matrix[:] = source.reshape(matrix.shape)
