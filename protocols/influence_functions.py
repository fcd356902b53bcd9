"""Influence functions of robust aggregates: what a client's residual adds to a sum, with noise or without.

With the residual r = w - z between a client's vector and the common point, and the client's share a from 0 to
1, a step of the aggregate is z + (sum of a * influence) / (sum of a * weight). The influences are those of

    mean                      r                            weight 1           bounded by a clip
    geometric median          r / max(nu, |r|)             1 / max(nu, |r|)   norm 1
    coordinate median         the same per coordinate      per coordinate     1 per coordinate

so what a client can add is bounded by definition, except for the mean. With `nu` = delta, the medians are the
delta-medians of Fed+ ("Robustness and Personalization in Federated Learning: A Unified Approach via
Regularization").

With differential privacy: a public step, no sum of weights, and noise on the rest. The influence of a median
is bounded by definition, so one client can move its sum only so far, and noise can hide that. The weight
beside it reaches 1 / nu, and hiding that would take more noise than there is signal. A private step therefore
omits it: where all clients pull in one direction, the point moves by `step`. Every step is a sum that costs,
and the costs of all steps of all rounds add up.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Final, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from protocols import checks
from protocols.privacy_budget import PublicStepBudget
from protocols.serialisation import Vector
from protocols.weighted_mean import clipped, norm
from secagg.errors import CorruptTotal, ParameterError
from secagg.fixed_point import levels
from secagg.noise.part_plan import Plan
from secagg.noise_assumptions import NoiseAssumptions
from secagg.sum_spec import L2, LInf, Part, Values

Contribution: TypeAlias = tuple[ArrayLike, ...]  # in the order of the parts

# The weight of a median has the range of 1 / nu and decides how far a step goes: one number, at full width.
WEIGHT_BITS: Final = 64
# Of a sum of rounded numbers that should be zero, this many standard deviations are taken for rounding.
_ROUNDING: Final = 3.0
_AT: Final = 1e-3  # distances up to this part of nu count as zero


@dataclass(frozen=True, kw_only=True)
class Influence(ABC):
    """`bits` are those of every coordinate of the influence."""

    reveals: ClassVar[str]
    per_coordinate: ClassVar[bool] = False  # whether every coordinate has a weight of its own

    bits: int = 32

    def __post_init__(self) -> None:
        checks.whole("bits", self.bits, 2, 64)
        self.check()

    @abstractmethod
    def check(self) -> None:
        """Raise `ParameterError` for a bound that makes no sense."""

    @abstractmethod
    def parts(self, name: str, size: int, clients: int) -> tuple[Part, ...]:
        """Return the parts for `size` coordinates. `name` is the first one's, and a prefix of the others."""

    @abstractmethod
    def contribution(self, residual: Vector, share: float) -> Contribution:
        """Return what a client adds to each part."""

    @abstractmethod
    def read(self, totals: tuple[Values, ...], count: int) -> tuple[Vector, float | Vector]:
        """Return the sums of the influence and of the weight, from the totals of `count` clients.

        Raises `CorruptTotal` if there is no weight at all.
        """

    @property
    def promise(self) -> NoiseAssumptions | None:
        """What noise is planned for; None without noise."""
        return None

    def rounding(self, clients: int) -> float:  # noqa: ARG002
        """Return the size up to which sums of influences may be rounding alone."""
        return 0.0

    def without_rounding(self, influence: Vector, clients: int) -> Vector:  # noqa: ARG002
        """Return the sum of influences, or zeros if it may be rounding alone."""
        return influence


@dataclass(frozen=True, kw_only=True)
class MeanInfluence(Influence):
    """The mean of residuals that are no longer than `clip`."""

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
    """The point with the least sum of distances; within `nu` of a client, of squared distances.

    `leave`  whether clients exactly at the point have no weight, and their share A is summed separately.
             A step is then shorter by the factor 1 - A / |sum of the other influences| ("The multivariate
             L1-median and associated data depth"), unless the median is there. Without it, a client at the
             point has the weight 1 / nu, and steps away are tiny, wherever the median is.
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
        if here and here >= length:  # the median is within nu: back to what smoothing says
            return influence, float(totals[1][0]) + here / self.nu
        return influence * (1 - here / length if here else 1.0), positive_weight(totals[1])

    def without_rounding(self, influence: Vector, clients: int) -> Vector:
        """Rounding has a norm of about sqrt(d n) / 2 grid points, and rarely a much larger one."""
        size = len(influence)
        grid = 1 / max(1, levels(self.bits, clients))
        most = (1 + _ROUNDING / math.sqrt(size)) * math.sqrt(size * clients) * grid / 2
        return influence if norm(influence) > most else np.zeros_like(influence)


@dataclass(frozen=True, kw_only=True)
class CoordinateMedian(Influence):
    """In each coordinate, the point with the least sum of distances; within `delta`, of squared ones."""

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
        """With an even number of clients, the sum between the middle two is zero except for rounding."""
        return _ROUNDING * math.sqrt(clients) / (2 * max(1, levels(self.bits, clients)))


def positive_weight(total: Values) -> float:
    """Return the only element of a sum of weights. Raises `CorruptTotal` if it is not positive."""
    weight = float(total[0])
    if weight <= 0:
        raise CorruptTotal("the clients of this sum have no weight at all")
    return weight


@dataclass(frozen=True, kw_only=True)
class NoisyInfluence(Influence):
    """The influence `inner` with noise. Its weight is not summed: the step is public.

    `sums`  how many there are in a round, at most.
    `bits`  of every coordinate, noise included; those of `inner` do not matter.
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
        """Return the noise on `size` coordinates."""
        return self.privacy.plan(sums=self.sums, size=size, norm=self._norm(size), bits=self.bits)

    def _norm(self, size: int) -> float:
        """Return the largest norm of what one client adds."""
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
