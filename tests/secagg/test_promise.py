"""What is promised about noise, in exact fractions: never too little of it, and hardly ever too much."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from secagg.distributed_noise import Noise, NoiseAssumptions
from secagg.errors import SpecError

MOST_CLIENTS = 1 << 20


def promise(clients: int, dropouts: int, colluders: int, *, removable: bool = True) -> NoiseAssumptions:
    return NoiseAssumptions(clients=clients, dropouts=dropouts, colluders=colluders, removable=removable)


@st.composite
def promises(draw: st.DrawFn, most: int = 200) -> NoiseAssumptions:
    clients = draw(st.integers(1, most))
    dropouts = draw(st.integers(0, clients - 1))
    colluders = draw(st.integers(0, clients - 1 - dropouts))
    return promise(clients, dropouts, colluders, removable=draw(st.booleans()))


@st.composite
def rosters(draw: st.DrawFn) -> tuple[NoiseAssumptions, int]:
    """A promise, and the size of a roster that it allows."""
    made = draw(promises())
    return made, draw(st.integers(made.least_roster, made.clients))


def kept(made: NoiseAssumptions, roster: int, survivors: int) -> Fraction:
    """What one survivor's noise leaves in the total, as a part of the target."""
    removed = made.surplus(roster, survivors)
    shares = made.components(roster)
    assert set(removed) < set(range(len(shares)))
    return sum((share for layer, share in enumerate(shares) if layer not in removed), Fraction(0))


# --- how much stays --------------------------------------------------------------------------------


