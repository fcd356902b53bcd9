"""How far a fair experiment may stray before a test calls it unfair.

Every bound here is proven, not fitted, so the false-alarm rate that a test states is an upper limit. It is
the probability over the choice of the fixed seeds: a test that passed once passes always.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray


def coin_slack(flips: int, chance: float) -> float:
    """`flips` fair coins miss half heads by this much or more with at most `chance` (Hoeffding)."""
    return math.sqrt(flips * math.log(2 / chance) / 2)


def chi_square(counts: NDArray[Any]) -> float:
    """Pearson's statistic of `counts` against equally likely cells."""
    expected = counts.sum() / len(counts)
    return float((np.square(counts - expected) / expected).sum())


def chi_square_limit(cells: int, chance: float) -> float:
    """A chi-square variable of `cells - 1` degrees exceeds this with at most `chance`.

    Laurent and Massart, "Adaptive estimation of a quadratic functional by model selection", lemma 1.
    """
    degrees, nats = cells - 1, math.log(1 / chance)
    return degrees + 2 * math.sqrt(degrees * nats) + 2 * nats


def biased_coin_is_plausible(heads: int, flips: int, fraction: float, chance: float) -> bool:
    """Whether `heads` of `flips` is within what heads of probability `fraction` exceed with `chance`.

    Chernoff's bound in its relative-entropy form: it holds for the tiniest fraction, where the normal
    approximation fails.
    """
    seen = heads / flips
    return flips * _relative_entropy(seen, fraction) <= math.log(2 / chance)


def _relative_entropy(seen: float, fraction: float) -> float:
    nats = 0.0
    for share, model in ((seen, fraction), (1 - seen, 1 - fraction)):
        if share > 0:
            nats += share * math.log(share / model) if model > 0 else math.inf
    return nats
