"""Weights of the superquantile against exact solutions, and against a package of the same authors."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linprog

from protocols.histogram_quantiles import tail_size
from protocols.serialisation import Vector
from protocols.superquantile_formulas import (
    WHOLE_COHORT,
    LossTail,
    TailRule,
    entropic_level,
    entropic_share,
    quadratic_level,
    quadratic_share,
)
from secagg.errors import ParameterError
from tests.protocols.exact_superquantile import (
    entropic_weights,
    quadratic_weights,
    superquantile,
    tail_weights,
)

LOSSES = st.lists(st.floats(0, 100), min_size=1, max_size=30)
THETAS = st.floats(0.01, 1.0)
NUS = st.floats(1e-3, 1e3)
SMOOTH = pytest.mark.parametrize("weights", [quadratic_weights, entropic_weights])


def exact_superquantile(losses: list[float], theta: float) -> float:
    """The knapsack in exact arithmetic: fill up with the largest losses."""
    part = Fraction(theta)
    room = size = part * len(losses)
    value = Fraction(0)
    for loss in sorted(map(Fraction, losses), reverse=True):
        share = min(Fraction(1), room)
        value += share * loss
        room -= share
    return float(value / size)


# --- exact ---


@given(LOSSES, THETAS)
def test_the_value_is_that_of_the_exact_knapsack(losses: list[float], theta: float) -> None:
    assert superquantile(losses, theta) == pytest.approx(
        exact_superquantile(losses, theta), rel=1e-9, abs=1e-9
    )


@given(LOSSES, THETAS)
def test_weights_are_allowed(losses: list[float], theta: float) -> None:
    weights = tail_weights(losses, theta)
    assert weights.sum() == pytest.approx(1)
    assert weights.min() >= 0
    assert weights.max() <= max(1 / (theta * len(losses)), 0) * (1 + 1e-8)


@pytest.mark.parametrize("seed", range(8))
def test_a_linear_program_finds_nothing_better(seed: int) -> None:
    rng = np.random.default_rng(seed)
    losses, theta = rng.exponential(size=17), float(rng.uniform(0.05, 1))
    found = linprog(
        -losses, A_eq=np.ones((1, 17)), b_eq=[1.0], bounds=[(0, 1 / (theta * 17))] * 17, method="highs"
    )
    assert superquantile(losses, theta) == pytest.approx(-found.fun, abs=1e-10)
    assert tail_weights(losses, theta) == pytest.approx(found.x, abs=1e-9)


@pytest.mark.parametrize(
    ("losses", "theta", "value"),
    [
        ([1, 2, 3, 4], 0.5, 3.5),
        ([1, 2, 3, 4, 5], 0.5, 4.2),
        ([1, 2, 3, 4], 0.3, 23 / 6),
        (list(range(1, 11)), 0.25, 9.2),
        (list(range(1, 11)), 0.3, 9.0),
        ([1, 1, 1, 5], 0.5, 3.0),
        ([1, 2, 3], 1.0, 2.0),
        ([1, 2, 3], 0.1, 3.0),
    ],
)
def test_known_values(losses: list[float], theta: float, value: float) -> None:
    assert superquantile(losses, theta) == pytest.approx(value, abs=1e-12)


@given(st.integers(1, 200), st.integers(1, 99))
def test_as_many_weigh_something_as_are_in_the_tail(count: int, percent: int) -> None:
    """Also where floats make a little more of a whole number of clients, as of 0.07 * 100."""
    weights = tail_weights(np.arange(count), percent / 100)
    assert np.count_nonzero(weights) == -(-count * percent // 100)


def test_the_largest_losses_weigh_and_the_boundary_gets_the_rest() -> None:
    assert tail_weights([3.0, 1.0, 4.0, 2.0], 0.375) == pytest.approx([1 / 3, 0, 2 / 3, 0])


@pytest.mark.parametrize("percent", [10, 20, 30, 50, 70, 90, 100])
def test_sqwash_says_the_same_where_the_tail_is_a_whole_number(percent: int) -> None:
    torch, sqwash = pytest.importorskip("torch"), pytest.importorskip("sqwash")
    losses = np.random.default_rng(percent).exponential(size=20)
    batch = torch.tensor(losses, dtype=torch.float64)
    theirs = float(sqwash.reduce_superquantile(batch, superquantile_tail_fraction=percent / 100))
    assert superquantile(losses, percent / 100) == pytest.approx(theirs, abs=1e-9)


@pytest.mark.parametrize(
    ("losses", "theta", "text"),
    [
        ([], 0.5, "at least one"),
        ([np.nan], 0.5, "finite"),
        ([[1.0]], 0.5, "at least one"),
        ([1.0], 0.0, "above 0"),
        ([1.0], 1.5, "at most 1"),
        ([1.0], np.nan, "at most 1"),
    ],
)
def test_what_has_no_tail_is_refused(losses: Any, theta: float, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        tail_weights(losses, theta)


# --- smoothed ---


@SMOOTH
@given(losses=LOSSES, theta=THETAS, nu=NUS)
def test_smoothed_weights_are_allowed(weights: Any, losses: list[float], theta: float, nu: float) -> None:
    found = weights(losses, theta, nu)
    assert found.sum() == pytest.approx(1, rel=1e-8)
    assert found.min() >= 0
    assert found.max() <= 1 / (theta * len(losses)) * (1 + 1e-8)


@SMOOTH
@given(losses=LOSSES, theta=st.floats(0.05, 1.0), seed=st.integers(0, 1 << 30), nu=st.floats(0.01, 100))
def test_no_allowed_weights_are_better(
    weights: Any, losses: list[float], theta: float, seed: int, nu: float
) -> None:
    """The objective is concave: who is best against every direction is best of all."""
    rng, count = np.random.default_rng(seed), len(losses)
    penalty = quadratic_penalty if weights is quadratic_weights else divergence

    def objective(pi: Vector) -> float:
        return float(pi @ np.array(losses)) - nu * penalty(pi)

    best = weights(losses, theta, nu)
    for _ in range(5):
        other = tail_weights(rng.normal(size=count), theta)  # a corner of what is allowed, at random
        for step in (1e-3, 0.3, 1.0):
            mixed = (1 - step) * best + step * other
            assert objective(mixed) <= objective(best) + 1e-9 * (1 + nu)


def quadratic_penalty(pi: Vector) -> float:
    return len(pi) / 2 * float(np.sum((pi - 1 / len(pi)) ** 2))


def divergence(pi: Vector) -> float:
    there = pi[pi > 0]
    return float(there @ np.log(there * len(pi)))


@SMOOTH
def test_little_smoothing_gives_the_exact_weights_and_much_the_uniform_ones(weights: Any) -> None:
    losses = [0.3, 2.0, 0.1, 1.5, 0.9, 1.1]
    assert weights(losses, 0.4, 1e-4) == pytest.approx(tail_weights(losses, 0.4), abs=1e-9)
    assert weights(losses, 0.4, 1e6) == pytest.approx(np.full(6, 1 / 6), abs=1e-5)


@SMOOTH
def test_everybody_in_the_tail_weighs_the_same(weights: Any) -> None:
    assert weights([1.0, 5.0, 2.0], 1.0, 0.5) == pytest.approx(np.full(3, 1 / 3))


def test_without_the_cap_entropic_weights_are_a_softmax() -> None:
    losses = np.array([0.0, 0.2, 0.1])
    softmax = np.exp(losses / 0.5) / np.exp(losses / 0.5).sum()
    assert entropic_weights(losses, 0.5, 0.5) == pytest.approx(softmax, abs=1e-12)


@pytest.mark.parametrize("seed", range(5))
def test_quadratic_weights_solve_their_program_in_the_form_of_sqwash(seed: int) -> None:
    """The level on the 2 n breakpoints, with the coefficient n^2 times ours."""
    rng = np.random.default_rng(seed)
    losses, theta, nu = rng.exponential(size=12), 0.35, float(rng.uniform(0.05, 5))
    count, theirs = len(losses), nu * len(losses) ** 2

    def weights_at(level: float) -> Vector:
        return np.clip((losses - level) / (theirs / count) + 1 / count, 0, 1 / (theta * count))

    points = np.sort(
        np.concatenate([losses + theirs / count**2, losses - theirs / count**2 * (1 - theta) / theta])
    )
    gaps = np.array([1 - weights_at(point).sum() for point in points])
    level = float(np.interp(0.0, gaps, points))
    assert quadratic_weights(losses, theta, nu) == pytest.approx(weights_at(level), abs=1e-9)


@pytest.mark.parametrize("coefficient", [0.1, 1.0, 30.0])
def test_sqwash_says_the_same_of_smoothed_values(coefficient: float) -> None:
    torch, sqwash = pytest.importorskip("torch"), pytest.importorskip("sqwash")
    losses = np.random.default_rng(7).exponential(size=10)
    theirs = float(
        sqwash.reduce_superquantile_smooth(
            torch.tensor(losses, dtype=torch.float64),
            superquantile_tail_fraction=0.4,
            smoothing_coefficient=coefficient,
        )
    )
    nu = coefficient / len(losses) ** 2
    pi = quadratic_weights(losses, 0.4, nu)
    assert float(pi @ losses) - nu * quadratic_penalty(pi) == pytest.approx(theirs, abs=1e-9)


# --- levels from histograms ---


@pytest.mark.parametrize(
    ("find", "share"), [(quadratic_level, quadratic_share), (entropic_level, entropic_share)]
)
@given(
    counts=st.lists(st.integers(-3, 9), min_size=1, max_size=20).filter(lambda c: max(c) > 0),
    theta=THETAS,
    nu=NUS,
)
def test_shares_of_a_histogram_add_up(
    find: Any, share: Any, counts: list[int], theta: float, nu: float
) -> None:
    """What noise has pushed below zero counts as nobody."""
    middles = np.arange(len(counts)) + 0.5
    shares = share(middles, find(middles, theta, nu, counts), theta, nu)
    there = np.maximum(counts, 0)
    assert there @ shares == pytest.approx(theta * there.sum(), rel=1e-7)


def test_counts_stand_for_repeated_losses() -> None:
    losses, counts = np.array([0.5, 1.5, 2.5]), [3, 1, 2]
    repeated = np.repeat(losses, counts)
    for find, share in ((quadratic_level, quadratic_share), (entropic_level, entropic_share)):
        own = share(repeated, find(losses, 0.5, 0.7, counts), 0.5, 0.7)
        assert own == pytest.approx(share(repeated, find(repeated, 0.5, 0.7), 0.5, 0.7), abs=1e-9)


@pytest.mark.parametrize("level", [-1e308, 1e308])
@pytest.mark.parametrize("share", [quadratic_share, entropic_share])
def test_whatever_level_is_told_a_share_is_a_share(share: Any, level: float) -> None:
    assert float(share(1.0, level, 0.3, 1e-3)) == (1.0 if level < 0 else 0.0)


@pytest.mark.parametrize("find", [quadratic_level, entropic_level])
@pytest.mark.parametrize(
    ("nu", "counts", "text"),
    [
        (0.0, None, "nu"),
        (np.inf, None, "nu"),
        (1.0, [1.0], "a finite count for every loss"),
        (1.0, [1.0, np.nan], "a finite count for every loss"),
        (1.0, [0.0, -1.0], "no losses at all"),
    ],
)
def test_what_has_no_level_is_refused(find: Any, nu: float, counts: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        find([1.0, 2.0], 0.5, nu, counts)


def test_a_tail_may_be_a_fraction_of_a_client() -> None:
    assert tail_size(100, 0.07) == 7
    assert tail_size(10, 0.25) == 2.5


def test_a_rule_that_is_not_handled_is_an_error() -> None:
    tail = LossTail(theta=0.5, loss_bound=1.0, bins=4, rule=TailRule.SHARE)
    object.__setattr__(tail, "rule", "cubic")
    with pytest.raises(AssertionError, match="cubic"):
        tail.share(0.5, WHOLE_COHORT)
    with pytest.raises(AssertionError, match="cubic"):
        tail.cut(np.ones(4), None)


def test_a_rule_without_smoothing_has_no_nu() -> None:
    with pytest.raises(ParameterError, match="leave nu unset") as caught:
        LossTail(theta=0.5, loss_bound=1.0, bins=4, rule=TailRule.SHARE, nu=0.1)
    assert caught.value.parameter == "nu"
