"""Tests the distribution of noise, and computes lower bounds on epsilon from canaries.

If all inputs are zero, the total is only noise: integers with a known variance and distribution. A sum of
discrete Gaussians with a standard deviation of at least four grid points each is again a discrete Gaussian,
up to an error of 2^-200. A test of the variance and a chi-square test detect too much or too little noise.

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

from sims.console_progress import OnProgress, quiet
from sims.noise_audit.unmasked_sums import UnmaskedSums, grid_points

_MOST_BINS: Final = 64
_SAMPLES_PER_BIN: Final = 20  # with fewer, the chi-square test fails too often
_TAIL: Final = 40  # standard deviations; the probability beyond them is neglected
_MOST_POINTS: Final = 1 << 20  # of a discrete Gaussian; with more, a normal distribution is used


@dataclass(frozen=True)
class NoiseFinding:
    """The results of two tests of the noise in one part (vector) of a sum. Variances: grid points squared."""

    part: str
    samples: int
    variance: float  # measured
    expected: float  # the variance that was promised
    variance_p: float  # p-value of the test of the variance
    chi_square_p: float  # p-value of the chi-square test

    @property
    def ratio(self) -> float:
        return self.variance / self.expected

    def holds(self, alarm: float) -> bool:
        """Return whether both tests pass. Correct noise fails with a probability of at most `alarm`."""
        return min(self.variance_p, self.chi_square_p) >= alarm / 2


def conform(unmasked: UnmaskedSums, *, sums: int = 1, progress: OnProgress = quiet) -> list[NoiseFinding]:
    """Compute `sums` sums over zero inputs and test their noise. Return one result per part with noise."""
    spec = unmasked.spec
    zeros = {part.name: np.zeros(part.size, np.uint64 if part.counts else float) for part in spec.parts}
    found: dict[str, list[NDArray[np.int64]]] = {part.name: [] for part in spec.parts}
    for done in range(sums):
        progress("zeros", done, sums)
        _, residues = unmasked.run(lambda _: zeros)
        for part, total in zip(spec.parts, residues, strict=True):
            found[part.name].append(grid_points(part, total))
    return [
        judge(part.name, np.concatenate(found[part.name]), unmasked.variance(part))
        for part in spec.parts
        if part.noise is not None
    ]


def judge(name: str, values: NDArray[np.int64], variance: float) -> NoiseFinding:
    """Test whether the noise `values` of part `name` are discrete Gaussian with mean 0 and this variance."""
    measured = float(np.square(values.astype(np.float64)).mean())  # The mean is zero.
    return NoiseFinding(
        part=name,
        samples=len(values),
        variance=measured,
        expected=variance,
        variance_p=_variance_p(measured / variance, len(values)),
        chi_square_p=_chi_square_p(values, variance),
    )


def _variance_p(ratio: float, samples: int) -> float:
    """Return the two-sided p-value of a variance of `samples` values that is `ratio` times as expected."""
    below = chi2.cdf(ratio * samples, samples)
    above = chi2.sf(ratio * samples, samples)
    return float(min(1.0, 2 * min(below, above)))


def _chi_square_p(values: NDArray[np.int64], variance: float) -> float:
    sigma = math.sqrt(variance)
    wanted = max(2, min(_MOST_BINS, len(values) // _SAMPLES_PER_BIN))
    inner = np.unique(np.rint(norm.ppf(np.arange(1, wanted) / wanted) * sigma)).astype(np.int64)
    below = np.append(_below(inner, sigma), 1.0)
    expected = np.diff(below, prepend=0.0) * len(values)
    bins = np.searchsorted(inner, values, side="left")  # A bin includes its upper edge.
    counts = np.bincount(bins, minlength=len(expected))
    statistic = float((np.square(counts - expected) / expected).sum())
    return float(chi2.sf(statistic, len(expected) - 1))


def _below(edges: NDArray[np.int64], sigma: float) -> NDArray[Any]:
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
