"""What the errors of the noise samplers add to delta.

Samples are off the discrete Gaussian by a small total variation w (`DiscreteGaussian.total_variation`). If n
clients make d draws each, the delta of an epsilon grows by at most (1 + e^epsilon) n d w. That is nothing for
an epsilon that protects anybody, but it exceeds every delta from an epsilon of about 50 on. So plans with an
epsilon and a delta are refused unless it is below a thousandth of delta.

The bound on w here needs no table. A tail with a probability below 2^-129 has no threshold, and a discrete
Gaussian exceeds m with a probability of at most exp(-m^2 / (2 variance)). So there are at most 13.4 standard
deviations of thresholds on either side, each off by less than 2^-128. Samplers by rejection use a table of at
most 128 steps in a standard deviation, whose errors count four times.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Final

from secagg.errors import SpecError
from secagg.noise.inversion_sampler import LARGEST_VARIANCE
from secagg.noise.part_plan import Plan
from secagg.sum_spec import SumSpec

_UNIT: Final = 2.0**-128
_DEVIATIONS: Final = 26.8  # of thresholds, on both sides
_OF_REJECTION: Final = 2.0**-114
_LARGEST_EXPONENT: Final = 700.0  # of e, as a float
NEGLIGIBLE: Final = 1e-3  # the part of delta that the errors of samplers may be


def draw_error(variance: Fraction) -> float:
    """Return an upper bound of the total variation distance of one sample from the discrete Gaussian."""
    if variance > LARGEST_VARIANCE:
        return _OF_REJECTION
    return (_DEVIATIONS * math.sqrt(variance) + 8) * _UNIT


def sampling_delta(spec: SumSpec, *, roster: int, sums: int, epsilon: float) -> float:
    """Return an upper bound of what the errors of samplers add to the delta of `epsilon` in so many sums like
    `spec`, over `roster` clients each. It may be infinite."""
    shares = () if spec.promise is None else spec.promise.components(roster)
    draws = sum(
        part.width * draw_error(part.noise.variance * share)
        for part in spec.parts
        if part.noise is not None
        for share in shares
    )
    if epsilon > _LARGEST_EXPONENT:
        return math.inf if draws else 0.0
    return (1 + math.exp(epsilon)) * sums * roster * draws


def check_sampling(plan: Plan) -> Plan:
    """Return `plan`. Raise `SpecError` if its goal has a delta, and the errors of samplers would be more than
    a thousandth of that delta."""
    goal, clients = plan.goal, plan.promise.clients
    if goal.delta is None:
        return plan
    epsilon = goal.epsilon
    if epsilon is None:
        assert goal.rho is not None  # a goal has one of them
        epsilon = goal.rho + 2 * math.sqrt(goal.rho * math.log(1 / goal.delta))
    spec = SumSpec(parts=(plan.part("part"),), promise=plan.promise)
    added = sampling_delta(spec, roster=clients, sums=goal.sums, epsilon=epsilon)
    if added > NEGLIGIBLE * goal.delta:
        raise SpecError(
            f"an epsilon of {epsilon:.4g} protects nobody, and the errors with which noise is drawn would "
            f"add {added:.2g} to a delta of {goal.delta:g}: take an epsilon of 20 or less"
        )
    return plan
