"""Residues modulo 2^b: stored in the smallest unsigned numpy type, sent as exactly b bits.

On the wire, element `i` takes bits `i*b` to `i*b + b - 1` of a little-endian bit string (bit `k` of the
string is bit `k % 8`, least significant first, of byte `k // 8`); the last byte is padded with zeros.

Packing works on blocks of elements, in two steps. First, adjacent elements are joined, from b bits to 2b, 4b
and so on, until they are stored in 64-bit words, called *units*. Then the fewest units of whole bytes are
joined to a *record*, which is written 64 bits at a time, aligned or not. Unpacking is the reverse.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import reduce as fold
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

Residues: TypeAlias = NDArray[np.unsignedinteger[Any]]

# Elements packed at a time: the block and the result fit into the second-level cache.
_BLOCK: Final = 1 << 16
# This many elements take a whole number of bytes for every b.
_STRIDE: Final = 8


def dtype_for(bits: int) -> np.dtype[np.unsignedinteger[Any]]:
    """Return the smallest little-endian unsigned type with at least `bits` bits."""
    return _unsigned(next(width for width in (1, 2, 4, 8) if bits <= 8 * width))


def _unsigned(itemsize: int) -> np.dtype[np.unsignedinteger[Any]]:
    return np.dtype(f"<u{itemsize}")


def packed_bytes(size: int, bits: int) -> int:
    return (size * bits + 7) // 8


def reduce(values: Residues, bits: int) -> None:
    """Reduce `values` modulo 2^bits in place. The result is right even if sums overflowed the numpy type."""
    if bits < 8 * values.itemsize:
        np.bitwise_and(values, values.dtype.type((1 << bits) - 1), out=values)


def pack(values: Residues, bits: int) -> bytes:
    """Return `values` (below 2^bits) as little-endian bits, `bits` for each, padded with zeros to bytes."""
    return pack_buffer(values, bits).tobytes()


def pack_buffer(values: Residues, bits: int) -> memoryview:
    """Pack as `pack` does, and return a view: of `values` itself if their type has exactly `bits` bits."""
    if bits == 8 * values.itemsize:
        return values.data
    # The last record is filled up with zeros, which are not sent.
    out = np.empty(_padded(len(values)) * bits // 8, np.uint8)
    for start, stop in _blocks(values):
        block = values[start:stop]
        if len(block) % _STRIDE:
            block = np.zeros(_padded(len(block)), values.dtype)
            block[: stop - start] = values[start:stop]
        _pack_block(block, bits, out[start * bits // 8 :])
    return out.data[: packed_bytes(len(values), bits)]


def unpack(data: bytes | memoryview, size: int, bits: int) -> Residues:
    """Invert `pack`: return `size` residues. The caller has checked the length of `data` and its padding."""
    out = np.zeros(size, dtype_for(bits))
    add_packed(out, data, bits)
    return out


def add_packed(total: Residues, data: bytes | memoryview, bits: int) -> None:
    """Add residues, packed in `data` with `bits` bits each, to `total` in place, in blocks to save memory."""
    if bits == 8 * total.itemsize:
        total += np.frombuffer(data, total.dtype, count=len(total))
        return
    for start, stop in _blocks(total):
        chunk = data[start * bits // 8 : packed_bytes(stop, bits)]
        total[start:stop] += _unpack_block(chunk, stop - start, bits, total.itemsize)


def padding_is_zero(data: bytes | memoryview, size: int, bits: int) -> bool:
    used = size * bits % 8
    return used == 0 or data[-1] >> used == 0


def _blocks(values: Residues) -> Iterator[tuple[int, int]]:
    return ((start, min(start + _BLOCK, len(values))) for start in range(0, len(values), _BLOCK))


def _padded(size: int) -> int:
    return -(-size // _STRIDE) * _STRIDE


# --- units and records ---------------------------------------------------------------------------


class _Record(NamedTuple):
    """The shape of a packed record: the fewest `units` that make whole bytes. A unit has `width` bits: those
    of the elements that were joined in one 64-bit word."""

    units: int
    width: int  # bits of a unit

    @classmethod
    def of(cls, bits: int, itemsize: int) -> _Record:
        width = bits * (8 // itemsize)
        return cls(8 // math.gcd(width, 8), width)

    @property
    def size(self) -> int:
        """The length of a record in bytes."""
        return self.units * self.width // 8

    def pieces(self, word: int) -> Iterator[tuple[int, int]]:
        """Yield (unit, shift) for each unit with bits in the 64-bit word number `word` of a record. To make
        the word, shift each unit by its shift in bits (left; right if negative), and join them by "or"."""
        shifts = ((unit, unit * self.width - 64 * word) for unit in range(self.units))
        return ((unit, shift) for unit, shift in shifts if -self.width < shift < 64)

    def words(self, unit: int) -> Iterator[tuple[int, int]]:
        """Yield (word, shift) for each 64-bit word of a record with bits of unit number `unit`. To make the
        unit, shift each word (left; right if negative), join them by "or", and keep `width` bits."""
        first, last = unit * self.width // 64, ((unit + 1) * self.width - 1) // 64
        return ((word, 64 * word - unit * self.width) for word in range(first, last + 1))


def _pack_block(values: Residues, bits: int, out: NDArray[np.uint8]) -> None:
    """Pack `values`, a multiple of 8 in number, to `bits` bits each, and write them to the start of `out`."""
    record = _Record.of(bits, values.itemsize)
    units = _joined(values, bits).reshape(-1, record.units)
    for word, start in enumerate(range(0, record.size, 8)):
        bits_of_word = fold(np.bitwise_or, (_shifted(units[:, k], by) for k, by in record.pieces(word)))
        _write(bits_of_word, out[start:], min(8, record.size - start), record.size)


def _write(words: Residues, out: NDArray[np.uint8], size: int, stride: int) -> None:
    """Write the lowest `size` bytes of word k to `out` from byte k * `stride` on; keep the bytes between."""
    done = 0
    for width in (8, 4, 2, 1):
        if size & width:
            column = np.ndarray(len(words), _unsigned(width), out, done, (stride,))
            column[:] = _shifted(words, -8 * done)
            done += width


def _unpack_block(data: bytes | memoryview, size: int, bits: int, itemsize: int) -> Residues:
    units = _read(data, _padded(size) * bits // 8, _Record.of(bits, itemsize))
    return _split(units, bits, itemsize)[:size]


def _read(data: bytes | memoryview, padded: int, record: _Record) -> Residues:
    """Return the units (64-bit words, each with several elements) of all records in `data`. If the last
    record is incomplete, zeros are added up to a length of `padded` bytes."""
    # The last word of a record may reach into the next record. Those bits are masked out.
    records = np.zeros(padded + 8, np.uint8)
    records[: len(data)] = np.frombuffer(data, np.uint8)
    rows = padded // record.size
    starts = range(0, record.size, 8)
    words = [np.ndarray(rows, _unsigned(8), records, start, (record.size,)).copy() for start in starts]
    units = np.empty((rows, record.units), _unsigned(8))
    for unit in range(record.units):
        column = fold(np.bitwise_or, (_shifted(words[k], by) for k, by in record.words(unit)))
        np.bitwise_and(column, (1 << record.width) - 1, out=units[:, unit])
    return units.reshape(-1)


def _joined(values: Residues, bits: int) -> Residues:
    """Return 64-bit words that hold `values` side by side, `bits` bits each, from the lowest bits upwards."""
    while values.itemsize < 8:
        low, gap = (1 << bits) - 1, 8 * values.itemsize - bits
        pairs = values.view(_unsigned(2 * values.itemsize))
        values = np.right_shift(pairs, gap)
        values &= low << bits
        values |= pairs & low
        bits *= 2
    return values


def _split(units: Residues, bits: int, itemsize: int) -> Residues:
    """Invert `_joined`: split 64-bit words into elements of `bits` bits, each stored in `itemsize` bytes."""
    while units.itemsize > itemsize:
        half = units.itemsize // 2
        width = bits * half // itemsize
        low, gap = (1 << width) - 1, 8 * half - width
        pairs = np.left_shift(units, gap)
        pairs &= low << 8 * half
        pairs |= units & low
        units = pairs.view(_unsigned(half))
    return units


def _shifted(words: Residues, by: int) -> Residues:
    """Return `words` shifted to the left by `by` bits, or to the right if `by` is negative."""
    if by == 0:
        return words
    shifted: Residues = np.left_shift(words, by) if by > 0 else np.right_shift(words, -by)
    return shifted
