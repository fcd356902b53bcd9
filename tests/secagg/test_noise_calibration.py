"""Grids and noise: published figures, the equations they solve, and requests that cannot be met."""

from __future__ import annotations

import json
import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secagg.distributed_noise import NoiseAssumptions
from secagg.errors import ParameterError, SpecError
from secagg.noise.elementwise_calibration import calibrate_counts, calibrate_elements
from secagg.noise.part_plan import Plan
from secagg.noise.privacy_goal import Goal, Orders
from secagg.noise.rho_and_epsilon import rho_for
from secagg.noise.vector_calibration import calibrate_vector
from secagg.noise.zcdp_cost import Adjacency, charge, sum_rho
from secagg.sum_spec import L2, Count, LInf, SumSpec

PATH = Path(__file__).resolve().parent.parent / "vectors" / "noise-parameters.json"
VECTORS: dict[str, list[dict[str, Any]]] = json.loads(PATH.read_text(encoding="ascii"))
ZERO_OUT, ADD_REMOVE, REPLACE = Adjacency
DELTA = 1e-5


def everyone(clients: int) -> NoiseAssumptions:
    return NoiseAssumptions(clients=clients, dropouts=0, colluders=0)


def spec_of(plan: Plan) -> SumSpec:
    spec = SumSpec(parts=(plan.part("x"),), promise=plan.promise)
    spec.check_fits(plan.promise.clients)
    return spec


def charged(plan: Plan, roster: int | None = None) -> float:
    """What a client charges for one sum."""
    clients = plan.promise.clients if roster is None else roster
    rho = sum_rho(spec_of(plan), roster=clients, adjacency=plan.goal.adjacency)
    assert rho is not None
    return rho


# --- goals ------------------------------------------------------------------------------------------


def test_a_goal_is_shared_by_sums() -> None:
    once, often = Goal(epsilon=2, delta=DELTA), Goal(epsilon=2, delta=DELTA, sums=50)

    assert often.rho_per_sum == pytest.approx(once.rho_per_sum / 50, rel=1e-12)
    assert Goal(rho=0.5, sums=4).rho_per_sum == 0.125


def test_a_goal_is_shared_by_parts() -> None:
    goal = Goal(epsilon=2, delta=DELTA, sums=50, adjacency=REPLACE, orders=Orders.INTEGER)
    most, rest = goal.part(0.9), goal.part(0.1)

    assert most.rho_per_sum + rest.rho_per_sum == pytest.approx(goal.rho_per_sum, rel=1e-12)
    assert (most.delta, most.sums, most.adjacency, most.orders) == (DELTA, 50, REPLACE, Orders.INTEGER)


def test_what_is_left_beside_a_cost_at_every_order() -> None:
    assert Goal(rho=0.5, sums=2).rho_beside(0.1) == pytest.approx(0.15)
    assert Goal(rho=0.5, sums=2).rho_beside(0.3) == 0
    goal = Goal(epsilon=3, delta=DELTA, sums=2)
    assert goal.rho_beside(0.5) == pytest.approx(Goal(epsilon=2, delta=DELTA).rho_per_sum / 2)
    assert goal.rho_beside(1.5) == 0


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({}, "either epsilon or rho"),
        ({"epsilon": 1.0, "rho": 1.0, "delta": DELTA}, "either epsilon or rho"),
        ({"epsilon": 1.0}, "nothing without delta"),
        ({"epsilon": 0.0, "delta": DELTA}, r"^epsilon must be a number from 1e-09 to 1e\+06$"),
        ({"epsilon": True, "delta": DELTA}, "^epsilon must be a number"),
        ({"epsilon": "1", "delta": DELTA}, "^epsilon must be a number"),
        ({"rho": 0.0}, r"^rho must be a number from 1e-09 to 1e\+06$"),
        ({"rho": math.nan}, "^rho must be a number"),
        ({"rho": math.inf}, "^rho must be a number"),
        ({"rho": 10**400}, "^rho must be a number"),
        ({"rho": 1.0, "delta": 1.0}, "above 0 and below 1"),
        ({"epsilon": 1.0, "delta": 0.0}, "above 0 and below 1"),
        ({"epsilon": 1.0, "delta": "1e-5"}, "above 0 and below 1"),
        ({"epsilon": 1.0, "delta": 9e-16}, "delta must be at least 1e-15: .* noise is drawn"),
        ({"rho": 1.0, "sums": 0}, "sums must be a whole number from 1 to 4294967296"),
        ({"rho": 1.0, "sums": 1.5}, "sums must be a whole number"),
        ({"rho": 1.0, "sums": True}, "sums must be a whole number"),
        ({"rho": 1.0, "sums": 10**400}, "sums must be a whole number"),
        ({"rho": 1.0, "orders": "real"}, "orders must be one of integer, continuous"),
        ({"rho": 1.0, "adjacency": "swap"}, "adjacency must be one of zero-out, add-remove, replace"),
        ({"rho": 1.0, "adjacency": None}, "adjacency must be one of"),
    ],
)
def test_goals_that_make_no_sense(fields: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ParameterError, match=sentence):
        Goal(**fields)


