"""Residues modulo 2^b: held in the smallest unsigned numpy type, sent as exactly b bits.

On the wire, element `i` takes bits `i*b` to `i*b + b - 1` of a little-endian bit string (bit `k` of the
string is bit `k % 8`, least significant first, of byte `k // 8`); the last byte is padded with zeros.
"""

from __future__ import annotations

import math
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

Residues: TypeAlias = NDArray[np.unsignedinteger[Any]]

# Elements packed at a time, a multiple of 64: the block and its words stay in the second-level cache.
_BLOCK: Final = 1 << 14


def dtype_for(bits: int) -> np.dtype[np.unsignedinteger[Any]]:
    """The smallest little-endian unsigned type that holds `bits` bits."""
    return np.dtype(f"<u{next(width for width in (1, 2, 4, 8) if bits <= 8 * width)}")


def packed_bytes(size: int, bits: int) -> int:
    return (size * bits + 7) // 8


def reduce(values: Residues, bits: int) -> None:
    """Reduce modulo 2^bits in place. Sums may run over in the wider type: 2^b divides its modulus."""
    if bits < 8 * values.itemsize:
        np.bitwise_and(values, values.dtype.type((1 << bits) - 1), out=values)


def pack(values: Residues, bits: int) -> bytes:
    """`values`, reduced, as a string of exactly `bits` bits each."""
    if bits == 8 * values.itemsize:
        return values.tobytes()
    blocks = (_pack_block(values[start : start + _BLOCK], bits) for start in range(0, len(values), _BLOCK))
    return b"".join(blocks)[: packed_bytes(len(values), bits)]


def unpack(data: bytes | memoryview, size: int, bits: int) -> Residues:
    """Inverse of `pack`. The caller has checked the length and, with `padding_is_zero`, the tail."""
    out = np.zeros(size, dtype_for(bits))
    add_packed(out, data, bits)
    return out


def add_packed(total: Residues, data: bytes | memoryview, bits: int) -> None:
    """Add packed residues to `total` in place, block by block: they are never all unpacked at once."""
    if bits == 8 * total.itemsize:
        total += np.frombuffer(data, total.dtype, count=len(total))
        return
    for start in range(0, len(total), _BLOCK):
        stop = min(start + _BLOCK, len(total))
        chunk = data[start * bits // 8 : packed_bytes(stop, bits)]
        total[start:stop] += _unpack_block(chunk, stop - start, bits).astype(total.dtype)


def padding_is_zero(data: bytes | memoryview, size: int, bits: int) -> bool:
    used = size * bits % 8
    return used == 0 or data[-1] >> used == 0


def _period(bits: int) -> tuple[int, int]:
    """(elements, 64-bit words) after which the layout of a packed stream repeats."""
    common = math.gcd(bits, 64)
    return 64 // common, bits // common


def _pack_block(values: Residues, bits: int) -> bytes:
    elements, words = _period(bits)
    rows = -(-len(values) // elements)
    wide = np.zeros((rows, elements), np.uint64)
    wide.reshape(-1)[: len(values)] = values
    out = np.zeros((rows, words), "<u8")
    for column in range(elements):
        word, shift = divmod(column * bits, 64)
        out[:, word] |= wide[:, column] << np.uint64(shift)
        if shift + bits > 64:
            out[:, word + 1] |= wide[:, column] >> np.uint64(64 - shift)
    return out.tobytes()


def _unpack_block(data: bytes | memoryview, size: int, bits: int) -> NDArray[np.uint64]:
    elements, words = _period(bits)
    rows = -(-size // elements)
    packed = np.zeros(rows * words * 8, np.uint8)
    packed[: len(data)] = np.frombuffer(data, np.uint8)
    stream = packed.view("<u8").reshape(rows, words)
    out = np.empty((rows, elements), np.uint64)
    for column in range(elements):
        word, shift = divmod(column * bits, 64)
        out[:, column] = stream[:, word] >> np.uint64(shift)
        if shift + bits > 64:
            out[:, column] |= stream[:, word + 1] << np.uint64(64 - shift)
    out &= np.uint64((1 << bits) - 1)
    return out.reshape(-1)[:size]
