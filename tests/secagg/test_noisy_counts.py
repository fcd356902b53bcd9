"""How counts travel with noise: exactly, on a finer grid, with room for noise on both sides."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from secagg.distributed_noise import Noise
from secagg.input_encoding import Encoding
from secagg.noise.grid_encoding import NoisyCounts
from secagg.sum_spec import Count, Part
from tests.secagg.encodings import encode_one, noisy, signed, total_of


def counts_code(limit: int, *, size: int, scale: float, bits: int, roster: int) -> NoisyCounts:
    noise, bound = Noise(scale=scale, variance=Fraction(1)), Count(limit)
    part = Part(name="x", size=size, bits=bits, bound=bound, noise=noise)
    return NoisyCounts(part, bound, noise, roster=roster)


@st.composite
def noisy_counts(draw: st.DrawFn) -> tuple[Encoding, list[list[int]]]:
    cohort, limit = draw(st.integers(1, 50)), draw(st.integers(1, 1000))
    scale = draw(st.integers(1, 1000))
    bits = draw(st.integers((cohort * limit * scale + 2).bit_length(), 64))
    rows = st.lists(st.integers(0, limit), min_size=3, max_size=3)
    counts = draw(st.lists(rows, min_size=1, max_size=min(cohort, 4)))
    return noisy(Count(limit), bits=bits, cohort=cohort, scale=scale), counts


@given(noisy_counts())
@example((noisy(Count(1), bits=64, scale=1.0), [[0, 1, 1]]))
@example((noisy(Count(2**31), size=1, bits=64, scale=1.0), [[2**31]]))
def test_counts_are_summed_exactly_on_their_grid(case: tuple[Encoding, list[list[int]]]) -> None:
    code, counts = case
    (part,) = code.spec.parts
    scale = int(code.scale(part))
    assert encode_one(code, counts[0]) == signed(np.array(counts[0], np.uint64) * scale, part.bits)
    total = total_of(code, counts)["x"]
    assert total.dtype == np.float64
    assert total.tolist() == [sum(column) for column in zip(*counts, strict=True)]


def test_noise_below_zero_and_above_the_largest_count_share_what_counts_leave() -> None:
    """Three clients of at most 2, on a grid of halves, reach 12 of 63: 25 are below zero, 26 above 12."""
    code = counts_code(2, size=64, scale=2.0, bits=6, roster=3)
    decoded = code.decode(np.arange(64, dtype=np.uint8), code.buffer())
    assert sorted(decoded.tolist()) == [number / 2 for number in range(-25, 39)]
    assert decoded[:39].tolist() == [number / 2 for number in range(39)]


@pytest.mark.parametrize("bits", [5, 8, 16, 31, 32, 53, 54, 63, 64])
def test_numbers_on_both_sides_of_zero_are_decoded_to_the_last_one(bits: int) -> None:
    code = counts_code(5, size=6, scale=1.0, bits=bits, roster=2)
    numbers = [0, 1, 15, -1, -2, -10]
    total = np.array([number % (1 << bits) for number in numbers], np.uint64)
    held = total.astype(f"<u{next(w for w in (1, 2, 4, 8) if bits <= 8 * w)}")
    kept = held.copy()
    assert code.decode(held, code.buffer()).tolist() == numbers
    assert held.tolist() == kept.tolist()


def test_counts_that_fill_the_ring_leave_no_room_for_noise() -> None:
    code = counts_code(7, size=2, scale=1.0, bits=3, roster=1)
    assert code.decode(np.array([7, 0], np.uint8), code.buffer()).tolist() == [7.0, 0.0]


@pytest.mark.parametrize("dtype", ["?", "i1", "u1", "i2", "i4", "i8", "u8", ">i4"])
def test_counts_of_any_type_are_scaled(dtype: str) -> None:
    code = noisy(Count(1), bits=16, scale=1000.0)
    assert encode_one(code, np.array([0, 1, 1], dtype)) == [0, 1000, 1000]
