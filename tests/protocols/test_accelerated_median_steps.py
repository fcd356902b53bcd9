"""The steppings against the papers' iterations, which need many more sums, and against awkward totals."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocols.accelerated_median_steps import (
    CoordinateStepping,
    PlainStepping,
    Stepping,
    Vector,
    VectorStepping,
    fast_stepping,
)

SQUARE = np.array([(0, 0), (1, 0), (0, 1), (1, 1), (10, 10)], np.float64)
LINE = np.array([(-3,), (-1,), (0,), (1,), (10,)], np.float64)
TINY = 1e-6  # The nu of an exact geometric median.


@dataclass(frozen=True, eq=False)
class Clients:
    """What the clients of a sum would add up to, at any point."""

    models: Vector
    nu: float
    factors: Vector
    per_coordinate: bool

    def sizes(self, point: Vector) -> Vector:
        residuals = self.models - point
        return np.abs(residuals) if self.per_coordinate else np.linalg.norm(residuals, axis=1, keepdims=True)

    def totals(self, point: Vector) -> tuple[Vector, Vector]:
        weights = self.factors[:, None] / np.maximum(self.nu, self.sizes(point))
        influence = (weights * (self.models - point)).sum(axis=0)
        return influence, weights.sum(axis=0)

    def objective(self, point: Vector) -> float:
        size = self.sizes(point)
        huber = np.where(size > self.nu, size - self.nu / 2, size**2 / (2 * self.nu))
        return float((self.factors[:, None] * huber).sum())

    def mean(self) -> Vector:
        return np.average(self.models, axis=0, weights=self.factors)

    def iteration_13(self, steps: int = 20_000) -> Vector:
        """The Fed+ paper's own iteration: w <- w + mean(clip(w_k - w))."""
        point = self.mean()
        for _ in range(steps):
            residuals = self.models - point
            clipped = residuals * np.minimum(1, self.nu / np.maximum(self.sizes(point), 1e-300))
            move = np.average(clipped, axis=0, weights=self.factors)
            point = point + move
            if np.abs(move).max() < 1e-12:
                return point
        raise AssertionError("the oracle did not converge")

    def fast(self, start: Vector, *, rounding: float = 0.0) -> Stepping:
        return fast_stepping(start, per_coordinate=self.per_coordinate, rounding=rounding)


def equal(models: Vector, nu: float, *, per_coordinate: bool = False) -> Clients:
    return Clients(models, nu, np.ones(len(models)), per_coordinate)


def walk(stepping: Stepping, clients: Clients, sums: int) -> list[Vector]:
    return [stepping.next(*clients.totals(stepping.point)) for _ in range(sums)]


def sums_until(near: Callable[[Vector], bool], stepping: Stepping, clients: Clients, limit: int) -> int:
    for number in range(1, limit + 1):
        if near(stepping.next(*clients.totals(stepping.point))):
            return number
    return limit + 1


