"""From a client's values to residues, and from the residues of the total back to numbers.

Real parts are fixed point: the scale is the largest with which `cohort` clients at their bound cannot
wrap, `limit * scale = floor((2^(b-1) - 1) / cohort)`. Rounding is stochastic and unbiased. Behind the
named parts travels a hidden one, a single 64-bit element to which every client adds one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from secagg import ring
from secagg.errors import CorruptTotal, InputError, SpecError
from secagg.masks import KeyStream
from secagg.onetime import OneTime
from secagg.ring import Residues
from secagg.spec import COUNT_BITS, L2, Count, LInf, Part, SumSpec, Total, Values

_Real: TypeAlias = NDArray[np.float64]

_ROUNDING_BITS: Final = 53
# Coordinates converted at a time: all that becomes of them on the way stays in the second-level cache.
_BLOCK: Final = 1 << 14
# A vector that was scaled to its very bound may exceed it by a rounding error, which is no clipping.
_UNCLIPPED: Final = 1.0 - 1e-12


@dataclass(frozen=True, eq=False)
class Encoded(OneTime):
    """A client's residues, ready to be masked once.

    `clipped` names the parts that exceeded their bound, each with the factor by which the part (`L2`) or
    its largest coordinate (`LInf`) was scaled down. It stays on the client.
    """

    residues: tuple[Residues, ...]
    clipped: Mapping[str, float]

    def __repr__(self) -> str:  # the residues are the client's private input
        return f"Encoded(parts={len(self.residues)}, clipped={len(self.clipped)})"


class Encoding:
    """The fixed-point code of `spec` for `cohort` clients. Both sides derive the same one."""

    def __init__(self, spec: SumSpec, *, cohort: int) -> None:
        if cohort < 1:
            raise SpecError("a cohort has at least one client")
        spec.check_fits(cohort)
        self.spec = spec
        self.cohort = cohort
        self._layout = [(part.size, part.bits) for part in spec.parts] + [(1, COUNT_BITS)]

    def levels(self, part: Part) -> int:
        """The largest residue, in absolute value, that one client may contribute to a real part."""
        return ((1 << (part.bits - 1)) - 1) // self.cohort

    def scale(self, part: Part) -> float:
        """Grid points per unit of a real part; 1 for whole numbers."""
        if isinstance(part.bound, (L2, LInf)):
            return self.levels(part) / part.bound.limit
        return 1.0

    # --- the client's side ---

    def encode(self, values: Mapping[str, ArrayLike], stream: KeyStream) -> Encoded:
        """Check, clip and round `values`. Raises `InputError` before anything is computed from them."""
        arrays = self._check(values)
        clipped: dict[str, float] = {}
        residues: list[Residues] = []
        for part, array in zip(self.spec.parts, arrays, strict=True):
            if isinstance(part.bound, (L2, LInf)):
                clip, factor = _clip(array, part.bound)
                if factor < _UNCLIPPED:
                    clipped[part.name] = factor
                residues.append(self._round(part, map(clip, _blocks(array)), stream))
            else:
                residues.append(array.astype(ring.dtype_for(part.bits)))
        residues.append(np.ones(1, ring.dtype_for(COUNT_BITS)))
        return Encoded(tuple(residues), clipped)

    def _check(self, values: Mapping[str, ArrayLike]) -> list[NDArray[Any]]:
        names = [part.name for part in self.spec.parts]
        if not isinstance(values, Mapping) or set(values) != set(names):
            raise InputError(f"values must be a mapping with exactly the parts {', '.join(names)}")
        return [_checked(part, values[part.name]) for part in self.spec.parts]

    def _round(self, part: Part, blocks: Iterable[_Real], stream: KeyStream) -> Residues:
        """Round each coordinate up with a probability equal to its fraction."""
        scale, limit = self.scale(part), _float_at_most(self.levels(part))
        out, done = np.empty(part.size, ring.dtype_for(part.bits)), 0
        for real in blocks:
            real *= scale
            np.clip(real, -limit, limit, out=real)  # the product may have been rounded upwards
            out[done : done + len(real)] = _round_block(real, stream)
            done += len(real)
        ring.reduce(out, part.bits)
        return out

    # --- the server's side ---

    def zeros(self) -> tuple[Residues, ...]:
        """An empty accumulator."""
        return tuple(np.zeros(size, ring.dtype_for(bits)) for size, bits in self._layout)

    def pack(self, residues: Sequence[Residues]) -> bytes:
        """Residues modulo 2^b as the bytes of a masked input; reduces them in place."""
        chunks = []
        for part, (_, bits) in zip(residues, self._layout, strict=True):
            ring.reduce(part, bits)
            chunks.append(ring.pack_buffer(part, bits))
        return b"".join(chunks)

    def accepts(self, data: bytes) -> bool:
        """Whether `data` has the length of a masked input and no padding bit set."""
        return len(data) == self.spec.packed_bytes and all(
            ring.padding_is_zero(chunk, size, bits)
            for chunk, (size, bits) in zip(self._cut(data), self._layout, strict=True)
        )

    def add(self, total: Sequence[Residues], data: bytes) -> None:
        """Add an accepted masked input to an accumulator, in little more memory than the input's."""
        for part, chunk, (_, bits) in zip(total, self._cut(data), self._layout, strict=True):
            ring.add_packed(part, chunk, bits)

    def unpack(self, data: bytes) -> tuple[Residues, ...]:
        """Inverse of `pack`, for an accepted masked input."""
        residues = self.zeros()
        self.add(residues, data)
        return residues

    def _cut(self, data: bytes) -> Iterator[memoryview]:
        """The bytes of each part."""
        view, start = memoryview(data), 0
        for size, bits in self._layout:
            stop = start + ring.packed_bytes(size, bits)
            yield view[start:stop]
            start = stop

    def room(self) -> list[Values]:
        """Memory for the numbers of a total, written to once: what is new takes its time then, not later."""
        return [_zeros(part) for part in self.spec.parts]

    def decode(
        self,
        residues: Sequence[Residues],
        *,
        contributors: int,
        invited: int,
        room: Sequence[Values] | None = None,
    ) -> Total:
        """The total of unmasked residues. Raises `CorruptTotal` unless the hidden count is right."""
        if int(residues[-1][0]) != contributors:
            raise CorruptTotal("the hidden count does not match the contributors: some masks did not cancel")
        parts: dict[str, Values] = {}
        for part, total, out in zip(self.spec.parts, residues[:-1], room or self.room(), strict=True):
            ring.reduce(total, part.bits)
            self._write_numbers(part, total, out)
            parts[part.name] = out
        return Total(parts, count=contributors, invited=invited)

    def _write_numbers(self, part: Part, total: Residues, out: Values) -> None:
        if not isinstance(part.bound, (L2, LInf)):
            np.copyto(out, total)
            return
        scale, unused, done = self.scale(part), 8 * total.itemsize - part.bits, 0
        for residues in _blocks(total):
            signed = (residues << unused).view(f"<i{total.itemsize}") >> unused
            np.divide(signed, scale, out=out[done : done + len(signed)], dtype=np.float64)
            done += len(signed)