@given(rosters())
@example((promise(MOST_CLIENTS, MOST_CLIENTS // 2, MOST_CLIENTS // 4), MOST_CLIENTS))
@example((promise(100, 30, 0), 31))
def test_components_add_up_to_what_those_who_surely_stay_must_bring(
    case: tuple[NoiseAssumptions, int],
) -> None:
    made, roster = case
    shares = made.components(roster)
    assert sum(shares) == Fraction(1, roster - made.dropouts - made.colluders)
    assert all(share > 0 for share in shares)
    assert len(shares) == 1 + made.seeds


@given(rosters())
@example((promise(100, 30, 0), 100))
@example((promise(100, 30, 10), 41))
@example((promise(2, 1, 0), 2))
def test_honest_survivors_keep_at_least_the_target_for_every_number_of_drop_outs(
    case: tuple[NoiseAssumptions, int],
) -> None:
    made, roster = case
    for dropped in range(made.dropouts + 1):
        survivors = roster - dropped
        assert (survivors - made.colluders) * kept(made, roster, survivors) >= 1


@given(promises().map(lambda made: replace(made, removable=True)))
@example(promise(MOST_CLIENTS, 1, 0))
@example(promise(MOST_CLIENTS, 200, MOST_CLIENTS // 2))
@example(promise(200, 199, 0))
@example(promise(100, 30, 0))
def test_at_the_planned_roster_the_surplus_is_below_half_a_percent(made: NoiseAssumptions) -> None:
    """Of what the total holds, against what it must hold if all colluders stayed."""
    honest = Fraction(made.clients - made.dropouts, made.clients - made.dropouts - made.colluders)
    for dropped in range(made.dropouts + 1):
        survivors = made.clients - dropped
        released = survivors * kept(made, made.clients, survivors)
        assert honest <= released < honest * Fraction(201, 200)


def test_half_a_percent_needs_units_that_are_fine_enough() -> None:
    """With one level less, the surplus of some number of drop-outs is more than that."""
    made = promise(100, 30, 0)
    coarse = made.components(100)[1] * 2
    base, worst = made.components(100)[0], Fraction(0)
    for dropped in range(31):
        units = math.ceil((Fraction(1, 100 - dropped) - base) / coarse)
        worst = max(worst, (100 - dropped) * (base + units * coarse) - 1)
    assert worst > Fraction(1, 200)


@given(rosters())
def test_without_drop_outs_exactly_the_first_component_stays(case: tuple[NoiseAssumptions, int]) -> None:
    made, roster = case
    assert made.surplus(roster, roster) == tuple(range(1, 1 + made.seeds))
    if made.seeds:
        honest = Fraction(roster - made.dropouts, roster - made.dropouts - made.colluders)
        assert roster * made.components(roster)[0] == honest


@given(rosters())
def test_at_the_most_drop_outs_nothing_is_removed(case: tuple[NoiseAssumptions, int]) -> None:
    made, roster = case
    assert made.surplus(roster, roster - made.dropouts) == ()


@given(rosters())
def test_the_fewer_stay_the_less_is_removed_from_each(case: tuple[NoiseAssumptions, int]) -> None:
    made, roster = case
    left = [kept(made, roster, roster - dropped) for dropped in range(made.dropouts + 1)]
    assert left == sorted(left)


def test_removable_components_are_a_unit_and_its_powers_of_two() -> None:
    base, unit, *powers = promise(100, 30, 0).components(100)
    assert base == Fraction(1, 100)
    assert powers == [unit * 2**level for level in range(len(powers))]
    assert len(powers) == 7  # 200 * 30 / 70 is above 64


def test_noise_that_is_not_removable_is_one_component_and_stays() -> None:
    made = promise(100, 30, 10, removable=False)
    assert made.components(100) == (Fraction(1, 60),)
    assert made.seeds == 0
    for survivors in (100, 85, 70):
        assert made.surplus(100, survivors) == ()


def test_without_tolerance_there_is_nothing_to_remove() -> None:
    made = promise(10, 0, 3)
    assert (made.seeds, made.components(10), made.surplus(10, 10)) == (0, (Fraction(1, 7),), ())


@pytest.mark.parametrize(
    ("clients", "dropouts", "seeds"), [(100, 30, 8), (100, 1, 3), (2, 1, 9), (1000, 300, 10), (100, 99, 16)]
)
def test_seeds_are_logarithmic_in_the_tolerance(clients: int, dropouts: int, seeds: int) -> None:
    """The larger of T and 200 T / (n - T), as a power of two, and one more."""
    units = max(dropouts, math.ceil(200 * dropouts / (clients - dropouts)))
    made = promise(clients, dropouts, 0)
    assert made.seeds == math.ceil(math.log2(units)) + 1 == seeds


# --- what is accepted ------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", [-1, 1.0, True, "1", None])
@pytest.mark.parametrize("field", ["clients", "dropouts", "colluders"])
def test_numbers_are_whole(field: str, wrong: Any) -> None:
    fields: dict[str, Any] = {"clients": 10, "dropouts": 1, "colluders": 1}
    with pytest.raises(SpecError, match="must be whole numbers from 0 on"):
        NoiseAssumptions(**{**fields, field: wrong})


def test_removable_is_yes_or_no() -> None:
    one: Any = 1
    with pytest.raises(SpecError, match="removable must be True or False"):
        NoiseAssumptions(clients=2, dropouts=0, colluders=0, removable=one)


@pytest.mark.parametrize(("clients", "dropouts", "colluders"), [(0, 0, 0), (1, 1, 0), (1, 0, 1), (10, 5, 5)])
def test_somebody_honest_has_to_stay(clients: int, dropouts: int, colluders: int) -> None:
    with pytest.raises(SpecError, match="no client is left to add noise"):
        promise(clients, dropouts, colluders)
    assert promise(clients + 1, dropouts, colluders).least_roster == clients + 1


def test_a_roster_has_at_most_a_million_clients() -> None:
    assert promise(MOST_CLIENTS, 0, 0).clients == MOST_CLIENTS
    with pytest.raises(SpecError, match=f"at most {MOST_CLIENTS} clients"):
        promise(MOST_CLIENTS + 1, 0, 0)


@pytest.mark.parametrize(
    "scale", [0, -1.0, math.nan, math.inf, 2.0**-501, 2.0**501, 10**400, "1", True, None]
)
def test_a_scale_is_far_from_the_ends_of_float64(scale: Any) -> None:
    for edge in (2.0**-500, 2.0**500):
        assert Noise(scale=edge, variance=Fraction(1)).scale == edge
    with pytest.raises(
        SpecError, match=r"scale of noise must be a number above zero, from 2\^-500 to 2\^500"
    ):
        Noise(scale=scale, variance=Fraction(1))


@pytest.mark.parametrize("variance", [0, -1, Fraction(-1, 2), 1.0, True, "1", None])
def test_a_variance_is_a_fraction_above_zero(variance: Any) -> None:
    with pytest.raises(SpecError, match="variance of noise must be a fraction above zero"):
        Noise(scale=1.0, variance=variance)


@pytest.mark.parametrize("variance", [Fraction(2**128), Fraction(1, 2**128)])
def test_a_variance_has_at_most_128_bits_on_either_side(variance: Fraction) -> None:
    assert Noise(scale=1.0, variance=variance).variance == variance
    longer = variance * (2 if variance > 1 else Fraction(1, 2))
    with pytest.raises(SpecError, match=r"a fraction of numbers up to 2\^128"):
        Noise(scale=1.0, variance=longer)


def test_noise_is_what_both_sides_compute_with() -> None:
    whole: Any = 4
    made = Noise(scale=3, variance=whole)
    assert (type(made.scale), type(made.variance)) == (float, Fraction)
    assert made == Noise(scale=3.0, variance=Fraction(8, 2))
