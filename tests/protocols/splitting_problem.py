"""The chapter's least squares as learners, fast ones, and runs of them over sums."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from fl.data.least_squares_problem import LeastSquaresProblem, least_squares
from protocols.catalogue import CATALOGUE
from protocols.learner import Learner, Score, Steering
from protocols.run import Run
from protocols.serialisation import Vector, as_vector
from protocols.splitting import Splitting
from sims.runtime import Setting, insecure_plain_sum

_NO_STEERING = Steering()
# What makes each of the chapter's algorithms one of the splitting family, by its name.
SETTINGS = {name: each.fixed for name, each in CATALOGUE.items() if each.make is Splitting and each.fixed}


@dataclass
class LeastSquaresLearner:
    """f(w) = 1/2 w'Qw - p'w + constant, with Q = V diag(values) V': the sum over rows, as in the chapter.

    All maps are exact, and gradient steps cost the same however many there are.
    """

    values: Vector
    vectors: Vector
    target: Vector  # V'p
    samples: int = 1
    rate: float = 1e-5
    steps: int = 5

    def loss(self, model: Vector) -> float:
        turned = self.vectors.T @ model
        return float(turned @ (self.values * turned) / 2 - self.target @ turned)

    def gradient(self, model: Vector) -> Vector:
        return np.asarray(self.vectors @ (self.values * (self.vectors.T @ model) - self.target))

    def proximal(self, point: Vector, eta: float) -> Vector:
        turned = self.vectors.T @ point
        return np.asarray(self.vectors @ ((self.target + turned / eta) / (self.values + 1 / eta)))

    def train(
        self,
        start: Vector,
        steering: Steering = _NO_STEERING,
        *,
        steps: int | None = None,
        rate: float | None = None,
        only: Vector | None = None,
    ) -> Vector:
        assert only is None
        values, target = self.values, self.target
        if steering.anchor is not None:
            values = values + steering.pull
            target = target + steering.pull * (self.vectors.T @ steering.anchor)
        best = target / values
        left = (1 - (self.rate if rate is None else rate) * values) ** (
            self.steps if steps is None else steps
        )
        return np.asarray(self.vectors @ (best + left * (self.vectors.T @ start - best)))

    def score(self, model: Vector) -> Score:
        return Score(0, 1, self.loss(model))


@cache
def problem(
    noise: float = 0.25, users: int = 25, features: int = 100, rows: int = 5000
) -> LeastSquaresProblem:
    return least_squares(users=users, features=features, rows=rows, noise=noise)


@cache
def _learners(data: LeastSquaresProblem) -> dict[int, Learner]:
    values, vectors = data._eigen
    return {
        user: LeastSquaresLearner(values[user], vectors[user], vectors[user].T @ data._products[user])
        for user in range(data.users)
    }


def learners_of(data: LeastSquaresProblem) -> dict[int, Learner]:
    return dict(_learners(data))


def gap_of(data: LeastSquaresProblem, model: Vector) -> float:
    """The objective's distance from its minimum, from the Hessian: no digits are lost near it."""
    away = model - data.optimum
    return 0.5 * float(away @ data._squares.sum(axis=0) @ away)


def gaps(
    data: LeastSquaresProblem, rounds: int, make: Any = insecure_plain_sum, **settings: Any
) -> list[float]:
    """Of the model after every round."""
    return [gap_of(data, model) for model in models(data, rounds, make, **settings)]


def models(
    data: LeastSquaresProblem, rounds: int, make: Any = insecure_plain_sum, **settings: Any
) -> list[Vector]:
    dim = data.a.shape[2]
    algorithm = Splitting(dim=dim, clients=data.users, **{"clip": 30.0} | settings)
    learners = learners_of(data)
    channel = make(algorithm, learners, Setting(insecure_seed=b"splitting"))
    run = Run(algorithm, channel, algorithm.start(as_vector(np.zeros(dim))))
    found = []
    for _ in range(rounds):
        report = run.round()
        assert report.completed, report.failure
        found.append(run.model)
    return found


def rounds_to(goal: float, found: list[float]) -> int | None:
    """How many rounds until the gap is at most `goal`; None if never."""
    return next((number + 1 for number, gap in enumerate(found) if gap <= goal), None)