def _zeros(part: Part) -> Values:
    if isinstance(part.bound, (L2, LInf)):
        return np.full(part.size, 0, np.float64)
    return np.full(part.size, 0, np.uint64)


def _blocks(array: NDArray[Any]) -> Iterator[NDArray[Any]]:
    return (array[start : start + _BLOCK] for start in range(0, len(array), _BLOCK))


def _checked(part: Part, value: ArrayLike) -> NDArray[Any]:
    """`value` as an array that `part` can carry, or an `InputError` that says what is wrong."""
    array = _as_array(part, value)
    if array.shape != (part.size,):
        raise InputError(f"part {part.name!r} needs shape ({part.size},), not {array.shape}")
    if isinstance(part.bound, (L2, LInf)):
        return _checked_real(part, array)
    return _checked_whole(part, array)


def _as_array(part: Part, value: ArrayLike) -> NDArray[Any]:
    """`value` as an array; numpy alone would turn a list of ints with one above 2^63 into floats."""
    if isinstance(value, np.ma.MaskedArray):
        raise InputError(f"part {part.name!r} is a masked array: fill or remove what is masked")
    if isinstance(value, (list, tuple)) and all(type(item) is int and 0 <= item < 1 << 64 for item in value):
        return np.array(value, np.uint64)
    try:
        return np.asarray(value)
    except ValueError:
        raise InputError(f"part {part.name!r} is not a vector") from None


