"""What the errors of samplers add to delta, and plans that are refused for it."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import pytest

from secagg.distributed_noise import NoiseAssumptions
from secagg.errors import SpecError
from secagg.noise.elementwise_calibration import calibrate_counts, calibrate_elements
from secagg.noise.gaussian import discrete_gaussian
from secagg.noise.part_plan import Plan
from secagg.noise.privacy_goal import Goal
from secagg.noise.sampling_error import draw_error, sampling_delta
from secagg.noise.vector_calibration import calibrate_vector
from secagg.sum_spec import L2, Part, SumSpec

ONE = NoiseAssumptions(clients=2, dropouts=0, colluders=1)
FEW = NoiseAssumptions(clients=5, dropouts=2, colluders=1, removable=True)


@pytest.mark.parametrize("variance", [Fraction(1, 4), 1, 16, 1000, 1 << 14, (1 << 20) + 1, 1 << 24, 3 << 60])
def test_the_bound_on_a_draw_is_that_of_the_sampler_or_more(variance: int | Fraction) -> None:
    found = discrete_gaussian(variance).total_variation
    assert found <= Fraction(draw_error(Fraction(variance))) < 2.0**-100


def test_all_draws_of_all_sums_count() -> None:
    plan = calibrate_vector(promise=FEW, goal=Goal(rho=0.5), size=1000, clip=1.0)
    spec = SumSpec(parts=(plan.part("x"),), promise=FEW)
    one = sum(draw_error(plan.variance * share) for share in FEW.components(5))
    expected = (1 + math.exp(3.0)) * 7 * 5 * 1024 * one
    assert sampling_delta(spec, roster=5, sums=7, epsilon=3.0) == pytest.approx(expected, rel=1e-12)
    assert sampling_delta(spec, roster=5, sums=1, epsilon=1e4) == math.inf
    bare = SumSpec(parts=(Part(name="x", size=3, bits=32, bound=L2(1.0)),))
    assert sampling_delta(bare, roster=5, sums=1, epsilon=1e4) == 0.0


def vector_plan(goal: Goal) -> Plan:
    return calibrate_vector(promise=ONE, goal=goal, size=1, clip=1.0)


def counts_plan(goal: Goal) -> Plan:
    return calibrate_counts(promise=ONE, goal=goal, bins=2, total=1)


def elements_plan(goal: Goal) -> Plan:
    return calibrate_elements(promise=ONE, goal=goal, size=1, limit=1.0)


def plans(goal: Goal) -> list[Plan]:
    return [vector_plan(goal), counts_plan(goal), elements_plan(goal)]


@pytest.mark.parametrize("epsilon", [70.0, 1000.0, 1e6])
@pytest.mark.parametrize("plan", [vector_plan, counts_plan, elements_plan])
def test_an_epsilon_that_the_samplers_do_not_keep_is_refused(
    plan: Callable[[Goal], Plan], epsilon: float
) -> None:
    """With one honest client and one number, the errors exceed delta from an epsilon of about 60."""
    with pytest.raises(SpecError, match="take an epsilon of 20 or less"):
        plan(Goal(epsilon=epsilon, delta=1e-5))


def test_a_goal_in_rho_is_held_to_its_delta() -> None:
    assert len(plans(Goal(rho=1.0, delta=1e-5))) == 3
    with pytest.raises(SpecError, match="protects nobody"):
        plans(Goal(rho=100.0, delta=1e-5))
    assert len(plans(Goal(rho=100.0))) == 3


def test_what_is_accepted_adds_less_than_a_thousandth() -> None:
    for epsilon in (1.0, 8.0, 20.0, 40.0):
        for plan in plans(Goal(epsilon=epsilon, delta=1e-5, sums=100)):
            spec = SumSpec(parts=(plan.part("x"),), promise=ONE)
            assert sampling_delta(spec, roster=2, sums=100, epsilon=epsilon) <= 1e-8
