"""The public random rotation: signs, then a Walsh-Hadamard transform.

It spreads a vector evenly over all coordinates, so that their total needs few bits. Coordinate i of the
result is `sum_j (-1)^popcount(i & j) s_j x_j / sqrt(d)`, where bit j of the seed's key stream, least
significant first, says whether s_j is -1. The transform is symmetric and its own inverse.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from secagg.clipping import Real
from secagg.hashing import digest
from secagg.masks import KeyStream

# Elements that are transformed while they are in the second-level cache, and their twin.
_BLOCK: Final = 1 << 13
# Signs are made from so many bytes at a time.
_SIGN_BYTES: Final = 1 << 11
# Rows of a strip: the more, the shorter they are.
_ROWS: Final = 1 << 7


class Rotation:
    """Of one part, the `number`-th of a sum with this seed; `width` is a power of two."""

    def __init__(self, seed: bytes, number: int, width: int) -> None:
        self._seed = digest("rotation", seed, number.to_bytes(4, "big"))
        self._width = width

    @property
    def factor(self) -> float:
        """What `apply` and `undo` leave to be multiplied: a later scale takes it along."""
        return 1.0 / math.sqrt(self._width)

    def apply(self, vector: Real) -> None:
        """In place, larger by 1 / factor."""
        self._flip(vector)
        walsh_hadamard(vector)

    def undo(self, vector: Real) -> None:
        """Inverse of `apply` but for the same factor."""
        walsh_hadamard(vector)
        self._flip(vector)

    def _flip(self, vector: Real) -> None:
        """Signs, by flipping the highest bit of a float."""
        stream, bits = KeyStream(self._seed), vector.view(np.uint64)
        buffer = np.empty(_SIGN_BYTES, np.uint8)
        for start in range(0, len(bits), 8 * _SIGN_BYTES):
            window = bits[start : start + 8 * _SIGN_BYTES]
            stream.fill(buffer)
            signs = np.unpackbits(buffer, bitorder="little")[: len(window)].astype(np.uint64)
            signs <<= np.uint64(63)
            window ^= signs


def walsh_hadamard(vector: Real) -> None:
    """The transform without its factor, in place; the length is a power of two.

    Butterflies of neighbours come first, of elements far apart last, and always for as many elements as the
    cache holds: those of a block, then those of a strip through many blocks.
    """
    size = min(len(vector), _BLOCK)
    buffers = np.empty((2, size))
    for start in range(0, len(vector), size):
        _transform_block(vector[start : start + size], buffers)
    stride = size
    while stride < len(vector):
        rows = min(len(vector) // stride, _ROWS)
        for piece in vector.reshape(-1, rows, stride):
            for start in range(0, stride, size // rows):
                _transform_rows(piece[:, start : start + size // rows], buffers)
        stride *= rows


def _transform_block(block: Real, buffers: Real) -> None:
    """As a matrix, whose columns are transformed and then its rows: numpy is quick along rows only."""
    columns = 1 << len(block).bit_length() // 2
    matrix = block.reshape(-1, columns)
    _transform_rows(matrix, buffers)
    _transform_rows(matrix.T, buffers)


def _transform_rows(matrix: Real, buffers: Real) -> None:
    """Transform every column of a matrix with few or many rows, in place."""
    source, target = (buffer.reshape(matrix.shape) for buffer in buffers)
    source[:] = matrix
    rows, columns = matrix.shape
    for level in range(rows.bit_length() - 1):
        pairs = (rows >> level + 1, 2, columns << level)
        left, right = source.reshape(pairs).swapaxes(0, 1)
        above, below = target.reshape(pairs).swapaxes(0, 1)
        np.add(left, right, out=above)
        np.subtract(left, right, out=below)
        source, target = target, source
    matrix[:] = source
