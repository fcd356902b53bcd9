"""Statistical tests of noise: its distribution over zero inputs, and a lower bound on epsilon from canaries.

Over zero inputs the total is noise alone: integers with a known variance and distribution. A sum of discrete
Gaussians with a standard deviation of at least four grid points each is again a discrete Gaussian, up to
2^-200. So chi-square and the variance test it. Both are two-sided in effect: too much noise fails like too
little.

The lower bound compares scores of sums with and without a canary at a threshold that is fixed beforehand.
Clopper and Pearson bound both error rates from above; the resulting bound on epsilon holds with the stated
confidence for any mechanism. The bound by Gaussian differential privacy ("Tight Auditing of Differentially
Private Machine Learning") also uses that the noise is Gaussian: two error rates then fix the trade-off curve,
and the bound is tight.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.stats import beta, chi2, norm

from sims.console import OnProgress, quiet
from sims.noise_audit.unmasked_sums import UnmaskedSums, grid_points

_MOST_BINS: Final = 64
_SAMPLES_PER_BIN: Final = 20  # with fewer, chi-square is too often surprising
_TAIL: Final = 40  # standard deviations: nothing is beyond
_PILE: Final = 1 << 20  # of whole numbers in the law at once: beyond it, the normal one is as good


@dataclass(frozen=True)
class NoiseFinding:
    """The noise of one part: promised, measured, and the probabilities of such results."""

    part: str
    samples: int
    variance: float
    expected: float
    variance_p: float
    chi_square_p: float

    @property
    def ratio(self) -> float:
        return self.variance / self.expected

    def holds(self, alarm: float) -> bool:
        """Return whether no test is less likely than `alarm`, the rate of false alarms."""
        return min(self.variance_p, self.chi_square_p) >= alarm / 2


def conform(rehearsal: UnmaskedSums, *, sums: int = 1, progress: OnProgress = quiet) -> list[NoiseFinding]:
    """Test the noise of `sums` sums over zeros, part by part."""
    spec = rehearsal.spec
    zeros = {part.name: np.zeros(part.size, np.uint64 if part.counts else float) for part in spec.parts}
    found: dict[str, list[NDArray[np.int64]]] = {part.name: [] for part in spec.parts}
    for done in range(sums):
        progress("zeros", done, sums)
        _, residues = rehearsal.run(lambda _: zeros)
        for part, total in zip(spec.parts, residues, strict=True):
            found[part.name].append(grid_points(part, total))
    return [
        judge(part.name, np.concatenate(found[part.name]), rehearsal.variance(part))
        for part in spec.parts
        if part.noise is not None
    ]


def judge(name: str, values: NDArray[np.int64], variance: float) -> NoiseFinding:
    """Compare whole numbers with a discrete Gaussian of this variance."""
    measured = float(np.square(values.astype(np.float64)).mean())  # the mean is known: it is zero
    return NoiseFinding(
        part=name,
        samples=len(values),
        variance=measured,
        expected=variance,
        variance_p=_variance_p(measured / variance, len(values)),
        chi_square_p=_chi_square_p(values, variance),
    )


def _variance_p(ratio: float, samples: int) -> float:
    """Return a two-sided p-value: the sum of squares over the variance is chi-square."""
    below = chi2.cdf(ratio * samples, samples)
    above = chi2.sf(ratio * samples, samples)
    return float(min(1.0, 2 * min(below, above)))


def _chi_square_p(values: NDArray[np.int64], variance: float) -> float:
    sigma = math.sqrt(variance)
    wanted = max(2, min(_MOST_BINS, len(values) // _SAMPLES_PER_BIN))
    inner = np.unique(np.rint(norm.ppf(np.arange(1, wanted) / wanted) * sigma)).astype(np.int64)
    below = np.append(_below(inner, sigma), 1.0)
    expected = np.diff(below, prepend=0.0) * len(values)
    bins = np.searchsorted(inner, values, side="left")  # up to and including an edge
    counts = np.bincount(bins, minlength=len(expected))
    statistic = float((np.square(counts - expected) / expected).sum())
    return float(chi2.sf(statistic, len(expected) - 1))


def _below(edges: NDArray[np.int64], sigma: float) -> NDArray[Any]:
    """Return the probabilities of a value up to and including each edge."""
    reach = math.ceil(_TAIL * sigma)
    if 2 * reach > _PILE:
        return np.asarray(norm.cdf((edges + 0.5) / sigma))
    points = np.arange(-reach, reach + 1)
    weights = np.exp(-np.square(points / sigma) / 2)
    return np.asarray((weights.cumsum() / weights.sum())[edges + reach])


@dataclass(frozen=True)
class LowerBound:
    """The lower bound that the scores prove, at the given confidence and delta. Adjacency is zero-out."""

    runs: int
    false_positives: float  # upper bounds of both rates
    false_negatives: float
    mu: float
    epsilon_gaussian: float
    epsilon_clopper_pearson: float


def lower_bound(
    present: NDArray[Any], absent: NDArray[Any], *, threshold: float, delta: float, confidence: float
) -> LowerBound:
    """Return the bound from the scores with and without the canary. Each rate gets half of the error."""
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
    """Return the epsilon of noise that moves by `mu` deviations ("Gaussian Differential Privacy")."""
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
    """Return the largest rate that explains `count` of `runs`, except with probability `error`."""
    return 1.0 if count == runs else float(beta.ppf(1 - error, count + 1, runs - count))


def _epsilon(hits: float, errors: float) -> float:
    return math.log(hits / errors) if hits > errors else 0.0
