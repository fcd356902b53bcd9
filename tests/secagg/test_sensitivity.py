"""How far one client can move a sum: the bound against another computation, all roundings against it."""

from __future__ import annotations

import math
from decimal import ROUND_FLOOR, Decimal, localcontext
from fractions import Fraction
from itertools import product

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from secagg.sensitivity_and_headroom import counts_norm2, rounded_norm2, rounded_norm2_of_elements

LEAST_ACCEPTED = 1 - math.exp(-0.5)


def to_decimal(value: Fraction) -> Decimal:
    return Decimal(value.numerator) / Decimal(value.denominator)


def formula(norm2: Fraction, size: int) -> int:
    """The whole number below the bound, with 1000 digits; `norm2` is that of the vector before rounding."""
    with localcontext(prec=1000):
        square, root = to_decimal(norm2), Decimal(size).sqrt()
        norm = square.sqrt()
        at_random = square + Decimal(size) / 4 + norm + root / 2
        return int(min(at_random, (norm + root) ** 2).to_integral_value(ROUND_FLOOR))


NORMS = st.fractions(min_value=0, max_value=2**31, max_denominator=2**40)
SIZES = st.one_of(st.integers(1, 50), st.integers(0, 32).map(lambda power: 1 << power))


@given(NORMS, SIZES)
@example(Fraction(0), 1)
@example(Fraction(1, 2), 2)
@example(Fraction(12333), 65536)
@example(Fraction(2) ** 500, 1)
@example(Fraction(1, 2**500), 2**32)
def test_the_bound_is_the_formula_rounded_down(norm: Fraction, size: int) -> None:
    assert rounded_norm2(norm, size) == formula(norm**2, size)


@given(NORMS, st.integers(1, 1 << 32))
@example(Fraction(1, 3), 7)
@example(Fraction(1), 1)
def test_for_elements_the_norm_is_at_most_that_of_the_largest_in_every_place(
    limit: Fraction, size: int
) -> None:
    """And their roundings are whole numbers within the limit, rounded up."""
    expected = min(formula(size * limit**2, size), size * math.ceil(limit) ** 2)
    assert rounded_norm2_of_elements(limit, size) == expected


@pytest.mark.parametrize(
    ("clip", "granularity", "size", "inflated"),
    [
        (1, 8.10824590016897e-05, 1 << 16, 1.000094815),
        (1, 2.02695334457617e-05, 1 << 16, 1.000013527),
        (1, 0.00461726147961336, 1 << 16, 1.16474817),
        (10, 0.251571319243578, 1 << 8, 1.034758225),
    ],
)
def test_known_inflation_by_rounding(clip: int, granularity: float, size: int, inflated: float) -> None:
    """The ratio of the norm after rounding to the one before, for parameters that others computed too."""
    norm = clip / Fraction(granularity)
    norm2 = (inflated * float(norm)) ** 2
    assert rounded_norm2(norm, size) == pytest.approx(norm2 - 0.5, abs=0.5 + 2e-9 * norm2)


# --- how many roundings are accepted, in exact fractions --------------------------------------------


def accepted(vector: list[Fraction], most: int) -> Fraction:
    """The probability that a rounding of `vector` has a squared norm of at most `most`."""
    chance = Fraction(0)
    for ups in product((0, 1), repeat=len(vector)):
        weight, norm2 = Fraction(1), 0
        for value, up in zip(vector, ups, strict=True):
            down = math.floor(value)
            weight *= value - down if up else 1 - (value - down)
            norm2 += (down + up) ** 2
        chance += weight * (norm2 <= most)
    return chance


COORDINATES = st.fractions(min_value=-3, max_value=3, max_denominator=16)


@given(st.lists(COORDINATES, min_size=1, max_size=8))
@settings(max_examples=200)
@example([Fraction(1, 2)] * 8)
@example([Fraction(1, 100)] * 8)
@example([Fraction(99, 100)] * 8)
@example([Fraction(1, 100)])
def test_at_least_39_percent_of_the_roundings_of_any_vector_are_accepted(vector: list[Fraction]) -> None:
    """With a norm from below, as floats might see it, the bound is only stricter."""
    norm = Fraction(math.isqrt(int(sum(value**2 for value in vector) * 2**80)), 2**40)
    assert accepted(vector, rounded_norm2(norm, len(vector))) >= LEAST_ACCEPTED


@pytest.mark.parametrize("size", [1, 2, 4, 16, 256, 1024])
@pytest.mark.parametrize("below", [0, 1, 2, 10, 1000])
def test_vectors_in_the_middle_of_the_grid_are_accepted_as_often(size: int, below: int) -> None:
    """From `below` and a half everywhere: as many coordinates go up as there are heads of a coin."""
    norm2 = size * Fraction(2 * below + 1, 2) ** 2
    norm = Fraction(math.isqrt(int(norm2 * 2**80)), 2**40)
    most_heads = (rounded_norm2(norm, size) - size * below**2) // (2 * below + 1)
    heads = sum(math.comb(size, k) for k in range(min(size, most_heads) + 1))
    assert Fraction(heads, 2**size) >= LEAST_ACCEPTED


# --- counts ----------------------------------------------------------------------------------------


@given(st.integers(1, 4), st.integers(1, 4), st.data())
def test_counts_that_move_the_sum_furthest(limit: int, size: int, data: st.DataObject) -> None:
    """Against all counts there are."""
    total = data.draw(st.one_of(st.none(), st.integers(limit, 2 * limit * size)))
    norms = [
        sum(count**2 for count in counts)
        for counts in product(range(limit + 1), repeat=size)
        if total is None or sum(counts) <= total
    ]
    assert counts_norm2(limit, total, size) == max(norms)


@pytest.mark.parametrize(
    ("limit", "total", "size", "norm2"),
    [(1, 1, 64, 1), (1, None, 64, 64), (5, 7, 3, 29), (2**64 - 1, None, 2**32, 2**32 * (2**64 - 1) ** 2)],
)
def test_histograms_and_other_counts(limit: int, total: int | None, size: int, norm2: int) -> None:
    assert counts_norm2(limit, total, size) == norm2
