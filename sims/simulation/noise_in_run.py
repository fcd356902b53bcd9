"""Tests the noise in a simulated run's own sums, whose inputs the process that simulates clients knows.

The difference between a released total and the sum of the clipped inputs is noise and errors of rounding. The
variance of the noise is known, and that of rounding is at most 1/4 for each client and element, in grid
points squared. Differences are tested for variance, mean, and correlations between elements and sums. A
total may also wrap around modulo 2^bits, which is rare. So totals that differ far too much are only counted,
and compared with how many wrap around on average.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import chi2, norm, poisson

from secagg.sum_spec import Count, Part, SumSpec, Total
from sims.noise_audit import reference_encoding as reference
from sims.noise_audit.alarm_budget import NoiseTest, alarms
from sims.noise_audit.noise_statistics import (
    PairsOfVectors,
    Repetitions,
    normal_p,
    variance_p,
    variance_p_of_elements,
    worst,
)

Real: TypeAlias = NDArray[np.float64]

_LIKELY: Final = 0.01  # a total that wraps around with this probability is not tested
_FAR: Final = 1e-6
_ROUNDING: Final = 0.25  # the most that the rounding of one client's element adds to the variance


@dataclass(frozen=True)
class RunNoise:
    """What was measured of the noise in one kind of sum of a run."""

    sums: int  # released totals that were tested
    skipped: int  # that could not be: an input is unknown, or the total may have wrapped around
    tests: tuple[NoiseTest, ...]
    alarms: tuple[NoiseTest, ...]
    variance_ratio: float | None  # measured over promised; None if no sum was tested


class _PartDifferences:
    """Collects the differences of one part, divided by the standard deviation that they should have."""

    def __init__(self, part: Part) -> None:
        self._name, width = part.name, part.size
        self._squares = np.zeros(width)
        self._sums = np.zeros(width)
        self._vectors = 0
        self._excess = 0.0  # the most by which rounding increases the variance, relative to the noise
        self._repetitions, self._pairs = Repetitions(width), PairsOfVectors(width)

    @property
    def ratio(self) -> float | None:
        return float(self._squares.mean()) / self._vectors if self._vectors else None

    def add(self, difference: Real, excess: float) -> None:
        self._vectors += 1
        self._squares += np.square(difference)
        self._sums += difference
        self._excess = max(self._excess, excess)
        self._repetitions.add(difference)
        self._pairs.add(difference)

    def tests(self, subject: str) -> list[NoiseTest]:
        if not self._vectors:
            return []
        most, vectors, samples = 1 + self._excess, self._vectors, self._squares.size * self._vectors
        ratio = float(self._squares.sum()) / samples
        nearest = min(max(ratio, 1.0), most)
        p = float(variance_p(ratio / nearest, samples)) if nearest != ratio else 1.0
        found = [NoiseTest(subject, "variance", p, ratio, 1.0)]
        above = variance_p_of_elements(self._squares, most, vectors)
        below = variance_p_of_elements(self._squares, 1.0, vectors)
        p_of_elements = np.where(
            self._squares < vectors, below, np.where(self._squares > most * vectors, above, 1)
        )
        found.append(NoiseTest(subject, "variance of each element", worst(p_of_elements)))
        total = float(self._sums.sum())
        p = float(normal_p(total / math.sqrt(most * samples)))
        found.append(NoiseTest(subject, "mean", p, total / samples, 0.0))
        p = worst(normal_p(self._sums / math.sqrt(most * vectors)))
        found.append(NoiseTest(subject, "mean of each element", p))
        found += self._repetitions.tests(subject, most)
        found += self._pairs.tests(subject, most)
        return found


class NoiseInRun:
    """Compares the totals of one kind of sum of a run with the inputs of its clients."""

    def __init__(self, spec: SumSpec, *, kinds: int) -> None:
        """`kinds` is how many kinds of sums a check covers, which share its false-alarm rate."""
        self._spec, self._kinds = spec, kinds
        self._wrapped = 0  # totals that differ too much, and may have wrapped around
        self._expected_wrapped = 0.0  # how many of them are expected
        self._parts = {part.name: _PartDifferences(part) for part in spec.parts}
        self.sums = self.skipped = 0

    def add(
        self, inputs: Mapping[int, Mapping[str, ArrayLike]], contributors: tuple[int, ...], total: Total
    ) -> None:
        """Add a released total over the `contributors`, and the values that clients answered, by client."""
        spec, promise = self._spec, self._spec.promise
        assert promise is not None  # the sum has noise
        if not contributors or not all(member in inputs for member in contributors):
            self.skipped += 1
            return
        shares = promise.components(total.invited)
        surplus = promise.surplus(total.invited, len(contributors))
        kept = float(sum(share for layer, share in enumerate(shares) if layer not in surplus))
        found: list[tuple[str, Real, float]] = []
        wraps = 0.0
        for part in spec.parts:
            assert part.noise is not None
            expected = sum(
                reference.clipped(part, np.asarray(inputs[each][part.name])) for each in contributors
            )
            variance = len(contributors) * kept * float(part.noise.variance)
            points = np.asarray(expected) * part.noise.scale
            most_variance = variance + _ROUNDING * len(contributors)
            wraps += _wrap_probability(part, points, most_variance, invited=total.invited)
            decoded = np.asarray(total[part.name], np.float64)
            difference: Real = (decoded - expected) * (part.noise.scale / math.sqrt(variance))
            excess = 0.0 if part.counts else _ROUNDING * len(contributors) / variance
            found.append((part.name, difference, excess))
        if wraps > _LIKELY:
            self.skipped += 1
            return
        self.sums += 1
        self._expected_wrapped += wraps + _FAR * len(found)
        if any(_too_large(difference, excess) for _, difference, excess in found):
            self._wrapped += 1
            return
        for name, difference, excess in found:
            self._parts[name].add(difference, excess)

    def result(self) -> RunNoise:
        """Return the tests of all sums so far."""
        several = len(self._parts) > 1
        tests = [
            test
            for name, each in self._parts.items()
            for test in each.tests(f"part {name}: own sums" if several else "own sums")
        ]
        p = float(poisson.sf(self._wrapped - 1, self._expected_wrapped))
        name = "totals that seem to have wrapped around"
        tests.append(NoiseTest("own sums", name, p, float(self._wrapped), self._expected_wrapped))
        first = next(iter(self._parts.values()))
        return RunNoise(self.sums, self.skipped, tuple(tests), alarms(tests, kinds=self._kinds), first.ratio)


def _too_large(difference: Real, excess: float) -> bool:
    """Return whether the difference is so large that noise alone exceeds it with probability `_FAR`."""
    return bool(chi2.sf(float(np.square(difference).sum()) / (1 + excess), len(difference)) < _FAR)


def _wrap_probability(part: Part, points: Real, variance: float, *, invited: int) -> float:
    """Return an upper bound of the probability that an element of a total near `points` wraps around modulo
    2^bits, if noise and rounding have this variance."""
    highest, lowest = 2.0 ** (part.bits - 1), -(2.0 ** (part.bits - 1))
    if isinstance(part.bound, Count):  # Half of the residues that no total has stand for negative numbers.
        assert part.noise is not None
        lowest = -((2.0**part.bits - 1 - part.noise.scale * invited * part.bound.limit) // 2)
        highest = 2.0**part.bits + lowest
    if part.is_rotated:  # A rotated vector is spread over all elements like Gaussian noise.
        deviation = math.sqrt(variance + float(np.square(points).sum()) / part.width)
        return float(2 * part.width * norm.sf(highest / deviation))
    deviation = math.sqrt(variance)
    below, above = norm.sf((points - lowest) / deviation), norm.sf((highest - points) / deviation)
    return float((below + above).sum())
