"""Whether numbers look uniformly random: a histogram, Pearson's chi-square, and its p-value."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from secagg.ring import Residues

BUCKETS: Final = 32
_BARS: Final = "▁▂▃▄▅▆▇█"


@dataclass(frozen=True)
class Histogram:
    """How many residues fell into each of `BUCKETS` equal ranges."""

    counts: tuple[int, ...]

    @classmethod
    def of(cls, residues: Residues, bits: int) -> Histogram:
        """Buckets by the leading five of `bits` bits."""
        buckets = residues.astype(np.uint64) >> np.uint64(bits - BUCKETS.bit_length() + 1)
        return cls(tuple(int(n) for n in np.bincount(buckets.astype(np.int64), minlength=BUCKETS)))

    @property
    def total(self) -> int:
        return sum(self.counts)

    @property
    def bars(self) -> str:
        """One character per bucket, the fullest one as a full block."""
        most = max(self.counts)
        return "".join(_BARS[round(count / most * (len(_BARS) - 1))] for count in self.counts)

    @property
    def chi_square(self) -> float:
        """Distance from equal counts; about `BUCKETS - 1` for uniform residues."""
        expected = self.total / BUCKETS
        return sum((count - expected) ** 2 for count in self.counts) / expected

    @property
    def p_value(self) -> float:
        """How often uniform residues would be at least that far off."""
        return chi_square_tail(self.chi_square, BUCKETS - 1)


def chi_square_tail(value: float, degrees: int) -> float:
    """P(X >= value) for a chi-square of an odd number of `degrees`, by its closed form."""
    half = value / 2
    terms = ((i - 0.5) * math.log(half) - half - math.lgamma(i + 0.5) for i in range(1, (degrees + 1) // 2))
    return math.erfc(math.sqrt(half)) + (sum(map(math.exp, terms)) if half else 0.0)
