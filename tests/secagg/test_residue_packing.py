"""Residues and their packing, against an oracle that knows nothing but one long binary number."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secagg import residue_packing

EVERY_B = pytest.mark.parametrize("bits", range(1, 65))
BLOCK = 1 << 16  # elements packed at a time


def packed_by_oracle(values: list[int], bits: int) -> bytes:
    """Element i is digit i, base 2^bits, of one integer; its little-endian bytes are the packing."""
    digits = "".join(format(value, f"0{bits}b") for value in reversed(values))
    return int(digits, 2).to_bytes((len(values) * bits + 7) // 8, "little")


def residues(values: list[int], bits: int) -> residue_packing.Residues:
    return np.array(values, dtype=residue_packing.dtype_for(bits))


@EVERY_B
def test_residues_are_held_in_the_smallest_type(bits: int) -> None:
    dtype = residue_packing.dtype_for(bits)
    assert dtype.kind == "u"
    assert dtype.itemsize * 8 >= bits
    assert dtype.itemsize == 1 or dtype.itemsize * 4 < bits
    assert dtype.byteorder != ">"


@EVERY_B
@given(data=st.data())
@settings(deadline=None, max_examples=12)
def test_packing_is_exact_and_has_an_inverse(bits: int, data: st.DataObject) -> None:
    values = data.draw(st.lists(st.integers(0, (1 << bits) - 1), min_size=1, max_size=140))
    packed = residue_packing.pack(residues(values, bits), bits)
    assert packed == packed_by_oracle(values, bits)
    assert len(packed) == residue_packing.packed_bytes(len(values), bits)
    back = residue_packing.unpack(packed, len(values), bits)
    assert back.dtype == residue_packing.dtype_for(bits)
    assert back.tolist() == values
    assert residue_packing.padding_is_zero(packed, len(values), bits)


def packed_bit_by_bit(values: residue_packing.Residues, bits: int) -> bytes:
    """Every bit of every element in a byte of its own, and eight of those to a byte."""
    places = np.arange(bits, dtype=np.uint64)
    single = (values.astype(np.uint64)[:, None] >> places & np.uint64(1)).astype(np.uint8)
    return np.packbits(single, bitorder="little").tobytes()


def random_residues(size: int, bits: int) -> residue_packing.Residues:
    rng = np.random.default_rng(bits)
    return rng.integers(0, (1 << bits) - 1, size, dtype=np.uint64, endpoint=True).astype(
        residue_packing.dtype_for(bits)
    )


@EVERY_B
def test_packing_is_exact_at_every_size(bits: int) -> None:
    """Up to three records of the longest kind, whole and broken off."""
    for size in range(1, 25):
        values = random_residues(size, bits)
        packed = residue_packing.pack(values, bits)
        assert packed == packed_by_oracle(values.tolist(), bits)
        assert residue_packing.unpack(packed, size, bits).tolist() == values.tolist()


@EVERY_B
@pytest.mark.parametrize("beyond", [-1, 0, 1, 7, 8])
def test_packing_is_exact_across_internal_blocks(bits: int, beyond: int) -> None:
    size = BLOCK + beyond
    values = random_residues(size, bits)
    packed = residue_packing.pack(values, bits)
    assert packed == packed_bit_by_bit(values, bits)
    assert (residue_packing.unpack(memoryview(packed), size, bits) == values).all()


@EVERY_B
def test_packing_leaves_the_residues_alone(bits: int) -> None:
    values = random_residues(100, bits)
    before = values.tolist()
    residue_packing.pack(values, bits)
    assert values.tolist() == before


@EVERY_B
def test_a_buffer_holds_what_is_packed_and_no_more(bits: int) -> None:
    values = random_residues(101, bits)
    buffer = residue_packing.pack_buffer(values, bits)
    assert b"".join([buffer]) == residue_packing.pack(values, bits)
    assert np.shares_memory(np.asarray(buffer), values) == (bits in (8, 16, 32, 64))


@EVERY_B
def test_packed_residues_are_added_in_place(bits: int) -> None:
    """Modulo the type, which 2^b divides; wherever the bytes lie, and without a change to them."""
    size = 1003
    values, total = (
        random_residues(size, bits),
        random_residues(size, 8 * residue_packing.dtype_for(bits).itemsize),
    )
    expected = (total + values).tolist()
    for skipped in range(3):
        data = bytes(skipped) + residue_packing.pack(values, bits) + b"\xff"
        kept, sums = bytes(bytearray(data)), total.copy()
        residue_packing.add_packed(sums, memoryview(data)[skipped:-1], bits)
        assert sums.tolist() == expected
        assert data == kept


def peak(call: Callable[[], object]) -> int:
    """Most bytes that a call held at once."""
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("bits", [1, 13, 20, 31, 33, 63])
def test_packing_takes_the_memory_of_a_few_blocks(bits: int) -> None:
    values = random_residues(16 * BLOCK, bits)
    packed, block = residue_packing.pack(values, bits), BLOCK * values.itemsize
    assert peak(lambda: residue_packing.pack_buffer(values, bits)) < len(packed) + 6 * block
    assert peak(lambda: residue_packing.add_packed(values, packed, bits)) < 6 * block


@EVERY_B
def test_extreme_residues_are_packed_exactly(bits: int) -> None:
    top = (1 << bits) - 1
    for values in ([0], [top], [0, top] * 5, [top] * 9, [top, 0, 0, 0, 0, 0, 0, 0, 1]):
        packed = residue_packing.pack(residues(values, bits), bits)
        assert packed == packed_by_oracle(values, bits)
        assert residue_packing.unpack(packed, len(values), bits).tolist() == values


def test_the_layout_is_little_endian() -> None:
    """Three elements of three bits: 1, 2, 4 are the bit string 100 010 001, lowest bit first."""
    assert residue_packing.pack(residues([1, 2, 4], 3), 3) == bytes([0b00_010_001, 0b1])
    assert residue_packing.pack(residues([0x1234], 16), 16) == bytes([0x34, 0x12])


@EVERY_B
def test_a_padding_bit_that_is_set_is_noticed(bits: int) -> None:
    for size in range(1, 9):
        packed = bytearray(residue_packing.pack(residues([0] * size, bits), bits))
        for bit in range(size * bits, 8 * len(packed)):
            packed[-1] = 1 << bit % 8
            assert not residue_packing.padding_is_zero(bytes(packed), size, bits)
        packed[-1] = 1 << (size * bits - 1) % 8  # the last bit that counts
        assert residue_packing.padding_is_zero(bytes(packed), size, bits)


@EVERY_B
@given(data=st.data())
@settings(deadline=None, max_examples=5)
def test_reducing_is_the_remainder_in_place(bits: int, data: st.DataObject) -> None:
    dtype = residue_packing.dtype_for(bits)
    top = (1 << 8 * dtype.itemsize) - 1
    values = data.draw(st.lists(st.integers(0, top), min_size=1, max_size=20))
    held: residue_packing.Residues = np.array(values, dtype=dtype)
    residue_packing.reduce(held, bits)
    assert held.tolist() == [value % (1 << bits) for value in values]


@pytest.mark.parametrize("bits", [8, 16, 32, 64])
def test_unpacking_copies(bits: int) -> None:
    """A masked input is added to, and the bytes it came in must not change."""
    data = bytes(bits // 8)
    values: Any = residue_packing.unpack(data, 1, bits)
    values += 1
    assert data == bytes(bits // 8)
