"""`Rotation`, the public random rotation of vectors before rounding: random signs and `walsh_hadamard`."""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from secagg.clipping_and_fixed_point import Real
from secagg.hashing import digest
from secagg.mask_keystream import KeyStream

# The number of elements transformed at a time. They and their copy fit into the second-level cache.
_BLOCK: Final = 1 << 14
# The number of bytes from which random signs are made at a time.
_SIGN_BYTES: Final = 1 << 11
# The most rows of a strip. A strip with more rows would have shorter rows.
_ROWS: Final = 1 << 7


class Rotation:
    """The public random rotation of the part with index `number` in a sum: signs drawn from `seed`, and a
    Walsh-Hadamard transform. `width`, the length of the vector, is a power of two."""

    def __init__(self, seed: bytes, number: int, width: int) -> None:
        self._seed = digest("rotation", seed, number.to_bytes(4, "big"))
        self._width = width

    @property
    def factor(self) -> float:
        """What the caller must multiply the vector by for each `apply` or `undo`, to keep its norm."""
        return 1.0 / math.sqrt(self._width)

    def apply(self, vector: Real) -> None:
        """Rotate `vector` in place, up to a factor: its norm is multiplied by 1 / `factor`."""
        self._flip(vector)
        walsh_hadamard(vector)

    def undo(self, vector: Real) -> None:
        """Undo the rotation in place, up to a factor: the norm is multiplied by 1 / `factor`."""
        walsh_hadamard(vector)
        self._flip(vector)

    def _flip(self, vector: Real) -> None:
        """Negate random elements, the same in every call for one seed, by flipping the sign bit of floats."""
        stream, bits = KeyStream(self._seed), vector.view(np.uint64)
        buffer = np.empty(_SIGN_BYTES, np.uint8)
        for start in range(0, len(bits), 8 * _SIGN_BYTES):
            window = bits[start : start + 8 * _SIGN_BYTES]
            stream.fill(buffer)
            signs = np.unpackbits(buffer, bitorder="little")[: len(window)].astype(np.uint64)
            signs <<= np.uint64(63)
            window ^= signs


def walsh_hadamard(vector: Real) -> None:
    """Apply the Walsh-Hadamard transform in place, without a factor. The length must be a power of two. Sums
    and differences of adjacent elements come first, and of distant ones last. This order determines the
    rounding of floats, so it must not change. A step works on as many elements as the cache holds: first on
    contiguous blocks, then on a few columns of the matrix that has these blocks as rows."""
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
    """Apply the Walsh-Hadamard transform to every column of `matrix`, in place. `buffers` are two arrays with
    as many elements as `matrix`. The columns are copied to the first. Each level reads one buffer, and writes
    the sums of adjacent pairs to the first half of the other and their differences to its second half. So a
    level takes only two numpy calls; many short calls would take several times as long."""
    source, target = buffers
    half, rows = len(source) // 2, len(matrix)
    source.reshape(-1, rows)[:] = matrix.T
    for _ in range(rows.bit_length() - 1):
        left, right = source[0::2], source[1::2]
        np.add(left, right, out=target[:half])
        np.subtract(left, right, out=target[half:])
        source, target = target, source
    matrix[:] = source.reshape(matrix.shape)
