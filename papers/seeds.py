"""Combines several seeds into one figure, and tests whether one method is ahead of another.

Methods are compared seed by seed, so that an effect of a seed on both, such as the data split, cancels.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats

from fl.checks import Floats, same_length, series
from fl.errors import FLError


@dataclass(frozen=True)
class Estimate:
    """An estimate over seeds. One seed has no `std` (of a sample, n - 1), and no standard `error`."""

    seeds: int
    mean: float
    std: float | None
    error: float | None

    def text(self, digits: int = 2) -> str:
        """Return the text in tables: the mean, and the standard deviation if there is one."""
        spread = "" if self.std is None else f" ± {self.std:.{digits}f}"
        return f"{self.mean:.{digits}f}{spread}"


def over_seeds(values: ArrayLike) -> Estimate:
    numbers = series("values", values)
    seeds, mean = len(numbers), float(numbers.mean())
    if seeds == 1:
        return Estimate(seeds, mean, None, None)
    std = float(numbers.std(ddof=1))
    return Estimate(seeds, mean, std, std / math.sqrt(seeds))


@dataclass(frozen=True)
class Comparison:
    """The first method minus the second, over seeds that both ran with.

    `low`, `high`                of the mean difference, with confidence `level` (Student's t).
    `p`                          how often chance alone would give a mean as far from 0 (Student's t).
    `ahead`, `behind`, `equal`   seeds in which the first is above, below or level.
    `median_low`, `median_high`  of the median, from the sign test: infinite with too few seeds for `level`.
    `sign_p`                     how often fair coins would fall as unevenly as `ahead` and `behind`.
    """

    seeds: int
    mean: float
    std: float
    level: float
    low: float
    high: float
    p: float
    ahead: int
    behind: int
    equal: int
    median: float
    median_low: float
    median_high: float
    sign_p: float


def paired(first: ArrayLike, second: ArrayLike, *, level: float = 0.95) -> Comparison:
    """Compare values of the same seeds, in the same order."""
    one, other = series("values of the first", first), series("values of the second", second)
    same_length("values of the first", one, "values of the second", other)
    if len(one) < 2:
        raise FLError("one pair says nothing of how differences vary: run at least 2 seeds")
    differences = one - other
    mean, std = float(differences.mean()), float(differences.std(ddof=1))
    error, freedom = std / math.sqrt(len(one)), len(one) - 1
    half = two_sided_quantile(level, freedom) * error
    ahead, behind = int((differences > 0).sum()), int((differences < 0).sum())
    median_low, median_high = median_interval(differences, level)
    return Comparison(
        seeds=len(one),
        mean=mean,
        std=std,
        level=level,
        low=mean - half,
        high=mean + half,
        p=two_sided_p(_statistic(mean, error), freedom),
        ahead=ahead,
        behind=behind,
        equal=len(one) - ahead - behind,
        median=float(np.median(differences)),
        median_low=median_low,
        median_high=median_high,
        sign_p=sign_p(ahead, behind),
    )


def by_seed(first: Mapping[int, float], second: Mapping[int, float]) -> tuple[Floats, Floats]:
    """Return the values of both in the order of their seeds, which must be the same."""
    if alone := sorted(set(first) ^ set(second)):
        raise FLError(f"only one of the two methods has the seeds {alone}: run the other with them too")
    seeds = sorted(first)
    return (
        series("values of the first", [first[seed] for seed in seeds]),
        series("values of the second", [second[seed] for seed in seeds]),
    )


def sign_p(ahead: int, behind: int) -> float:
    """Return the p-value of the two-sided sign test, without ties."""
    if min(ahead, behind) < 0:
        raise FLError(f"{ahead} ahead and {behind} behind: counts cannot be negative")
    return min(1.0, 2 * _tail(ahead + behind, min(ahead, behind)))


def median_interval(values: ArrayLike, level: float = 0.95) -> tuple[float, float]:
    """Return an interval with the median, with confidence at least `level`, for any distribution.

    It is from the k-th lowest to the k-th highest value, with the greatest k that has the confidence. Even k
    = 1 needs 6 values for 95 %; with fewer, it is unbounded.
    """
    ordered = np.sort(series("values", values))
    if not 0 < level < 1:
        raise FLError(f"a confidence of {level}: give one between 0 and 1, such as 0.95")
    outside = 0
    while 2 * _tail(len(ordered), outside) <= 1 - level:
        outside += 1
    if not outside:
        return -math.inf, math.inf
    return float(ordered[outside - 1]), float(ordered[-outside])


def _tail(tosses: int, most: int) -> float:
    """Return the probability that at most `most` of so many fair coins show heads."""
    return sum(math.comb(tosses, heads) for heads in range(most + 1)) / (1 << tosses)


def _statistic(mean: float, error: float) -> float:
    """Return Student's t. Equal differences give infinity, unless they are all 0."""
    if error > 0:
        return mean / error
    return 0.0 if mean == 0 else math.inf


def two_sided_p(statistic: float, freedom: int) -> float:
    """Return the probability of a Student's t statistic at least as far from 0."""
    return float(2 * stats.t.sf(abs(statistic), freedom))


def two_sided_quantile(level: float, freedom: int) -> float:
    """Return the t for which [-t, t] has the probability `level`."""
    if not 0 < level < 1:
        raise FLError(f"a confidence of {level}: give one between 0 and 1, such as 0.95", parameter="level")
    return float(stats.t.ppf((1 + level) / 2, freedom))