def _checked_real(part: Part, array: NDArray[Any]) -> NDArray[Any]:
    if array.dtype.kind not in "fiu" or array.dtype.itemsize > 8:
        raise InputError(f"part {part.name!r} needs real numbers, not {array.dtype}")
    if not math.isfinite(_largest(array)):
        raise InputError(f"part {part.name!r} holds NaN or infinity")
    return array


def _largest(array: NDArray[Any]) -> float:
    """The largest absolute value; NaN where there is one."""
    return max(float(array.max()), -float(array.min()))


def _checked_whole(part: Part, array: NDArray[Any]) -> NDArray[Any]:
    if array.dtype.kind not in "biu":
        raise InputError(f"part {part.name!r} needs integers, not {array.dtype}")
    limit = part.bound.limit if isinstance(part.bound, Count) else (1 << part.bits) - 1
    if int(array.min()) < 0 or int(array.max()) > limit:
        raise InputError(f"part {part.name!r} needs integers from 0 to {limit}")
    return array


# How a block of the input becomes real numbers of our own, within the bound.
_Clip: TypeAlias = Callable[[NDArray[Any]], _Real]


def _clip(array: NDArray[Any], bound: L2 | LInf) -> tuple[_Clip, float]:
    """(what clips a block of `array`, factor by which the largest excess is reduced)."""
    largest = _largest(array)
    if isinstance(bound, LInf):
        if largest <= bound.limit:
            return _as_real, 1.0
        return lambda block: _as_real(block).clip(-bound.limit, bound.limit), bound.limit / largest
    if not largest:
        return _as_real, 1.0
    # Dividing by the largest coordinate first keeps the squares of huge inputs finite.
    norm = math.sqrt(sum(_sum_of_squares(_as_real(block) / largest) for block in _blocks(array)))
    factor = bound.limit / largest / norm
    if factor >= 1.0:
        return _as_real, 1.0
    return lambda block: _as_real(block) / largest * (bound.limit / norm), factor


def _as_real(block: NDArray[Any]) -> _Real:
    """A copy: the input is the caller's."""
    return block.astype(np.float64)


def _sum_of_squares(vector: _Real) -> float:
    # A dot product would be left to BLAS, which starts threads and keeps them spinning.
    return float(np.square(vector).sum())


def _round_block(scaled: _Real, stream: KeyStream) -> NDArray[np.uint64]:
    """Residues modulo 2^64. What is left of `scaled` is of no use."""
    whole = np.floor(scaled)
    scaled -= whole
    scaled *= 2.0**_ROUNDING_BITS  # a power of two: exact
    draw = stream.words(len(scaled)) >> (64 - _ROUNDING_BITS)
    rounded = whole.astype(np.int64)
    rounded += draw.view(np.int64) < scaled.astype(np.int64)
    return rounded.view(np.uint64)


def _float_at_most(value: int) -> float:
    """The largest float64 that does not exceed `value`."""
    nearest = float(value)
    return nearest if int(nearest) <= value else float(np.nextafter(nearest, 0.0))
