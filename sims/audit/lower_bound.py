"""A lower bound on epsilon, from scores of sums with a canary and of sums without.

The threshold between the two is fixed beforehand. How often it errs, on either side, is bounded from above by
Clopper and Pearson; what then follows for epsilon holds with the stated confidence, whatever the mechanism.
The bound by Gaussian differential privacy ("Tight Auditing of Differentially Private Machine Learning") also
uses that the noise is Gaussian: then two error rates fix the whole trade-off curve, and the bound is tight.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.stats import beta, norm


@dataclass(frozen=True)
class LowerBound:
    """What the scores prove, at the given confidence and delta. Adjacency is zero-out."""

    runs: int
    false_positives: float  # upper bounds of both rates
    false_negatives: float
    mu: float
    epsilon_gaussian: float
    epsilon_clopper_pearson: float


def lower_bound(
    present: NDArray[Any], absent: NDArray[Any], *, threshold: float, delta: float, confidence: float
) -> LowerBound:
    """From the scores with and without the canary. Half of what may go wrong is spent on each rate."""
    error = (1 - confidence) / 2
    positives = _most(int(np.count_nonzero(absent >= threshold)), len(absent), error)
    negatives = _most(int(np.count_nonzero(present < threshold)), len(present), error)
    mu = max(0.0, float(norm.isf(positives) - norm.ppf(negatives)))
    return LowerBound(
        runs=len(present) + len(absent),
        false_positives=positives,
        false_negatives=negatives,
        mu=mu,
        epsilon_gaussian=gaussian_epsilon(mu, delta),
        epsilon_clopper_pearson=max(
            _epsilon(1 - negatives - delta, positives), _epsilon(1 - positives - delta, negatives)
        ),
    )


def gaussian_epsilon(mu: float, delta: float) -> float:
    """The least epsilon of noise that moves by `mu` standard deviations ("Gaussian Differential Privacy")."""
    if _delta(0.0, mu) <= delta:
        return 0.0
    # Of delta's two terms, the first alone would be delta 1 below this: epsilon is less.
    most = mu * (mu / 2 + float(norm.isf(delta))) + 1
    return float(brentq(lambda epsilon: _delta(epsilon, mu) - delta, 0.0, most, xtol=1e-12))


def _delta(epsilon: float, mu: float) -> float:
    if mu == 0.0:
        return 0.0
    inner, outer = mu / 2 - epsilon / mu, -mu / 2 - epsilon / mu
    return float(norm.cdf(inner) - math.exp(epsilon + norm.logcdf(outer)))


def _most(count: int, runs: int, error: float) -> float:
    """The largest rate that explains `count` of `runs`, except with probability `error`."""
    return 1.0 if count == runs else float(beta.ppf(1 - error, count + 1, runs - count))


def _epsilon(hits: float, errors: float) -> float:
    return math.log(hits / errors) if hits > errors else 0.0
