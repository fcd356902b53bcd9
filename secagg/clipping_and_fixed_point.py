"""The encoding of one part (a vector of a sum) without noise: check, clip, round, and decode the total.

Real numbers are encoded in fixed point; whole numbers are sent unchanged. The scale of a real part is the
largest for which the total of `cohort` clients cannot wrap around modulo 2^b, where b is the number of bits:
`limit * scale = floor((2^(b-1) - 1) / cohort)`. `limit` is the bound of one client. Rounding is unbiased.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, Final, Protocol, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from secagg import residue_packing
from secagg.errors import InputError
from secagg.mask_keystream import KeyStream
from secagg.residue_packing import Residues
from secagg.sum_spec import L2, Count, LInf, Part, Values


def levels(bits: int, cohort: int) -> int:
    """Return the largest L such that a sum of `cohort` integers from -L to L fits in `bits` signed bits."""
    return ((1 << (bits - 1)) - 1) // cohort


class Code(Protocol):
    """Converts the values of one part to residues modulo 2^bits, and the residues of a total to numbers."""

    scale: float  # grid points (steps of a residue) per unit of the values

    def encode(self, array: NDArray[Any], stream: KeyStream, /) -> tuple[Residues, float]:
        """Return residues, and the factor (1: none) by which clipping shrank the vector or largest value."""

    def buffer(self) -> Values:
        """Return an array for `decode` to fill. It is zeroed in advance, because first writes are slow."""

    def decode(self, total: Residues, buffer: Values) -> Values:
        """Decode `total`, whose residues are below 2^bits. Write the numbers to `buffer`, and return it."""


class FixedPoint:
    """A `Code` (codec) for real numbers without noise. Totals of at most `cohort` clients do not overflow."""

    def __init__(self, part: Part, bound: L2 | LInf, *, cohort: int) -> None:
        self._part = part
        self._bound = bound
        self.levels = levels(part.bits, cohort)
        self.scale = self.levels / bound.limit

    def encode(self, array: NDArray[Any], stream: KeyStream) -> tuple[Residues, float]:
        clipped, factor = clip(array, self._bound)
        if factor == 1.0:
            clipped = _as_real  # without noise, nothing hides whether the vector was clipped
        limit = float_at_most(self.levels)
        out, done = np.empty(self._part.size, residue_packing.dtype_for(self._part.bits)), 0
        for block in blocks(array):
            real = clipped(block)
            real *= self.scale
            np.clip(real, -limit, limit, out=real)  # the product may have been rounded upwards
            out[done : done + len(real)] = rounded(real, stream).view(np.uint64)
            done += len(real)
        residue_packing.reduce(out, self._part.bits)
        return out, factor

    def buffer(self) -> Values:
        return np.full(self._part.size, 0, np.float64)

    def decode(self, total: Residues, buffer: Values) -> Values:
        write_signed(total, self._part.bits, self.scale, buffer)
        return buffer


class Whole:
    """The `Code` of a part of whole numbers (counts or residues) without noise: they are sent unchanged."""

    scale = 1.0

    def __init__(self, part: Part) -> None:
        self._part = part

    def encode(self, array: NDArray[Any], _: KeyStream) -> tuple[Residues, float]:
        return array.astype(residue_packing.dtype_for(self._part.bits)), 1.0

    def buffer(self) -> Values:
        return np.full(self._part.size, 0, np.uint64)

    def decode(self, total: Residues, buffer: Values) -> Values:
        np.copyto(buffer, total)
        return buffer


def write_signed(total: Residues, bits: int, scale: float, out: Values) -> None:
    """Convert residues of `bits` bits to signed integers, divide them by `scale`, and write them to `out`."""
    unused, done = 8 * total.itemsize - bits, 0
    for residues in blocks(total):
        signed = residues.view(f"<i{total.itemsize}")
        if unused:
            signed = signed << unused >> unused
        np.divide(signed, scale, out=out[done : done + len(signed)], dtype=np.float64)
        done += len(signed)


def checked(part: Part, value: ArrayLike) -> NDArray[Any]:
    """Return `value` as an array. Raises `InputError` if its shape, type or numbers do not fit `part`."""
    array = _of_shape_and_type(part, value)
    if isinstance(part.bound, (L2, LInf)):
        _check_finite(part, array)
    else:
        _check_range(part, array)
    return array


def within_counts(part: Part, value: ArrayLike) -> tuple[NDArray[Any], bool]:
    """Return `value` as an array whose counts are brought within the bound of `part`, which has noise, and
    whether that changed any. Negative counts become 0, and others at most `Count.limit`. If they still exceed
    `Count.total`, all are scaled down to it: the sum of the first k counts becomes that of before times total
    over sum, rounded down, for every k. No count grows. The work is the same whatever the counts are, because
    the server sees when a client answers. Real numbers are returned unchanged, as they are clipped later.
    Raises `InputError` if the shape or type is wrong, or if real numbers are not finite."""
    array = _of_shape_and_type(part, value)
    if not isinstance(part.bound, Count):
        _check_finite(part, array)
        return array, False
    counts = np.minimum(np.maximum(array, 0).astype(np.uint64), np.uint64(part.bound.limit))
    if part.bound.total is not None:
        most = part.bound.limit * part.size  # no counts add up to more
        counts = _scaled_down(counts, min(part.bound.total, most))
    return counts, not np.array_equal(counts, array)


def _scaled_down(counts: NDArray[np.uint64], total: int) -> NDArray[np.uint64]:
    """Return `counts` scaled down to `total`. If they add up to less, the factor is 1."""
    sums = np.cumsum(counts).view(np.int64)  # exact: a part with noise has counts up to 2^31
    most = max(int(sums[-1]), total)
    # The products may need more than 64 bits, but what they exceed a multiple of `most` by does not. The
    # noise needs `total` below 2^48, so that the quotients in floats are wrong by 1 at most.
    scaled = (sums * (total / most)).astype(np.int64)
    scaled += (sums * total - scaled * most) // most
    return np.diff(scaled, prepend=0).astype(np.uint64)


def _of_shape_and_type(part: Part, value: ArrayLike) -> NDArray[Any]:
    """Return `value` as an array, whatever its numbers. Raises `InputError` unless it has the shape of `part`
    and real numbers or, for counts and residues, integers."""
    array = _as_array(part, value)
    if array.shape != (part.size,):
        raise InputError(f"part {part.name!r} needs shape ({part.size},), not {array.shape}")
    if isinstance(part.bound, (L2, LInf)):
        if array.dtype.kind not in "fiu" or array.dtype.itemsize > 8:
            raise InputError(f"part {part.name!r} needs real numbers, not {array.dtype}")
    elif array.dtype.kind not in "biu":
        raise InputError(f"part {part.name!r} needs integers, not {array.dtype}")
    return array


def largest(array: NDArray[Any]) -> float:
    """Return the largest absolute value in `array`, or NaN if it contains a NaN."""
    return max(float(array.max()), -float(array.min()))


def _as_array(part: Part, value: ArrayLike) -> NDArray[Any]:
    """Return `value` as an array; large ints stay exact. Raises `InputError` if it is masked or ragged."""
    if isinstance(value, np.ma.MaskedArray):
        raise InputError(f"part {part.name!r} is a masked array: fill or remove what is masked")
    if isinstance(value, (list, tuple)) and all(type(item) is int and 0 <= item < 1 << 64 for item in value):
        return np.array(value, np.uint64)
    try:
        return np.asarray(value)
    except ValueError:
        raise InputError(f"part {part.name!r} is not a vector") from None


def _check_finite(part: Part, array: NDArray[Any]) -> None:
    if not math.isfinite(largest(array)):
        raise InputError(f"part {part.name!r} holds NaN or infinity")


def _check_range(part: Part, array: NDArray[Any]) -> None:
    limit = part.bound.limit if isinstance(part.bound, Count) else (1 << part.bits) - 1
    if int(array.min()) < 0 or int(array.max()) > limit:
        raise InputError(f"part {part.name!r} needs integers from 0 to {limit}")
    if isinstance(part.bound, Count) and part.bound.total is not None:
        _check_total(part, array, part.bound.total)


def _check_total(part: Part, array: NDArray[Any], total: int) -> None:
    # The sum of many large numbers could wrap. So the upper and the lower 32 bits are added separately.
    wide = array.astype(np.uint64)
    low, high = (int(half.sum()) for half in (wide & 0xFFFFFFFF, wide >> 32))
    if (high << 32) + low > total:
        raise InputError(f"part {part.name!r} needs integers that add up to at most {total}")


Real: TypeAlias = NDArray[np.float64]
# A function that returns a new array: a block of the input as real numbers within the bound.
Clip: TypeAlias = Callable[[NDArray[Any]], Real]

# The number of coordinates that are converted at a time.
_BLOCK: Final = 1 << 14


def blocks(array: NDArray[Any]) -> Iterator[NDArray[Any]]:
    return (array[start : start + _BLOCK] for start in range(0, len(array), _BLOCK))


def clip(array: NDArray[Any], bound: L2 | LInf) -> tuple[Clip, float]:
    """Return a function that clips blocks of `array` to `bound`, and a factor: by how much clipping scales
    the vector (`L2`) or its largest element (`LInf`, which clips every element). It is 1 without clipping.
    The work is the same with and without clipping, so that the time does not show which it was."""
    most = largest(array) or bound.limit  # zeros are not clipped
    if isinstance(bound, LInf):
        return lambda block: _as_real(block).clip(-bound.limit, bound.limit), min(1.0, bound.limit / most)
    # Dividing by the largest coordinate first keeps the squares of huge inputs finite, and makes the norm of
    # all but zeros at least 1. A dot product would call BLAS, which starts threads that keep spinning.
    norm = max(1.0, math.sqrt(sum(float(np.square(_as_real(block) / most).sum()) for block in blocks(array))))
    factor = bound.limit / most / norm

    def clipped(block: NDArray[Any]) -> Real:
        real = _as_real(block)
        shrunk = real / most * (bound.limit / norm)
        return shrunk if factor < 1.0 else real

    return clipped, min(1.0, factor)


def _as_real(block: NDArray[Any]) -> Real:
    """Return a copy of `block` as floats, so that the caller's array is not changed."""
    return block.astype(np.float64)


_BITS: Final = 53


def rounded(values: Real, stream: KeyStream) -> NDArray[np.int64]:
    """Return `values` rounded to whole numbers at random, without bias. The array `values` is overwritten."""
    whole = np.floor(values)
    values -= whole
    values *= 2.0**_BITS  # a power of two: exact
    draw = stream.words(len(values)) >> (64 - _BITS)
    result = whole.astype(np.int64)
    result += draw.view(np.int64) < values.astype(np.int64)
    return result


def float_at_most(value: int) -> float:
    """Return the largest float64 that does not exceed `value`."""
    nearest = float(value)
    return nearest if int(nearest) <= value else float(np.nextafter(nearest, 0.0))