def cloud(seed: int, *, outliers: float = 0.0) -> tuple[Vector, Vector]:
    """An odd number of models, and factors of which no half adds up to the other half."""
    rng = np.random.default_rng(seed)
    count, dim = 2 * int(rng.integers(2, 30)) + 1, int(rng.integers(2, 8))
    models = rng.normal(size=(count, dim))
    models[: count // 3] += outliers * rng.normal(size=dim)
    return models, rng.uniform(0.1, 1.0, count)


# --- the toy cases ---


def test_plain_steps_are_those_of_weiszfeld() -> None:
    clients = equal(SQUARE, TINY)
    points = walk(PlainStepping(clients.mean()), clients, 4)
    assert np.allclose(clients.mean(), 2.4)
    for point, expected in zip(points, [1.113377, 0.907019, 0.889591, 0.872541], strict=True):
        assert np.allclose(point, expected, rtol=0, atol=6e-7)


@pytest.mark.parametrize("start", [(2.4, 2.4), (0.0, 0.0), (0.5, 0.9)])
@pytest.mark.parametrize(
    ("nu", "limit", "sums"), [(TINY, 0.78867513, 16), (0.1, 0.78867513, 12), (1.0, 0.676777, 12)]
)
def test_the_square_with_an_outlier_takes_few_sums(
    nu: float, limit: float, sums: int, start: tuple[float, float]
) -> None:
    """Also from a client's own point, where an exact median's plain move is next to nothing."""
    clients = equal(SQUARE, nu)
    stepping = clients.fast(np.array(start))
    assert np.allclose(walk(stepping, clients, sums)[-1], limit, rtol=0, atol=5e-7)
    assert stepping.moved < 1e-6


@pytest.mark.parametrize("start", [1.4, 0.0, -20.0, 10.0])
@pytest.mark.parametrize("per_coordinate", [True, False])
def test_the_line_ends_at_its_median(start: float, per_coordinate: bool) -> None:
    clients = equal(LINE, 0.1, per_coordinate=per_coordinate)
    assert abs(walk(clients.fast(np.array([start])), clients, 12)[-1][0]) < 1e-6


def test_plain_steps_are_too_slow_for_twelve_sums() -> None:
    clients = equal(SQUARE, 0.1)
    assert np.abs(walk(PlainStepping(clients.mean()), clients, 12)[-1] - 0.78867513).max() > 1e-3


# --- random problems ---


@pytest.mark.parametrize("per_coordinate", [False, True])
@pytest.mark.parametrize("delta", [0.3, 1.0, 3.0])
@pytest.mark.parametrize("seed", range(6))
def test_smoothed_medians_are_those_of_iteration_13(seed: int, delta: float, per_coordinate: bool) -> None:
    models, factors = cloud(seed, outliers=10.0 * (seed % 2))
    clients = Clients(models, delta, factors, per_coordinate)
    for start in (np.zeros(models.shape[1]), clients.mean()):
        found = walk(clients.fast(start), clients, 12)[-1]
        assert np.allclose(found, clients.iteration_13(), rtol=0, atol=1e-6)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    nu=st.sampled_from([1e-6, 0.01, 0.1, 1.0]),
    outliers=st.sampled_from([0.0, 3.0, 1000.0]),
    per_coordinate=st.booleans(),
)
def test_never_diverges_and_never_much_slower_than_plain(
    seed: int, nu: float, outliers: float, per_coordinate: bool
) -> None:
    models, factors = cloud(seed, outliers=outliers)
    clients = Clients(models, nu, factors, per_coordinate)
    start = clients.mean()
    plain = walk(PlainStepping(start), clients, 40)
    fast = walk(clients.fast(start), clients, 50)
    scale = 1e-9 * (1 + clients.objective(start))
    assert clients.objective(fast[-1]) <= clients.objective(plain[-1]) + scale
    radius = np.linalg.norm(models - start, axis=1).max()
    assert all(np.linalg.norm(point - start) <= 100 * radius for point in fast)


@pytest.mark.parametrize("per_coordinate", [False, True])
def test_a_client_with_more_than_half_of_the_weight_is_the_median(per_coordinate: bool) -> None:
    models = np.random.default_rng(4).normal(size=(8, 5))
    clients = Clients(models, TINY, np.array([1.0] + [0.1] * 7), per_coordinate)
    found = walk(clients.fast(np.zeros(5)), clients, 25)[-1]
    assert np.allclose(found, models[0], rtol=0, atol=2e-6)


@pytest.mark.parametrize("seed", range(4))
def test_far_fewer_sums_than_plain_where_clients_are_nearly_on_a_line(seed: int) -> None:
    rng = np.random.default_rng(seed)
    models = rng.normal(size=(31, 1)) * rng.normal(size=4) + 0.03 * rng.normal(size=(31, 4))
    clients = equal(models, 0.1)
    goal = clients.iteration_13(200_000)

    def near(point: Vector) -> bool:
        return float(np.linalg.norm(point - goal)) < 1e-6

    fast = sums_until(near, clients.fast(clients.mean()), clients, 60)
    plain = sums_until(near, PlainStepping(clients.mean()), clients, 60)
    assert fast <= 20
    assert fast < plain


