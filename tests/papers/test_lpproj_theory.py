"""Propositions 1 and 2 of the lp-proj paper: closed forms beside worlds in which everything is really done.

Worlds are drawn with a fixed seed. Were it another one each time, a correct formula would be held for wrong
where a mean of 500 worlds is five standard errors off: for a normal mean 6e-7 a check, so less than 2e-5 for
all 18 of them; squares of normal numbers are skewed, which at this size makes that less than 1e-3.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from papers.lpproj_theory import ATTACKS, METHODS, Attack, Draw, LinearProblem, Method
from protocols.lpproj import Agree, LpProj2
from protocols.quadratic_learner import QuadraticLearner
from protocols.serialisation import Vector, as_vector

FIGURE_1 = LinearProblem()
SMALL = LinearProblem(
    samples=16, clients=12, malicious=3, dim=8, subspace=3, curvature=1.7, noise=0.9, spread=0.6, strength=4.0
)
WORLDS = 500
FAR = 5.0
PULLS = np.logspace(-6, 3, 40)


def standard_errors_off(values: list[float], expected: float) -> float:
    return float(abs(np.mean(values) - expected) / (np.std(values, ddof=1) / math.sqrt(len(values))))


@pytest.mark.parametrize("method", ["ditto", "lp-proj"])
@pytest.mark.parametrize("attack", ["none", *ATTACKS])
@pytest.mark.parametrize("pull", [0.05, 2.0])
def test_losses_are_what_the_formula_says(method: Method, attack: Attack, pull: float) -> None:
    rng = np.random.default_rng([1, len(method), len(attack), int(pull)])
    worlds = (Draw.of(SMALL, attack, rng) for _ in range(WORLDS))
    losses = [float(world.losses(method, attack, pull, rng).mean()) for world in worlds]
    assert standard_errors_off(losses, SMALL.loss(method, attack, pull)) < FAR


@pytest.mark.parametrize("method", ["ditto", "lp-proj"])
def test_variances_over_clients_are_what_the_formula_says(method: Method) -> None:
    """Nearly without noise: what is expected over noise differs between clients in nothing else."""
    quiet = LinearProblem(
        samples=16, clients=12, dim=8, subspace=3, curvature=1.7, noise=1e-7, spread=0.6, malicious=0
    )
    rng = np.random.default_rng(2)
    worlds = (Draw.of(quiet, "none", rng) for _ in range(WORLDS))
    found = [float(np.var(world.losses(method, "none", 0.8, rng))) for world in worlds]
    assert standard_errors_off(found, quiet.loss_variance(method, 0.8)) < FAR


def test_a_wrong_formula_would_be_noticed() -> None:
    """A fifth more or less of what an attack does is more than that many standard errors."""
    rng = np.random.default_rng(3)
    worlds = (Draw.of(SMALL, "gaussian", rng) for _ in range(WORLDS))
    losses = [float(world.losses("lp-proj", "gaussian", 2.0, rng).mean()) for world in worlds]
    for strength in (0.8, 1.2):
        other = LinearProblem(**{**vars(SMALL), "strength": strength * SMALL.strength})
        assert standard_errors_off(losses, other.loss("lp-proj", "gaussian", 2.0)) > FAR


def long_lp_proj(rounds: int) -> LpProj2:
    """One whose local steps are as good as endless."""
    return LpProj2(
        dim=8, clients=5, subspace=3, clip=100.0, orthonormal=True, pull=0.8, rate=0.5, rounds=rounds,
        personal_steps=100, personal_rate=0.5,
    )  # fmt: skip


def answered(algorithm: LpProj2, estimate: Vector, reference: Vector) -> tuple[Vector, Vector]:
    """How a client would move the reference, and its own model after that."""
    client = algorithm.client(QuadraticLearner(estimate), algorithm.first_memory())
    moved = client.answer(Agree(as_vector(reference)))["update"]
    model = client.memory().model
    assert model is not None
    return np.asarray(moved), model


def test_endless_local_steps_of_lp_proj_come_to_the_projected_estimate() -> None:
    """What the algorithm itself sends: that is where the closed form begins."""
    algorithm, estimate = long_lp_proj(rounds=200), np.random.default_rng(4).normal(size=8)
    moved, _ = answered(algorithm, estimate, np.zeros(3))
    assert moved == pytest.approx(algorithm.space.project(estimate), abs=1e-6)


def test_a_mean_that_comes_back_pulls_the_subspace_alone() -> None:
    """And this is the personal model of the closed form, for a curvature of 1."""
    algorithm, rng = long_lp_proj(rounds=1), np.random.default_rng(5)
    estimate, mean = rng.normal(size=8), rng.normal(size=3)
    _, model = answered(algorithm, estimate, mean)
    shift = algorithm.pull / (1 + algorithm.pull) * (mean - algorithm.space.project(estimate))
    assert model == pytest.approx(estimate + algorithm.space.lift(shift), abs=1e-6)


def test_the_best_pull_is_that_of_the_paper() -> None:
    """Its formula, as printed. With the numbers of Figure 1 it gives half of what the paper says, 4.9e-4."""
    p = FIGURE_1
    heterogeneity = p.spread + p.malicious / p.clients**2 * (
        p.strength**2 - p.noise**2 / (p.curvature * p.samples)
    )
    printed = (1 - 1 / p.clients) * p.noise**2 / p.samples / heterogeneity
    assert p.best_pull("same-value") == pytest.approx(printed, rel=1e-12)
    assert printed == pytest.approx(2.463e-4, rel=1e-3)
    assert p.threshold("same-value") == pytest.approx(4.927e-4, rel=1e-3)


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("problem", [FIGURE_1, SMALL])
def test_proposition_1(problem: LinearProblem, attack: Attack) -> None:
    best, threshold = problem.best_pull(attack), problem.threshold(attack)
    for pull in (*PULLS, best, threshold * (1 - 1e-6), threshold * (1 + 1e-6)):
        others, own = problem.loss("pfedme", attack, pull), problem.loss("lp-proj", attack, pull)
        assert problem.loss("ditto", attack, pull) == others
        assert (own <= others) == (pull >= threshold)
        assert all(
            problem.loss(each, attack, pull) >= problem.loss(each, attack, best) - 1e-12 for each in METHODS
        )


def test_where_a_pull_always_helps_there_is_no_threshold() -> None:
    alike = LinearProblem(samples=2, dim=2, subspace=1, clients=10, malicious=0, spread=1e-3)
    assert alike.best_pull("none") > alike.curvature
    assert alike.threshold("none") == math.inf
    assert all(alike.loss("lp-proj", "none", pull) > alike.loss("ditto", "none", pull) for pull in PULLS)


def test_proposition_2() -> None:
    for pull in PULLS:
        own, other = (FIGURE_1.loss_variance(each, pull) for each in ("lp-proj", "ditto"))
        assert own < other == FIGURE_1.loss_variance("pfedme", pull)
        assert own / other == pytest.approx(FIGURE_1.subspace / FIGURE_1.dim)
