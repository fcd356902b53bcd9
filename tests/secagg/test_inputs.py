"""What a client may hand in, and what never gets in: whatever numpy would have made of it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from secagg.clipping_and_fixed_point import checked
from secagg.errors import InputError
from secagg.input_encoding import Encoding
from secagg.mask_keystream import KeyStream
from secagg.sum_spec import L2, Bound, Count, LInf, Part, Residue, SumSpec
from tests.secagg.encodings import encode_one, encoding, stream, total_of

# --- what is taken ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [list, tuple])
def test_a_list_of_large_integers_is_not_taken_for_floats(kind: Any) -> None:
    """Which is what numpy makes of integers on both sides of 2^63."""
    numbers = kind([(1 << 64) - 1, (1 << 63) + 1, 1])
    assert total_of(encoding(Residue(), bits=64), [numbers])["x"].tolist() == list(numbers)
    real = total_of(encoding(LInf(2.0**64), bits=64, cohort=1), [numbers])["x"]
    assert real == pytest.approx(numbers, rel=1e-15, abs=2.0)  # the grid's step is two


def test_truth_values_are_counted() -> None:
    code = encoding(Count(1), bits=2, cohort=3)
    votes = [[True, False, True], [True, False, False], [True, True, False]]
    assert total_of(code, votes)["x"].tolist() == [3, 1, 1]


# --- what does not get in --------------------------------------------------------------------------


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("bound", [L2(1.0), LInf(1.0)])
def test_values_that_are_not_finite_raise(bound: Bound, value: float) -> None:
    with pytest.raises(InputError, match="part 'x' holds NaN or infinity"):
        encoding(bound).encode({"x": [0.0, value, 0.0]}, stream())


@pytest.mark.parametrize("bound", [L2(1.0), LInf(1.0), Count(1), Residue()])
@pytest.mark.parametrize("value", [[0, 0], [0] * 4, [[0, 0, 0]], 0, [], np.zeros((3, 1))])
def test_another_shape_raises(bound: Bound, value: Any) -> None:
    with pytest.raises(InputError, match=r"part 'x' needs shape \(3,\), not \("):
        encoding(bound).encode({"x": value}, stream())


@pytest.mark.parametrize(
    "value",
    [[1j] * 3, ["1"] * 3, [None] * 3, [True] * 3, [b"1"] * 3, [10**30] * 3, np.ones(3, np.longdouble)],
)
@pytest.mark.parametrize("bound", [L2(1.0), LInf(1.0)])
def test_a_real_part_takes_only_real_numbers(bound: Bound, value: Any) -> None:
    with pytest.raises(InputError, match="part 'x' needs real numbers, not"):
        encoding(bound).encode({"x": value}, stream())


@pytest.mark.parametrize("value", [[1.0] * 3, [1j] * 3, ["1"] * 3, [None] * 3, [1 << 64] * 3])
@pytest.mark.parametrize("bound", [Count(5), Residue()])
def test_a_whole_part_takes_only_integers(bound: Bound, value: Any) -> None:
    with pytest.raises(InputError, match="part 'x' needs integers, not"):
        encoding(bound).encode({"x": value}, stream())


@pytest.mark.parametrize("value", [-1, 6, np.iinfo(np.int64).min, np.iinfo(np.int64).max])
def test_a_count_outside_its_range_raises_and_is_not_clipped(value: int) -> None:
    code = encoding(Count(5))
    assert encode_one(code, [0, 5, 3]) == [0, 5, 3]
    with pytest.raises(InputError, match="part 'x' needs integers from 0 to 5"):
        code.encode({"x": [0, value, 3]}, stream())


@pytest.mark.parametrize("bits", [1, 7, 8, 31, 63])
def test_a_residue_outside_its_ring_raises(bits: int) -> None:
    code = encoding(Residue(), size=1, bits=bits)
    top = (1 << bits) - 1
    assert code.encode({"x": [top]}, stream()).residues[0].tolist() == [top]
    for value in (-1, top + 1):
        with pytest.raises(InputError, match=f"part 'x' needs integers from 0 to {top}"):
            code.encode(
                {"x": np.array([value]) if value < 1 << 63 else np.array([value], np.uint64)}, stream()
            )


@pytest.mark.parametrize("bound", [L2(1.0), Count(1)])
def test_rows_of_different_lengths_raise(bound: Bound) -> None:
    ragged: Any = [[0.0], [0.0, 1.0], [2.0]]
    with pytest.raises(InputError, match="part 'x' is not a vector"):
        encoding(bound).encode({"x": ragged}, stream())


def test_a_masked_array_is_refused() -> None:
    """Numpy would drop the mask, and what it hides would be summed."""
    hidden = np.ma.array([1.0, 2.0], mask=[False, True])
    part = Part(name="x", size=2, bits=32, bound=LInf(5.0))
    with pytest.raises(InputError, match="fill or remove what is masked"):
        Encoding(SumSpec(parts=(part,)), cohort=2).encode({"x": hidden}, KeyStream(bytes(32)))


# --- what counts add up to -------------------------------------------------------------------------


def counts(limit: int, total: int | None, size: int = 3) -> Part:
    return Part(name="x", size=size, bits=64, bound=Count(limit, total))


@given(st.lists(st.integers(0, 9), min_size=3, max_size=3), st.integers(9, 27))
def test_counts_add_up_to_at_most_their_total(values: list[int], total: int) -> None:
    part = counts(9, total)
    if sum(values) <= total:
        assert checked(part, values).tolist() == values
    else:
        with pytest.raises(InputError, match=f"part 'x' needs integers that add up to at most {total}"):
            checked(part, values)


@pytest.mark.parametrize("dtype", ["?", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", ">i4", ">u8"])
def test_counts_of_any_type_are_added_up(dtype: str) -> None:
    assert checked(counts(1, 2), np.array([1, 0, 1], dtype)).tolist() == [1, 0, 1]
    with pytest.raises(InputError, match="add up to at most 2"):
        checked(counts(1, 2), np.array([1, 1, 1], dtype))


@pytest.mark.parametrize("extra", [0, 1])
@pytest.mark.parametrize("size", [2, 3, 1000])
def test_counts_whose_sum_is_beyond_64_bits_do_not_wrap(size: int, extra: int) -> None:
    """Their sum modulo 2^64 would be small enough."""
    most = (1 << 64) - 1
    values = np.full(size, most, np.uint64)
    with pytest.raises(InputError, match="add up to at most"):
        checked(counts(most, most, size=size), values)
    values[:] = 0
    values[0], values[1] = most - 1, 1 + extra
    if extra:
        with pytest.raises(InputError, match="add up to at most"):
            checked(counts(most, most, size=size), values)
    else:
        assert checked(counts(most, most, size=size), values) is values


def test_counts_without_a_total_add_up_to_anything() -> None:
    assert checked(counts(9, None), [9, 9, 9]).tolist() == [9, 9, 9]