def test_goals_by_name_and_by_numbers_of_numpy() -> None:
    names: dict[str, Any] = {"adjacency": "replace", "orders": "integer"}
    goal = Goal(epsilon=np.float32(2), delta=np.float64(DELTA), sums=np.int64(3), **names)  # type: ignore[arg-type]

    assert goal == Goal(epsilon=2, delta=DELTA, sums=3, adjacency=REPLACE, orders=Orders.INTEGER)
    assert (goal.adjacency, goal.orders) == (REPLACE, Orders.INTEGER)
    assert [type(value) for value in (goal.epsilon, goal.delta, goal.sums)] == [float, float, int]


@pytest.mark.parametrize("share", [0, -0.5, 1.1, math.nan, True, "0.5"])
def test_a_share_is_a_part_of_all(share: Any) -> None:
    with pytest.raises(ParameterError, match="a share must be a number above 0 and at most 1"):
        Goal(rho=1.0).part(share)


def test_a_share_may_be_too_small() -> None:
    everything: Any = np.float32(1)
    assert Goal(rho=1.0).part(everything) == Goal(rho=1.0)
    with pytest.raises(ParameterError, match="a share of 1e-10 is too small"):
        Goal(rho=1.0).part(1e-10)


@pytest.mark.parametrize(("wanted", "delta"), [(0.01, DELTA), (0.02, DELTA), (0.05, 1e-9), (0.1, 1e-15)])
def test_orders_too_few_for_an_epsilon(wanted: float, delta: float) -> None:
    goal = Goal(epsilon=wanted, delta=delta, orders=Orders.INTEGER)

    with pytest.raises(ParameterError, match=f"orders up to 256 .* as small as {wanted} .* use continuous"):
        _ = goal.rho_per_sum
    assert Goal(epsilon=wanted, delta=delta).rho_per_sum > 0


def test_orders_that_are_just_enough() -> None:
    few, all_of_them = (Goal(epsilon=0.05, delta=DELTA, orders=orders) for orders in Orders)

    assert few.rho_per_sum == pytest.approx(all_of_them.rho_per_sum, rel=0.02)


# --- vectors: figures -------------------------------------------------------------------------------

ROWS = [(group, row) for group in VECTORS["grids"] for row in group["rows"]]


@pytest.mark.parametrize(
    ("group", "row"),
    ROWS,
    ids=[f"{group['orders']}-{row['dim']}-{row['epsilon']}-{row['bits']}" for group, row in ROWS],
)
def test_grid(group: dict[str, Any], row: dict[str, Any]) -> None:
    goal = Goal(epsilon=row["epsilon"], delta=group["delta"], orders=Orders(group["orders"]))
    plan = calibrate_vector(
        promise=everyone(row["clients"]), goal=goal, size=row["dim"], clip=row["clip"],
        bits=row["bits"], stddevs=row["stddevs"],
    )  # fmt: skip

    assert plan.granularity == pytest.approx(row["granularity"], rel=1e-9)
    assert plan.sigma_local == pytest.approx(row["sigma_local"], rel=1e-9)
    assert plan.sigma_over_granularity == pytest.approx(row["sigma_over_granularity"], rel=1e-9)
    assert plan.sigma_central == pytest.approx(row["sigma_local"] * math.sqrt(row["clients"]), rel=1e-9)
    assert plan.sigma_released == pytest.approx(plan.sigma_central, rel=1e-12)
    assert plan.epsilon == pytest.approx(row["epsilon"], rel=1e-11)


