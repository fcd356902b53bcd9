"""Tails of the hypergeometric distribution, against counting all draws in integers."""

from __future__ import annotations

from fractions import Fraction
from math import comb, log2

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secagg import hypergeometric
from secagg.errors import ParameterError
from secagg.hypergeometric import Hypergeometric


def at_least(draw: Hypergeometric, count: int) -> Fraction:
    """P[X >= count] by its definition."""
    rest = draw.population - draw.marked
    ways = sum(
        comb(draw.marked, x) * comb(rest, draw.drawn - x) for x in range(max(0, count), draw.drawn + 1)
    )
    return Fraction(ways, comb(draw.population, draw.drawn))


@st.composite
def draws(pick: st.DrawFn, most: int = 80) -> Hypergeometric:
    population = pick(st.integers(0, most))
    members = st.integers(0, population)
    return Hypergeometric(population, pick(members), pick(members))


@given(draws(), st.integers(1, 10**9), st.integers(1, 60))
@settings(deadline=None)
def test_rare_counts_begin_where_the_definition_says(draw: Hypergeometric, more: int, bits: int) -> None:
    times = draw.drawn + more
    found = draw.rare_from(times=times, bits=bits)

    assert times * at_least(draw, found) <= Fraction(1, 2**bits)
    assert times * at_least(draw, found - 1) > Fraction(1, 2**bits)


@given(draws(), st.integers(1, 60))
@settings(deadline=None)
def test_integers_and_floats_agree(draw: Hypergeometric, bits: int) -> None:
    times = draw.drawn + 1
    by_floats = draw.rare_from(times=times, bits=bits)
    with pytest.MonkeyPatch.context() as patch:
        # Floats that could be off by their own size leave every decision to the integers.
        patch.setattr(hypergeometric, "ROUNDING", 1.0)
        assert draw.rare_from(times=times, bits=bits) == by_floats


@given(draws(200), st.data())
@settings(deadline=None)
def test_logarithm_is_that_of_the_definition(draw: Hypergeometric, data: st.DataObject) -> None:
    count = data.draw(st.integers(draw.mode, draw.drawn + 1))
    exact = at_least(draw, count)

    found = draw.log2_at_least(count)

    if exact == 0:
        assert found is None
    else:
        assert found == pytest.approx(log2(exact.numerator) - log2(exact.denominator), abs=1e-11)


@given(draws())
@settings(deadline=None)
def test_mode_is_the_likeliest_count(draw: Hypergeometric) -> None:
    chances = [at_least(draw, count) - at_least(draw, count + 1) for count in range(draw.drawn + 1)]

    assert chances[draw.mode] == max(chances)


@given(draws(), st.integers(1, 1000), st.integers(1, 60))
@settings(deadline=None)
def test_one_draw_more_adds_at_most_one(draw: Hypergeometric, more: int, bits: int) -> None:
    """The search for neighbours rests on this: what is rare from some count on never becomes rare earlier."""
    if draw.drawn == draw.population:
        return
    times = draw.drawn + 1 + more
    larger = Hypergeometric(draw.population, draw.marked, draw.drawn + 1)
    before, after = (each.rare_from(times=times, bits=bits) for each in (draw, larger))

    assert before <= after <= before + 1


@pytest.mark.parametrize("population", range(2**30, 2**30 + 400, 4))
def test_tie_is_decided_by_integers(population: int) -> None:
    # Two marked ones in a draw of two: P = 2 / (N(N - 1)). No float tells a tie from one draw more or less.
    draw = Hypergeometric(population, 2, 2)
    tie = population * (population - 1) // 4

    assert [draw.rare_from(times=tie + more, bits=1) for more in (-1, 0, 1)] == [2, 2, 3]


@pytest.mark.parametrize(("times", "bits"), [(10**9, 41), (10**9, 1025), (2**60, 1025)])
def test_population_of_a_billion(times: int, bits: int) -> None:
    draw = Hypergeometric(10**9, 10**9 // 3, 716)
    found = draw.rare_from(times=times, bits=bits)
    limit = Fraction(1, times * 2**bits)

    assert at_least(draw, found) <= limit < at_least(draw, found - 1)


def test_logarithm_below_the_range_of_floats() -> None:
    draw = Hypergeometric(10**6, 1000, 400)
    exact = at_least(draw, 350)

    assert exact < Fraction(1, 2**1100)
    assert draw.log2_at_least(350) == pytest.approx(log2(exact.numerator) - log2(exact.denominator), abs=1e-9)


@pytest.mark.parametrize("numbers", [(10, 11, 5), (10, -1, 5), (10, 5, 11), (10, 5, -1), (-1, 0, 0)])
def test_impossible_draw(numbers: tuple[int, int, int]) -> None:
    with pytest.raises(ParameterError, match="impossible to draw"):
        Hypergeometric(*numbers)
