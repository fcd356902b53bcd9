"""Bins for chi-square tests of noise, and lower bounds on epsilon from canaries.

A sum of discrete Gaussians with a standard deviation of at least four grid points each is again a discrete
Gaussian, up to an error of 2^-200.

A canary is one client's vector of the largest allowed norm. For the lower bound, an attacker guesses from the
first element of a total (the score) whether the canary is in it: yes if the score reaches a fixed threshold.
The method of Clopper and Pearson bounds the rates of both kinds of wrong guesses from above. This gives a
lower bound on epsilon that holds with the stated confidence for any mechanism. A second bound, by Gaussian
differential privacy ("Tight Auditing of Differentially Private Machine Learning"), assumes Gaussian noise.
Then the two error rates determine the whole trade-off curve, and the bound is tight.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.stats import beta, chi2, norm

_MOST_BINS: Final = 64
SAMPLES_PER_BIN: Final = 500  # with fewer, the chi-square test fails too often at these p-values
_TAIL: Final = 40  # standard deviations; the probability beyond them is neglected
_MOST_POINTS: Final = 1 << 20  # of a discrete Gaussian; with more, a normal distribution is used


@dataclass(frozen=True)
class Bins:
    """Intervals for a chi-square test of integers that should follow the discrete Gaussian distribution."""

    edges: NDArray[np.int64]  # all but the last bin end with the edge, which is in it
    expected: NDArray[Any]  # the probability of each bin

    @classmethod
    def of(cls, variance: float, samples: int) -> Bins:
        """Return bins of about equal probabilities, so wide that each holds enough of the samples."""
        sigma = math.sqrt(variance)
        wanted = max(2, min(_MOST_BINS, samples // SAMPLES_PER_BIN))
        inner = np.unique(np.rint(norm.ppf(np.arange(1, wanted) / wanted) * sigma)).astype(np.int64)
        return cls(inner, np.diff(np.append(below(inner, sigma), 1.0), prepend=0.0))

    def counts(self, values: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return how many of the values are in each bin."""
        bins = np.searchsorted(self.edges, values, side="left")
        return np.bincount(bins, minlength=len(self.expected))

    def p(self, counts: NDArray[np.int64]) -> float:
        """Return the p-value of these counts."""
        expected = self.expected * counts.sum()
        statistic = float((np.square(counts - expected) / expected).sum())
        return float(chi2.sf(statistic, len(expected) - 1))


def below(edges: NDArray[np.int64], sigma: float) -> NDArray[Any]:
    """Return, for each edge of a bin, the probability that a sample of the noise is at most this edge."""
    reach = math.ceil(_TAIL * sigma)
    if 2 * reach > _MOST_POINTS:
        return np.asarray(norm.cdf((edges + 0.5) / sigma))
    points = np.arange(-reach, reach + 1)
    weights = np.exp(-np.square(points / sigma) / 2)
    return np.asarray((weights.cumsum() / weights.sum())[edges + reach])


@dataclass(frozen=True)
class LowerBound:
    """Lower bounds on epsilon (zero-out adjacency) from an attack, and upper bounds on its error rates."""

    runs: int  # totals with the canary plus totals without it
    false_positives: float  # an upper bound of the rate of totals without the canary that seem to have it
    false_negatives: float  # an upper bound of the rate of totals with the canary that seem not to have it
    mu: float  # a lower bound of the parameter of Gaussian differential privacy
    epsilon_gaussian: float  # assumes Gaussian noise
    epsilon_clopper_pearson: float  # assumes nothing about the noise


def lower_bound(
    present: NDArray[Any], absent: NDArray[Any], *, threshold: float, delta: float, confidence: float
) -> LowerBound:
    """Return lower bounds on epsilon from the scores of totals with a canary (`present`) and without it. An
    attacker guesses that the canary is present if the score is at least `threshold`."""
    error = (1 - confidence) / 2  # the probability that one of the two rates exceeds its bound
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
    """Return the least epsilon for which mu-Gaussian differential privacy implies (epsilon, delta)-DP."""
    if _delta(0.0, mu) <= delta:
        return 0.0
    # The upper limit of the search: at `most - 1`, the first term of `_delta` alone equals `delta`.
    most = mu * (mu / 2 + float(norm.isf(delta))) + 1
    return float(brentq(lambda epsilon: _delta(epsilon, mu) - delta, 0.0, most, xtol=1e-12))


def _delta(epsilon: float, mu: float) -> float:
    if mu == 0.0:
        return 0.0
    inner, outer = mu / 2 - epsilon / mu, -mu / 2 - epsilon / mu
    return float(norm.cdf(inner) - math.exp(epsilon + norm.logcdf(outer)))


def _most(count: int, runs: int, error: float) -> float:
    """Return a Clopper-Pearson upper bound on a rate seen as `count` in `runs`, with error rate `error`."""
    return 1.0 if count == runs else float(beta.ppf(1 - error, count + 1, runs - count))


def _epsilon(hits: float, errors: float) -> float:
    return math.log(hits / errors) if hits > errors else 0.0
