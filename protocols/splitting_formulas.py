"""Formulas for a client in a round of the splitting scheme: step sizes, proximal map, relaxation.

They are (42)-(44) of the book chapter "A Unifying Framework for Federated Learning". P is the map of
client i, a proximal map or some gradient steps, and mean(z) is the mean over all clients:

    z_i <- (1 - alpha) u_i + alpha P(u_i)
    w_i <- (1 - beta) z_i + beta mean(z)
    u_i <- (1 - gamma) u_i + gamma w_i

The proximal map of a client's loss is P(u) = argmin_w loss(w) + |w - u|^2 / (2 eta). Learners that can
compute it exactly have a method `proximal`. Others take local steps with a pull of 1 / eta towards u.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Protocol, runtime_checkable

import numpy as np

from protocols import checks
from protocols.anderson import Anderson, combined, gram_of
from protocols.learner import Learner, Steering
from protocols.serialisation import Vector

SCHEDULES: Final = ("constant", "log", "sqrt", "linear", "exponential")
MAPS: Final = ("proximal", "gradient")
STARTS: Final = ("average", "point")
_STEEPEST: Final = 16.0  # largest multiple of u_i that is subtracted from z_i: every doubling costs a bit


@dataclass(frozen=True, kw_only=True)
class StepSizes:
    """The step sizes eta_t of rounds t = 0, 1, ... With s = t + 1, they are eta ("constant"), eta / (1 +
    log10 s) ("log"), eta / sqrt(s) ("sqrt"), eta / s ("linear"), or halved every `period` rounds
    ("exponential").

    >>> [StepSizes(eta=1.0, schedule="linear").at(t) for t in range(4)]
    [1.0, 0.5, 0.3333333333333333, 0.25]
    """

    eta: float
    schedule: str = "constant"
    period: int = 500

    def __post_init__(self) -> None:
        checks.positive("eta", self.eta)
        checks.one_of("schedule", self.schedule, SCHEDULES)
        checks.whole("period", self.period, 1)

    def at(self, step: int) -> float:
        """Return the step size of round `step`, counted from 0. It is always above zero."""
        match self.schedule:
            case "log":
                size = self.eta / (1 + math.log10(step + 1))
            case "sqrt":
                size = self.eta / math.sqrt(step + 1)
            case "linear":
                size = self.eta / (step + 1)
            case "exponential":
                size = math.ldexp(self.eta, -min(step // self.period, 1000))
            case _:
                size = self.eta
        return max(size, checks.SMALLEST)


@dataclass(frozen=True, kw_only=True)
class SplittingScheme:
    """The computations of client i: z_i = (1 - alpha) u_i + alpha P(u_i) at its point u_i, which it sends,
    and its next point (1 - gamma) u_i + gamma ((1 - beta) z_i + beta m), where m is the mean of all z.

    `local_map`  P: "proximal", or "gradient" for `proximal.steps` gradient steps of rate eta_t in round t.
    `sizes`      the step sizes eta_t.
    `summed`     whether eta_t, meant for the sum of a client's losses, is multiplied by its sample count.
    `start`      where local steps towards a proximal map begin: "average" for the last m, or "point" for u_i.
    """

    alpha: float
    beta: float
    gamma: float
    local_map: str
    sizes: StepSizes
    proximal: ProximalSteps
    start: str = "average"
    summed: bool = False

    def __post_init__(self) -> None:
        for name, most in (("alpha", 2.0), ("beta", 2.0), ("gamma", 1.0)):
            checks.positive(name, getattr(self, name))
            checks.real(name, getattr(self, name), 0, most)
        checks.one_of("local_map", self.local_map, MAPS)
        checks.one_of("start_at", self.start, STARTS)

    @property
    def is_common(self) -> bool:
        """Whether all clients apply their maps at one common point u. This holds if beta = 1."""
        return self.beta == 1.0

    @property
    def lean(self) -> float:
        """The factor lean in z_i - lean u_i, which clients send instead of z_i after an accelerated step. If
        m is the mean of all z, the next u_i is gamma (1 - beta) (z_i - lean u_i) + gamma beta m. So the sum
        of z_i - lean u_i gives the server the mean of the next u_i, even if it did not know that of u_i. If
        gamma = 1, lean is 0: the sum of z_i is enough. It is also 0 if beta = 1 or it would exceed +-16."""
        if self.is_common:
            return 0.0
        lean = (1 - self.gamma) / (self.gamma * (self.beta - 1))
        return lean if abs(lean) <= _STEEPEST else 0.0

    def relaxed(self, learner: Learner, point: Vector, step: int, *, average: Vector) -> Vector:
        """Return z_i = (1 - alpha) u_i + alpha P(u_i) for u_i = `point`, where P is gradient steps or a
        proximal map with the step size of round `step`. Local steps may start at the last mean, `average`."""
        unit = float(learner.samples) if self.summed else 1.0
        eta = unit * self.sizes.at(step)
        if self.local_map == "gradient":
            mapped = learner.train(point, steps=self.proximal.steps, rate=eta)
        else:
            start = average if self.start == "average" else point
            mapped = self.proximal.point(learner, point, eta, start=start, unit=unit)
        return np.asarray((1 - self.alpha) * point + self.alpha * mapped, np.float64)

    def image(self, point: Vector, sent: Vector, mean: Vector) -> Vector:
        """Return the next point (1 - gamma) u_i + gamma ((1 - beta) z_i + beta m) of a client with u_i =
        `point` and z_i = `sent`, where m = `mean` is the mean of all z."""
        averaged = (1 - self.beta) * sent + self.beta * mean
        return np.asarray((1 - self.gamma) * point + self.gamma * averaged, np.float64)

    def reach(self, clip: float) -> float:
        """Return the largest distance that a client's point u_i can have from m, the last mean of all z, if
        every z_i is at most `clip` away from m. With the values u_i' and m' after a round, u_i' - m' is (1 -
        gamma) (u_i - m) + gamma (1 - beta) (z_i - m) + (gamma beta - 1) (m' - m), where |m' - m| <= clip."""
        return clip * (self.gamma * abs(1 - self.beta) + abs(1 - self.gamma * self.beta)) / self.gamma

    def centred(self, point: Vector, sent: Vector, centre: Vector) -> Vector:
        """Return the residual of u_i = `point`, which is u_i minus its next value, if a client sends z_i =
        `sent` and the mean of all z is `centre`."""
        # Differences are computed first: they are short, so no digits are lost.
        return np.asarray(self.gamma * ((point - centre) - (1 - self.beta) * (sent - centre)), np.float64)

    def image_of_means(self, point: Vector, mean: Vector) -> Vector:
        """Return (1 - gamma) point + gamma mean: the mean of all next u_i, from the means of u_i and z_i."""
        return np.asarray((1 - self.gamma) * point + self.gamma * mean, np.float64)


@runtime_checkable
class ProximalLearner(Protocol):
    """A learner that computes the proximal map of its mean loss exactly.

    >>> from protocols.quadratic_learner import QuadraticLearner
    >>> isinstance(QuadraticLearner(np.zeros(2)), ProximalLearner)
    True
    """

    def proximal(self, point: Vector, eta: float) -> Vector:
        """Return the w with the least loss(w) + |w - point|^2 / (2 eta), with the learner's mean loss."""


@dataclass(frozen=True, kw_only=True)
class ProximalSteps:
    """How the proximal map, argmin_w loss(w) + |w - u|^2 / (2 eta), is computed: exactly, or by local steps.

    `steps`   number of local gradient steps; that of the learner by default.
    `rate`    their learning rate; that of the learner by default. It is limited to eta, because larger steps
              towards u would diverge.
    `memory`  if above 0, Anderson acceleration combines the results of the last `memory` + 1 chunks of steps.
    `chunk`   number of local steps in a chunk.
    `exact`   whether a `ProximalLearner` computes the map in closed form instead.
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
        Anderson(memory=self.memory)  # raises if it is invalid

    def point(
        self, learner: Learner, point: Vector, eta: float, *, start: Vector, unit: float = 1.0
    ) -> Vector:
        """Return argmin_w loss(w) + |w - point|^2 / (2 eta), in closed form or roughly by local steps from
        `start`. Their rate is `unit` * `self.rate`, by default the learner's rate, and at most `eta`."""
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
        """Return the model after `steps` local steps from `start`. After more than `memory` + 1 chunks of
        steps, Anderson acceleration combines the last results into the start of the next chunk."""
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
