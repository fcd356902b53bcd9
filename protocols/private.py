"""Robust steps with differential privacy: a public step, no sum of weights, and noise on the rest.

The influence of a median is bounded by nature, so it is known how far one client can move its sum, and noise
can hide that. The weight beside it reaches 1 / nu, and hiding that would take more noise than there is
signal. A private step therefore does without: where all clients pull in one direction, the point moves by
`step`, whoever they are. Every step is a sum that costs, and the costs of all steps of all rounds add up.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import ClassVar

import numpy as np

from protocols import checks
from protocols.influence import Contribution, CoordinateMedian, GeometricMedian, Influence, MeanInfluence
from protocols.privacy import Privacy
from protocols.record import Vector
from secagg.errors import ParameterError
from secagg.noise.calibration import calibrate_vector
from secagg.noise.goal import Goal
from secagg.noise.plan import Plan
from secagg.noise.promise import Promise
from secagg.spec import Part, Values


@dataclass(frozen=True, kw_only=True)
class PrivateSteps(Privacy):
    """How private robust steps are.

    `step`  how far the point moves if all clients pull in one direction. A median settles if this is no more
            than its nu (its delta); with a smaller nu, it goes on moving by up to a step.
    """

    step: float | None = None

    def check(self) -> None:
        checks.bound(
            "step", self.step, "how far a private step goes if all clients pull one way, such as 0.1"
        )

    @property
    def length(self) -> float:
        assert self.step is not None  # checked above
        return self.step

    def plan(self, *, sums: int, size: int, norm: float, bits: int) -> Plan:
        """Noise for one of `sums` sums per round, of vectors of `size` elements that are `norm` long."""
        return _plan(self.promise, self.per_sum(sums), size, norm, bits)


@cache
def _plan(promise: Promise, goal: Goal, size: int, norm: float, bits: int) -> Plan:
    return calibrate_vector(promise=promise, goal=goal, size=size, clip=norm, bits=bits)


@dataclass(frozen=True, kw_only=True)
class Private(Influence):
    """The influence `inner` with noise. Its weight is not summed: the step is public.

    `sums`  how many there are in a round, at most.
    `bits`  of every coordinate, noise included; those of `inner` do not matter.
    """

    reveals: ClassVar[str] = "the sum of the clients' bounded influences with noise, which makes it private"

    inner: Influence
    privacy: PrivateSteps
    sums: int

    def check(self) -> None:
        checks.whole("sums", self.sums, 1)
        if not isinstance(self.inner, (MeanInfluence, GeometricMedian, CoordinateMedian)):
            raise ParameterError(f"there is no private variant of {type(self.inner).__name__}")

    @property
    def promise(self) -> Promise:
        return self.privacy.promise

    def plan(self, size: int) -> Plan:
        """The noise on `size` coordinates."""
        return self.privacy.plan(sums=self.sums, size=size, norm=self._norm(size), bits=self.bits)

    def _norm(self, size: int) -> float:
        """The most that one client adds."""
        match self.inner:
            case MeanInfluence():
                return self.inner.limit
            case CoordinateMedian():
                return math.sqrt(size)
            case _:
                return 1.0

    def parts(self, name: str, size: int, clients: int) -> tuple[Part, ...]:
        self.privacy.check_clients(clients)
        return (self.plan(size).part(name),)

    def contribution(self, residual: Vector, share: float) -> Contribution:
        return self.inner.contribution(residual, share)[:1]

    def read(self, totals: tuple[Values, ...], count: int) -> tuple[Vector, float]:
        return np.asarray(totals[0], np.float64), count / self.privacy.length