def test_sensitivity_and_tau_of_a_coarse_grid() -> None:
    goal = Goal(epsilon=3, delta=DELTA, orders=Orders.INTEGER)
    plan = calibrate_vector(promise=everyone(100), goal=goal, size=256, clip=10, bits=10, stddevs=2)

    assert plan.sensitivity / 10 == pytest.approx(1.034758225, rel=1e-9)
    assert math.log10(plan.tau) == pytest.approx(-161.4, abs=0.05)


def test_too_few_bits() -> None:
    goal = Goal(epsilon=1, delta=DELTA)

    with pytest.raises(SpecError, match=r"12 bits are too few .* needs at least 13 bits$") as caught:
        calibrate_vector(promise=everyone(100), goal=goal, size=65536, clip=1.0, bits=12, stddevs=4)

    assert caught.value.bits_needed == 13


def test_no_ring_is_large_enough() -> None:
    def plan(bits: int | None) -> Plan:
        goal = Goal(rho=1e-9)
        return calibrate_vector(promise=everyone(9), goal=goal, size=1, clip=1.0, bits=bits, stddevs=1e16)

    with pytest.raises(
        SpecError, match=r"^64 bits are too few for 9 clients, 1 element .* is the most"
    ) as typed:
        plan(64)
    with pytest.raises(
        SpecError, match=r"^no ring .* lower the standard deviations .* epsilon$"
    ) as not_typed:
        plan(None)

    for caught in (typed, not_typed):
        assert caught.value.bits_needed is not None
        assert caught.value.bits_needed > 64


def test_padding_is_named_where_bits_are_too_few() -> None:
    with pytest.raises(SpecError, match=r"100 clients, 100000 elements \(padded to 131072\) and"):
        calibrate_vector(promise=everyone(100), goal=Goal(rho=0.01), size=100_000, clip=1.0, bits=9)


def test_a_ring_of_one_bit_is_the_least() -> None:
    plan = calibrate_vector(promise=everyone(1), goal=Goal(rho=0.1), size=1, clip=1.0, stddevs=1e-3)

    assert plan.bits == 1


def test_noise_below_what_the_theorem_is_about() -> None:
    """Its exact epsilon would be 592."""
    goal = Goal(rho=rho_for(500, delta=DELTA))

    def plan(bits: int) -> Plan:
        return calibrate_vector(promise=everyone(2), goal=goal, size=1, clip=1.0, bits=bits, stddevs=2)

    with pytest.raises(SpecError, match=r"2 bits are too few .* at least 8 bits"):
        plan(2)
    assert plan(8).sigma_over_granularity ** 2 >= 0.5
    assert plan(8).rho == pytest.approx(goal.rho)


def test_a_ring_may_be_larger_than_a_grid_can_use() -> None:
    goal = Goal(rho=0.1)
    wide, wider = (
        calibrate_vector(promise=everyone(100), goal=goal, size=16, clip=1.0, bits=bits) for bits in (50, 64)
    )

    assert wider.granularity == wide.granularity == pytest.approx(2.0**-30)
    assert charged(wider) <= 0.1 * (1 + 1e-9)


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        *(({"size": size}, "number of elements must be a whole") for size in (0, 10.0, "10", True, 1 << 33)),
        *(({"stddevs": k}, "deviations of room must be a number") for k in (0.0, math.inf, "6", True, None)),
        *(({"clip": clip}, "the clip must be a number") for clip in (0.0, math.nan, "1", True, None)),
        *(({"bits": b}, "^bits must be a whole number from 1 to 64") for b in (65, 0, -1, "12", 10**4, True)),
        ({"promise": None}, "must be NoiseAssumptions"),
        ({"goal": 1.0}, "must be a Goal"),
    ],
)
def test_requests_that_make_no_sense(fields: dict[str, Any], sentence: str) -> None:
    request = {"promise": everyone(10), "goal": Goal(rho=0.1), "size": 16, "clip": 1.0}

    with pytest.raises(ParameterError, match=sentence):
        calibrate_vector(**{**request, **fields})


