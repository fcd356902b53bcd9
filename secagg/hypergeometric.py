"""How many marked members a random draw holds, and from which count on that is too rare to matter.

Of `population` members, `marked` are marked. Draw `drawn` of them, putting none back; X of these are marked.

    P[X = x + 1] / P[X = x] = (marked - x)(drawn - x) / ((x + 1)(population - marked - drawn + x + 1))

falls as x grows. So probabilities are computed without any factorial: the mode has some weight, every other
weight is the one beside it times a ratio, and a probability is a weight over the sum of all weights. (Taken
from log-gamma instead, a probability in a population of 10^9 would have an error near 2^-16.)

Each ratio is one correctly rounded division of integers and each weight one product more, so a sum of m
weights, all of them positive, is off by less than 3m parts in 2^53, whatever the population. Where that
leaves a decision open, integers take it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import comb, fsum, log2
from typing import Final

from secagg.errors import ParameterError

# Assumed rounding error: this relative error for every term of a sum or product, and for sixteen more.
ROUNDING: Final = 2.0**-49
# A weight this far below another is negligible beside it, together with all that follow: ratios fall, so they
# sum up to less than that weight times two more than the number of weights between.
_NEGLIGIBLE: Final = 2.0**-64
# The weight of the mode. No sum of weights is too large for a float then, and none that counts too small.
_MODE: Final = 2.0**900


@dataclass(frozen=True)
class Hypergeometric:
    """The distribution of the number of marked members in a draw."""

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
        """The likeliest count, the larger one if there are two."""
        return (self.drawn + 1) * (self.marked + 1) // (self.population + 2)

    @property
    def most(self) -> int:
        return min(self.drawn, self.marked)

    def rare_from(self, *, times: int, bits: int) -> int:
        """Return the least count with `times` * P[X >= count] <= 2^-bits, exactly.

        `times` must exceed `drawn`. Then the mode is not rare: its probability is at least 1 / (drawn + 1).
        """
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
        """Return log2 P[X >= count] for a count from the mode on; None if it cannot happen."""
        if count > self.most:
            return None
        ratios = map(self._terms, range(self.mode, count))
        climb = fsum(log2(above / below) for above, below in ratios)
        least = _MODE * _NEGLIGIBLE
        tail = _MODE + fsum(self._weights_above(count, least))
        total = _MODE + fsum(self._weights_above(self.mode, least)) + fsum(self._weights_below_mode())
        return climb + log2(tail) - log2(total)

    def _is_rare(self, count: int, times: int, bits: int) -> bool:
        """Decide in integers: count the draws with `count` marked members or more."""
        ways = comb(self.marked, count) * comb(self.population - self.marked, self.drawn - count)
        favourable = ways
        for x in range(count, self.most):
            above, below = self._terms(x)
            ways = ways * above // below
            favourable += ways
        return favourable * times << bits <= comb(self.population, self.drawn)

    def _weights_above(self, start: int, least: float) -> list[float]:
        """Yield the weights of start + 1, start + 2, ... down to `least`; `start` has that of the mode."""
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
        """Yield them as the weights of many unmarked members."""
        unmarked = Hypergeometric(self.population, self.population - self.marked, self.drawn)
        return unmarked._weights_above(self.drawn - self.mode, _MODE * _NEGLIGIBLE)

    def _terms(self, x: int) -> tuple[int, int]:
        """Return P[X = x + 1] / P[X = x] as numerator and denominator."""
        apart = self.population - self.marked - self.drawn
        return (self.marked - x) * (self.drawn - x), (x + 1) * (apart + x + 1)
