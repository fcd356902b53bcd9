"""What noise costs: published figures, exact divergences of small sums, and that nothing is understated."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from fractions import Fraction
from functools import reduce
from importlib import import_module
from itertools import permutations
from pathlib import Path
from typing import Any

import mpmath
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from secagg.distributed_noise import Noise, NoiseAssumptions
from secagg.errors import ParameterError
from secagg.noise.privacy_goal import Orders
from secagg.noise.rho_and_epsilon import epsilon, rho_for
from secagg.noise.zcdp_cost import (
    Adjacency,
    Cost,
    charge,
    most_norm1,
    part_rho,
    promised_tau,
    renyi_costs,
    rho_of,
    sum_rho,
    tau,
    tau_equal,
)
from secagg.sum_spec import L2, Count, LInf, Part, SumSpec

PATH = Path(__file__).resolve().parent.parent / "vectors" / "noise-parameters.json"
VECTORS: dict[str, list[dict[str, Any]]] = json.loads(PATH.read_text(encoding="ascii"))
ZERO_OUT, ADD_REMOVE, REPLACE = Adjacency

variances = st.floats(0.3, 50)


# --- tau --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("row", VECTORS["tau"][0]["rows"], ids=lambda row: str(row["sigma"]))
@pytest.mark.parametrize("count", [100, 1000])
def test_tau_of_equal_components(row: dict[str, float], count: int) -> None:
    """The theorem is about a variance of at least 1/2."""
    known = row[str(count)] if row["sigma"] ** 2 >= 0.5 else math.inf
    assert tau_equal(count, row["sigma"] ** 2) == pytest.approx(known, rel=1e-2)


@given(st.integers(1, 30), variances)
def test_equal_components_are_a_case_of_any(count: int, variance: float) -> None:
    assert tau([variance] * count) == pytest.approx(tau_equal(count, variance), rel=1e-12)


@given(st.lists(variances, min_size=2, max_size=4))
def test_tau_adds_from_the_largest_on(components: list[float]) -> None:
    def one_by_one(order: tuple[float, ...]) -> float:
        terms, so_far = [], order[0]
        for added in order[1:]:
            terms.append(math.exp(-2 * math.pi**2 * so_far * added / (so_far + added)))
            so_far += added
        return 10 * math.fsum(terms)

    found = tau(components)
    assume(found < math.inf)

    assert found == pytest.approx(one_by_one(tuple(sorted(components, reverse=True))), rel=1e-9)
    assert found >= one_by_one(tuple(sorted(components, reverse=True)))
    assert found <= max(map(one_by_one, permutations(components))) * (1 + 1e-9)


def test_one_component_is_a_discrete_gaussian() -> None:
    assert tau([0.25]) == tau_equal(1, 0.25) == 0


@pytest.mark.parametrize(
    ("components", "known"),
    [([0.5, 0.5], True), ([0.499, 0.499], False), ([100.0, 0.26], True), ([100.0, 0.2], False)],
)
def test_small_components_are_not_what_the_theorem_is_about(components: list[float], known: bool) -> None:
    assert (tau(components) < math.inf) is known


def test_what_is_removable_may_be_too_small_as_well() -> None:
    promise = NoiseAssumptions(clients=10, dropouts=3, colluders=0, removable=True)
    stays, *removable = promise.components(10)
    # Seven honest clients stay at least: whatever is added later meets seven times as much.
    enough = Fraction(8, 28) / min(removable)

    assert stays * enough > 1
    assert promised_tau(promise, 10, enough * Fraction(101, 100)) < math.inf
    assert promised_tau(promise, 10, enough * Fraction(99, 100)) == math.inf


@st.composite
def promises(draw: st.DrawFn) -> NoiseAssumptions:
    clients = draw(st.integers(2, 40))
    dropouts = draw(st.integers(0, clients - 1))
    colluders = draw(st.integers(0, clients - 1 - dropouts))
    return NoiseAssumptions(
        clients=clients, dropouts=dropouts, colluders=colluders, removable=draw(st.booleans())
    )


def kept(promise: NoiseAssumptions, roster: int, dropped: int) -> list[Fraction]:
    """All components that honest clients leave in the total."""
    removed = promise.surplus(roster, roster - dropped)
    shares = [share for index, share in enumerate(promise.components(roster)) if index not in removed]
    return shares * (roster - dropped - promise.colluders)


@given(promises(), st.data(), st.floats(0.5, 1e5))
def test_promised_tau_covers_every_number_of_drop_outs(
    promise: NoiseAssumptions, data: st.DataObject, target: float
) -> None:
    roster = data.draw(st.integers(promise.least_roster, promise.clients))
    variance = Fraction(target)
    bound = promised_tau(promise, roster, variance)
    # What stays without being needed may be left out of account, so plain noise is that of the sure ones.
    worst = range(promise.dropouts + 1) if promise.seeds else [promise.dropouts]

    exact = [tau(share * variance for share in kept(promise, roster, dropped)) for dropped in worst]

    assert max(exact) <= bound * (1 + 1e-9)
    if not promise.seeds:
        assert bound == pytest.approx(exact[0], rel=1e-9)


def test_promised_tau_is_not_far_from_the_worst() -> None:
    promise = NoiseAssumptions(clients=100, dropouts=30, colluders=5, removable=True)
    for target in (2e4, 5e4, 1e5):
        exact = max(tau(share * Fraction(target) for share in kept(promise, 100, n)) for n in range(31))
        assert promised_tau(promise, 100, Fraction(target)) < 2 * (promise.seeds + 1) * exact


# --- exact divergences ------------------------------------------------------------------------------

REACH = 45  # what is beyond it has no part in divergences up to order 8


def discrete_gaussian(variance: float) -> list[Any]:
    weights = [mpmath.exp(-mpmath.mpf(x * x) / (2 * variance)) for x in range(-REACH, REACH + 1)]
    total = mpmath.fsum(weights)
    return [weight / total for weight in weights]


def convolved(left: list[Any], right: list[Any]) -> list[Any]:
    """The law of a sum, cut to the same reach."""
    return [
        mpmath.fdot((left[i], right[at - i]) for i in range(max(0, at - 2 * REACH), min(at, 2 * REACH) + 1))
        for at in range(REACH, 3 * REACH + 1)
    ]


def divergence(law: list[Any], shift: int, order: float) -> float:
    """Of order `order`, between the law and the law moved by `shift`."""
    pairs = zip(law[shift:], law, strict=False)
    moment = mpmath.fsum(p ** mpmath.mpf(order) * q ** (1 - mpmath.mpf(order)) for p, q in pairs)
    return float(mpmath.log(moment) / (mpmath.mpf(order) - 1))


COMPONENTS = [
    *([variance] * count for variance in (0.5, 1.0, 2.0) for count in (2, 3, 5)),
    [2.0, 0.3],
    [1.0, 0.5, 0.35],
    [0.8, 0.8, 2.0],
]


@pytest.mark.parametrize("components", COMPONENTS, ids=str)
def test_exact_divergence_is_within_the_bound(components: list[float]) -> None:
    with mpmath.workdps(60):
        law = reduce(convolved, map(discrete_gaussian, components))
        for shift in (1, 2):
            costs = renyi_costs(shift**2, shift, Fraction(sum(components)), 1, tau(components))
            for order in (1.5, 2.0, 8.0):
                exact = divergence(law, shift, order)
                for cost in costs:
                    assert cost.rho + cost.xi < math.inf
                    assert exact <= cost.xi + cost.rho * order
                assert exact <= order * part_rho(
                    shift**2, shift, Fraction(sum(components)), 1, tau(components)
                )


def test_one_discrete_gaussian_is_as_private_as_a_gaussian() -> None:
    with mpmath.workdps(60):
        found = divergence(discrete_gaussian(2.0), 2, 8.0)

    assert found == pytest.approx(8 * renyi_costs(4, 2, Fraction(2), 1, tau([2.0]))[0].rho, rel=1e-12)


def test_without_tau_the_bound_would_be_wrong() -> None:
    with mpmath.workdps(60):
        law = reduce(convolved, map(discrete_gaussian, [0.5] * 5))
        exact = divergence(law, 1, 1.5)

    assert exact == pytest.approx(0.300388, abs=1e-6)
    assert exact > 1.5 * renyi_costs(1, 1, Fraction(5, 2), 1, 0.0)[0].rho
    costs = renyi_costs(1, 1, Fraction(5, 2), 1, tau_equal(5, 0.5))
    assert min(cost.xi + 1.5 * cost.rho for cost in costs) == pytest.approx(0.395624, abs=1e-6)


# --- what a part costs ------------------------------------------------------------------------------


@given(st.integers(1, 1 << 62), st.fractions(Fraction(1, 10**6), 10**12), st.integers(1, 1 << 32))
def test_without_tau_a_part_costs_what_a_gaussian_costs(norm2: int, variance: Fraction, size: int) -> None:
    rho = part_rho(norm2, most_norm1(norm2, size), variance, size, 0.0)

    assert norm2 / (2 * variance) <= rho <= norm2 / (2 * variance) * (1 + Fraction(1, 10**12))


@given(
    st.integers(1, 10**6),
    st.fractions(Fraction(1, 10), 10**4),
    st.integers(1, 10**4),
    st.floats(1e-12, 1.0),
)
def test_a_part_costs_the_least_of_three(norm2: int, variance: Fraction, size: int, tau: float) -> None:
    norm1 = most_norm1(norm2, size)
    with mpmath.workdps(40):
        ratio2, ratio1 = mpmath.mpf(norm2) * variance.denominator / variance.numerator, mpmath.mpf(norm1)
        ratio1 /= mpmath.sqrt(mpmath.mpf(variance.numerator) / variance.denominator)
        forms = (
            ratio2 / 2 + mpmath.mpf(tau) * size,
            (ratio2 + 2 * mpmath.mpf(tau) * ratio1 + mpmath.mpf(tau) ** 2 * size) / 2,
            (mpmath.sqrt(ratio2) + mpmath.mpf(tau) * mpmath.sqrt(size)) ** 2 / 2,
        )
        least = min(forms)
        assert least <= part_rho(norm2, norm1, variance, size, tau) <= least * (1 + 1e-12)


@given(st.lists(st.integers(-50, 50), min_size=1, max_size=20).filter(any))
def test_l1_norm_of_a_whole_vector(vector: list[int]) -> None:
    assert sum(map(abs, vector)) <= most_norm1(sum(value * value for value in vector), len(vector))


# --- what a sum costs -------------------------------------------------------------------------------

PROMISE = NoiseAssumptions(clients=20, dropouts=5, colluders=2)


def noisy(
    bound: L2 | LInf | Count, variance: int, *, name: str = "x", size: int = 4, scale: float = 8
) -> Part:
    return Part(
        name=name, size=size, bits=32, bound=bound, noise=Noise(scale=scale, variance=Fraction(variance))
    )


def test_parts_of_a_sum_add_up() -> None:
    vector, weight = noisy(L2(1.0), 10**4, size=5), noisy(Count(1, 1), 10**5, name="w", size=1)
    both = SumSpec(parts=(vector, weight), promise=PROMISE)

    rho = sum_rho(both, roster=20)

    assert rho == pytest.approx(vector.norm2 / (2 * 10**4) + 64 / (2 * 10**5), rel=1e-12)
    assert rho is not None
    assert rho >= Fraction(vector.norm2, 2 * 10**4) + Fraction(64, 2 * 10**5)


def test_a_sum_with_a_part_without_noise_is_not_private() -> None:
    plain = Part(name="y", size=1, bits=8, bound=Count(1))

    assert sum_rho(SumSpec(parts=(plain,)), roster=20) is None
    assert sum_rho(SumSpec(parts=(noisy(L2(1.0), 10**4), plain), promise=PROMISE), roster=20) is None


@pytest.mark.parametrize(
    ("bound", "factor"), [(L2(1.0), 4), (LInf(1.0), 4), (Count(1, 1), 2), (Count(3), 2)], ids=str
)
def test_adjacency(bound: L2 | LInf | Count, factor: int) -> None:
    spec = SumSpec(parts=(noisy(bound, 10**4),), promise=PROMISE)
    rho = sum_rho(spec, roster=20)
    assert rho is not None

    assert sum_rho(spec, roster=20, adjacency=ADD_REMOVE) == rho
    assert sum_rho(spec, roster=20, adjacency=REPLACE) == pytest.approx(factor * rho, rel=1e-12)


def test_adjacency_where_tau_counts() -> None:
    part = noisy(L2(1.0), 20)
    spec = SumSpec(parts=(part,), promise=PROMISE)
    tau_there = promised_tau(PROMISE, 20, Fraction(20))
    norm1 = most_norm1(part.norm2, 4)

    assert tau_there > 1e-8
    assert sum_rho(spec, roster=20, adjacency=REPLACE) == pytest.approx(
        part_rho(4 * part.norm2, 2 * norm1, Fraction(20), 4, tau_there), rel=1e-12
    )


def test_small_components_cost_more_than_the_gaussian() -> None:
    part = noisy(L2(1.0), 7)
    rho = sum_rho(SumSpec(parts=(part,), promise=PROMISE), roster=20)

    assert rho is not None
    assert 1e-3 < rho / (part.norm2 / (2 * 7)) - 1 < 1


def test_components_too_small_have_no_price() -> None:
    spec = SumSpec(parts=(noisy(L2(1.0), 6),), promise=PROMISE)
    rho = sum_rho(spec, roster=20)

    assert rho == math.inf
    with pytest.raises(ParameterError, match="needs a variance of at least 1/2"):
        charge(rho)


def test_adjacency_by_name() -> None:
    spec = SumSpec(parts=(noisy(L2(1.0), 10**4),), promise=PROMISE)

    assert sum_rho(spec, roster=20, adjacency="replace") == sum_rho(spec, roster=20, adjacency=REPLACE)
    with pytest.raises(ParameterError, match="adjacency must be one of zero-out, add-remove, replace"):
        sum_rho(spec, roster=20, adjacency="swap")


@pytest.mark.parametrize("roster", [7, 21])
def test_a_roster_that_the_promise_does_not_cover(roster: int) -> None:
    spec = SumSpec(parts=(noisy(L2(1.0), 10**4),), promise=PROMISE)

    with pytest.raises(ParameterError, match=f"planned for 8 to 20 clients, not for {roster}"):
        sum_rho(spec, roster=roster)


# --- charges ----------------------------------------------------------------------------------------


@given(st.floats(0, 1e9))
def test_a_charge_is_no_less_than_its_rho(rho: float) -> None:
    units = charge(rho)

    assert Fraction(units, 1 << 40) >= Fraction(rho)
    assert Fraction(units - 1, 1 << 40) < Fraction(rho) or units == 0


@given(st.integers(0, 1 << 90))
def test_rho_of_a_charge_is_no_less(units: int) -> None:
    rho = rho_of(units)

    assert Fraction(rho) >= Fraction(units, 1 << 40)
    assert math.nextafter(rho, 0) < Fraction(units, 1 << 40) or units == 0


@pytest.mark.parametrize("rho", [-1e-9, -math.inf, math.nan])
def test_what_cannot_be_charged(rho: float) -> None:
    with pytest.raises(ParameterError, match="rho must be a number from 0 on"):
        charge(rho)


# --- conversion -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("orders", "row"),
    [(Orders(group["orders"]), row) for group in VECTORS["rho"] for row in group["rows"]],
    ids=lambda value: value if isinstance(value, str) else f"{value['epsilon']}-{value['delta']}",
)
def test_rho_for_an_epsilon(orders: Orders, row: dict[str, float]) -> None:
    rho = rho_for(row["epsilon"], delta=row["delta"], orders=orders)

    assert rho == pytest.approx(row["rho"], rel=1e-11)
    assert epsilon([rho], delta=row["delta"], orders=orders) == pytest.approx(row["epsilon"], rel=1e-12)


@pytest.mark.parametrize("wanted", [1e-6, 1e-3, 100.0, 1e4, 1e6])
@pytest.mark.parametrize("delta", [1e-12, 1e-5, 0.9])
def test_far_out(wanted: float, delta: float) -> None:
    rho = rho_for(wanted, delta=delta)

    assert epsilon([rho], delta=delta) <= wanted * (1 + 1e-11)
    assert epsilon([rho * (1 + 1e-9)], delta=delta) > wanted


@given(st.floats(1e-4, 50), st.floats(0, 5), st.floats(1e-9, 1e-2))
def test_the_best_real_order_beats_a_fine_grid(rho: float, xi: float, delta: float) -> None:
    assume(rho > delta**2)
    found = epsilon([Cost(rho, xi)], delta=delta)
    orders = (1 + math.exp(step / 100) for step in range(-450, 1600))
    best = min(xi + rho * a + math.log1p(-1 / a) - math.log(delta * a) / (a - 1) for a in orders)

    assert found <= max(0.0, best) + 1e-12
    assert found == pytest.approx(max(0.0, best), rel=1e-3, abs=1e-3)


def test_costs_compose() -> None:
    together = epsilon([0.01, 0.02, Cost(0.03, 0.1), 0.01], delta=1e-6)

    assert together == pytest.approx(epsilon([Cost(0.07, 0.1)], delta=1e-6), rel=1e-12)


def test_more_orders_are_better() -> None:
    assert epsilon([1.7], delta=1e-5) < epsilon([1.7], delta=1e-5, orders=Orders.INTEGER)


def test_infinite_cost() -> None:
    assert epsilon([math.inf], delta=1e-5) == math.inf


@pytest.mark.parametrize("cost", [-1e-9, math.nan, "1", True, None, Cost(0.1, -0.1), Cost(-0.1, 1.0)])
def test_costs_are_never_negative(cost: Any) -> None:
    with pytest.raises(ParameterError, match="a cost must be a number from 0 to inf"):
        epsilon([1.0, cost], delta=1e-5)


def test_orders_by_name() -> None:
    found: Any = "integer"
    assert epsilon([1.7], delta=1e-5, orders=found) == epsilon([1.7], delta=1e-5, orders=Orders.INTEGER)
    assert rho_for(2.0, delta=1e-5, orders=found) == rho_for(2.0, delta=1e-5, orders=Orders.INTEGER)
    for bogus in ("real", None, 3):
        unknown: Any = bogus
        with pytest.raises(ParameterError, match="orders must be one of integer, continuous"):
            epsilon([1.7], delta=1e-5, orders=unknown)


@pytest.mark.parametrize("delta", [0.0, 1.0, math.nan, True, "0.1", Fraction(1, 10**400)])
def test_delta_is_a_probability(delta: Any) -> None:
    with pytest.raises(ParameterError, match="above 0 and below 1"):
        epsilon([1.0], delta=delta)


def test_without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    monkeypatch.delitem(sys.modules, "secagg.noise.rho_and_epsilon")

    with pytest.raises(ImportError, match=r'pip install "secagg\[dp\]"'):
        import_module("secagg.noise.rho_and_epsilon")


def test_the_core_does_without_the_extra() -> None:
    script = (
        "import sys; sys.modules['dp_accounting'] = sys.modules['scipy'] = None\n"
        "from secagg import Adjacency, Goal, Noise, NoiseAssumptions, calibrate_counts, calibrate_elements\n"
        "from secagg import Orders, Plan, SumSpec, calibrate_vector, sum_rho\n"
        "promise, goal = NoiseAssumptions(clients=9, dropouts=0, colluders=0), Goal(rho=0.5)\n"
        "plan = calibrate_vector(promise=promise, goal=goal, size=4, clip=1.0)\n"
        "rho = sum_rho(SumSpec(parts=(plan.part('x'),), promise=promise), roster=9)\n"
        "print(round(rho, 3))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert done.stdout == "0.5\n"
