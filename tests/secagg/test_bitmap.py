"""Sets of clients as bits: one encoding each."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secagg.bitmap import PositionSet, bitmap_bytes, pack_positions, unpack_positions
from secagg.errors import MalformedMessage


@given(st.integers(1, 100).flatmap(lambda n: st.tuples(st.just(n), st.sets(st.integers(0, n - 1)))))
@settings(deadline=None)
def test_a_set_survives_the_wire(case: tuple[int, set[int]]) -> None:
    size, members = case
    bitmap = pack_positions(members, size)
    assert len(bitmap) == bitmap_bytes(size) == -(-size // 8)
    assert unpack_positions(bitmap, size, sender="server") == tuple(sorted(members))


def test_the_lowest_bit_comes_first() -> None:
    assert pack_positions([0, 3, 8], 9) == bytes([0b1001, 0b1])


@pytest.mark.parametrize("size", [1, 7, 8, 9, 16])
def test_a_set_over_another_cohort_is_refused(size: int) -> None:
    everybody = pack_positions(range(size), size)
    assert unpack_positions(everybody, size, sender=1) == tuple(range(size))
    wrong = [everybody[:-1], everybody + b"\0"]
    if size % 8:
        wrong.append(everybody[:-1] + bytes([everybody[-1] | 1 << size % 8]))
    for bitmap in wrong:
        with pytest.raises(MalformedMessage, match=f"client 1: a bitmap that is not over {size} members"):
            unpack_positions(bitmap, size, sender=1)


POSITIONS = st.sets(st.integers(0, 200))


@given(POSITIONS, POSITIONS)
def test_a_set_of_positions_is_a_set(one: set[int], other: set[int]) -> None:
    left, right = PositionSet(one), PositionSet(other)
    assert list(left) == sorted(one)
    assert len(left) == len(one)
    assert (left == right) == (one == other) == (left == other)
    assert (left <= right) == (one <= other) == (left <= other)
    assert set(left & right) == one & other
    assert [k in left for k in range(201)] == [k in one for k in range(201)]
    assert hash(left) == hash(PositionSet(sorted(one, reverse=True)))


def test_what_is_no_position_is_in_no_set() -> None:
    members = PositionSet([0, 1])
    assert PositionSet(members) == members
    assert -1 not in members
    assert np.int64(1) in members
    assert np.uint8(2) not in members
    assert not members.__contains__("0")
    assert members != 3
    assert repr(members) == "PositionSet([0, 1])"


def test_a_position_is_not_negative() -> None:
    with pytest.raises(ValueError, match="not negative"):
        PositionSet([-1])
