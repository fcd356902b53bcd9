"""What sums cost and what they may cost: whole numbers that add up, and limits that hold."""

from __future__ import annotations

from fractions import Fraction
from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from secagg.client_budget import Budget, Spend, sum_charge
from secagg.distributed_noise import Noise, NoiseAssumptions
from secagg.errors import BudgetExceeded, ParameterError, TooManySums
from secagg.noise.zcdp_cost import Adjacency, charge, sum_rho
from secagg.sum_spec import Count, Part, SumSpec


def noisy(name: str, variance: Fraction | None) -> Part:
    noise = None if variance is None else Noise(scale=8, variance=variance)
    return Part(name=name, size=3, bits=20, bound=Count(1, total=1), noise=noise)


def spec(*variances: int | None) -> SumSpec:
    parts = tuple(
        noisy(f"p{k}", None if variance is None else Fraction(variance))
        for k, variance in enumerate(variances)
    )
    promise = NoiseAssumptions(clients=10, dropouts=2, colluders=1) if any(variances) else None
    return SumSpec(parts=parts, promise=promise)


def test_a_spend_adds_up() -> None:
    spend = Spend().plus(7).plus(None).plus(0).plus(5)
    assert spend == Spend(charge=12, noised=3, unnoised=1)
    assert spend.sums == 4
    assert Spend(charge=3 << 38).rho == 0.75


def test_a_spend_is_about_the_adjacency_of_its_first_charge() -> None:
    spend = Spend().plus(None, Adjacency.ZERO_OUT).plus(7, Adjacency.REPLACE).plus(None, Adjacency.ZERO_OUT)
    assert spend == Spend(charge=7, noised=1, unnoised=2, adjacency=Adjacency.REPLACE)
    why = "1 sums were charged under replace adjacency, to which costs under add-remove cannot be added"
    with pytest.raises(ParameterError, match=why):
        spend.plus(1, Adjacency.ADD_REMOVE)
    same = Spend().plus(7, Adjacency.ADD_REMOVE).plus(1, Adjacency.ZERO_OUT)
    assert same == Spend(charge=8, noised=2, adjacency=Adjacency.ADD_REMOVE)
    with pytest.raises(ParameterError, match="keep the adjacency for as long as the identity lives"):
        same.check_adjacency(Adjacency.REPLACE)


@pytest.mark.parametrize("variances", [(None,), (None, 900), (900, None)])
def test_a_sum_is_private_with_noise_on_all_its_parts_only(variances: tuple[int | None, ...]) -> None:
    assert sum_charge(spec(*variances), roster=10, adjacency=Adjacency.ZERO_OUT) is None


@pytest.mark.parametrize("adjacency", Adjacency)
def test_a_charge_is_the_rho_of_the_promised_noise_rounded_up(adjacency: Adjacency) -> None:
    rho = sum_rho(spec(900, 400), roster=10, adjacency=adjacency)
    assert rho is not None
    found = sum_charge(spec(900, 400), roster=10, adjacency=adjacency)
    assert found is not None
    assert 0 <= found - Fraction(rho) * 2**40 < 1


def test_noised_and_unnoised_sums_have_limits_of_their_own() -> None:
    budget = Budget(unnoised_sums=2, charge=100)
    spent = Spend(charge=90, noised=1, unnoised=2)
    budget.check(spent, 10)
    with pytest.raises(TooManySums, match="2 sums without noise were answered"):
        budget.check(spent, None)
    budget.check(Spend(charge=10**6, noised=9, unnoised=1), None)
    with pytest.raises(BudgetExceeded):
        budget.check(Spend(charge=10**6, noised=9, unnoised=1), 0)


def test_no_limit_is_no_limit() -> None:
    Budget().check(Spend(charge=1 << 80, noised=1, unnoised=1 << 40), 1 << 80)
    Budget().check(Spend(charge=1 << 80, noised=1, unnoised=1 << 40), None)


def test_a_budget_of_nothing_refuses_the_first_sum() -> None:
    with pytest.raises(TooManySums):
        Budget(unnoised_sums=0).check(Spend(), None)
    with pytest.raises(BudgetExceeded):
        Budget(charge=0).check(Spend(), 1)


def test_no_sum_is_free() -> None:
    """A rho of next to nothing costs a unit, and units are not forgiven for ever."""
    assert charge(5e-324) == 1
    limit = 5 << 20
    budget = Budget(charge=limit)
    budget.check(Spend(charge=limit + 4, noised=limit + 4), 1)
    with pytest.raises(BudgetExceeded):
        budget.check(Spend(charge=limit + 5, noised=limit + 5), 1)
    budget.check(Spend(charge=limit, noised=2), 3)
    with pytest.raises(BudgetExceeded):
        budget.check(Spend(charge=limit, noised=2), 4)


def test_a_refusal_says_what_was_left() -> None:
    unit = 1 << 40
    with pytest.raises(BudgetExceeded) as caught:
        Budget(charge=unit).check(Spend(charge=3 * unit // 4, noised=1), unit // 2)
    why = "server: a sum of rho 0.5, after 0.75 of the 1 that this client ever spends"
    assert str(caught.value) == why


@given(rho=st.floats(2**-20, 10), sums=st.integers(1, 200))
def test_a_budget_of_so_many_sums_buys_so_many_and_no_more(rho: float, sums: int) -> None:
    """Charges are rounded up; no sum is lost by that, and none is won."""
    budget = Budget(charge=ceil(Fraction(rho) * sums * 2**40))
    spend = Spend()
    for _ in range(sums):
        budget.check(spend, charge(rho))
        spend = spend.plus(charge(rho))
    with pytest.raises(BudgetExceeded):
        budget.check(spend, charge(rho))


@given(charges=st.lists(st.integers(0, 1000), max_size=60), limit=st.integers(0, 5000))
def test_a_small_limit_is_not_exceeded(charges: list[int], limit: int) -> None:
    spend = Spend()
    for cost in charges:
        try:
            Budget(charge=limit).check(spend, cost)
        except BudgetExceeded:
            assert spend.charge + cost > limit
        else:
            spend = spend.plus(cost)
    assert spend.charge <= limit