def test_requests_by_numbers_of_numpy() -> None:
    whole: Any = np.int64(16)
    real: Any = np.float32(2)
    request: dict[str, Any] = {"promise": everyone(10), "goal": Goal(rho=0.1)}

    assert calibrate_vector(**request, size=whole, clip=real, bits=whole, stddevs=real) == calibrate_vector(
        **request, size=16, clip=2.0, bits=16, stddevs=2.0
    )
    assert calibrate_counts(**request, bins=whole, limit=whole, total=whole) == calibrate_counts(
        **request, bins=16, limit=16, total=16
    )
    assert calibrate_elements(**request, size=whole, limit=whole) == calibrate_elements(
        **request, size=16, limit=16.0
    )


# --- vectors: properties ----------------------------------------------------------------------------


@st.composite
def promises(draw: st.DrawFn) -> NoiseAssumptions:
    clients = draw(st.integers(1, 300))
    dropouts = draw(st.integers(0, clients - 1))
    colluders = draw(st.integers(0, clients - 1 - dropouts))
    return NoiseAssumptions(
        clients=clients, dropouts=dropouts, colluders=colluders, removable=draw(st.booleans())
    )


goals = st.builds(
    Goal, rho=st.floats(1e-4, 10), sums=st.integers(1, 50), adjacency=st.sampled_from(Adjacency)
)


def left_in_total(promise: NoiseAssumptions) -> Fraction:
    """The variance that nobody's dropping out leaves in the total, as a multiple of the promised one."""
    n, dropouts, colluders = promise.clients, promise.dropouts, promise.colluders
    return Fraction(n - dropouts if promise.removable else n, n - dropouts - colluders)


def check_equations(plan: Plan, clip: float) -> None:
    """In exact terms: the ring has room for what it should, and little more; the goal is met, and just so."""
    n, d = plan.promise.clients, plan.width
    grid = clip * plan.scale
    noise = float(left_in_total(plan.promise) * plan.variance)
    spread = math.sqrt(grid**2 * n**2 / d + n / 4 + noise)
    assert 2 * plan.stddevs * spread == pytest.approx(2.0**plan.bits, rel=1e-6)
    assert plan.norm2 == pytest.approx(grid**2 + grid + d / 4 + math.sqrt(d) / 2, rel=1e-9)


@settings(max_examples=60)
@given(promises(), goals, st.integers(1, 5000), st.floats(1e-3, 1e3), st.integers(0, 6))
def test_vector_plans(promise: NoiseAssumptions, goal: Goal, size: int, clip: float, more: int) -> None:
    least = calibrate_vector(promise=promise, goal=goal, size=size, clip=clip)
    plan = calibrate_vector(promise=promise, goal=goal, size=size, clip=clip, bits=least.bits + more)

    check_equations(plan, clip)
    assert least.least_sigma_over_granularity >= 4 * (1 - 1e-9)
    assert least.sensitivity <= 1.02 * clip * (1 + 1e-9)
    assert charged(plan) <= goal.rho_per_sum * (1 + 1e-9)
    assert plan.rho == pytest.approx(goal.rho_per_sum, rel=1e-9)
    assert plan.sigma_central <= least.sigma_central * (1 + 1e-9)
    assert plan.sigma_released == pytest.approx(
        plan.sigma_central * math.sqrt(left_in_total(promise)), rel=1e-9
    )


