"""Influence functions of robust aggregates: the bounded value that each client adds to a sum.

Let z be the current point of the iteration, r = w - z the residual of a client's vector w, and a its share
from 0 to 1. The next point is z + (sum of a * influence) / (sum of a * weight). Influence, weight and bound:

    mean                      r                            weight 1           bounded by a clip
    geometric median          r / max(nu, |r|)             1 / max(nu, |r|)   norm 1
    coordinate median         the same per coordinate      per coordinate     1 per coordinate

For medians, the influence is bounded by definition. For the mean, a clip bounds it. With `nu` = delta, the
medians are the delta-medians of Fed+ ("Robustness and Personalization in Federated Learning: A Unified
Approach via Regularization").

With differential privacy, the sum of influences has noise, and weights are not summed. One client can change
a sum of bounded influences only by a bounded amount, which noise can hide. A weight can reach 1 / nu, and the
noise that hides it would be larger than the sum. A private step therefore uses a public length instead of
weights: if all clients pull in one direction, the point moves by `step`. Every step is one sum, and the
privacy losses of all sums add up.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Final, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from protocols import checks
from protocols.averaging import clipped, norm
from protocols.privacy_budget import PublicStepBudget
from protocols.serialisation import Vector
from secagg.clipping_and_fixed_point import levels
from secagg.distributed_noise import NoiseAssumptions
from secagg.errors import CorruptTotal, ParameterError
from secagg.noise.part_plan import Plan
from secagg.sum_spec import L2, LInf, Part, Values

Contribution: TypeAlias = tuple[ArrayLike, ...]  # one array for each part, in the order of the parts

# Bits of the weight of a median. It may be as large as 1 / nu and decides the length of a step.
WEIGHT_BITS: Final = 64
# A sum that is within this many standard deviations of the rounding error counts as zero.
_ROUNDING: Final = 3.0
_AT: Final = 1e-3  # distances up to this part of nu count as zero


@dataclass(frozen=True, kw_only=True)
class Influence(ABC):
    """The base class of influence functions: the bounded values that clients add to sums, from which a median
    or mean is computed step by step. `bits` is the number of bits of every coordinate on the wire."""

    reveals: ClassVar[str]
    per_coordinate: ClassVar[bool] = False  # whether every coordinate has a weight of its own

    bits: int = 32

    def __post_init__(self) -> None:
        checks.whole("bits", self.bits, 2, 64)
        self.check()

    @abstractmethod
    def check(self) -> None:
        """Raise `ParameterError` if a parameter of the subclass is invalid."""

    @abstractmethod
    def parts(self, name: str, size: int, clients: int) -> tuple[Part, ...]:
        """Return the parts of a sum of `size` coordinates. The first is `name`; other names begin with it."""

    @abstractmethod
    def contribution(self, residual: Vector, share: float) -> Contribution:
        """Return what a client adds to each part, in the order of `parts`. `residual` is its vector minus the
        current point of the iteration, and `share` its weight from 0 to 1."""

    @abstractmethod
    def read(self, totals: tuple[Values, ...], count: int) -> tuple[Vector, float | Vector]:
        """Return the sums of influences and of weights. `totals` has each part's total over `count` clients.
        May raise `CorruptTotal` if the total of a weight that all coordinates share is not positive."""

    @property
    def promise(self) -> NoiseAssumptions | None:
        """The assumptions (clients, drop-outs) for which noise is calibrated; None without noise."""
        return None

    def rounding(self, clients: int) -> float:  # noqa: ARG002
        """Return the size up to which a coordinate of the sum of influences may be only a rounding error."""
        return 0.0

    def without_rounding(self, influence: Vector, clients: int) -> Vector:  # noqa: ARG002
        """Return `influence`, the sum of influences, or zeros if all of it may be a rounding error."""
        return influence


@dataclass(frozen=True, kw_only=True)
class MeanInfluence(Influence):
    """The influence of the mean: a client's residual, which is its vector minus the current point. Residuals
    longer than `clip` are scaled down to this norm."""

    reveals: ClassVar[str] = "the sum of the clients' residuals, and of their shares"

    clip: float | None = None

    def check(self) -> None:
        checks.bound("clip", self.clip, "the largest norm that an update may have, such as 10.0")

    limit = checks.CheckedBound("clip")

    def parts(self, name: str, size: int, clients: int) -> tuple[Part, ...]:  # noqa: ARG002
        return (
            Part(name=name, size=size, bits=self.bits, bound=L2(self.limit)),
            Part(name=f"{name}.share", size=1, bits=WEIGHT_BITS, bound=LInf(1.0)),
        )

    def contribution(self, residual: Vector, share: float) -> Contribution:
        return clipped(residual, self.limit) * share, [share]

    def read(self, totals: tuple[Values, ...], count: int) -> tuple[Vector, float]:  # noqa: ARG002
        return np.asarray(totals[0], np.float64), positive_weight(totals[1])


@dataclass(frozen=True, kw_only=True)
class GeometricMedian(Influence):
    """The influence of the geometric median, the point with the least sum of distances to the clients'
    vectors. The influence of a residual r is r / max(`nu`, |r|).

    `leave`  False: clients whose vector is at the current point have the weight 1 / nu, so that steps away
             from it are tiny even if the median is elsewhere. True: they have no weight, but the sum A of
             their shares is known. Unless the point is the median, a step is multiplied by 1 - A / |sum of
             the other influences| ("The multivariate L1-median and associated data depth").
    """

    reveals: ClassVar[str] = "the sum of the directions to the clients' vectors, and of inverse distances"

    nu: float = 1e-6
    leave: bool = False

    def check(self) -> None:
        checks.positive("nu", self.nu)

    def parts(self, name: str, size: int, clients: int) -> tuple[Part, ...]:  # noqa: ARG002
        here = Part(name=f"{name}.here", size=1, bits=WEIGHT_BITS, bound=LInf(1.0))
        return (
            Part(name=name, size=size, bits=self.bits, bound=L2(1.0)),
            Part(name=f"{name}.weight", size=1, bits=WEIGHT_BITS, bound=LInf(1 / self.nu)),
            *((here,) if self.leave else ()),
        )

    def contribution(self, residual: Vector, share: float) -> Contribution:
        distance = norm(residual)
        weight = share / max(self.nu, distance)
        if not self.leave:
            return residual * weight, [weight]
        if distance <= _AT * self.nu:
            return np.zeros_like(residual), [0.0], [share]
        return residual * weight, [weight], [0.0]

    def read(self, totals: tuple[Values, ...], count: int) -> tuple[Vector, float]:  # noqa: ARG002
        influence = np.asarray(totals[0], np.float64)
        here = max(0.0, float(totals[2][0])) if self.leave else 0.0
        length = norm(influence)
        if here and here >= length:  # the median is within nu: return the smoothed sums
            return influence, float(totals[1][0]) + here / self.nu
        return influence * (1 - here / length if here else 1.0), positive_weight(totals[1])

    def without_rounding(self, influence: Vector, clients: int) -> Vector:
        """Return `influence`, the sum of influences, or zeros if all of it may be a rounding error. With n
        clients and d coordinates, rounding errors have a norm of about sqrt(d n) / 2 steps of the grid to
        which clients round. The limit is (1 + 3 / sqrt(d)) times this."""
        size = len(influence)
        grid = 1 / max(1, levels(self.bits, clients))
        most = (1 + _ROUNDING / math.sqrt(size)) * math.sqrt(size * clients) * grid / 2
        return influence if norm(influence) > most else np.zeros_like(influence)


@dataclass(frozen=True, kw_only=True)
class CoordinateMedian(Influence):
    """The influence of the median in each coordinate: r / max(`delta`, |r|) for a residual r."""

    reveals: ClassVar[str] = "in every coordinate, the sum of clipped residuals, and of inverse distances"
    per_coordinate: ClassVar[bool] = True

    delta: float = 0.1

    def check(self) -> None:
        checks.positive("delta", self.delta)

    def parts(self, name: str, size: int, clients: int) -> tuple[Part, ...]:  # noqa: ARG002
        return (
            Part(name=name, size=size, bits=self.bits, bound=LInf(1.0)),
            Part(name=f"{name}.weight", size=size, bits=self.bits, bound=LInf(1 / self.delta)),
        )

    def contribution(self, residual: Vector, share: float) -> Contribution:
        weight = share / np.maximum(self.delta, np.abs(residual))
        return residual * weight, weight

    def read(self, totals: tuple[Values, ...], count: int) -> tuple[Vector, Vector]:  # noqa: ARG002
        return np.asarray(totals[0], np.float64), np.asarray(totals[1], np.float64)

    def rounding(self, clients: int) -> float:
        """Return the size up to which a coordinate of the sum of influences counts as zero. (Between the two
        middle values of an even number of clients, the sum is zero but for rounding errors.)"""
        return _ROUNDING * math.sqrt(clients) / (2 * max(1, levels(self.bits, clients)))


def positive_weight(total: Values) -> float:
    """Return `total[0]`, the sum of the clients' weights. Raises `CorruptTotal` if it is not positive."""
    weight = float(total[0])
    if weight <= 0:
        raise CorruptTotal("the clients of this sum have no weight at all")
    return weight


@dataclass(frozen=True, kw_only=True)
class NoisyInfluence(Influence):
    """The influence `inner` with noise of `privacy`. Steps have a public length, so weights are not summed.

    `sums`  largest number of sums in a round.
    `bits`  bits of every coordinate on the wire, noise included; the bits of `inner` are not used.
    """

    reveals: ClassVar[str] = "the sum of the clients' bounded influences with noise, which makes it private"

    inner: Influence
    privacy: PublicStepBudget
    sums: int

    def check(self) -> None:
        checks.whole("sums", self.sums, 1)
        if not isinstance(self.inner, (MeanInfluence, GeometricMedian, CoordinateMedian)):
            raise ParameterError(f"there is no private variant of {type(self.inner).__name__}")

    @property
    def promise(self) -> NoiseAssumptions:
        return self.privacy.promise

    def plan(self, size: int) -> Plan:
        """Return how vectors of `size` coordinates are encoded and how much noise is added in each sum."""
        return self.privacy.plan(sums=self.sums, size=size, norm=self._norm(size), bits=self.bits)

    def _norm(self, size: int) -> float:
        """Return the largest Euclidean norm of what one client adds to `size` coordinates."""
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