@pytest.mark.parametrize("start", [-9.0, 0.9, 7.0])
def test_an_even_number_of_clients_ends_between_the_middle_ones(start: float) -> None:
    clients = equal(np.array([[-4.0], [0.0], [2.0], [5.0]]), 0.25, per_coordinate=True)
    stepping = clients.fast(np.array([start]))
    found = walk(stepping, clients, 12)[-1][0]
    assert 0.25 - 1e-9 <= found <= 1.75 + 1e-9
    assert stepping.moved < 1e-9


def test_the_first_point_without_a_gradient_is_kept() -> None:
    clients = equal(np.array([[-4.0], [0.0], [2.0], [5.0]]), 0.25, per_coordinate=True)
    assert walk(clients.fast(np.array([0.9])), clients, 3) == [0.9, 0.9, 0.9]


# --- rounding ---


def rounded(totals: tuple[Vector, Vector], rng: np.random.Generator) -> tuple[Vector, Vector]:
    influence, weight = totals
    noise = rng.normal(size=influence.shape) * 1e-9
    return influence + noise, weight * (1 + 1e-9 * rng.normal(size=weight.shape))


@pytest.mark.parametrize("per_coordinate", [False, True])
@pytest.mark.parametrize("nu", [TINY, 0.1, 1.0])
def test_rounding_is_not_blown_up_once_the_goal_is_near(nu: float, per_coordinate: bool) -> None:
    models, factors = cloud(17, outliers=30.0)
    clients = Clients(models, nu, factors, per_coordinate)
    goal = walk(clients.fast(clients.mean()), clients, 40)[-1]
    rng, stepping = np.random.default_rng(0), clients.fast(clients.mean())
    for number in range(60):
        point = stepping.next(*rounded(clients.totals(stepping.point), rng))
        assert number < 25 or np.abs(point - goal).max() < 1e-6


@pytest.mark.parametrize("per_coordinate", [False, True])
def test_steps_end_at_the_rounding_that_a_caller_names(per_coordinate: bool) -> None:
    models, factors = cloud(3)
    clients = Clients(models, 1.0, factors, per_coordinate)
    rng, stepping = np.random.default_rng(0), clients.fast(clients.mean(), rounding=1e-8)
    for _ in range(15):
        stepping.next(*rounded(clients.totals(stepping.point), rng))
    assert stepping.moved == 0


# --- awkward totals ---

KINDS: list[type[Stepping]] = [PlainStepping, VectorStepping, CoordinateStepping]


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_moves_without_influence_or_weight(kind: type[Stepping]) -> None:
    stepping = kind([1.0, 2.0])
    assert stepping.moved == np.inf
    for influence, weight in [((0, 0), 3.0), ((0, 0), 0.0), ((1, -1), 0.0), ((1, -1), -1.0), ((1, 1), 1e-99)]:
        assert list(stepping.next(np.array(influence), weight)) == [1.0, 2.0]
        assert stepping.moved == 0


@pytest.mark.parametrize("kind", [PlainStepping, CoordinateStepping])
def test_coordinates_without_weight_stay_while_others_move(kind: type[Stepping]) -> None:
    assert list(kind([1.0, 2.0]).next([1, 1], [0, 2])) == [1.0, 2.5]


@pytest.mark.parametrize("kind", KINDS)
def test_the_first_step_is_plain_and_says_how_long_it_was(kind: type[Stepping]) -> None:
    stepping = kind([0.0, 0.0])
    assert list(stepping.next([6, 8], 2)) == [3, 4]
    assert stepping.moved == 5
    assert not stepping.point.flags.writeable


