"""A learner with the quadratic loss 1/2 (w - centre)' diag(curvature) (w - centre) and exact gradients.

Tests and examples use it, because the results of algorithms with this loss can be computed by hand.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from protocols.learner import PenaltyTerm, Score, Steering
from protocols.serialisation import Vector

_NO_STEERING = Steering()
_CLOSE = 1.0  # a model within this distance of the centre classifies all samples correctly


@dataclass
class QuadraticLearner:
    """A client's `Learner` with the loss sum(curvature * (w - centre)^2) / 2 of a model w."""

    centre: Vector
    curvature: Vector | float = 1.0
    samples: int = 1
    rate: float = 0.1
    steps: int = 10

    def loss(self, model: Vector) -> float:
        return float(np.sum(self.curvature * (model - self.centre) ** 2) / 2)

    def gradient(self, model: Vector) -> Vector:
        return np.asarray(self.curvature * (model - self.centre), np.float64)

    def train(
        self,
        start: Vector,
        steering: Steering = _NO_STEERING,
        *,
        steps: int | None = None,
        rate: float | None = None,
        only: Vector | None = None,
    ) -> Vector:
        model, rate = np.array(start, np.float64), self.rate if rate is None else rate
        for _ in range(self.steps if steps is None else steps):
            moved = steered_step(model, self.gradient(model), steering, rate)
            model = moved if only is None else np.where(only, moved, model)
        return model

    def proximal(self, point: Vector, eta: float) -> Vector:
        """Return the w that minimises loss(w) + |w - point|^2 / (2 eta)."""
        pulled = eta * np.asarray(self.curvature) * self.centre + point
        return np.asarray(pulled / (1 + eta * np.asarray(self.curvature)), np.float64)

    def score(self, model: Vector) -> Score:
        right = float(np.linalg.norm(model - self.centre)) <= _CLOSE
        return Score(self.samples if right else 0, self.samples, self.loss(model))


def steered_step(model: Vector, gradient: Vector, steering: Steering, rate: float) -> Vector:
    """Return `model` after one step against `gradient` at rate `rate`, with the terms of `steering`."""
    direction = gradient
    if steering.anchor is not None:
        direction = direction + steering.pull * (model - steering.anchor)
    if steering.correction is not None:
        direction = direction + steering.correction
    if steering.penalty is not None:
        direction = direction + penalty_gradient(steering.penalty, model)
    model = model - rate * direction
    if steering.target is None:
        return model
    keep = 1 / (1 + rate * steering.mix)
    return keep * model + (1 - keep) * steering.target


def penalty_gradient(penalty: PenaltyTerm, model: Vector) -> Vector:
    """Return the gradient of `penalty` at `model`."""
    off = (model if penalty.space is None else penalty.space.project(model)) - penalty.center
    force = penalty.pull * (np.sign(off) if penalty.power == 1 else off)
    return force if penalty.space is None else penalty.space.lift(force)
