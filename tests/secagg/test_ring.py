"""Residues and their packing, against an oracle that knows nothing but one long binary number."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secagg import ring

EVERY_B = pytest.mark.parametrize("bits", range(1, 65))


def packed_by_oracle(values: list[int], bits: int) -> bytes:
    """Element i is digit i, base 2^bits, of one integer; its little-endian bytes are the packing."""
    digits = "".join(format(value, f"0{bits}b") for value in reversed(values))
    return int(digits, 2).to_bytes((len(values) * bits + 7) // 8, "little")


def residues(values: list[int], bits: int) -> ring.Residues:
    return np.array(values, dtype=ring.dtype_for(bits))


@EVERY_B
def test_residues_are_held_in_the_smallest_type(bits: int) -> None:
    dtype = ring.dtype_for(bits)
    assert dtype.kind == "u"
    assert dtype.itemsize * 8 >= bits
    assert dtype.itemsize == 1 or dtype.itemsize * 4 < bits
    assert dtype.byteorder != ">"


@EVERY_B
@given(data=st.data())
@settings(deadline=None, max_examples=12)
def test_packing_is_exact_and_has_an_inverse(bits: int, data: st.DataObject) -> None:
    values = data.draw(st.lists(st.integers(0, (1 << bits) - 1), min_size=1, max_size=140))
    packed = ring.pack(residues(values, bits), bits)
    assert packed == packed_by_oracle(values, bits)
    assert len(packed) == ring.packed_bytes(len(values), bits)
    back = ring.unpack(packed, len(values), bits)
    assert back.dtype == ring.dtype_for(bits)
    assert back.tolist() == values
    assert ring.padding_is_zero(packed, len(values), bits)


@EVERY_B
def test_packing_is_exact_across_internal_blocks(bits: int) -> None:
    size = (1 << 14) + 7
    rng = np.random.default_rng(bits)
    values = rng.integers(0, 1 << bits, size, dtype=np.uint64, endpoint=False) if bits < 64 else None
    if values is None:
        values = rng.integers(0, (1 << 64) - 1, size, dtype=np.uint64, endpoint=True)
    numbers = values.tolist()
    packed = ring.pack(values.astype(ring.dtype_for(bits)), bits)
    assert packed == packed_by_oracle(numbers, bits)
    assert ring.unpack(memoryview(packed), size, bits).tolist() == numbers


@EVERY_B
def test_extreme_residues_are_packed_exactly(bits: int) -> None:
    top = (1 << bits) - 1
    for values in ([0], [top], [0, top] * 5, [top] * 9, [top, 0, 0, 0, 0, 0, 0, 0, 1]):
        packed = ring.pack(residues(values, bits), bits)
        assert packed == packed_by_oracle(values, bits)
        assert ring.unpack(packed, len(values), bits).tolist() == values


def test_the_layout_is_little_endian() -> None:
    """Three elements of three bits: 1, 2, 4 are the bit string 100 010 001, lowest bit first."""
    assert ring.pack(residues([1, 2, 4], 3), 3) == bytes([0b00_010_001, 0b1])
    assert ring.pack(residues([0x1234], 16), 16) == bytes([0x34, 0x12])


@EVERY_B
def test_a_padding_bit_that_is_set_is_noticed(bits: int) -> None:
    for size in range(1, 9):
        packed = bytearray(ring.pack(residues([0] * size, bits), bits))
        for bit in range(size * bits, 8 * len(packed)):
            packed[-1] = 1 << bit % 8
            assert not ring.padding_is_zero(bytes(packed), size, bits)
        packed[-1] = 1 << (size * bits - 1) % 8  # the last bit that counts
        assert ring.padding_is_zero(bytes(packed), size, bits)


@EVERY_B
@given(data=st.data())
@settings(deadline=None, max_examples=5)
def test_reducing_is_the_remainder_in_place(bits: int, data: st.DataObject) -> None:
    dtype = ring.dtype_for(bits)
    top = (1 << 8 * dtype.itemsize) - 1
    values = data.draw(st.lists(st.integers(0, top), min_size=1, max_size=20))
    held: ring.Residues = np.array(values, dtype=dtype)
    ring.reduce(held, bits)
    assert held.tolist() == [value % (1 << bits) for value in values]


@pytest.mark.parametrize("bits", [8, 16, 32, 64])
def test_unpacking_copies(bits: int) -> None:
    """A masked input is added to, and the bytes it came in must not change."""
    data = bytes(bits // 8)
    values: Any = ring.unpack(data, 1, bits)
    values += 1
    assert data == bytes(bits // 8)
