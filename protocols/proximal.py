"""The proximal map of a client's loss: P(u) = argmin_w loss(w) + |w - u|^2 / (2 eta).

A learner that knows it in closed form says so by a method of that name; one that does not comes near to it by
local steps, which feel a pull of 1 / eta towards u.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from protocols import checks
from protocols.anderson import Anderson, combined, gram_of
from protocols.learner import Learner, Steering
from protocols.record import Vector


@runtime_checkable
class ProximalLearner(Protocol):
    """A learner that has the proximal map of its own (mean) loss exactly.

    >>> from protocols.quadratic import QuadraticLearner
    >>> isinstance(QuadraticLearner(np.zeros(2)), ProximalLearner)
    True
    """

    def proximal(self, point: Vector, eta: float) -> Vector:
        """The model that minimises loss(w) + |w - point|^2 / (2 eta)."""
        ...


@dataclass(frozen=True, kw_only=True)
class ProximalSteps:
    """How the proximal map is approached where there is no closed form.

    `steps`   local steps, as many as the learner takes by default.
    `rate`    their learning rate, the learner's by default. It is at most eta, or the pull alone would make
              them diverge.
    `memory`  above 0, Anderson acceleration of `chunk` local steps at a time, with so many pairs and one.
    `chunk`   local steps that are one application of the map that is accelerated.
    `exact`   whether a closed form is used where there is one.
    """

    steps: int | None = None
    rate: float | None = None
    memory: int = 0
    chunk: int = 1
    exact: bool = True

    def __post_init__(self) -> None:
        if self.steps is not None:
            checks.whole("steps", self.steps, 1)
        if self.rate is not None:
            checks.positive("rate", self.rate)
        checks.whole("chunk", self.chunk, 1)
        Anderson(memory=self.memory)  # raises what is wrong with it

    def point(
        self, learner: Learner, point: Vector, eta: float, *, start: Vector, unit: float = 1.0
    ) -> Vector:
        """P(point), exactly or by local steps from `start`; `rate` counts in units of that."""
        if self.exact and isinstance(learner, ProximalLearner):
            return np.asarray(learner.proximal(point, eta), np.float64)
        steering = Steering(pull=1 / eta, anchor=point)
        steps = learner.steps if self.steps is None else self.steps
        rate = min(learner.rate if self.rate is None else unit * self.rate, eta)
        if self.memory == 0:
            return learner.train(start, steering, steps=steps, rate=rate)
        return self._accelerated(learner, steering, start, steps, rate)

    def _accelerated(
        self, learner: Learner, steering: Steering, start: Vector, steps: int, rate: float
    ) -> Vector:
        """The same number of local steps, with an extrapolation between every two chunks of them."""
        mixing = Anderson(memory=self.memory)
        residuals: list[Vector] = []
        images: list[Vector] = []
        place = start
        while steps > 0:
            taken = min(self.chunk, steps)
            image = learner.train(place, steering, steps=taken, rate=rate)
            steps -= taken
            residuals, images = [*residuals, place - image], [*images, image]
            place = image
            if len(images) > self.memory + 1:
                del residuals[0], images[0]
                place = combined(mixing.weights(gram_of(residuals)), images)
        return images[-1]
