"""Student's t distribution, for whole degrees of freedom, without a library of statistics.

For whole degrees of freedom, the probability of [-t, t] is a finite sum of cosines
(Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.3 and 26.7.4).
"""

from __future__ import annotations

import math

from fl.errors import FLError


def two_sided(statistic: float, freedom: int) -> float:
    """The probability of [-statistic, statistic]."""
    if freedom < 1:
        raise FLError(f"{freedom} degrees of freedom: give at least 1")
    angle = math.atan2(abs(statistic), math.sqrt(freedom))
    odd = freedom % 2
    square = math.cos(angle) ** 2
    # The terms go up by two powers of the cosine: 1, 1/2, 1/2 * 3/4, ... or 1, 2/3, 2/3 * 4/5, ...
    term = math.cos(angle) if odd else 1.0
    total = 0.0
    for power in range(1 + odd, freedom, 2):
        total += term
        term *= square * power / (power + 1)
    if odd:
        return 2 / math.pi * (angle + math.sin(angle) * total)
    return math.sin(angle) * total


def two_sided_p(statistic: float, freedom: int) -> float:
    """The probability of a statistic at least as far from 0."""
    return max(0.0, 1 - two_sided(statistic, freedom))


def two_sided_quantile(level: float, freedom: int) -> float:
    """The t for which [-t, t] has the probability `level`."""
    if not 0 < level < 1:
        raise FLError(f"a confidence of {level}: give one between 0 and 1, such as 0.95")
    high = 1.0
    while two_sided(high, freedom) < level:
        high *= 2
    low = 0.0
    # Until no number is between the two.
    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if two_sided(middle, freedom) < level else (low, middle)
    return high