@pytest.mark.parametrize(("size", "clients"), [(65536, 100), (1, 1000)])
def test_the_fewest_bits_of_a_fine_grid(size: int, clients: int) -> None:
    """Of a long vector, rounding decides; of a short one, the standard deviation of what everyone adds."""
    goal = Goal(epsilon=8, delta=DELTA)

    def plan(bits: int | None) -> Plan:
        return calibrate_vector(promise=everyone(clients), goal=goal, size=size, clip=1.0, bits=bits)

    fine, coarse = plan(None), plan(plan(None).bits - 1)

    assert (fine.sensitivity <= 1.02, fine.sigma_over_granularity >= 4) == (True, True)
    assert (coarse.sensitivity <= 1.02, coarse.sigma_over_granularity >= 4) != (True, True)


@settings(max_examples=60)
@given(promises(), st.floats(-6, 6), st.integers(1, 300), st.integers(0, 30), st.sampled_from(Adjacency))
def test_nothing_that_is_planned_is_charged_beyond_its_goal(
    promise: NoiseAssumptions, exponent: float, size: int, more: int, adjacency: Adjacency
) -> None:
    goal = Goal(rho=10**exponent, adjacency=adjacency)
    least = calibrate_vector(promise=promise, goal=goal, size=size, clip=1.0)
    bits = min(64, least.bits + more)
    plans = (
        calibrate_vector(promise=promise, goal=goal, size=size, clip=1.0, bits=bits),
        calibrate_counts(promise=promise, goal=goal, bins=size),
        calibrate_elements(promise=promise, goal=goal, size=size, limit=0.3),
    )

    for plan in plans:
        assert charge(charged(plan)) <= charge(goal.rho_per_sum)


def test_how_long_noise_is() -> None:
    plan = calibrate_vector(promise=everyone(10), goal=Goal(rho=0.1), size=100, clip=1.0)

    assert plan.noise_norm == pytest.approx(10 * plan.sigma_central)
    assert plan.width == 128


def test_least_roster() -> None:
    promise = NoiseAssumptions(clients=100, dropouts=10, colluders=5)
    plan = calibrate_vector(promise=promise, goal=Goal(rho=0.1), size=100, clip=1.0)

    assert plan.least_roster == spec_of(plan).least_roster
    assert 16 <= plan.least_roster <= 100


@settings(max_examples=30)
@given(promises(), goals, st.integers(1, 64), st.data())
def test_what_is_planned_for_all_holds_for_fewer(
    promise: NoiseAssumptions, goal: Goal, size: int, data: st.DataObject
) -> None:
    plan = calibrate_vector(promise=promise, goal=goal, size=size, clip=1.0)
    roster = data.draw(st.integers(promise.least_roster, promise.clients))

    assert charged(plan, roster) <= goal.rho_per_sum * (1 + 1e-9)


