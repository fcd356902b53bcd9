"""The privacy cost of a sum with noise: zero-concentrated differential privacy (zCDP) of distributed noise.

One client changes the total of a part by an integer vector D of d elements. Honest clients add discrete
Gaussian noise to it, of variance V in total. A sum of discrete Gaussians is nearly a discrete Gaussian, and
tau bounds the difference. If components of variances v_1, v_2, ... are added one by one, and S_k is the sum
of the first k variances,

    tau = 10 sum_k exp(-2 pi^2 S_k v_{k+1} / (S_k + v_{k+1})).

The Renyi divergence of order a between totals with and without the client is then at most each of

    (a/2) |D|_2^2 / V + tau d
    (a/2) (|D|_2^2 / V + 2 tau |D|_1 / sqrt V + tau^2 d)
    (a/2) (|D|_2 / sqrt V + tau sqrt d)^2

(Theorem 1 and Proposition 14 of "The Distributed Discrete Gaussian Mechanism for Federated Learning with
Secure Aggregation", where all components are equal). As a > 1, tau d is at most a tau d. So each bound has
the form a rho, and the least rho is the cost in zCDP. If all components have a standard deviation of 4 grid
points, tau is below 10^-60 and its cost is negligible. The theorem requires variances of at least 1/2. If
S_k v_{k+1} / (S_k + v_{k+1}) is below 1/4, tau and the cost are set to infinity here. With a single component
tau is zero, because its noise is exactly a discrete Gaussian.

All this is about exact noise. If every draw of a sampler is off by a total variation of w, the result is
delta-approximate zCDP: in terms of (epsilon, delta), n clients with d draws each add at most
(1 + e^epsilon) n d w to delta. There is no amplification by sampling: the server knows who takes part.

Floats are rounded up, so a cost is never too small.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from enum import StrEnum
from fractions import Fraction
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from secagg import argument_checks as checks
from secagg.distributed_noise import NoiseAssumptions
from secagg.errors import ParameterError
from secagg.sum_spec import Bound, Count, Part, SumSpec

_CHARGE_BITS: Final = 40
# The least S v / (S + v) for which tau is known: that of two components of variance 1/2.
_LEAST_OVERLAP: Final = 0.25
# Factors that exceed the rounding errors of one formula by far.
_TAU_ROOM: Final = 1 + 2.0**-40
_RHO_ROOM: Final = 1 + 2.0**-49


class Adjacency(StrEnum):
    """Which two inputs of a sum are adjacent, so that differential privacy makes them hard to distinguish.

    `ZERO_OUT`    One client's vector is replaced by zeros, and its noise is kept.
    `ADD_REMOVE`  One client is present or absent. The list of clients, and so the amount of noise, is public.
                  Only the vector is hidden, so the cost is that of zero-out.
    `REPLACE`     One client's vector is replaced by another one. Real vectors may point in opposite
                  directions, so their distance is up to twice the norm of one. Counts are not negative: the
                  square of their distance is at most twice the square of their norm.

    >>> [str(each) for each in Adjacency]
    ['zero-out', 'add-remove', 'replace']
    """

    ZERO_OUT = "zero-out"
    ADD_REMOVE = "add-remove"
    REPLACE = "replace"

    def norm2_factor(self, bound: Bound) -> int:
        """Return by which factor the squared L2 sensitivity exceeds the largest squared norm in `bound`: for
        `REPLACE` 2 (counts) or 4 (real vectors), otherwise 1."""
        if self is not Adjacency.REPLACE:
            return 1
        return 2 if isinstance(bound, Count) else 4

    @property
    def norm1_factor(self) -> int:
        return 2 if self is Adjacency.REPLACE else 1


class Cost(NamedTuple):
    """The privacy cost of a sum: a Renyi divergence of at most `xi` + `rho` * a at each order a."""

    rho: float
    xi: float = 0.0


# --- how far a sum of discrete Gaussians is from a discrete Gaussian ----------------------------------


def tau(variances: Iterable[float | Fraction]) -> float:
    """Return tau, which bounds how far the sum of discrete Gaussians of these variances is from a single
    discrete Gaussian. 0 for a single variance, and infinite if some are too small for a known bound."""
    components = np.sort(np.array([float(variance) for variance in variances]))[::-1]
    so_far, added = np.cumsum(components)[:-1], components[1:]
    return _of_overlaps(added * (so_far / (so_far + added)))


def tau_equal(count: int, variance: float | Fraction) -> float:
    """Return tau, which bounds how far the sum of `count` discrete Gaussians, each of this variance in grid
    points squared, is from a single one. 0 for one, and for more infinite if the variance is below 1/2."""
    before = np.arange(1, count)
    return _of_overlaps(float(variance) * (before / (before + 1)))


@lru_cache(maxsize=4096)
def promised_tau(promise: NoiseAssumptions, roster: int, variance: Fraction) -> float:
    """Return an upper bound of tau for all numbers of drop-outs that `promise` allows. Tau bounds how far the
    noise in the total, a sum of discrete Gaussians, is from a single discrete Gaussian. `roster` is the
    number of clients asked, and `variance` the target variance of the noise in the total.

    If noise cannot be removed, only the noise of the honest clients that are sure to stay is counted; more
    noise does not reduce privacy. If noise is removable, each of h honest clients leaves the component that
    always stays, and some others. Add the largest components first. Then each of the first h has at least
    the variance of the component that always stays. Each later one, of variance v, is added to a sum of at
    least h v, so it adds at most 10 exp(-2 pi^2 v h / (h + 1)) to tau.
    """
    stays, *removable = (float(share * variance) for share in promise.components(roster))
    least = roster - promise.dropouts - promise.colluders
    if not removable:
        return tau_equal(least, stays)
    most = least + promise.dropouts
    later = _of_overlaps(np.array([min(stays, *removable) * (least / (least + 1))]))
    return (tau_equal(most, stays) + most * len(removable) * later) * _TAU_ROOM


def _of_overlaps(overlaps: NDArray[np.float64]) -> float:
    """Return tau, which bounds how far a sum of discrete Gaussians is from a single one. For each variance v
    after the first, `overlaps` has S v / (S + v); S is the sum of those before. Infinite if any is < 1/4."""
    if overlaps.min(initial=math.inf) < _LEAST_OVERLAP:
        return math.inf
    return 10 * float(np.exp(-2 * np.pi**2 * overlaps).sum()) * _TAU_ROOM


# --- what it costs ----------------------------------------------------------------------------------


def renyi_costs(
    norm2: float | Fraction, norm1: float, variance: Fraction, size: int, tau: float
) -> tuple[Cost, Cost, Cost]:
    """Return three bounds on the privacy cost of one part (vector) of a sum. Each is valid by itself, so
    callers may use the least.

    `norm2`, `norm1`  squared L2 norm and L1 norm of the largest change of the total by one client, in grid
                      points.
    `variance`        the variance of the noise in the total, in grid points squared.
    `size`            the number of elements of the total.
    `tau`             bound on how far the noise is from a discrete Gaussian.
    """
    ratio2 = float(Fraction(norm2) / variance)
    ratio1 = norm1 / math.sqrt(variance)
    return (
        Cost(ratio2 / 2, tau * size),
        Cost((ratio2 + 2 * tau * ratio1 + tau**2 * size) / 2),
        Cost((math.sqrt(ratio2) + tau * math.sqrt(size)) ** 2 / 2),
    )


def part_rho(norm2: float | Fraction, norm1: float, variance: Fraction, size: int, tau: float) -> float:
    """Return the privacy cost of one part (vector) of a sum as a zCDP rho: the least that follows from the
    three bounds of `renyi_costs`, which has the same arguments."""
    costs = renyi_costs(norm2, norm1, variance, size, tau)
    return math.nextafter(min(cost.rho + cost.xi for cost in costs) * _RHO_ROOM, math.inf)


def most_norm1(norm2: float, size: int) -> float:
    """Return an upper bound on the L1 norm of `size` integers whose squared L2 norm is `norm2`."""
    return min(math.sqrt(size * norm2) * _RHO_ROOM, norm2)


@lru_cache(maxsize=4096)
def sum_rho(spec: SumSpec, *, roster: int, adjacency: Adjacency = Adjacency.ZERO_OUT) -> float | None:
    """Return the privacy cost of one sum over `roster` clients as a zCDP rho; None if a part has no noise.
    The cost is valid for all drop-outs and colluders that the promise of `spec` allows. Raises
    `ParameterError` if the noise is not planned for `roster` clients.

    >>> promise = NoiseAssumptions(clients=20, dropouts=2, colluders=1)
    >>> plan = calibrate_vector(promise=promise, goal=Goal(rho=0.5), size=1000, clip=1.0)
    >>> spec = SumSpec(parts=(plan.part("update"),), promise=promise)
    >>> round(sum_rho(spec, roster=20), 3)
    0.5
    """
    adjacency = checks.one_of(Adjacency, adjacency, "adjacency")
    promise = spec.promise
    if promise is None or not spec.is_private:
        return None
    if not promise.least_roster <= roster <= promise.clients:
        raise ParameterError(
            f"noise is planned for {promise.least_roster} to {promise.clients} clients, not for {roster}"
        )
    rhos = [_part_rho(part, promise, roster, adjacency) for part in spec.parts]
    return math.nextafter(math.fsum(rhos), math.inf)


def _part_rho(part: Part, promise: NoiseAssumptions, roster: int, adjacency: Adjacency) -> float:
    assert part.noise is not None
    variance, norm2 = part.noise.variance, part.norm2
    return part_rho(
        norm2 * adjacency.norm2_factor(part.bound),
        most_norm1(norm2, part.width) * adjacency.norm1_factor,
        variance,
        part.width,
        promised_tau(promise, roster, variance),
    )


# --- what a ledger adds up --------------------------------------------------------------------------


def charge(rho: float) -> int:
    """Return a zCDP `rho` as an integer in units of 2^-40, rounded up, so that ledgers add costs exactly.
    Raises `ParameterError` if `rho` is negative or infinite."""
    if rho == math.inf:
        raise ParameterError(
            "nothing is known about the privacy of noise this small: what one client adds needs a variance "
            "of at least 1/2, in grid points squared"
        )
    if not rho >= 0:
        raise ParameterError("rho must be a number from 0 on")
    return math.ceil(Fraction(rho) * (1 << _CHARGE_BITS))


def rho_of(charge: int) -> float:
    """Return the zCDP rho of `charge`, an integer in units of 2^-40, rounded up to a float."""
    exact = Fraction(charge, 1 << _CHARGE_BITS)
    rho = float(exact)
    return rho if rho >= exact else math.nextafter(rho, math.inf)
