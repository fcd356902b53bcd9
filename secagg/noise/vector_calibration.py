"""Calibration of vectors with a bound on their norm: the grid, and the amount of noise.

There are n clients, with vectors of d elements (padded) and norm c. Sums are modulo 2^b, with room for k
standard deviations. Let C be c in grid points. Let V be the promised variance of the noise in the total, and
w the variance that each client leaves in it if no client drops out, both in grid points squared. Then

    (1)  the privacy cost of vectors of norm B with noise V is the goal, B^2 = C^2 + C + d/4 + sqrt(d)/2,
    (2)  2^b = 2k sqrt(C^2 n^2 / d + (1/4 + w) n).

B is the largest norm of a rounded vector. Equation (2) holds because a rotated total is nearly Gaussian, with
a variance of at most C^2 n^2 / d plus rounding and noise ("The Distributed Discrete Gaussian Mechanism for
Federated Learning with Secure Aggregation"). V determines tau (how far the noise is from a discrete Gaussian,
see `zcdp_cost`), and then (1) determines B and C. Both grow with V, and so does the right side of (2). So
there is at most one solution, and bisection finds it. The right side is least if C = 0 (an infinitely coarse
grid), or if the noise is just large enough for tau to be finite. If it is 2^b or more, b bits are too few.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Final

from secagg import argument_checks as checks
from secagg.distributed_noise import NoiseAssumptions
from secagg.errors import ParameterError, SpecError
from secagg.noise.part_plan import Plan, least_component
from secagg.noise.privacy_goal import Goal
from secagg.noise.sampling_error import check_sampling
from secagg.noise.zcdp_cost import promised_tau
from secagg.sum_spec import L2, MAX_ELEMENTS

STDDEVS: Final = 6.0
MAX_BITS: Final = 64
# If the standard deviation of every component is at least four grid points, tau is negligible.
FINE_VARIANCE: Final = 16
# Rounding makes vectors longer, which takes more noise. A grid is fine if this factor is at most 1.02.
_FINE_GROWTH: Final = 1.02
_STDDEVS_RANGE: Final = (1e-3, 1e18)
# The largest B^2 that fits the arithmetic of a part. If the bits would allow more, some stay unused.
_MOST_NORM2: Final = 2.0**60
_NEGLIGIBLE: Final = 1e-15
_PRECISION: Final = 1e-14
# The fraction of rho that a plan uses. The rest covers float errors, so no plan costs more than its goal.
AIM: Final = 1 - 2.0**-45


def calibrate_vector(
    *,
    promise: NoiseAssumptions,
    goal: Goal,
    size: int,
    clip: float,
    bits: int | None = None,
    stddevs: float = STDDEVS,
) -> Plan:
    """Plan noise for vectors of `size` elements whose L2 norm is clipped to `clip`.

    More `bits` per element mean a finer grid and less noise. By default, they are the fewest with which
    rounding adds at most 2 % to the norm, and each noise component has a standard deviation of at least four
    grid points. Raises `SpecError`, with `bits_needed`, if `bits` or 64 bits are too few, and
    `ParameterError` for invalid arguments.

    >>> promise = NoiseAssumptions(clients=100, dropouts=10, colluders=5)
    >>> plan = calibrate_vector(promise=promise, goal=Goal(rho=0.5), size=1000, clip=1.0)
    >>> plan.bits, round(plan.sigma_central, 2)
    (12, 1.02)
    """
    size, stddevs = checked_request(promise, goal, size, stddevs)
    bound = L2(checked_bound(clip, "the clip"))
    grid = _Grid(promise, goal, size, stddevs)
    bits = grid.fewest_bits() if bits is None else checks.whole(bits, "bits", 1, MAX_BITS)
    variance = grid.variance_for(bits)
    norm2 = grid.norm2(variance)
    plan = Plan(
        promise=promise, goal=goal, bound=bound, size=size, bits=bits, stddevs=stddevs,
        scale=grid.clip(norm2) / bound.limit, variance=rounded_up(variance), norm2=norm2,
    )  # fmt: skip
    return check_sampling(plan)


def checked_request(promise: object, goal: object, size: object, stddevs: object) -> tuple[int, float]:
    """Return `size` and `stddevs` as Python numbers. Raises `ParameterError` if an argument is invalid."""
    if not isinstance(promise, NoiseAssumptions):
        raise ParameterError("the promise of a plan must be NoiseAssumptions")
    if not isinstance(goal, Goal):
        raise ParameterError("the goal of a plan must be a Goal")
    elements = checks.whole(size, "the number of elements", 1, MAX_ELEMENTS)
    return elements, checks.real(stddevs, "the standard deviations of room", *_STDDEVS_RANGE)


def checked_bound(limit: object, what: str) -> float:
    return checks.real(limit, what, 2.0**-500, 2.0**500)


def rounded_up(variance: float) -> Fraction:
    """Return the next float above `variance` as a fraction, so that rounding never gives too little noise."""
    return Fraction(math.nextafter(variance, math.inf))


class _Grid:
    """The grid of vectors with an `L2` bound. For a variance of the noise in the total, it computes how long
    clients' vectors may be to meet the privacy goal (both in grid points), and the modulus that sums need."""

    def __init__(self, promise: NoiseAssumptions, goal: Goal, size: int, stddevs: float) -> None:
        self._promise = promise
        self._goal = goal
        self._rho = goal.rho_per_sum * AIM
        self._size = size
        self._width = width = 1 << (size - 1).bit_length()
        self._stddevs = stddevs
        self._kept = float(promise.left(promise.clients))
        self._least_component = float(least_component(promise))
        self._factor1 = goal.adjacency.norm1_factor
        self._factor2 = goal.adjacency.norm2_factor(L2(1.0))
        self._rounding = width / 4 + math.sqrt(width) / 2  # B^2 where C = 0

    # --- the equations ---

    def norm2(self, variance: float) -> float:
        """Return the largest squared norm of a client's rounded vector that meets the privacy goal, if the
        noise in the total has this `variance`. Both are in grid points squared."""
        return self._ratio2(variance) * variance / self._factor2

    def _ratio2(self, variance: float) -> float:
        """Return the largest squared L2 distance of two adjacent inputs with which the privacy goal is met,
        divided by `variance`, the variance of the noise in the total. 0 if the noise is too small."""
        rho = self._rho
        tau = promised_tau(self._promise, self._promise.clients, Fraction(variance))
        if tau * self._width <= _NEGLIGIBLE * rho:
            return 2 * rho
        if tau == math.inf:
            return 0.0
        # The cost is the least of the three bounds. For the second, the L1 norm of an integer vector is at
        # most B^2. It is also at most B sqrt(d), but then the second bound equals the third.
        first = 2 * (self._goal.rho_beside(tau * self._width) - (self._goal.rho_per_sum - rho))
        per_norm2 = 2 * tau * math.sqrt(variance) * self._factor1 / self._factor2
        second = (2 * rho - tau**2 * self._width) / (1 + per_norm2)
        third = max(0.0, math.sqrt(2 * rho) - tau * math.sqrt(self._width)) ** 2
        return max(first, second, third)

    def clip(self, norm2: float) -> float:
        """Return the norm to which vectors must be clipped, so that their squared norm after rounding is at
        most `norm2`, all in grid points. 0 if rounding can make even a zero vector longer than that."""
        return (math.sqrt(1 + 4 * max(0.0, norm2 - self._rounding)) - 1) / 2

    def modulus(self, variance: float) -> float:
        """Return the least modulus of sums, in grid points, that leaves the planned room for totals, if their
        noise has this `variance` and clients' vectors are as long as the privacy goal then allows."""
        clients = self._promise.clients
        flat = self.clip(self.norm2(variance)) ** 2 * clients**2 / self._width
        return 2 * self._stddevs * math.sqrt(flat + (0.25 + self._kept * variance) * clients)

    # --- their solution ---

    def variance_for(self, bits: int) -> float:
        """Return the largest variance of the noise in the total, in grid points squared, with which totals
        fit into `bits` bits per element. It gives the finest grid; squared norms are limited to about 2^60.
        Raises `SpecError`, with the bits needed, if `bits` are too few for any grid."""
        least = self._least_variance()
        if self.modulus(least) >= 2.0**bits:
            needed = _bits_above(self.modulus(least))
            limit = f", and {MAX_BITS} is the most" if needed > MAX_BITS else ""
            raise SpecError(
                f"{bits} bits are too few for {self._request}: it needs at least {needed} bits{limit}",
                bits_needed=needed,
            )
        most = _MOST_NORM2 * self._factor2 / (2 * self._rho)
        if self.modulus(most) <= 2.0**bits:
            return most
        return _border(lambda variance: self.modulus(variance) <= 2.0**bits, least, most)[0]

    def fewest_bits(self) -> int:
        """Return the fewest bits with which rounding adds at most 2 % to the norm, and each noise component
        has a standard deviation of at least 4 grid points. Raises `SpecError` if they exceed 64."""
        for_growth = self._fine_norm2() * self._factor2 / (2 * self._rho)
        fine = max(for_growth, FINE_VARIANCE / self._least_component)
        needed = _bits_above(self.modulus(fine))
        if needed > MAX_BITS:
            raise SpecError(
                f"no ring is large enough for {self._request}: a fine grid needs {needed} bits, and "
                f"{MAX_BITS} is the most; lower the standard deviations of room, or allow a larger epsilon",
                bits_needed=needed,
            )
        return needed

    def _fine_norm2(self) -> float:
        """Return a squared norm after rounding, in grid points: that of the shortest vectors whose norm
        rounding increases by at most 2 %. Their norm before rounding is the root of a quadratic equation."""
        over = _FINE_GROWTH**2 - 1
        clip = (1 + math.sqrt(1 + 4 * over * self._rounding)) / (2 * over)
        return clip**2 + clip + self._rounding

    def _least_variance(self) -> float:
        """Return the least variance of the noise in the total, in grid points squared, with which the privacy
        goal is met for zero vectors, which rounding makes longer."""
        least = self._rounding * self._factor2 / (2 * self._rho)
        # With this variance, tau is negligible, and `norm2` is large enough.
        enough = max(least * (1 + _PRECISION), 10 * FINE_VARIANCE / self._least_component)
        return _border(lambda variance: self.norm2(variance) < self._rounding, least, enough)[1]

    @property
    def _request(self) -> str:
        padded = f" (padded to {self._width})" if self._width != self._size else ""
        clients, elements = _counted(self._promise.clients, "client"), _counted(self._size, "element")
        return f"{clients}, {elements}{padded} and this much noise"


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _bits_above(modulus: float) -> int:
    """Return the least number of bits, at least 1, with 2^bits > `modulus`."""
    return max(1, math.floor(modulus).bit_length())


def _border(holds: Callable[[float], bool], low: float, high: float) -> tuple[float, float]:
    """Bisect between `low` > 0, where `holds` is true, and `high` > `low`, where it is false. Return two
    nearly equal numbers: `holds` is true at the first and false at the second."""
    while high > low * (1 + _PRECISION):
        middle = math.sqrt(low) * math.sqrt(high)
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low, high