@pytest.mark.parametrize("kind", KINDS)
def test_totals_that_do_not_fit_are_refused(kind: type[Stepping]) -> None:
    stepping = kind([0.0, 0.0, 0.0])
    for influence in ([1, 2], [1, 2, np.nan], [1, 2, np.inf], [1, 2, -1e30]):
        with pytest.raises(ValueError, match="totals must be"):
            stepping.next(influence, 1)
    for weight in ([1, 2], [1, np.nan, 1], np.inf):
        with pytest.raises(ValueError, match="totals must be"):
            stepping.next([1, 2, 3], weight)
    assert list(stepping.next([1, 2, 3], [1])) == [1, 2, 3]


def test_a_vector_takes_one_weight() -> None:
    with pytest.raises(ValueError, match="one weight"):
        VectorStepping([0.0, 0.0]).next([1, 1], [1, 1])


@pytest.mark.parametrize("start", [[[1.0]], [np.nan], [np.inf, 0]])
def test_a_start_that_is_no_point_is_refused(start: list[float]) -> None:
    with pytest.raises(ValueError, match="start"):
        PlainStepping(start)


@pytest.mark.parametrize("rounding", [-1.0, np.inf, np.nan])
def test_a_rounding_that_is_no_size_is_refused(rounding: float) -> None:
    with pytest.raises(ValueError, match="rounding"):
        fast_stepping([0.0], per_coordinate=True, rounding=rounding)


@settings(max_examples=100, deadline=None)
@given(st.data(), st.sampled_from(KINDS))
def test_totals_of_no_function_at_all_still_give_finite_points(
    data: st.DataObject, kind: type[Stepping]
) -> None:
    """Lying clients can make totals of anything: a server has to survive that."""
    sizes = st.sampled_from([0.0, 1.0, -1.0, 3e-9, -1e-300, 1e9, -1e9, 5e-324, 0.3])
    stepping = kind([0.0, 1.0])
    for _ in range(12):
        influence = data.draw(st.lists(sizes, min_size=2, max_size=2))
        assert np.isfinite(stepping.next(influence, data.draw(sizes))).all()


def test_after_a_hundred_sums_a_vector_takes_plain_steps() -> None:
    """Totals that never change look like an endless slope: steps get longer and longer, but not for ever."""
    stepping = VectorStepping([0.0, 0.0])
    moves = []
    for _ in range(110):
        stepping.next([1, 1], 1)
        moves.append(stepping.moved)
    assert moves[:4] == pytest.approx([2**0.5, 4 * 2**0.5, 8 * 2**0.5, 16 * 2**0.5])
    assert min(moves[1:100]) > 5
    assert moves[100:] == pytest.approx([2**0.5] * 10)


def test_the_same_totals_give_the_same_points() -> None:
    for per_coordinate in (False, True):
        models, factors = cloud(9, outliers=5.0)
        clients = Clients(models, 0.05, factors, per_coordinate)
        once, again = (walk(clients.fast(clients.mean()), clients, 20) for _ in range(2))
        assert all(np.array_equal(a, b) for a, b in zip(once, again, strict=True))


def test_a_coordinate_never_leaves_its_bracket() -> None:
    models, factors = cloud(21, outliers=100.0)
    clients = Clients(models, 0.01, factors, per_coordinate=True)
    stepping = clients.fast(np.zeros(models.shape[1]))
    points = [stepping.point, *walk(stepping, clients, 30)]
    signs = [np.sign(clients.totals(point)[0]) for point in points]
    for index in range(2, len(points)):
        below = np.max(
            [np.where(s > 0, p, -np.inf) for p, s in zip(points[:index], signs, strict=False)], axis=0
        )
        above = np.min(
            [np.where(s < 0, p, np.inf) for p, s in zip(points[:index], signs, strict=False)], axis=0
        )
        assert ((below <= points[index]) & (points[index] <= above)).all()
