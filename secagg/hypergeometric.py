"""The hypergeometric distribution: P[X >= count], and the least count for which it is at most a given bound.

Of `population` members, `marked` are marked. `drawn` of them are drawn at random, without replacement. X is
the number of marked members among the drawn ones. The ratio

    P[X = x + 1] / P[X = x] = (marked - x)(drawn - x) / ((x + 1)(population - marked - drawn + x + 1))

falls as x grows. The code needs no factorials. The most probable count gets a fixed weight, and the weight of
each other count is that of its neighbour times such a ratio. A probability is a sum of weights divided by the
sum of all weights. (Log-gamma would give an error near 2^-16 for a population of 10^9.)

A sum of m weights has a relative error of less than 3m / 2^53 for any population: each ratio is one rounded
division, each weight one rounded product, and all weights are positive. If the bound is within this error of
the sum, the comparison is repeated exactly, with integers.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import comb, fsum, log2
from typing import Final

from secagg.errors import ParameterError

# Assumed relative error of rounding for each term of a sum or product; 16 more terms are added for safety.
ROUNDING: Final = 2.0**-49
# If a weight is smaller than another by this factor, it is left out, with all weights after it. As ratios
# fall, the weights left out sum to less than (m + 2) times the first of them, with m weights in between.
_NEGLIGIBLE: Final = 2.0**-64
# The weight of the mode. It is such that no sum overflows a float and no weight that matters underflows.
_MODE: Final = 2.0**900


@dataclass(frozen=True)
class Hypergeometric:
    """The distribution of X: `marked` of `population` members are marked, `drawn` members are drawn at random
    without replacement, and X of the drawn ones are marked. Raises `ParameterError` if this is impossible."""

    population: int
    marked: int
    drawn: int

    def __post_init__(self) -> None:
        if not (0 <= self.marked <= self.population and 0 <= self.drawn <= self.population):
            raise ParameterError(
                f"impossible to draw {self.drawn} of {self.population} members, {self.marked} of them marked"
            )

    @cached_property
    def mode(self) -> int:
        """The most probable number X of marked members drawn; the larger one if two are equally probable."""
        return (self.drawn + 1) * (self.marked + 1) // (self.population + 2)

    @property
    def most(self) -> int:
        return min(self.drawn, self.marked)

    def rare_from(self, *, times: int, bits: int) -> int:
        """Return the least count with `times` * P[X >= count] <= 2^-bits. The result is exact, not rounded.
        `times` must exceed `drawn`. The result is then above the mode, because the mode has a probability of
        at least 1 / (drawn + 1)."""
        limit = _MODE * 2.0**-bits / times
        above = self._weights_above(self.mode, limit * _NEGLIGIBLE)
        below = self._weights_below_mode()
        limit *= (_MODE + fsum(above) + fsum(below)) / _MODE
        slack = (len(above) + len(below) + 16) * ROUNDING
        tail = 0.0
        for count in range(self.mode + len(above), self.mode, -1):
            tail += above[count - self.mode - 1]
            if tail < limit * (1 - slack):
                continue
            if tail > limit * (1 + slack) or not self._is_rare(count, times, bits):
                return count + 1
        return self.mode + 1

    def log2_at_least(self, count: int) -> float | None:
        """Return log2 P[X >= count], or None if the probability is 0. `count` must not be below the mode."""
        if count > self.most:
            return None
        ratios = map(self._terms, range(self.mode, count))
        climb = fsum(log2(above / below) for above, below in ratios)
        least = _MODE * _NEGLIGIBLE
        tail = _MODE + fsum(self._weights_above(count, least))
        total = _MODE + fsum(self._weights_above(self.mode, least)) + fsum(self._weights_below_mode())
        return climb + log2(tail) - log2(total)

    def _is_rare(self, count: int, times: int, bits: int) -> bool:
        """Return whether `times` * P[X >= count] <= 2^-bits, computed exactly, with integers."""
        ways = comb(self.marked, count) * comb(self.population - self.marked, self.drawn - count)
        favourable = ways
        for x in range(count, self.most):
            above, below = self._terms(x)
            ways = ways * above // below
            favourable += ways
        return favourable * times << bits <= comb(self.population, self.drawn)

    def _weights_above(self, start: int, least: float) -> list[float]:
        """Return P[X = x] / P[X = start] * `_MODE` for x = start + 1, start + 2, ... while >= `least`."""
        weights = []
        weight = _MODE
        for x in range(start, self.most):
            above, below = self._terms(x)
            weight *= above / below
            if weight < least:
                break
            weights.append(weight)
        return weights

    def _weights_below_mode(self) -> list[float]:
        """Return P[X = x] / P[X = mode] * `_MODE` for x = mode - 1 downwards, until it becomes negligible."""
        unmarked = Hypergeometric(self.population, self.population - self.marked, self.drawn)
        return unmarked._weights_above(self.drawn - self.mode, _MODE * _NEGLIGIBLE)

    def _terms(self, x: int) -> tuple[int, int]:
        """Return the numerator and the denominator of the ratio P[X = x + 1] / P[X = x], both as integers."""
        apart = self.population - self.marked - self.drawn
        return (self.marked - x) * (self.drawn - x), (x + 1) * (apart + x + 1)