@settings(max_examples=40)
@given(
    st.integers(2, 400),
    st.integers(1, 40),
    st.floats(1, 10),
    st.integers(3, 12),
    st.sampled_from(Adjacency),
    st.booleans(),
)
def test_coarse_grids(
    clients: int, size: int, rho: float, bits: int, adjacency: Adjacency, removable: bool
) -> None:
    """Small rings, in which tau costs a part of the goal or all of it."""
    promise = NoiseAssumptions(clients=clients, dropouts=clients // 4, colluders=0, removable=removable)
    goal = Goal(rho=rho, adjacency=adjacency)

    def plan_with(bits: int) -> Plan:
        return calibrate_vector(promise=promise, goal=goal, size=size, clip=1.0, bits=bits, stddevs=4)

    enough = bits
    try:
        plan_with(bits)
    except SpecError as error:
        enough = error.bits_needed or 0
        with pytest.raises(SpecError, match=f"needs at least {enough} bits"):
            plan_with(enough - 1)
    plan = plan_with(enough)

    check_equations(plan, 1.0)
    assert plan.rho == pytest.approx(rho, rel=1e-9)
    assert charged(plan) <= rho * (1 + 1e-9)


@pytest.mark.parametrize("bits", [9, 10, 12])
@pytest.mark.parametrize("adjacency", Adjacency)
def test_coarse_grids_for_an_epsilon(bits: int, adjacency: Adjacency) -> None:
    goal = Goal(epsilon=10, delta=DELTA, adjacency=adjacency)
    plan = calibrate_vector(promise=everyone(1000), goal=goal, size=16, clip=1.0, bits=bits, stddevs=4)

    assert plan.tau > 0.1
    check_equations(plan, 1.0)
    assert plan.epsilon == pytest.approx(10, rel=1e-9)
    # As a Renyi divergence, tau costs less than as zCDP: the ledger charges more than the epsilon suggests.
    assert charged(plan) <= plan.rho * (1 + 1e-9)
    assert plan.rho > goal.rho_per_sum


def test_an_epsilon_needs_a_delta() -> None:
    plan = calibrate_vector(promise=everyone(10), goal=Goal(rho=0.1), size=16, clip=1.0)

    with pytest.raises(ParameterError, match="nothing without delta"):
        _ = plan.epsilon


def test_all_sums_together() -> None:
    goal = Goal(epsilon=2, delta=DELTA, sums=25)
    plan = calibrate_vector(promise=everyone(50), goal=goal, size=1000, clip=1.0)

    assert plan.width == 1024
    assert plan.epsilon == pytest.approx(2, rel=1e-11)
    assert plan.rho * 25 == pytest.approx(Goal(epsilon=2, delta=DELTA).rho_per_sum, rel=1e-11)


# --- counts -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("row", VECTORS["counts"][0]["rows"], ids=lambda row: str(row["epsilon"]))
@pytest.mark.parametrize("adjacency", [ZERO_OUT, REPLACE])
def test_counts(row: dict[str, float], adjacency: Adjacency) -> None:
    goal = Goal(epsilon=row["epsilon"], delta=DELTA, adjacency=adjacency)
    plan = calibrate_counts(promise=everyone(100), goal=goal, bins=64, total=1)

    assert plan.sigma_central == pytest.approx(row[adjacency], abs=6e-5)
    assert plan.epsilon == pytest.approx(row["epsilon"], rel=1e-11)
    assert plan.sensitivity == 1


@pytest.mark.parametrize(
    ("promise", "scale", "bits"),
    [
        # A local sigma of 0.40 on the grid of the counts.
        (everyone(100), 16, 12),
        (everyone(1000), 32, 16),
        (NoiseAssumptions(clients=100, dropouts=30, colluders=0), 16, 12),
        # Components are as small as 0.023.
        (NoiseAssumptions(clients=100, dropouts=30, colluders=0, removable=True), 256, 16),
    ],
)
def test_scale_of_counts(promise: NoiseAssumptions, scale: int, bits: int) -> None:
    plan = calibrate_counts(promise=promise, goal=Goal(epsilon=1, delta=DELTA), bins=64, total=1)

    assert (plan.scale, plan.bits) == (scale, bits)
    assert 4 <= plan.least_sigma_over_granularity < 8
    assert plan.tau < 1e-60


@settings(max_examples=60)
@given(promises(), goals, st.integers(1, 100), st.integers(1, 9), st.none() | st.integers(0, 20))
def test_count_plans(promise: NoiseAssumptions, goal: Goal, bins: int, limit: int, more: int | None) -> None:
    total = None if more is None else limit + more
    plan = calibrate_counts(promise=promise, goal=goal, bins=bins, limit=limit, total=total)

    assert plan.bound == Count(limit, total)
    assert plan.part("x").norm2 == plan.norm2
    assert charged(plan) <= goal.rho_per_sum * (1 + 1e-9)
    assert charged(plan) == pytest.approx(goal.rho_per_sum, rel=1e-9)
    assert math.log2(plan.scale).is_integer()
    assert plan.least_sigma_over_granularity >= 4
    assert plan.scale == 1 or plan.least_sigma_over_granularity < 8
    room = plan.scale * (promise.clients * limit + 12 * plan.sigma_released)
    assert room < 2.0**plan.bits <= 2 * room + 12 * math.sqrt(promise.clients)


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        *(({"bins": bins}, "number of elements must be a whole") for bins in (0, 10.0, "10", True)),
        *(({"limit": limit}, "the limit must be a whole") for limit in (0, 1.0, "1", True, 1 << 64)),
        *(({"total": total}, "the total must be a whole number from 1") for total in (0, 1.0, "1", True)),
        ({"stddevs": "6"}, "deviations of room must be a number"),
        ({"promise": None}, "must be NoiseAssumptions"),
        ({"goal": 1.0}, "must be a Goal"),
    ],
)
def test_counts_that_make_no_sense(fields: dict[str, Any], sentence: str) -> None:
    request = {"promise": everyone(10), "goal": Goal(rho=0.1), "bins": 16}

    with pytest.raises(ParameterError, match=sentence):
        calibrate_counts(**{**request, **fields})


