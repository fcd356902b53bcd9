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
_BLOCK: Final = 1 << 14
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

    Butterflies of neighbours come first, of elements far apart last, which decides the last bits of floats.
    They are done for as many elements as the cache holds: those of a block, then of a strip through many.
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
    """Transform every column of a matrix that fills a buffer, in place.

    The lowest bit of an index always pairs an element with its neighbour and then becomes the highest: every
    level is the same two loops over a whole buffer, where many short ones would take numpy several times as
    long. Rows are the lowest bits before and the highest ones after, so columns become rows on the way in.
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
