"""Scales: from values to places in a drawing, with ticks at round numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

_STEPS: Final = (1.0, 2.0, 2.5, 5.0, 10.0)


@dataclass(frozen=True)
class Scale:
    """Linear: `low` is drawn at `start`, and `high` at `end`."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)

    def ticks(self, most: int = 6, *, whole: bool = False) -> tuple[float, ...]:
        """Round numbers within the scale, `most` of them at most."""
        step = _step((self.high - self.low) / max(1, most - 1), whole=whole)
        first = math.ceil(self.low / step - 1e-9)
        last = math.floor(self.high / step + 1e-9)
        return tuple(round(step * place, 12) for place in range(first, last + 1))


def around(low: float, high: float, *, start: float, end: float, whole: bool = False, most: int = 5) -> Scale:
    """A scale whose ends are round and have all values between them."""
    if high <= low:
        high = low + (1.0 if whole or low == 0 else abs(low) * 0.5)
    step = _step((high - low) / max(1, most - 1), whole=whole)
    low, high = math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step
    return Scale(round(low, 12), round(high, 12), start, end)


def _step(least: float, *, whole: bool) -> float:
    """The smallest round number that is not below `least`."""
    power = 10.0 ** math.floor(math.log10(least))
    step = next(power * each for each in _STEPS if power * each >= least * (1 - 1e-9))
    return max(1.0, math.ceil(step)) if whole else step