def test_counts_beyond_any_ring() -> None:
    with pytest.raises(SpecError, match=r"needs 76 bits, and 64 is the most; lower the standard") as caught:
        calibrate_counts(promise=everyone(4), goal=Goal(rho=1e-9), bins=1, stddevs=1e18)

    assert caught.value.bits_needed == 76


def test_counts_too_large_for_a_part() -> None:
    with pytest.raises(SpecError, match="lower the limit or the total"):
        calibrate_counts(promise=everyone(4), goal=Goal(rho=1), bins=1, limit=1 << 32)


def test_noise_too_small_for_any_grid() -> None:
    promise = NoiseAssumptions(clients=1 << 20, dropouts=1, colluders=0, removable=True)

    with pytest.raises(SpecError, match="no grid is fine enough; lower epsilon"):
        calibrate_counts(promise=promise, goal=Goal(rho=1e6), bins=1)


# --- weights ----------------------------------------------------------------------------------------


@settings(max_examples=60)
@given(promises(), goals, st.integers(1, 100), st.floats(1e-6, 1e6))
def test_element_plans(promise: NoiseAssumptions, goal: Goal, size: int, limit: float) -> None:
    plan = calibrate_elements(promise=promise, goal=goal, size=size, limit=limit)
    levels = round(plan.scale * limit)

    assert plan.bound == LInf(limit)
    # Rounding does not let anybody move the total further.
    assert plan.norm2 == size * levels**2
    assert plan.part("x").norm2 <= plan.norm2
    assert math.log2(levels).is_integer()
    assert charged(plan) <= goal.rho_per_sum * (1 + 1e-9)
    assert plan.rho == pytest.approx(goal.rho_per_sum, rel=1e-9)
    assert plan.least_sigma_over_granularity >= 4
    room = promise.clients * levels + 6 * plan.sigma_released * plan.scale
    assert room < 2.0 ** (plan.bits - 1) <= 2 * room + 2 * promise.clients + 12 * math.sqrt(promise.clients)


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"size": 1.0}, "number of elements must be a whole"),
        *(({"limit": limit}, "the limit must be a number") for limit in (0.0, "1", True, None)),
        ({"stddevs": "6"}, "deviations of room must be a number"),
        ({"promise": None}, "must be NoiseAssumptions"),
        ({"goal": 1.0}, "must be a Goal"),
    ],
)
def test_elements_that_make_no_sense(fields: dict[str, Any], sentence: str) -> None:
    request = {"promise": everyone(10), "goal": Goal(rho=0.1), "size": 1, "limit": 1.0}

    with pytest.raises(ParameterError, match=sentence):
        calibrate_elements(**{**request, **fields})


def test_a_weight_costs_what_a_count_costs() -> None:
    goal = Goal(epsilon=1, delta=DELTA)
    weight = calibrate_elements(promise=everyone(100), goal=goal, size=1, limit=0.3)

    assert weight.sigma_central / 0.3 == pytest.approx(4.0451, abs=6e-5)
    assert isinstance(calibrate_vector(promise=everyone(9), goal=goal, size=1, clip=1.0).bound, L2)
