"""Geometric medians through secure sums, against the same steps in float64 with everything in the open."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocols.iterative_aggregation import StopReason
from protocols.quadratic_learner import QuadraticLearner
from protocols.rfa import RFA
from protocols.run import RoundReport, Run
from protocols.serialisation import Vector
from sims.runtime import SessionChannel, Setting, insecure_plain_sum, secure_sum

NU = 1e-6
SEED = b"weiszfeld"
MOST_SUMS = 40
DIFFERENCE = 1e-5  # of the mean distance to the median
PROBLEMS = range(200)
LARGEST = 0
# Small ones of every kind, for every run of the tests.
QUICK = (2, 3, 11, 12, 20, 24, 25, 34, 35, 44)
CHUNK = 10

MakeChannel = Callable[..., SessionChannel]


@dataclass(frozen=True)
class Problem:
    """Points of clients, of which the first `outliers` are far away, and how many samples each has."""

    points: Vector
    samples: list[int]
    outliers: int

    @property
    def honest_distance(self) -> Callable[[Vector], float]:
        """The mean distance of a median to the others: no outlier makes it large."""
        return lambda median: float(np.linalg.norm(self.points[self.outliers :] - median, axis=1).mean())


def problem(number: int) -> Problem:
    """5 to 200 clients, 2 to 10,000 dimensions, up to 40 % outliers, four kinds of weights by `number`."""
    rng = np.random.default_rng(number)
    clients = int(np.exp(rng.uniform(np.log(5), np.log(201))))
    dim = int(np.exp(rng.uniform(np.log(2), np.log(10_001))))
    if number == LARGEST:
        clients, dim = 200, 10_000
    scale = 10.0 ** rng.uniform(-2, 2) / np.sqrt(dim)
    outliers = int(rng.uniform(0, 0.4) * clients)
    points = rng.normal(size=(clients, dim)) * scale
    together = rng.random() < 0.5
    points[:outliers] = rng.normal(size=(1 if together else outliers, dim)) * scale * 10 ** rng.uniform(1, 3)
    points += rng.normal(size=dim) * scale * rng.uniform(0, 3)
    return Problem(points, _samples(number % 4, clients, rng), outliers)


def _samples(kind: int, clients: int, rng: np.random.Generator) -> list[int]:
    """All equal, spread, heavy-tailed, or one client above half of everything."""
    if kind == 0:
        return [1] * clients
    if kind == 1:
        return [int(k) for k in rng.integers(1, 1001, clients)]
    heavy = [int(k) for k in np.clip(np.exp(rng.normal(4, 1.5, clients)), 1, 1000)]
    return heavy if kind == 2 else [*heavy[1:], sum(heavy[1:]) + 1 + int(rng.integers(50))]


def many_steps(points: Vector, samples: list[int], steps: int = 10_000) -> Vector:
    """The smoothed Weiszfeld algorithm from the mean, until it stands still.

    The points span no more dimensions than there are points, and in an orthonormal basis of that space all
    distances are the same.
    """
    weights = np.array(samples, np.float64) / sum(samples)
    centre = weights @ points
    basis, small = np.linalg.qr((points - centre).T)
    small = small.T
    median: Vector = weights @ small
    for _ in range(steps):
        pulls = weights / np.maximum(NU, np.linalg.norm(small - median, axis=1))
        previous, median = median, (pulls @ small) / pulls.sum()
        if np.array_equal(previous, median):
            break
    return np.asarray(centre + basis @ median, np.float64)


def by_sums(
    points: Vector, samples: list[int], make: MakeChannel, *, tolerance: float = 0.0, **fields: Any
) -> tuple[Vector, RoundReport]:
    """One round over clients that have these points, whatever model they start from."""
    clients, dim = points.shape
    learners = {
        member: QuadraticLearner(point, samples=count, rate=1.0, steps=1)
        for member, (point, count) in enumerate(zip(points, samples, strict=True))
    }
    fields = {"steps": MOST_SUMS, "fast": True, "cap": max(samples), "bits": 44} | fields
    algorithm = RFA(dim=dim, clients=clients, nu=NU, tolerance=tolerance, **fields)
    channel = make(algorithm, learners, Setting(insecure_seed=SEED, sums=algorithm.most_sums))
    run = Run(algorithm, channel, algorithm.start(np.zeros(dim)))
    report = run.round()
    assert report.failure is None
    return run.model, report


def check(number: int) -> None:
    """A plain run tells how many sums it takes, so that the secure one needs to deal no more keys."""
    case = problem(number)
    expected = many_steps(case.points, case.samples)
    distance = case.honest_distance(expected)
    plain, report = by_sums(case.points, case.samples, insecure_plain_sum, tolerance=1e-6 * distance)
    sums = report.sums["residuals"]
    found, _ = by_sums(case.points, case.samples, secure_sum, tolerance=1e-6 * distance, steps=sums)
    assert np.array_equal(found, plain)
    assert np.linalg.norm(found - expected) <= DIFFERENCE * distance, (number, report)


@pytest.mark.parametrize("number", QUICK)
def test_median_through_secure_sums(number: int) -> None:
    check(number)


@pytest.mark.slow
@pytest.mark.parametrize("first", PROBLEMS[::CHUNK])
def test_medians_of_all_problems_through_secure_sums(first: int) -> None:
    for number in range(first, first + CHUNK):
        check(number)


@pytest.mark.slow
def test_problems_are_what_they_should_be() -> None:
    problems = [problem(number) for number in PROBLEMS]
    clients, dims = (np.array([each.points.shape[axis] for each in problems]) for axis in (0, 1))
    assert (clients.min(), clients.max()) == (5, 200)
    assert (dims.min(), dims.max()) == (2, 10_000)
    shares = np.array([each.outliers / len(each.points) for each in problems])
    assert shares.min() == 0
    assert 0.35 < shares.max() <= 0.4
    assert sum(2 * max(each.samples) > sum(each.samples) for each in problems) >= 50


def test_medians_are_those_of_the_authors_package() -> None:
    """Wherever it converged, which is nearly everywhere."""
    package = pytest.importorskip("geom_median.numpy")
    converged = 0
    for number in QUICK:
        case = problem(number)
        theirs = package.compute_geometric_median(
            list(case.points), np.array(case.samples, np.float64), eps=NU, maxiter=1000
        )
        if theirs.termination != "function value converged within tolerance":
            continue
        converged += 1
        distance = case.honest_distance(theirs.median)
        found, _ = by_sums(case.points, case.samples, insecure_plain_sum, tolerance=1e-6 * distance)
        assert np.linalg.norm(found - theirs.median) <= DIFFERENCE * distance, number
    assert converged > 0.8 * len(QUICK)


TOY = np.array([(0, 0), (1, 0), (0, 1), (1, 1), (10, 10)], np.float64)


@pytest.mark.parametrize(("steps", "expected"), [(1, 1.113377), (2, 0.907019), (3, 0.889591), (4, 0.872541)])
def test_plain_steps_from_the_mean_are_those_of_the_paper(steps: int, expected: float) -> None:
    found, report = by_sums(TOY, [1] * 5, secure_sum, steps=steps, fast=False, start_at="mean", clip=20.0)
    assert found == pytest.approx(np.full(2, expected), abs=5e-7)
    assert report.sums == {"mean": 1, "residuals": steps}


def test_many_plain_steps_reach_the_limit_of_the_paper() -> None:
    expected = np.full(2, 0.78867513)
    assert many_steps(TOY, [1] * 5) == pytest.approx(expected, abs=5e-9)
    found, _ = by_sums(TOY, [1] * 5, secure_sum, tolerance=1e-8)
    assert found == pytest.approx(expected, abs=5e-7)


CENTRE = 30.0  # in every coordinate: far from zero, where steps start


@st.composite
def outlying(draw: st.DrawFn) -> Problem:
    """Less than half of all weight is anywhere, and the rest is within a ball of radius 1 around `CENTRE`."""
    rng = np.random.default_rng(draw(st.integers(0, 1 << 32)))
    dim = draw(st.integers(1, 6))
    honest = [draw(st.integers(1, 20)) for _ in range(draw(st.integers(2, 8)))]
    far = [draw(st.integers(1, 20)) for _ in range(draw(st.integers(0, 8)))]
    while 2 * sum(far) >= 0.98 * (sum(far) + sum(honest)):
        far.pop()
    directions = rng.normal(size=(len(far) + len(honest), dim))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    together = draw(st.booleans())
    away = directions[:1] if together else directions[: len(far)]
    away = away * 10.0 ** draw(st.floats(1, 6))
    inside = directions[len(far) :] * rng.uniform(0, 1, (len(honest), 1))
    inside[0] = directions[-1]  # the radius is not 1 in name only
    points = np.vstack([np.broadcast_to(away, (len(far), dim)), inside])
    return Problem(points + CENTRE, [*far, *honest], len(far))


@settings(max_examples=20, deadline=None)
@given(outlying())
def test_outliers_cannot_pull_a_median_away(case: Problem) -> None:
    """With a part a < 1/2 of all weight, by no more than 2 (1 - a) / (1 - 2 a) radii of the others."""
    part = sum(case.samples[: case.outliers]) / sum(case.samples)
    found, _ = by_sums(case.points, case.samples, insecure_plain_sum, tolerance=1e-6, steps=64)
    assert np.linalg.norm(found - CENTRE) <= 2 * (1 - part) / (1 - 2 * part)


# Nearly half of all weight is far away. From zero, the fourth fast step overshoots, to beyond the bound.
ASTRAY = Problem(
    points=np.array([[51.8, 7.1]] * 5 + [[29.0, 29.9], [29.82, 29.98]]),
    samples=[1, 1, 1, 1, 4, 1, 8],
    outliers=5,
)


def test_a_step_that_went_astray_is_not_the_last() -> None:
    """It stood still there, on its way back; a plain step would have moved."""
    expected = many_steps(ASTRAY.points, ASTRAY.samples)
    found, report = by_sums(ASTRAY.points, ASTRAY.samples, insecure_plain_sum, tolerance=1e-6)
    assert report.facts["stopped"] == StopReason.TOLERANCE
    assert np.linalg.norm(found - expected) < 1e-5


@pytest.mark.parametrize("steps", range(2, 12))
def test_a_round_without_more_sums_ends_where_plain_steps_lead(steps: int) -> None:
    """Wherever guesses were by then: the result is between the clients, like that of every plain step."""
    found, report = by_sums(ASTRAY.points, ASTRAY.samples, insecure_plain_sum, steps=steps)
    assert report.facts["stopped"] == StopReason.STEPS
    low, high = ASTRAY.points.min(axis=0), ASTRAY.points.max(axis=0)
    assert (low - 1e-6 <= found).all()
    assert (found <= high + 1e-6).all()
