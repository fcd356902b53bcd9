"""Calibration of parts (vectors of a sum) with a bound for each element, such as counts: grid and noise.

Such parts are not rotated, and their bounds are whole numbers of grid points. So rounding does not let one
client move the total further, and a finer grid costs only bits. The grid is the coarsest on which every
component of a client's noise has a standard deviation of at least four grid points. Sums of such discrete
Gaussians are nearly discrete Gaussians. A grid of whole counts may be too coarse: for an epsilon of 1, each
of 100 clients would add noise with a standard deviation of only 0.4.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Final

from secagg import argument_checks as checks
from secagg.distributed_noise import NoiseAssumptions
from secagg.errors import SpecError
from secagg.noise import vector_calibration
from secagg.noise.part_plan import Plan, least_component
from secagg.noise.privacy_goal import Goal
from secagg.noise.sampling_error import check_sampling
from secagg.noise.vector_calibration import STDDEVS, checked_bound, checked_request, rounded_up
from secagg.sensitivity_and_headroom import counts_norm2
from secagg.sum_spec import MOST_NORM2, Bound, Count, LInf

_MOST_COUNT: Final = (1 << 64) - 1


def calibrate_counts(
    *,
    promise: NoiseAssumptions,
    goal: Goal,
    bins: int,
    limit: int = 1,
    total: int | None = None,
    stddevs: float = STDDEVS,
) -> Plan:
    """Plan noise for `bins` counts. A client's counts are from 0 to `limit`, and add up to at most `total`.

    For a histogram to which each client adds one count, pass `total=1`. Without `total`, a client may add up
    to `limit` to every bin, which takes more noise to hide. The number of grid points per count is a power of
    two. The bits per element are the fewest that leave room for `stddevs` standard deviations of noise below
    zero and above the largest total of honest clients. Raises `SpecError` if 64 bits are not enough or no
    grid is fine enough, or epsilon is too large, and `ParameterError` for invalid arguments.

    >>> promise = NoiseAssumptions(clients=100, dropouts=10, colluders=5)
    >>> plan = calibrate_counts(promise=promise, goal=Goal(rho=0.5), bins=16, limit=1, total=1)
    >>> round(plan.sigma_central, 2)
    1.0
    """
    bins, stddevs = checked_request(promise, goal, bins, stddevs)
    limit = checks.whole(limit, "the limit", 1, _MOST_COUNT)
    if total is not None:
        total = checks.whole(total, "the total", limit, _MOST_COUNT)
    bound = Count(limit, total)
    norm2 = counts_norm2(limit, total, bins)
    scale = _levels(promise, goal, bound, norm2)
    _check_norm2(norm2, scale)
    variance = _variance(goal, bound, norm2) * scale**2
    counts = promise.clients * limit * scale
    needed = math.floor(counts + 2 * stddevs * _spread(promise, variance)).bit_length()
    plan = Plan(
        promise=promise, goal=goal, bound=bound, size=bins, bits=_checked(needed), stddevs=stddevs,
        scale=float(scale), variance=rounded_up(variance), norm2=float(norm2 * scale**2),
    )  # fmt: skip
    return check_sampling(plan)


def calibrate_elements(
    *, promise: NoiseAssumptions, goal: Goal, size: int, limit: float, stddevs: float = STDDEVS
) -> Plan:
    """Plan noise for `size` numbers between -`limit` and `limit`, such as weights.

    The number of grid points from 0 to the limit is a power of two. The bits per element are the fewest that
    leave room for `stddevs` standard deviations of noise beyond the largest total of honest clients. Raises
    `SpecError` if 64 bits or the finest grid are not enough, and `ParameterError` for invalid arguments.

    >>> promise = NoiseAssumptions(clients=100, dropouts=10, colluders=5)
    >>> plan = calibrate_elements(promise=promise, goal=Goal(rho=0.5), size=4, limit=1.0)
    >>> round(plan.sigma_central, 2)
    2.0
    """
    size, stddevs = checked_request(promise, goal, size, stddevs)
    bound = LInf(checked_bound(limit, "the limit"))
    levels = _levels(promise, goal, bound, size)
    _check_norm2(size, levels)
    variance = _variance(goal, bound, size) * levels**2
    # If the limit is not a whole number of grid points, clients round it up: one point per client.
    reach = promise.clients * (levels + 1)
    needed = 1 + math.floor(reach + stddevs * _spread(promise, variance)).bit_length()
    plan = Plan(
        promise=promise, goal=goal, bound=bound, size=size, bits=_checked(needed), stddevs=stddevs,
        scale=_scale(levels, bound.limit), variance=rounded_up(variance), norm2=float(size * levels**2),
    )  # fmt: skip
    return check_sampling(plan)


def _variance(goal: Goal, bound: Bound, norm2: int) -> float:
    """Return the least variance of the total's noise that meets `goal`, if one client's vector has a squared
    norm of at most `norm2` (in the same unit), and the noise is exactly a discrete Gaussian."""
    return norm2 * goal.adjacency.norm2_factor(bound) / (2 * goal.rho_per_sum * vector_calibration.AIM)


def _levels(promise: NoiseAssumptions, goal: Goal, bound: Bound, norm2: int) -> int:
    """Return the number of grid points for a count of 1 or, for real numbers, for the limit: the least power
    of two with which each noise component has a standard deviation of at least 4 grid points."""
    levels, component = 1, _variance(goal, bound, norm2) * float(least_component(promise))
    while levels**2 * component < vector_calibration.FINE_VARIANCE:
        levels *= 2
    return levels


def _check_norm2(norm2: int, levels: int) -> None:
    """Raise `SpecError` if one client's squared norm in grid points, `norm2` * `levels`^2, exceeds 2^62."""
    if norm2 > MOST_NORM2:
        raise SpecError(
            "the counts of one client may be so large that their norm exceeds 2^31; "
            "lower the limit or the total"
        )
    if norm2 * levels**2 > MOST_NORM2:
        raise SpecError(
            "the noise that one client adds is so small a part of its reach that no grid is fine enough; "
            "lower epsilon, or the number of clients"
        )


def _spread(promise: NoiseAssumptions, variance: float) -> float:
    """Return the standard deviation of noise and rounding errors in a total, in grid points, if no client
    drops out. `variance` is the planned variance of the noise in the total."""
    return math.sqrt(promise.clients * (float(promise.left(promise.clients)) * variance + 0.25))


def _scale(levels: int, limit: float) -> float:
    """Return `levels` / `limit`, in grid points per unit, rounded so that `limit` times it is <= `levels`."""
    scale = levels / limit
    return scale if Fraction(scale) * Fraction(limit) <= levels else math.nextafter(scale, 0.0)


def _checked(bits: int) -> int:
    if bits > vector_calibration.MAX_BITS:
        raise SpecError(
            f"this noise needs {bits} bits, and {vector_calibration.MAX_BITS} is the most; "
            "lower the standard deviations of room, or allow a larger epsilon",
            bits_needed=bits,
        )
    return bits
